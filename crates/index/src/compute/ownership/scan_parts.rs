//! Scan of own keys, part by part of what is own and open.

use std::sync::Arc;

use farleaf_pool::Session;

use super::{OpGuard, Ownership, Range, RangeGuard};
use crate::{Entries, IndexError, ScanCursor, ScanRange, Seek};

/// Pairs that a scan reads between two looks at the guard.
const PAIRS_INSIDE_MAX: usize = 1024;

/// The end of a scan of own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanEnd {
    /// All pairs that were wanted are there.
    Done,
    /// The next place is in the partition of this number, which is another compute server's.
    Foreign(usize),
}

impl Ownership {
    /// Acquires the guard for an operation at `seek`, and returns the part of the partition around it that is known
    /// and open; otherwise as [`Ownership::acquire`].
    ///
    /// # Errors
    /// `Closed`.
    pub async fn acquire_part(
        &self,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<Result<(OpGuard<&RangeGuard>, Range), usize>, IndexError> {
        loop {
            let view = self.view();
            let inside = match self.acquire(session, seek).await? {
                Ok(inside) => inside,
                Err(number) => return Ok(Err(number)),
            };
            // The range is that of the view by which the guard admitted the operation.
            if Arc::ptr_eq(&view, &self.view()) {
                return Ok(Ok((inside, view.open_part(seek))));
            }
        }
    }
}

/// Appends the pairs that `cursor` still wants to `out`, as far as its places are own keys. `scan` appends at most so
/// many pairs of a range, all of them own keys; it runs inside the guard, once for each open part and each 1,024 pairs,
/// so that a long scan does not keep a range from changing hands.
///
/// # Errors
/// `Closed`; those of `scan`.
pub async fn scan_parts(
    ownership: &Ownership,
    session: &Session,
    cursor: &mut ScanCursor<'_>,
    out: &mut Entries,
    mut scan: impl AsyncFnMut(ScanRange<'_>, usize, &mut Entries) -> Result<(), IndexError>,
) -> Result<ScanEnd, IndexError> {
    loop {
        let (_inside, part) = match ownership.acquire_part(session, cursor.seek()).await? {
            Ok(part) => part,
            Err(number) => return Ok(ScanEnd::Foreign(number)),
        };
        ownership.check_open()?;
        let (low, high) = (part.low.as_deref(), part.high.as_deref());
        let (from, to, wanted) = cursor.rest_in(low, high, out);
        let reverse = cursor.is_reverse();
        let limit = wanted.min(PAIRS_INSIDE_MAX);
        let begun = out.len();
        scan(ScanRange::between(&from, &to, reverse), limit, out).await?;
        let is_whole = out.len() - begun < limit;
        let goes_on = match out.last() {
            Some((last, _)) if !is_whole => {
                let last = last.to_vec();
                cursor.go_on_behind(&last, out)
            }
            _ => cursor.skip_to(if reverse { low } else { high }, out),
        };
        if !goes_on {
            return Ok(ScanEnd::Done);
        }
    }
}
