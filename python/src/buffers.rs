//! Buffers: take keys and values from Python's objects, and give values back.

use std::time::{SystemTime, UNIX_EPOCH};

use farleaf::Hash;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMapping, PyMemoryView, PyString, PyTuple};

/// A key and its value, in Rust's memory.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// The part of a pair that an object stands for, as messages name it.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Key,
    Value,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Key => "key",
            Part::Value => "value",
        }
    }
}

/// The bytes of `object`: itself if it is `bytes`, a copy of any other contiguous buffer.
///
/// # Errors
/// `TypeError` for other objects, and for buffers with gaps.
#[inline]
pub(crate) fn bytes_of<'py>(
    part: Part,
    object: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    match object.cast_exact::<PyBytes>() {
        Ok(bytes) => Ok(bytes.clone()),
        Err(_) => copy_of(part.name(), object),
    }
}

// The stable interface of Python 3.10 has memory views, and no other access to buffers.
#[cold]
fn copy_of<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if object.is_instance_of::<PyString>() {
        let why = format!("{name}s are bytes, not str: use {name}.encode()");
        return Err(PyTypeError::new_err(why));
    }
    let Ok(view) = PyMemoryView::from(object) else {
        let kind = object.get_type().name()?;
        let why =
            format!("{name}s are bytes, or other objects with a contiguous buffer, not {kind}");
        return Err(PyTypeError::new_err(why));
    };
    if !view.getattr("contiguous")?.extract::<bool>()? {
        let why = format!("the buffer of the {name} is not contiguous: use bytes({name})");
        return Err(PyTypeError::new_err(why));
    }
    Ok(view.call_method0("tobytes")?.cast_into::<PyBytes>()?)
}

/// The bytes of `object`, `None` if it is `None`.
pub(crate) fn optional<'py>(
    part: Part,
    object: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    object.map(|object| bytes_of(part, object)).transpose()
}

/// The keys of an iterable.
pub(crate) fn keys_of<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let mut all = Vec::with_capacity(keys.cast::<PyList>().map_or(0, |keys| keys.len()));
    for key in keys.try_iter()? {
        all.push(bytes_of(Part::Key, &key?)?);
    }
    Ok(all)
}

/// The slices of `all`.
pub(crate) fn slices<'a>(all: &'a [Bound<'_, PyBytes>]) -> Vec<&'a [u8]> {
    all.iter().map(|bytes| bytes.as_bytes()).collect()
}

/// An iterator over the pairs of a mapping, or of an iterable of pairs.
pub(crate) struct Pairs<'py>(Bound<'py, pyo3::types::PyIterator>);

impl<'py> Pairs<'py> {
    /// # Errors
    /// `TypeError` for an object that is neither.
    pub(crate) fn of(pairs: &Bound<'py, PyAny>) -> PyResult<Self> {
        let items = match pairs.cast::<PyMapping>() {
            Ok(_) => pairs.call_method0("items")?.try_iter()?,
            Err(_) => pairs.try_iter()?,
        };
        Ok(Pairs(items))
    }
}

impl<'py> Iterator for Pairs<'py> {
    type Item = PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.0.next()?;
        Some(item.and_then(|item| {
            let (key, value) = item
                .extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>()
                .map_err(|_| PyTypeError::new_err("pairs are tuples of a key and a value"))?;
            Ok((bytes_of(Part::Key, &key)?, bytes_of(Part::Value, &value)?))
        }))
    }
}

/// The bytes of an iterable, in Rust's memory.
pub(crate) fn owned(parts: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
    Ok(keys_of(parts)?.iter().map(|part| part.as_bytes().to_vec()).collect())
}

/// The pairs of a mapping, or of an iterable of pairs, in Rust's memory.
pub(crate) fn owned_pairs(pairs: &Bound<'_, PyAny>) -> PyResult<Vec<Pair>> {
    let own = |pair: PyResult<(Bound<'_, PyBytes>, Bound<'_, PyBytes>)>| {
        pair.map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
    };
    Pairs::of(pairs)?.map(own).collect()
}

/// The fields of a hash as a dictionary.
pub(crate) fn fields<'py>(py: Python<'py>, hash: &Hash) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    for (name, value) in hash {
        fields.set_item(PyBytes::new(py, name), PyBytes::new(py, value))?;
    }
    Ok(fields)
}

/// `time` in seconds since 1970.
pub(crate) fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// `pair` as a tuple of `bytes`.
pub(crate) fn tuple<'py>(py: Python<'py>, pair: &Pair) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, [PyBytes::new(py, &pair.0), PyBytes::new(py, &pair.1)])
}

/// `value` as `bytes`.
pub(crate) fn value<'py>(py: Python<'py>, value: Option<&Vec<u8>>) -> Option<Bound<'py, PyBytes>> {
    value.map(|value| PyBytes::new(py, value))
}
