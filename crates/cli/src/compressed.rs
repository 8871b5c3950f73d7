//! Compressed input: decompresses gzip, and names other formats, by the first bytes.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::mem;

use flate2::bufread::MultiGzDecoder;

/// First bytes of each format that is not read, and the program that decompresses it.
const OTHERS: [(&[u8], &str); 4] = [
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh91AY&SY", "bzip2"),
    (b"\x04\x22\x4d\x18", "lz4"),
];
/// First bytes of gzip, with its only method.
const GZIP: &[u8] = b"\x1f\x8b\x08";

/// The decompressed bytes of an input, which begins to be read when the first ones are asked for.
pub(crate) enum Decompressed<R> {
    Unknown(R),
    Plain(Begun<R>),
    // A gzip file may be several that stand one after the other.
    Gzip(Box<BufReader<MultiGzDecoder<Begun<R>>>>),
    /// Its first bytes failed.
    Ended,
}

/// An input, with the bytes before it that were looked at.
type Begun<R> = Chain<Cursor<Vec<u8>>, R>;

impl<R: BufRead> Decompressed<R> {
    pub(crate) fn new(input: R) -> Self {
        Decompressed::Unknown(input)
    }

    /// Looks at the first bytes, and at no more than tell the formats apart: the input may be a person.
    fn begin(&mut self) -> io::Result<()> {
        if !matches!(self, Decompressed::Unknown(_)) {
            return Ok(());
        }
        let Decompressed::Unknown(mut input) = mem::replace(self, Decompressed::Ended) else {
            return Ok(());
        };
        let all = || OTHERS.iter().map(|(magic, _)| *magic).chain([GZIP]);
        let mut first = Vec::new();
        while all().any(|magic| magic.len() > first.len() && magic.starts_with(&first)) {
            let mut byte = [0];
            match input.read(&mut byte) {
                Ok(0) => break,
                Ok(_) => first.extend(byte),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if let Some((_, program)) = OTHERS.iter().find(|(magic, _)| first.starts_with(magic)) {
            let why = format!(
                "it is compressed by {program}: decompress it first, as in {program} -dc FILE | farleaf ..."
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let is_gzip = first.starts_with(GZIP);
        let input = Cursor::new(first).chain(input);
        *self = if is_gzip {
            Decompressed::Gzip(Box::new(BufReader::new(MultiGzDecoder::new(input))))
        } else {
            Decompressed::Plain(input)
        };
        Ok(())
    }
}

/// Says of a failure in compressed bytes that it is one.
fn in_gzip(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            let why = format!("it begins like gzip, and is damaged or cut short: {error}");
            io::Error::new(io::ErrorKind::InvalidData, why)
        }
        _ => error,
    }
}

impl<R: BufRead> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.begin()?;
        match self {
            Decompressed::Plain(input) => input.read(buffer),
            Decompressed::Gzip(input) => input.read(buffer).map_err(in_gzip),
            Decompressed::Unknown(_) | Decompressed::Ended => Ok(0),
        }
    }
}

impl<R: BufRead> BufRead for Decompressed<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.begin()?;
        match self {
            Decompressed::Plain(input) => input.fill_buf(),
            Decompressed::Gzip(input) => input.fill_buf().map_err(in_gzip),
            Decompressed::Unknown(_) | Decompressed::Ended => Ok(&[]),
        }
    }

    fn consume(&mut self, count: usize) {
        match self {
            Decompressed::Plain(input) => input.consume(count),
            Decompressed::Gzip(input) => input.consume(count),
            Decompressed::Unknown(_) | Decompressed::Ended => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// Gives one byte at a time.
    struct Slow(Vec<u8>);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() || buffer.is_empty() {
                return Ok(0);
            }
            buffer[0] = self.0.remove(0);
            Ok(1)
        }
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let input = BufReader::with_capacity(1, Slow(bytes.to_vec()));
        Decompressed::new(input).read_to_end(&mut all)?;
        Ok(all)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_is_decompressed_and_other_bytes_are_as_they_are() {
        let two = [gzip(b"one\n"), gzip(b"two\n")].concat();
        assert_eq!(read(&two).unwrap(), b"one\ntwo\n");
        for plain in [&b""[..], b"a", b"\x1f", b"\x1f\x8b", b"\x1f\x8b\x07", b"BZh", b"BZh91 bytes"]
        {
            assert_eq!(read(plain).unwrap(), plain);
        }
    }

    #[test]
    fn damage_and_other_formats_are_named() {
        let whole = gzip(&b"some words\n".repeat(100));
        let error = read(&whole[..whole.len() - 9]).unwrap_err();
        assert!(error.to_string().contains("begins like gzip"), "{error}");
        let mut changed = whole;
        let at = changed.len() - 6;
        changed[at] ^= 1;
        assert!(read(&changed).unwrap_err().to_string().contains("damaged"));
        for (magic, program) in OTHERS {
            let error = read(&[magic, b"more"].concat()).unwrap_err();
            assert!(error.to_string().contains(&format!("compressed by {program}")), "{error}");
        }
    }
}
