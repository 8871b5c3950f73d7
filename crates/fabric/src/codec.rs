//! Byte codec: reads and writes the fields of messages and records, integers in little-endian order.
//!
//! - **INV-CODEC-1** A [`Reader`] returns no byte beyond its input's end, whatever lengths the input names. It neither
//!   panics nor allocates, so that it may read what anybody has sent.

/// Bytes that do not have the expected form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: expected {expected}")]
pub struct DecodeError {
    /// First byte of the field that differs.
    pub at: usize,
    /// Form that the field should have.
    pub expected: &'static str,
}

/// Reads one field after the other. Each method fails if its field ends beyond the input.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Bytes before the last field, and before `rest`.
    field: usize,
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes, field: 0, at: 0 }
    }

    /// Decodes `bytes` by `fields`, which must read all of them.
    pub fn whole<T>(
        bytes: &'a [u8],
        fields: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let mut reader = Reader::new(bytes);
        let decoded = fields(&mut reader);
        if decoded.is_ok() && !reader.is_empty() {
            return Err(DecodeError { at: reader.at, expected: "the end" });
        }
        // Not moved, since it may be large.
        decoded
    }

    /// Returns whether the input has ended.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the error that the last field does not have this form.
    pub fn expected(&self, expected: &'static str) -> DecodeError {
        DecodeError { at: self.field, expected }
    }

    /// Fails unless `holds` is true of the last field.
    #[inline]
    pub fn ensure(&self, holds: bool, expected: &'static str) -> Result<(), DecodeError> {
        if holds { Ok(()) } else { Err(self.expected(expected)) }
    }

    /// Reads `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        self.field = self.at;
        let split = self.rest.split_at_checked(len);
        let (taken, rest) = split.ok_or_else(|| self.expected("more bytes"))?;
        (self.rest, self.at) = (rest, self.at + len);
        Ok(taken)
    }

    /// Passes over `len` bytes.
    #[inline]
    pub fn skip(&mut self, len: usize) -> Result<&mut Self, DecodeError> {
        self.take(len).map(|_| self)
    }

    /// Reads `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Reads bytes that must be these.
    #[inline]
    pub fn exactly(&mut self, bytes: &'static [u8], name: &'static str) -> Result<(), DecodeError> {
        let found = self.take(bytes.len())?;
        self.ensure(found == bytes, name)
    }

    /// Reads a byte that is 0 or 1.
    #[inline]
    pub fn flag(&mut self) -> Result<bool, DecodeError> {
        let byte = self.u8()?;
        self.ensure(byte <= 1, "0 or 1").map(|()| byte == 1)
    }

    /// Reads a byte that stands for one of `all`.
    pub fn one_of<T: Copy>(
        &mut self,
        all: &[T],
        byte: impl Fn(T) -> u8,
        name: &'static str,
    ) -> Result<T, DecodeError> {
        let found = self.u8()?;
        all.iter().copied().find(|it| byte(*it) == found).ok_or(self.expected(name))
    }

    /// Reads bytes behind their length, as [`Writer::sized`] writes them.
    #[inline]
    pub fn sized(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    /// Reads a flag, and behind `true` bytes with their length.
    #[inline]
    pub fn optional(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        if self.flag()? { self.sized().map(Some) } else { Ok(None) }
    }
}

/// Appends one field after the other.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Returns the bytes of words.
    #[inline]
    pub fn bytes_of(words: &[u64]) -> Vec<u8> {
        Writer::default().words(words).finish()
    }

    /// Returns the bytes, and keeps none.
    #[inline]
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Returns the first `N` bytes, zeros where there are fewer.
    pub fn padded<const N: usize>(&self) -> [u8; N] {
        std::array::from_fn(|at| self.0.get(at).copied().unwrap_or(0))
    }

    /// Appends bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends words.
    #[inline]
    pub fn words(&mut self, words: &[u64]) -> &mut Self {
        self.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self
    }

    /// Appends 1 for `true`, 0 for `false`.
    #[inline]
    pub fn flag(&mut self, flag: bool) -> &mut Self {
        self.u8(flag.into())
    }

    /// Appends the length in 4 bytes, then the bytes.
    #[inline]
    pub fn sized(&mut self, bytes: &[u8]) -> &mut Self {
        // No message can hold as many bytes as do not fit the length.
        self.u32(bytes.len().min(u32::MAX as usize) as u32).put(bytes)
    }

    /// Appends `true` and the bytes with their length, or `false`.
    #[inline]
    pub fn optional(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        self.flag(bytes.is_some());
        bytes.into_iter().fold(self, Self::sized)
    }
}

macro_rules! integers {
    ($($integer:ident),*) => {
        impl Reader<'_> {$(
            /// Reads an integer.
            #[inline]
            pub fn $integer(&mut self) -> Result<$integer, DecodeError> {
                self.array().map($integer::from_le_bytes)
            }
        )*}

        impl Writer {$(
            /// Appends an integer.
            #[inline]
            pub fn $integer(&mut self, integer: $integer) -> &mut Self {
                self.put(&integer.to_le_bytes())
            }
        )*}
    };
}

integers!(u8, u16, u32, u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written_and_cut_ones_are_refused() {
        let mut out = Writer::default();
        let bytes = out.u8(1).u16(0x302).u32(4).flag(true).sized(b"abc").words(&[5]).finish();
        let parts = [&[1, 2, 3, 4, 0, 0, 0, 1, 3, 0, 0, 0][..], b"abc", &[5, 0, 0, 0, 0, 0, 0, 0]];
        assert_eq!(bytes, parts.concat());
        assert_eq!((out.u16(0x102).padded(), out.padded()), ([2, 1, 0, 0], [2]));
        let read = |bytes| {
            let fields = |it: &mut Reader<'_>| {
                Ok(((it.u8()?, it.u16()?, it.u32()?), it.optional()?.map(Vec::from), it.u64()?))
            };
            Reader::whole(bytes, fields)
        };
        assert_eq!(read(&bytes), Ok(((1, 0x302, 4), Some(b"abc".to_vec()), 5)));
        for cut in 0..bytes.len() {
            let at = [0, 1, 3, 7, 8, 12, 15].into_iter().rfind(|at| *at <= cut).expect("a field");
            assert_eq!(read(&bytes[..cut]), Err(DecodeError { at, expected: "more bytes" }));
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(read(&longer), Err(DecodeError { at: 23, expected: "the end" }));
    }

    #[test]
    fn an_error_names_the_field_and_what_was_expected() {
        let fields = |it: &mut Reader<'_>| it.exactly(b"TAG", "a tag").and_then(|()| it.flag());
        let why = |bytes| Reader::whole(bytes, fields).expect_err("refused").to_string();
        assert_eq!(why(b"TAX\0"), "at byte 0: expected a tag");
        assert_eq!(why(b"TAG\x02"), "at byte 3: expected 0 or 1");
        // Lengths beyond all that can be.
        assert!(Reader::whole(&[255; 9], |it| it.sized().map(drop)).is_err());
        assert!(Reader::new(b"a").take(usize::MAX).is_err());
    }
}
