//! Range: the iterator over a range of keys.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::{Pair, tuple};
use crate::error::raised;
use crate::held::Held;
use crate::keys::Ends;

/// Pairs of the first fetch and the most of one; those of the store's own range.
const CHUNK_FIRST: usize = 16;
const CHUNK_MAX: usize = 512;
/// A chunk is kept below this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// The part of each pair that the iterator yields.
#[derive(Clone, Copy)]
pub(crate) enum Yields {
    Pairs,
    Keys,
    Values,
}

/// A range, its pairs that are fetched and not yet yielded.
struct Rest {
    range: farleaf::Range,
    fetched: VecDeque<Pair>,
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
            range: table.range(ends),
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
                    bytes += pair.0.len() + pair.1.len();
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
    fn next(&mut self, py: Python<'_>, reverse: bool) -> PyResult<Option<Pair>> {
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
        let Some(pair) = pair? else { return Ok(None) };
        Ok(Some(match self.yields {
            Yields::Pairs => tuple(py, &pair)?.into_any(),
            Yields::Keys => PyBytes::new(py, &pair.0).into_any(),
            Yields::Values => PyBytes::new(py, &pair.1).into_any(),
        }))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a range cannot be pickled: it belongs to a store that is open in this process alone; open the store in \
             the other process",
        ))
    }
}
