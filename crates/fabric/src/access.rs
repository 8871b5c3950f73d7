//! Memory access: runs one operation on one server's words, with checks of bounds and alignment.
//!
//! Every fabric that holds the words in this process shares it. For a server that does not exist
//! `region` is `None`, and the error names a region of 0 bytes.

use crate::{Buf, GlobalAddr, Op, OpError, OpErrorKind, Words};

/// The region, if `bytes` bytes from `addr` on lie inside it.
#[inline]
pub(crate) fn check(
    region: Option<&Words>,
    addr: GlobalAddr,
    bytes: usize,
) -> Result<&Words, OpError> {
    match region {
        Some(words) if addr.offset() + bytes as u64 <= words.bytes() => Ok(words),
        _ => Err(out_of_bounds(region, addr, bytes)),
    }
}

/// The region and the index of the aligned word at `at`.
#[inline]
pub(crate) fn word(region: Option<&Words>, at: GlobalAddr) -> Result<(&Words, usize), OpError> {
    let region = check(region, at, 8)?;
    if !at.offset().is_multiple_of(8) {
        let kind = OpErrorKind::Misaligned { addr: at };
        return Err(OpError { server: at.server(), kind });
    }
    Ok((region, (at.offset() / 8) as usize))
}

/// READ into the buffer's window.
#[inline(always)]
pub(crate) fn read(
    region: Option<&Words>,
    from: GlobalAddr,
    into: &mut Buf,
) -> Result<(), OpError> {
    let (at, len) = (into.window_start(), into.window_len());
    let region = check(region, from, len)?;
    let offset = from.offset() as usize;
    if (offset | at | len).is_multiple_of(8) {
        region.load(offset / 8, &mut into.words_mut()[at / 8..(at + len) / 8]);
    } else {
        region.load_bytes(offset, &mut into.bytes_mut()[at..at + len]);
    }
    Ok(())
}

/// WRITE of the buffer's window.
#[inline(always)]
pub(crate) fn write(region: Option<&Words>, to: GlobalAddr, from: &Buf) -> Result<(), OpError> {
    let (at, len) = (from.window_start(), from.window_len());
    let region = check(region, to, len)?;
    let offset = to.offset() as usize;
    if (offset | at | len).is_multiple_of(8) {
        region.store(offset / 8, &from.words()[at / 8..(at + len) / 8]);
    } else {
        region.store_bytes(offset, from.window_bytes());
    }
    Ok(())
}

/// The whole of `op`, its result left in it.
#[inline]
pub(crate) fn run(region: Option<&Words>, op: &mut Op) -> Result<(), OpError> {
    match op {
        Op::Read { from, into } => read(region, *from, into),
        Op::Write { to, from } => write(region, *to, from),
        Op::WriteWord { to, value } => {
            let (region, word) = word(region, *to)?;
            region.store(word, &[*value]);
            Ok(())
        }
        Op::Cas { at, expected, new, old } => {
            let (region, word) = word(region, *at)?;
            *old = region.cas(word, *expected, *new);
            Ok(())
        }
        Op::Faa { at, add, old } => {
            let (region, word) = word(region, *at)?;
            *old = region.faa(word, *add);
            Ok(())
        }
    }
}

/// The error for an address outside `region`.
#[cold]
pub(crate) fn out_of_bounds(region: Option<&Words>, addr: GlobalAddr, bytes: usize) -> OpError {
    let region_bytes = region.map_or(0, Words::bytes);
    let kind = OpErrorKind::OutOfBounds { addr, bytes: bytes as u64, region_bytes };
    OpError { server: addr.server(), kind }
}
