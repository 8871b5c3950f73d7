//! Message memory: holds the receive and send places of one queue pair's messages.
//!
//! - **INV-MESSAGE-1** The memory is registered and lives as long as its queue pair, so that a posted
//!   message may land at any time before the pair is destroyed.
//! - **INV-MESSAGE-2** Message `n` has place `n` modulo their number, on either side. The user of a place
//!   knows that the place's last message has gone.

use std::io;
use std::sync::Arc;

use super::device::{Device, WordsKey};
use super::ffi::ibv_sge;
use crate::Words;
use crate::verbs::VerbsError;

/// Places of a queue pair's messages.
#[derive(Debug)]
pub(super) struct Messages {
    memory: Arc<WordsKey>,
    /// Places of one side.
    count: u64,
    /// Bytes of a place, whole words.
    bytes: usize,
}

impl Messages {
    /// `count` places each way, for messages of up to `bytes`.
    pub(super) fn new(
        device: &Arc<Device>,
        count: u16,
        bytes: usize,
    ) -> Result<Messages, VerbsError> {
        let bytes = bytes.next_multiple_of(64);
        let all = 2 * usize::from(count) * bytes;
        let words = Words::anonymous(all / 8).ok_or_else(|| {
            device.failed("map memory for messages")(io::ErrorKind::OutOfMemory.into())
        })?;
        let memory = Arc::new(device.register(Arc::new(words), false)?);
        Ok(Messages { memory, count: count.into(), bytes })
    }

    /// Places of one side.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Keeps the memory registered until the process ends.
    pub(super) fn leak(&self) {
        std::mem::forget(Arc::clone(&self.memory));
    }

    /// Byte at which message `number` is received.
    fn received_at(&self, number: u64) -> usize {
        (number % self.count) as usize * self.bytes
    }

    /// Byte from which message `number` is sent.
    fn sent_at(&self, number: u64) -> usize {
        self.received_at(number) + self.count as usize * self.bytes
    }

    fn place(&self, at: usize, bytes: usize) -> ibv_sge {
        let addr = self.memory.base() + at as u64;
        ibv_sge { addr, length: bytes as u32, lkey: self.memory.local() }
    }

    /// The place in which message `number` will arrive.
    pub(super) fn to_receive(&self, number: u64) -> ibv_sge {
        self.place(self.received_at(number), self.bytes)
    }

    /// The place from which message `number`, of `bytes`, is sent.
    pub(super) fn to_send(&self, number: u64, bytes: u32) -> ibv_sge {
        self.place(self.sent_at(number), (bytes as usize).min(self.bytes))
    }

    /// Copies message `number`, of `bytes`, which has arrived.
    pub(super) fn load(&self, number: u64, bytes: u32, into: &mut Vec<u8>) {
        into.resize((bytes as usize).min(self.bytes), 0);
        self.memory.words().load_bytes(self.received_at(number), into);
    }

    /// Writes message `number` to its place; returns its bytes.
    ///
    /// # Panics
    /// If it is longer than a place.
    pub(super) fn store(&self, number: u64, [head, content]: [&[u8]; 2]) -> u32 {
        let bytes = head.len() + content.len();
        assert!(bytes <= self.bytes, "a message of {bytes} bytes");
        let at = self.sent_at(number);
        self.memory.words().store_bytes(at, head);
        self.memory.words().store_bytes(at + head.len(), content);
        bytes as u32
    }
}
