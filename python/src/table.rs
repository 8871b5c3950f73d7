//! Table: the blocking calls on a table.
//!
//! The interpreter lock is released for each wait of a network pool or of a shared one, for changes, and for batches. A
//! single get on `mem:` keeps it: it waits for nobody, and takes less time than the release (docs/design/python.md).

use std::cell::RefCell;
use std::thread;
use std::time::Duration;

use farleaf::{CompareExchange, Content, Engine, Expiry, KeyFormat, TableOptions, ValueFormat};
use farleaf_index::{UPDATE_ATTEMPTS_MAX, update_wait_ns};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMapping, PySlice, PyTuple};

use crate::async_table::AsyncTable;
use crate::buffers::{
    Pair, Pairs, Part, bytes_of, fields, keys_of, optional, owned, owned_pairs, since_1970, slices,
    tuple, value,
};
use crate::error::{invalid, raised, raised_after};
use crate::held::Held;
use crate::keys::{ends, expiry, limit};
use crate::range::{Range, Yields};
use crate::store::{Store, no_content, no_pickle, settings};
use crate::wait::wait;

/// Keys of a batch between two looks for signals.
const BATCH: usize = 4096;
/// A thread keeps a buffer for values up to this size.
const KEPT_BYTES: usize = 1 << 16;

/// Seconds to wait after the attempt of that number at an update, for `farleaf.aio`.
#[pyfunction]
pub(crate) fn update_wait(attempt: u32) -> f64 {
    Duration::from_nanos(update_wait_ns(attempt, || fastrand::u64(..))).as_secs_f64()
}

thread_local! {
    /// The value of the last get that kept the interpreter lock.
    static VALUE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A table; `Store.table` makes it.
#[pyclass(subclass, frozen, mapping, weakref, module = "farleaf._native")]
pub(crate) struct Table {
    table: Held<farleaf::Table>,
    keeps_lock: bool,
}

/// The outcome of `compare_exchange`; true if it has exchanged.
#[pyclass(frozen, module = "farleaf._native")]
pub(crate) struct Exchange {
    #[pyo3(get)]
    exchanged: bool,
    found: Option<Vec<u8>>,
}

impl From<CompareExchange> for Exchange {
    fn from(outcome: CompareExchange) -> Self {
        match outcome {
            CompareExchange::Exchanged => Exchange { exchanged: true, found: None },
            CompareExchange::Found(found) => Exchange { exchanged: false, found },
        }
    }
}

#[pymethods]
impl Exchange {
    /// The value that the key holds in place of the expected one; `None` if the key is absent, or if it has exchanged.
    #[getter]
    fn found<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        value(py, self.found.as_ref())
    }

    fn __bool__(&self) -> bool {
        self.exchanged
    }

    fn __repr__(&self) -> String {
        match (&self.found, self.exchanged) {
            (_, true) => "<farleaf.Exchange: exchanged>".to_owned(),
            (None, false) => "<farleaf.Exchange: the key is absent>".to_owned(),
            (Some(found), false) => {
                format!("<farleaf.Exchange: the key holds b'{}'>", found.escape_ascii())
            }
        }
    }
}

