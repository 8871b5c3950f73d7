//! Range: the iterator over a range of keys.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::error::{of_class, raised};
use crate::held::Held;
use crate::keys::Ends;

/// Pairs of the first fetch and the most of one; those of the store's own range.
const CHUNK_FIRST: usize = 16;
const CHUNK_MAX: usize = 512;
/// A chunk is kept below this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// A key and its string; `None` for a hash.
type Fetched = (Vec<u8>, Option<Vec<u8>>);

/// The part of each pair that the iterator yields.
#[derive(Clone, Copy)]
pub(crate) enum Yields {
    Pairs,
    Keys,
    Values,
}

/// A range, its pairs that are fetched and not yet yielded.
struct Rest {
    range: farleaf::StringRange,
    fetched: VecDeque<Fetched>,
    chunk: usize,
    limit: usize,
    /// Ends the iterator once the fetched pairs are yielded.
    failed: Option<farleaf::Error>,
    is_over: bool,
}

/// The pairs of a range of a table, in the order of their keys; `Table.range` makes it.
#[pyclass(frozen, generic, module = "farleaf._native")]
pub(crate) struct Range {
    /// `None` while a thread fetches from it, without the interpreter lock.
    rest: Held<Mutex<Option<Rest>>>,
    reverse: bool,
    yields: Yields,
}

impl Range {
    pub(crate) fn new(
        table: &farleaf::Table,
        ends: Ends,
        reverse: bool,
        limit: usize,
        yields: Yields,
    ) -> Self {
        let rest = Rest {
            range: table.range_strings(ends),
            fetched: VecDeque::new(),
            chunk: CHUNK_FIRST,
            limit,
            failed: None,
            is_over: false,
        };
        Range { rest: Held::new(Mutex::new(Some(rest))), reverse, yields }
    }
}

impl Rest {
    /// Fetches the next chunk.
    fn fetch(&mut self, reverse: bool) {
        let mut bytes = 0;
        while self.fetched.len() < self.chunk.min(self.limit) && bytes < CHUNK_BYTES {
            match if reverse { self.range.next_back() } else { self.range.next() } {
                Some(Ok(pair)) => {
                    bytes += pair.0.len() + pair.1.as_ref().map_or(0, Vec::len);
                    self.fetched.push_back(pair);
                }
                Some(Err(error)) => {
                    self.failed = Some(error);
                    break;
                }
                None => {
                    self.is_over = true;
                    break;
                }
            }
        }
        self.limit -= self.fetched.len();
        self.is_over |= self.limit == 0;
        self.chunk = (self.chunk * 2).min(CHUNK_MAX);
    }

    /// The next pair; looks for signals before each fetch, and fetches without the interpreter lock.
    fn next(&mut self, py: Python<'_>, reverse: bool) -> PyResult<Option<Fetched>> {
        if self.fetched.is_empty() && !self.is_over && self.failed.is_none() {
            py.check_signals()?;
            py.detach(|| self.fetch(reverse));
        }
        if let Some(pair) = self.fetched.pop_front() {
            return Ok(Some(pair));
        }
        match self.failed.take() {
            None => Ok(None),
            Some(error) => {
                self.is_over = true;
                Err(raised(py, &error))
            }
        }
    }
}

#[pymethods]
impl Range {
    fn __iter__(range: PyRef<'_, Self>) -> PyRef<'_, Self> {
        range
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let place = self.rest.get(py)?;
        let lock = || place.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut rest) = lock().take() else {
            return Err(PyValueError::new_err("another thread is fetching from this range"));
        };
        let pair = rest.next(py, self.reverse);
        *lock() = Some(rest);
        let Some((key, value)) = pair? else { return Ok(None) };
        let name = PyBytes::new(py, &key);
        if let Yields::Keys = self.yields {
            return Ok(Some(name.into_any()));
        }
        let Some(value) = value.map(|value| PyBytes::new(py, &value)) else {
            let key = key.escape_ascii();
            let why = format!("the key b'{key}' holds a hash, not a string: iterate over the keys");
            return Err(of_class(py, "WrongTypeError", why));
        };
        Ok(Some(match self.yields {
            Yields::Values => value.into_any(),
            _ => PyTuple::new(py, [name, value])?.into_any(),
        }))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a range cannot be pickled: it belongs to a store that is open in this process alone; open the store in \
             the other process",
        ))
    }
}
