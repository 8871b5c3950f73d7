//! Channels: number the changes, so that a memory server recognizes a resent one (`INV-DEX-OFF-2`).

use std::sync::Arc;

use farleaf_index::sync::lock;

use super::client::Offloads;
use super::handler::CHANNELS_MAX;

/// Channels: a task sends one change at a time on its channel.
#[derive(Debug, Default)]
pub(super) struct Channels {
    free: Vec<u16>,
    /// The last sequence number of each.
    sequences: Vec<u64>,
}

/// A channel that the caller alone uses. Dropping it frees the channel.
pub(crate) struct Channel {
    offloads: Arc<Offloads>,
    pub(super) number: u16,
    pub(super) sequence: u64,
}

impl Channel {
    /// Takes a free channel; `None` if too many changes are under way.
    pub(crate) fn take(offloads: &Arc<Offloads>) -> Option<Channel> {
        let mut channels = lock(&offloads.channels);
        let number = match channels.free.pop() {
            Some(number) => number,
            None => {
                let number = u16::try_from(channels.sequences.len()).ok()?;
                if number >= CHANNELS_MAX {
                    return None;
                }
                channels.sequences.push(0);
                number
            }
        };
        let last = &mut channels.sequences[usize::from(number)];
        *last += 1;
        let sequence = *last;
        drop(channels);
        Some(Channel { offloads: Arc::clone(offloads), number, sequence })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        lock(&self.offloads.channels).free.push(self.number);
    }
}