impl Table {
    /// The value of `key`.
    #[inline]
    fn value_of<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let table = self.table.get(py)?;
        if !self.keeps_lock {
            let found = self.unlocked(py, |table| table.get(key))?;
            return Ok(value(py, found.as_ref()));
        }
        VALUE.with_borrow_mut(|value| {
            let found = match table.get_into(key, value) {
                Ok(true) => Some(PyBytes::new(py, value)),
                Ok(false) => None,
                Err(error) => return Err(raised(py, &error)),
            };
            if value.capacity() > KEPT_BYTES {
                *value = Vec::new();
            }
            Ok(found)
        })
    }

    /// Does `op` without the interpreter lock.
    fn unlocked<T: Send>(
        &self,
        py: Python<'_>,
        op: impl FnOnce(&farleaf::Table) -> farleaf::Result<T> + Send,
    ) -> PyResult<T> {
        let table = self.table.get(py)?;
        py.detach(|| op(table)).map_err(|error| raised(py, &error))
    }

    /// The pair that `op` finds near `key`, or for it.
    fn near<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        op: impl FnOnce(&farleaf::Table, &[u8]) -> farleaf::Result<Option<Pair>> + Send,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let key = bytes_of(Part::Key, key)?;
        let key = key.as_bytes();
        let found = self.unlocked(py, |table| op(table, key))?;
        found.map(|pair| tuple(py, &pair)).transpose()
    }
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (store, name, *, create=false, engine=None, key_bytes=None, key_bytes_max=None, value_bytes=None,
        content="raw", settings=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of `Store.table`")]
    fn new(
        py: Python<'_>,
        store: &Bound<'_, Store>,
        name: &str,
        create: bool,
        engine: Option<&str>,
        key_bytes: Option<usize>,
        key_bytes_max: Option<usize>,
        value_bytes: Option<usize>,
        content: &str,
        settings: Option<&Bound<'_, PyMapping>>,
    ) -> PyResult<Self> {
        let store = store.get();
        let db = store.db(py)?;
        let mut options = TableOptions::default().set_all(&self::settings(settings)?);
        if let Some(engine) = engine {
            let engine: Engine = engine
                .parse()
                .map_err(|error: farleaf::UnknownEngine| raised(py, &error.into()))?;
            options = options.engine(engine);
        }
        options = match (key_bytes, key_bytes_max) {
            (None, None) => options,
            (Some(bytes), None) => options.keys(KeyFormat::Fixed(bytes)),
            (None, Some(max)) => options.keys(KeyFormat::Bytes { max }),
            _ => return Err(invalid(py, "give key_bytes or key_bytes_max, not both")),
        };
        if let Some(bytes) = value_bytes {
            options = options.values(ValueFormat::Fixed(bytes));
        }
        options = match content {
            "raw" => options,
            "records" => options.content(Content::Records),
            _ => return Err(no_content(content)),
        };
        let table = py.detach(|| match create {
            true => db.table_or_create(name, options),
            false => db.table(name),
        });
        let table = Held::new(table.map_err(|error| raised(py, &error))?);
        Ok(Table { table, keeps_lock: store.keeps_lock() })
    }

    /// The table's name.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.table.get(py)?.name())
    }

    /// The design of its index.
    #[getter]
    fn engine(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.table.get(py)?.info().engine.name())
    }

    /// The same table for `farleaf.aio`.
    fn _to_async(&self, py: Python<'_>) -> PyResult<AsyncTable> {
        Ok(AsyncTable::new(self.table.get(py)?.to_async()))
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = key.cast::<PySlice>() {
            if !slice.getattr("step")?.is_none() {
                return Err(PyValueError::new_err("a slice of a table has no step"));
            }
            let end = |name| slice.getattr(name).map(|end| (!end.is_none()).then_some(end));
            let (start, stop) = (end("start")?, end("stop")?);
            let range = self.range(py, start.as_ref(), stop.as_ref(), None, false, None)?;
            return Ok(Bound::new(py, range)?.into_any());
        }
        let bytes = bytes_of(Part::Key, key)?;
        match self.value_of(py, bytes.as_bytes())? {
            Some(value) => Ok(value.into_any()),
            None => Err(PyKeyError::new_err((key.clone().unbind(),))),
        }
    }

    fn __setitem__(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if key.is_instance_of::<PySlice>() {
            return Err(PyTypeError::new_err(
                "a slice of a table is read only: write its pairs by update()",
            ));
        }
        self.insert(py, key, value, None).map(drop)
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if key.is_instance_of::<PySlice>() {
            return Err(PyTypeError::new_err(
                "a slice of a table is read only: use remove_range()",
            ));
        }
        match self.remove(py, key)? {
            true => Ok(()),
            false => Err(PyKeyError::new_err((key.clone().unbind(),))),
        }
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(Part::Key, key)?;
        let key = key.as_bytes();
        match self.keeps_lock {
            true => self.table.get(py)?.contains_key(key).map_err(|error| raised(py, &error)),
            false => self.unlocked(py, |table| table.contains_key(key)),
        }
    }

    /// Counts the keys by a walk over all of them; `bool(table)` asks for the first one alone.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(usize::try_from(self.count(py, None, None, None)?).unwrap_or(usize::MAX))
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.unlocked(py, farleaf::Table::first_key_value)?.is_some())
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Range> {
        self._iterate("keys", false, py)
    }

    fn __reversed__(&self, py: Python<'_>) -> PyResult<Range> {
        self._iterate("keys", true, py)
    }

    /// The pairs, or the `"keys"` or `"values"` of them.
    fn _iterate(&self, yields: &str, reverse: bool, py: Python<'_>) -> PyResult<Range> {
        let yields = match yields {
            "keys" => Yields::Keys,
            "values" => Yields::Values,
            _ => Yields::Pairs,
        };
        let all = ends(py, None, None, None)?;
        Ok(Range::new(self.table.get(py)?, all, reverse, usize::MAX, yields))
    }

    /// The value of `key`, or `default`.
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = bytes_of(Part::Key, key)?;
        let found = self.value_of(py, key.as_bytes())?;
        Ok(found.map(Bound::into_any).or(default))
    }

    /// Adds or changes `key`; true if it was absent. In a table of records it may expire after some seconds.
    #[pyo3(signature = (key, value, *, expires_in=None))]
    fn insert(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expires_in: Option<f64>,
    ) -> PyResult<bool> {
        let (key, value) = (bytes_of(Part::Key, key)?, bytes_of(Part::Value, value)?);
        let (key, value) = (key.as_bytes(), value.as_bytes());
        match expiry(py, expires_in)? {
            None => self.unlocked(py, |table| table.insert(key, value)),
            Some(expiry) => {
                self.unlocked(py, |table| table.insert_with(key, value.to_vec(), expiry))
            }
        }
    }

    /// Adds `key`; false if it is present, and then nothing is changed.
    #[pyo3(signature = (key, value, *, expires_in=None))]
    fn insert_new(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expires_in: Option<f64>,
    ) -> PyResult<bool> {
        let (key, value) = (bytes_of(Part::Key, key)?, bytes_of(Part::Value, value)?);
        let (key, value) = (key.as_bytes(), value.as_bytes());
        match expiry(py, expires_in)? {
            None => self.unlocked(py, |table| table.insert_new(key, value)),
            Some(expiry) => {
                self.unlocked(py, |table| table.insert_new_with(key, value.to_vec(), expiry))
            }
        }
    }

    /// Changes `key`; false if it is absent, and then nothing is changed.
    #[pyo3(signature = (key, value, *, expires_in=None))]
    fn replace(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expires_in: Option<f64>,
    ) -> PyResult<bool> {
        let (key, value) = (bytes_of(Part::Key, key)?, bytes_of(Part::Value, value)?);
        let (key, value) = (key.as_bytes(), value.as_bytes());
        match expiry(py, expires_in)? {
            None => self.unlocked(py, |table| table.update(key, value)),
            Some(expiry) => {
                self.unlocked(py, |table| table.replace_with(key, value.to_vec(), expiry))
            }
        }
    }

    /// Removes `key`; false if it was absent.
    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(Part::Key, key)?;
        let key = key.as_bytes();
        self.unlocked(py, |table| table.remove(key))
    }

    /// Gives `key` the value `new` (`None`: removes it) if it holds `expected` (`None`: is absent), as one step.
    fn compare_exchange(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        expected: Option<&Bound<'_, PyAny>>,
        new: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Exchange> {
        let key = bytes_of(Part::Key, key)?;
        let (expected, new) = (optional(Part::Value, expected)?, optional(Part::Value, new)?);
        let key = key.as_bytes();
        let expected = expected.as_ref().map(|bytes| bytes.as_bytes());
        let new = new.as_ref().map(|bytes| bytes.as_bytes());
        self.unlocked(py, |table| table.compare_exchange(key, expected, new)).map(Exchange::from)
    }

    /// Gives `key` what `change` makes of its value (`None`: is absent, or is to be), as one step; returns the value
    /// before. `change` runs again if another client has changed the key meanwhile.
    fn update_with<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        change: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = bytes_of(Part::Key, key)?;
        let key = key.as_bytes();
        // Not the library's own loop: there, `change` would wait for the interpreter lock while others wait for the key.
        let mut held = self.unlocked(py, |table| table.get(key))?;
        for attempt in 0..UPDATE_ATTEMPTS_MAX {
            let new = change.call1((value(py, held.as_ref()),))?;
            let new = optional(Part::Value, (!new.is_none()).then_some(&new))?;
            let new = new.as_ref().map(|bytes| bytes.as_bytes());
            let expected = held.as_deref();
            if new == expected {
                return Ok(value(py, held.as_ref()));
            }
            match self.unlocked(py, |table| table.compare_exchange(key, expected, new))? {
                CompareExchange::Exchanged => return Ok(value(py, held.as_ref())),
                CompareExchange::Found(found) => held = found,
            }
            let rest = Duration::from_nanos(update_wait_ns(attempt, || fastrand::u64(..)));
            if !rest.is_zero() {
                py.detach(|| thread::sleep(rest));
            }
            py.check_signals()?;
        }
        let why = format!(
            "another client changed the key in each of {UPDATE_ATTEMPTS_MAX} attempts: try again"
        );
        Err(crate::error::of_class(py, "UnavailableError", why))
    }

    /// The time at which `key` expires, in seconds since 1970; `None` if it does not. `KeyError` if it is absent.
    fn expiry(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
        let bytes = bytes_of(Part::Key, key)?;
        let bytes = bytes.as_bytes();
        match self.unlocked(py, |table| table.expiry(bytes))? {
            Some(expires) => Ok(expires.map(since_1970)),
            None => Err(PyKeyError::new_err((key.clone().unbind(),))),
        }
    }

    /// Lets `key` expire after some seconds (`None`: no more); false if it is absent.
    fn set_expiry(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        expires_in: Option<f64>,
    ) -> PyResult<bool> {
        let key = bytes_of(Part::Key, key)?;
        let key = key.as_bytes();
        let expiry = expiry(py, expires_in)?.unwrap_or(Expiry::Never);
        self.unlocked(py, |table| table.set_expiry(key, expiry))
    }

    /// The fields of the hash of `key`; none if the key is absent.
    fn hash<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let key = bytes_of(Part::Key, key)?;
        let key = key.as_bytes();
        fields(py, &self.unlocked(py, |table| table.hash(key))?)
    }

    /// The values of some fields of the hash of `key`, in their order; `None` for those that it does not have.
    fn hash_get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        names: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (key, names) = (bytes_of(Part::Key, key)?, owned(names)?);
        let key = key.as_bytes();
        let values = self.unlocked(py, |table| table.hash_get(key, names))?;
        PyList::new(py, values.iter().map(|found| value(py, found.as_ref())))
    }

    /// Gives fields of the hash of `key` values, all at one moment; returns how many of the fields were new.
    fn hash_set(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        fields: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (key, fields) = (bytes_of(Part::Key, key)?, owned_pairs(fields)?);
        let key = key.as_bytes();
        self.unlocked(py, |table| table.hash_set(key, fields))
    }

    /// Removes fields of the hash of `key`, all at one moment; returns how many were there.
    fn hash_remove(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        names: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (key, names) = (bytes_of(Part::Key, key)?, owned(names)?);
        let key = key.as_bytes();
        self.unlocked(py, |table| table.hash_remove(key, names))
    }

    /// The values of `keys`, in their order; `None` for those that are absent.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = keys_of(keys)?;
        if keys.len() <= BATCH {
            let keys = slices(&keys);
            let values = self.unlocked(py, |table| table.get_many(&keys))?;
            return PyList::new(py, values.iter().map(|found| value(py, found.as_ref())));
        }
        let values = PyList::empty(py);
        for keys in slices(&keys).chunks(BATCH) {
            for found in self.unlocked(py, |table| table.get_many(keys))? {
                values.append(value(py, found.as_ref()))?;
            }
            py.check_signals()?;
        }
        Ok(values)
    }

    /// Adds or changes the pairs of a mapping, or of an iterable of pairs; returns how many keys were absent.
    fn insert_many(&self, py: Python<'_>, pairs: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (mut pairs, mut new, mut done) = (Pairs::of(pairs)?, 0, 0);
        loop {
            let chunk = pairs.by_ref().take(BATCH).collect::<PyResult<Vec<_>>>()?;
            let slices: Vec<(&[u8], &[u8])> =
                chunk.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect();
            let table = self.table.get(py)?;
            let inserted = py.detach(|| table.insert_many(slices.iter().copied()));
            new += inserted.map_err(|error| {
                let said = if done > 0 { format!("after {done} pairs: ") } else { String::new() };
                raised_after(py, &said, &error)
            })?;
            done += chunk.len();
            if chunk.len() < BATCH {
                return Ok(new);
            }
            py.check_signals()?;
        }
    }

    /// Removes `keys`; returns how many were present.
    fn remove_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (keys, mut removed) = (keys_of(keys)?, 0);
        for keys in slices(&keys).chunks(BATCH) {
            removed += self.unlocked(py, |table| table.remove_many(keys))?;
            py.check_signals()?;
        }
        Ok(removed)
    }

    /// Counts the `keys` that are present before the first that is not, in their order.
    fn longest_run(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = keys_of(keys)?;
        let keys = slices(&keys);
        self.unlocked(py, |table| table.longest_run(&keys))
    }

    /// The pairs from `start` to below `stop`, or of the keys with a prefix.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false, limit=None))]
    fn range(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
        limit: Option<i64>,
    ) -> PyResult<Range> {
        let ends = ends(py, start, stop, prefix)?;
        let limit = self::limit(py, limit)?;
        Ok(Range::new(self.table.get(py)?, ends, reverse, limit, Yields::Pairs))
    }

    /// Counts the keys of a range, by a walk over it.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None))]
    fn count(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let ends = ends(py, start, stop, prefix)?;
        wait(py, self.table.get(py)?.to_async().count(ends))
    }

    /// Removes the keys of a range; returns how many.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None))]
    fn remove_range(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let ends = ends(py, start, stop, prefix)?;
        wait(py, self.table.get(py)?.to_async().remove_range(ends))
    }

    /// The pair with the smallest key.
    fn first<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let found = self.unlocked(py, farleaf::Table::first_key_value)?;
        found.map(|pair| tuple(py, &pair)).transpose()
    }

    /// The pair with the largest key.
    fn last<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let found = self.unlocked(py, farleaf::Table::last_key_value)?;
        found.map(|pair| tuple(py, &pair)).transpose()
    }

    /// The pair with the largest key below `key`.
    fn lower<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.near(py, key, |table, key| table.lower(key))
    }

    /// The pair of `key`, or else that with the largest key below it.
    fn floor<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.near(py, key, |table, key| table.floor(key))
    }

    /// The pair of `key`, or else that with the smallest key above it.
    fn ceiling<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.near(py, key, |table, key| table.ceiling(key))
    }

    /// The pair with the smallest key above `key`.
    fn higher<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.near(py, key, |table, key| table.higher(key))
    }

    /// The pair with the longest key that `key` starts with, `key` itself included.
    fn longest_prefix<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.near(py, key, |table, key| table.longest_prefix(key))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("table"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let table = self.table.get(py)?;
        Ok(format!("<farleaf.Table {:?}, {}>", table.name(), table.info().engine))
    }
}
