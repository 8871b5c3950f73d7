//! Input bytes: take an input apart.

/// The rest of an input. At its end it goes on with zeros.
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Bytes(input)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// At most `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// Changes a word: to something from the input, or one of the values that break things.
    pub(crate) fn change(&mut self, word: u64) -> u64 {
        match self.u8() % 8 {
            0 => self.u64(),
            1 => word ^ 1 << (self.u8() % 64),
            2 => word.wrapping_add(u64::from(self.u8())),
            3 => word.wrapping_sub(u64::from(self.u8())),
            4 => 0,
            5 => u64::MAX,
            6 => word & !0xffff | u64::from(self.u16()),
            _ => {
                // One byte of it.
                let shift = u32::from(self.u8() % 8) * 8;
                word & !(0xff << shift) | u64::from(self.u8()) << shift
            }
        }
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }
}
