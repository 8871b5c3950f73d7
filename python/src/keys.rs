//! Arguments of several calls: ranges of keys, limits, and times of expiry.

use std::ops::Bound as End;

use farleaf::{Expiry, KeyRange, Prefix};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::{Part, bytes_of, optional};
use crate::error::invalid;
use crate::store::seconds;

/// The ends of a range of keys.
pub(crate) type Ends = (End<Vec<u8>>, End<Vec<u8>>);

/// The range that the arguments name.
///
/// # Errors
/// `TypeError` for what is not bytes; `InvalidError` for a prefix and an end at once.
pub(crate) fn ends(
    py: Python<'_>,
    start: Option<&Bound<'_, PyAny>>,
    stop: Option<&Bound<'_, PyAny>>,
    prefix: Option<&Bound<'_, PyAny>>,
) -> PyResult<Ends> {
    if let Some(prefix) = prefix {
        if start.is_some() || stop.is_some() {
            return Err(invalid(py, "a range has a prefix, or start and stop, not both"));
        }
        return Ok(Prefix(bytes_of(Part::Key, prefix)?.as_bytes()).ends());
    }
    let own = |key: Bound<'_, PyBytes>| key.as_bytes().to_vec();
    let start = optional(Part::Key, start)?.map_or(End::Unbounded, |key| End::Included(own(key)));
    let stop = optional(Part::Key, stop)?.map_or(End::Unbounded, |key| End::Excluded(own(key)));
    Ok((start, stop))
}

/// The expiry after `expires_in` seconds; `None` if none was given.
///
/// # Errors
/// `InvalidError` for a negative number.
pub(crate) fn expiry(py: Python<'_>, expires_in: Option<f64>) -> PyResult<Option<Expiry>> {
    expires_in.map(|time| Ok(Expiry::In(seconds(py, "expires_in", time)?))).transpose()
}

/// The number of pairs that a limit allows.
///
/// # Errors
/// `InvalidError` for a negative one.
pub(crate) fn limit(py: Python<'_>, limit: Option<i64>) -> PyResult<usize> {
    match limit.map(usize::try_from) {
        None => Ok(usize::MAX),
        Some(Ok(limit)) => Ok(limit),
        Some(Err(_)) => Err(invalid(py, "a limit is 0 or more")),
    }
}

/// The least key above all that start with `prefix`; `None` if no key is.
#[pyfunction]
pub(crate) fn prefix_end<'py>(prefix: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let prefix = bytes_of(Part::Key, prefix)?;
    Ok(match Prefix(prefix.as_bytes()).ends().1 {
        End::Excluded(end) => Some(PyBytes::new(prefix.py(), &end)),
        _ => None,
    })
}
