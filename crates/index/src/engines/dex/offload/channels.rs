//! Channels: number the changes, so that a memory server recognizes a resent one (`INV-DEX-OFF-2`).

use std::sync::Arc;

use super::handler::CHANNELS_MAX;
use crate::engines::dex::Cache;
use crate::sync::lock;

/// Channels: who has one sends one change at a time on it.
#[derive(Debug, Default)]
pub(super) struct Channels {
    free: Vec<u16>,
    /// The last sequence number of each.
    sequences: Vec<u64>,
}

/// A channel that is the caller's.
pub(super) struct Channel {
    cache: Arc<Cache>,
    pub(super) number: u16,
    pub(super) sequence: u64,
}

impl Channel {
    /// One that nobody has; `None` if too many changes are under way.
    pub(super) fn take(cache: &Arc<Cache>) -> Option<Channel> {
        let mut channels = lock(&cache.offloads.channels);
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
        Some(Channel { cache: Arc::clone(cache), number, sequence })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        lock(&self.cache.offloads.channels).free.push(self.number);
    }
}
