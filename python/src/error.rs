//! Errors: raise the store's errors as the exceptions of `farleaf.errors`.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use farleaf::{Error, ErrorKind};
use pyo3::exceptions::{PyImportError, PyOSError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The exception for `error`.
#[cold]
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    raised_after(py, "", error)
}

/// The same, with `done` in front of its message: the part of the work that is done.
#[cold]
pub(crate) fn raised_after(py: Python<'_>, done: &str, error: &Error) -> PyErr {
    let mut message = format!("{done}{error}");
    let class = match error.kind() {
        ErrorKind::Invalid => "InvalidError",
        ErrorKind::WrongType => "WrongTypeError",
        ErrorKind::NotFound => "NotFoundError",
        ErrorKind::NoPool => "NoPoolError",
        ErrorKind::AlreadyExists => "ExistsError",
        ErrorKind::Unavailable => "UnavailableError",
        ErrorKind::OutcomeUnknown => "OutcomeUnknownError",
        ErrorKind::Full => "FullError",
        ErrorKind::Corrupt => "CorruptError",
        ErrorKind::Closed => "ClosedError",
        ErrorKind::Io => {
            let source = error.source().and_then(|source| {
                let shared = source.downcast_ref::<Arc<io::Error>>().map(Arc::as_ref);
                shared.or_else(|| source.downcast_ref::<io::Error>())
            });
            if let Some(source) = source
                && !message.contains(&source.to_string())
            {
                message = format!("{message}: {source}");
            }
            return match source.and_then(io::Error::raw_os_error) {
                Some(number) => PyOSError::new_err((number, message)),
                None => PyOSError::new_err(message),
            };
        }
        _ => "Error",
    };
    of_class(py, class, message)
}

/// An exception of `farleaf.errors`.
#[cold]
pub(crate) fn of_class(py: Python<'_>, class: &str, message: String) -> PyErr {
    let found = py
        .import("farleaf.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| Ok(class.cast_into::<PyType>()?));
    match found {
        Ok(class) => PyErr::from_type(class, (message,)),
        // Part of a package that is not whole.
        Err(_) => PyImportError::new_err(format!("farleaf.errors.{class} is missing: {message}")),
    }
}

/// A refused argument.
#[cold]
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    of_class(py, "InvalidError", message.into())
}
