//! Async table: the calls of `farleaf.aio`.
//!
//! Each method begins an operation and returns at once; the operation's result goes to `waiter`, an `asyncio.Future` of
//! the loop that `bridge` is of. The Python half wraps both.

use std::ops::Bound as End;

use farleaf::Expiry;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bridge::Bridge;
use crate::buffers::{
    Pair, Pairs, Part, bytes_of, fields, keys_of, optional, owned, owned_pairs, since_1970, slices,
    tuple, value,
};
use crate::held::Held;
use crate::keys::{ends, expiry};
use crate::table::Exchange;

/// A table whose operations are futures; `farleaf.aio` makes it.
#[pyclass(frozen, module = "farleaf._native")]
pub(crate) struct AsyncTable {
    table: Held<farleaf::AsyncTable>,
}

impl AsyncTable {
    pub(crate) fn new(table: farleaf::AsyncTable) -> Self {
        AsyncTable { table: Held::new(table) }
    }
}

fn flag(py: Python<'_>, flag: bool) -> PyResult<Py<PyAny>> {
    Ok(flag.into_pyobject(py)?.to_owned().into_any().unbind())
}

fn count(py: Python<'_>, count: u64) -> PyResult<Py<PyAny>> {
    Ok(count.into_pyobject(py)?.into_any().unbind())
}

fn pair(py: Python<'_>, found: Option<Pair>) -> PyResult<Py<PyAny>> {
    match found {
        Some(pair) => Ok(tuple(py, &pair)?.into_any().unbind()),
        None => Ok(py.None()),
    }
}

fn values(py: Python<'_>, values: Vec<Option<Vec<u8>>>) -> PyResult<Py<PyAny>> {
    let values = values.iter().map(|found| value(py, found.as_ref()));
    Ok(PyList::new(py, values.collect::<Vec<_>>())?.into_any().unbind())
}

/// The bytes of an argument, in Rust's memory.
fn own(part: Part, object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    Ok(bytes_of(part, object)?.as_bytes().to_vec())
}

#[pymethods]
impl AsyncTable {
    fn get(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        default: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let work = self.table.get(waiter.py())?.get(bytes_of(Part::Key, key)?.as_bytes());
        bridge.begin(waiter, work, |py, found| {
            let found = found.map(|value| PyBytes::new(py, &value).into_any().unbind());
            Ok(found.or(default).unwrap_or_else(|| py.None()))
        })
    }

    fn contains(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let work = self.table.get(waiter.py())?.contains_key(bytes_of(Part::Key, key)?.as_bytes());
        bridge.begin(waiter, work, flag)
    }

    /// Changes `key`: `"insert"`, `"insert_new"` or `"replace"`.
    fn put(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        which: &str,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expires_in: Option<f64>,
    ) -> PyResult<()> {
        let table = self.table.get(waiter.py())?;
        let (key, value) = (bytes_of(Part::Key, key)?, bytes_of(Part::Value, value)?);
        let (key, value) = (key.as_bytes(), value.as_bytes());
        let Some(expiry) = expiry(waiter.py(), expires_in)? else {
            return match which {
                "insert" => bridge.begin(waiter, table.insert(key, value), flag),
                "insert_new" => bridge.begin(waiter, table.insert_new(key, value), flag),
                _ => bridge.begin(waiter, table.update(key, value), flag),
            };
        };
        let value = value.to_vec();
        match which {
            "insert" => bridge.begin(waiter, table.insert_with(key, value, expiry), flag),
            "insert_new" => bridge.begin(waiter, table.insert_new_with(key, value, expiry), flag),
            _ => bridge.begin(waiter, table.replace_with(key, value, expiry), flag),
        }
    }

    fn expiry(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let work = self.table.get(waiter.py())?.expiry(bytes_of(Part::Key, key)?.as_bytes());
        let key = key.clone().unbind();
        bridge.begin(waiter, work, |py, found| match found {
            Some(expires) => Ok(expires.map(since_1970).into_pyobject(py)?.into_any().unbind()),
            None => Err(PyKeyError::new_err((key,))),
        })
    }

    fn set_expiry(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        expires_in: Option<f64>,
    ) -> PyResult<()> {
        let expiry = expiry(waiter.py(), expires_in)?.unwrap_or(Expiry::Never);
        let key = bytes_of(Part::Key, key)?;
        let work = self.table.get(waiter.py())?.set_expiry(key.as_bytes(), expiry);
        bridge.begin(waiter, work, flag)
    }

    fn hash(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let work = self.table.get(waiter.py())?.hash(bytes_of(Part::Key, key)?.as_bytes());
        bridge.begin(waiter, work, |py, hash| Ok(fields(py, &hash)?.into_any().unbind()))
    }

