//! Output buffer: holds bytes until the socket takes them.

/// Bytes of memory kept after a burst; the rest is freed.
const KEPT_MAX: usize = 1 << 20;

/// Bytes to send. Memory that was initialised once is not initialised again.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    filled: usize,
    sent: usize,
}

impl Output {
    /// Returns the bytes that have not been sent.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..self.filled]
    }

    /// Returns their number.
    #[inline]
    pub(super) fn unsent_bytes(&self) -> usize {
        self.filled - self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.filled
    }

    /// Returns the end of the content, for [`Output::truncate`].
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.filled
    }

    /// Takes back the bytes that were added behind `end`.
    #[inline]
    pub(super) fn truncate(&mut self, end: usize) {
        self.filled = self.filled.min(end);
    }

    /// Adds `len` bytes with any content, for the caller to fill.
    #[inline]
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.filled;
        self.filled += len;
        if self.filled > self.bytes.len() {
            self.grow();
        }
        &mut self.bytes[start..self.filled]
    }

    #[cold]
    fn grow(&mut self) {
        self.bytes.resize(self.filled.next_power_of_two().max(4096), 0);
    }

    /// As [`Output::push`].
    #[inline]
    pub(super) fn push_head<const LEN: usize>(&mut self, head: [u8; LEN]) {
        match self.bytes.get_mut(self.filled..).and_then(<[u8]>::first_chunk_mut) {
            Some(room) => {
                *room = head;
                self.filled += LEN;
            }
            None => self.push(&head),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// `count` bytes have been sent.
    pub(super) fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.filled {
            self.clear();
        }
    }

    /// Forgets the unsent bytes.
    pub(super) fn clear(&mut self) {
        (self.filled, self.sent) = (0, 0);
        if self.bytes.len() > KEPT_MAX {
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_out_in_order_and_room_is_given_back() {
        let mut output = Output::default();
        output.push(b"abc");
        let end = output.end();
        output.push(b"wrong");
        output.truncate(end);
        output.push(b"d");
        output.sent(2);
        assert_eq!(output.unsent(), b"cd");
        output.sent(2);
        assert!(output.is_empty());
        output.room(KEPT_MAX + 1).fill(1);
        output.sent(KEPT_MAX + 1);
        assert_eq!(output.bytes.capacity(), 0);
    }
}