    fn hash_get(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        names: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, names) = (bytes_of(Part::Key, key)?, owned(names)?);
        let work = self.table.get(waiter.py())?.hash_get(key.as_bytes(), names);
        bridge.begin(waiter, work, values)
    }

    fn hash_set(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        fields: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, fields) = (bytes_of(Part::Key, key)?, owned_pairs(fields)?);
        let work = self.table.get(waiter.py())?.hash_set(key.as_bytes(), fields);
        bridge.begin(waiter, work, |py, new| count(py, new as u64))
    }

    fn hash_remove(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        names: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, names) = (bytes_of(Part::Key, key)?, owned(names)?);
        let work = self.table.get(waiter.py())?.hash_remove(key.as_bytes(), names);
        bridge.begin(waiter, work, |py, removed| count(py, removed as u64))
    }

    fn remove(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let work = self.table.get(waiter.py())?.remove(bytes_of(Part::Key, key)?.as_bytes());
        bridge.begin(waiter, work, flag)
    }

    fn compare_exchange(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        expected: Option<&Bound<'_, PyAny>>,
        new: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let key = bytes_of(Part::Key, key)?;
        let (expected, new) = (optional(Part::Value, expected)?, optional(Part::Value, new)?);
        let work = self.table.get(waiter.py())?.compare_exchange(
            key.as_bytes(),
            expected.as_ref().map(|bytes| bytes.as_bytes()),
            new.as_ref().map(|bytes| bytes.as_bytes()),
        );
        bridge.begin(waiter, work, |py, outcome| {
            Ok(Bound::new(py, Exchange::from(outcome))?.into_any().unbind())
        })
    }

    fn get_many(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = keys_of(keys)?;
        let work = self.table.get(waiter.py())?.get_many(slices(&keys));
        bridge.begin(waiter, work, values)
    }

    fn insert_many(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        pairs: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let pairs = Pairs::of(pairs)?.collect::<PyResult<Vec<_>>>()?;
        let pairs: Vec<(&[u8], &[u8])> =
            pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect();
        let work = self.table.get(waiter.py())?.insert_many(pairs);
        bridge.begin(waiter, work, count)
    }

    fn remove_many(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = keys_of(keys)?;
        let work = self.table.get(waiter.py())?.remove_many(slices(&keys));
        bridge.begin(waiter, work, count)
    }

    fn longest_run(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = keys_of(keys)?;
        let work = self.table.get(waiter.py())?.longest_run(slices(&keys));
        bridge.begin(waiter, work, |py, run| count(py, run as u64))
    }

    /// The pair near `key`: the `"lower"`, `"floor"`, `"ceiling"`, `"higher"` or `"longest_prefix"` of it.
    fn near(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        which: &str,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (table, key) = (self.table.get(waiter.py())?, own(Part::Key, key)?);
        match which {
            "lower" => bridge.begin(waiter, table.lower(key), pair),
            "floor" => bridge.begin(waiter, table.floor(key), pair),
            "ceiling" => bridge.begin(waiter, table.ceiling(key), pair),
            "higher" => bridge.begin(waiter, table.higher(key), pair),
            _ => bridge.begin(waiter, table.longest_prefix(key), pair),
        }
    }

    /// At most `limit` pairs of a range, from one end of it. `start_excluded`: without `start` itself.
    #[allow(clippy::too_many_arguments, reason = "called by the Python half alone")]
    fn scan(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        start: Option<&Bound<'_, PyAny>>,
        start_excluded: bool,
        stop: Option<&Bound<'_, PyAny>>,
        reverse: bool,
        limit: usize,
    ) -> PyResult<()> {
        let (mut from, to) = ends(waiter.py(), start, stop, None)?;
        if let (End::Included(start), true) = (&from, start_excluded) {
            from = End::Excluded(start.clone());
        }
        let table = self.table.get(waiter.py())?;
        let answer = |py: Python<'_>, pairs: Vec<Pair>| {
            let pairs = pairs.iter().map(|pair| tuple(py, pair)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, pairs)?.into_any().unbind())
        };
        match reverse {
            false => bridge.begin(waiter, table.scan((from, to), limit), answer),
            true => bridge.begin(waiter, table.scan_rev((from, to), limit), answer),
        }
    }

    /// Goes over a range: `"count"` or `"remove_range"`.
    fn walk(
        &self,
        bridge: &Bridge,
        waiter: &Bound<'_, PyAny>,
        which: &str,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (table, ends) = (self.table.get(waiter.py())?, ends(waiter.py(), start, stop, prefix)?);
        match which {
            "count" => bridge.begin(waiter, table.count(ends), count),
            _ => bridge.begin(waiter, table.remove_range(ends), count),
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(crate::store::no_pickle("table"))
    }
}
