//! Store: opens pools, and their tables by name.

use std::time::Duration;

use farleaf::{EtcdAccess, EtcdTlsFiles, Farleaf, Settings, Tls, TlsFiles};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyMapping};

use crate::error::{invalid, raised};
use crate::held::Held;

/// A pool that is open; `farleaf.open` makes it.
#[pyclass(subclass, frozen, weakref, module = "farleaf._native")]
pub(crate) struct Store {
    db: Held<Farleaf>,
    #[pyo3(get)]
    address: String,
}

impl Store {
    pub(crate) fn db(&self, py: Python<'_>) -> PyResult<&Farleaf> {
        self.db.get(py)
    }

    /// Returns whether a single get may keep the interpreter lock: it never waits for another process.
    pub(crate) fn keeps_lock(&self) -> bool {
        self.address == "mem:"
    }
}

/// A duration of the arguments.
///
/// # Errors
/// `InvalidError` for a negative one, and for one without end.
pub(crate) fn seconds(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| invalid(py, format!("{name}={seconds}: {error}")))
}

/// Settings of a mapping from names to values.
pub(crate) fn settings(given: Option<&Bound<'_, PyMapping>>) -> PyResult<Settings> {
    let mut settings = Settings::default();
    let Some(given) = given else { return Ok(settings) };
    for item in given.items()? {
        let (name, value) = item.extract::<(String, Bound<'_, PyAny>)>()?;
        let value = match value.cast::<PyBool>() {
            Ok(flag) => flag.is_true().to_string(),
            Err(_) => value.str()?.to_str()?.to_owned(),
        };
        settings.set(&name, &value);
    }
    Ok(settings)
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (address, *, create=false, cache=None, pool_bytes=None, memory_servers=1, settings=None,
        async_workers=1, join_timeout=30.0, listen=None, advertise=None, insecure_public=false, guest_operations=0,
        recovers=true, tls_ca=None, tls_cert=None, tls_key=None, tls_server_name=None, etcd_ca=None, etcd_cert=None,
        etcd_key=None, etcd_user=None, etcd_password=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of `farleaf.open`")]
    fn new(
        py: Python<'_>,
        address: &str,
        create: bool,
        cache: Option<Bound<'_, PyAny>>,
        pool_bytes: Option<Bound<'_, PyAny>>,
        memory_servers: usize,
        settings: Option<&Bound<'_, PyMapping>>,
        async_workers: usize,
        join_timeout: f64,
        listen: Option<&str>,
        advertise: Option<&str>,
        insecure_public: bool,
        guest_operations: u64,
        recovers: bool,
        tls_ca: Option<std::path::PathBuf>,
        tls_cert: Option<std::path::PathBuf>,
        tls_key: Option<std::path::PathBuf>,
        tls_server_name: Option<String>,
        etcd_ca: Option<std::path::PathBuf>,
        etcd_cert: Option<std::path::PathBuf>,
        etcd_key: Option<std::path::PathBuf>,
        etcd_user: Option<String>,
        etcd_password: Option<String>,
    ) -> PyResult<Self> {
        let mut builder = Farleaf::builder()
            .create(create)
            .memory_servers(memory_servers)
            .async_workers(async_workers)
            .join_timeout(seconds(py, "join_timeout", join_timeout)?)
            .insecure_public(insecure_public)
            .guest_operations(guest_operations)
            .recovers(recovers)
            .set_all(&self::settings(settings)?);
        if let Some(cache) = cache {
            builder = builder.set("cache", cache.str()?.to_str()?);
        }
        if let Some(bytes) = pool_bytes {
            let text = bytes.str()?;
            let size = text.to_str()?.parse::<farleaf_index::units::Size>();
            let size = size.map_err(|error| invalid(py, format!("pool_bytes: {error}")))?;
            builder = builder.pool_bytes(size.0);
        }
        let socket = |name: &str, text: &str| {
            text.parse().map_err(|_| {
                invalid(
                    py,
                    format!(
                        "{name}=\"{text}\" is not an address and port, as in \"10.0.0.7:7100\""
                    ),
                )
            })
        };
        if let Some(listen) = listen {
            builder = builder.listen(socket("listen", listen)?);
        }
        if let Some(advertise) = advertise {
            builder = builder.advertise(socket("advertise", advertise)?);
        }
        match (tls_ca, tls_cert, tls_key) {
            (Some(ca), Some(certificate), Some(key)) => {
                let files = TlsFiles { ca, certificate, key, server_name: tls_server_name };
                let tls = Tls::load(&files).map_err(|error| raised(py, &error.into()))?;
                builder = builder.tls(tls);
            }
            (None, None, None) => {}
            _ => return Err(invalid(py, "tls_ca, tls_cert and tls_key come together")),
        }
        let mut etcd = EtcdAccess::default();
        if let Some(ca) = etcd_ca {
            let identity = match (etcd_cert, etcd_key) {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) => None,
                _ => return Err(invalid(py, "etcd_cert and etcd_key come together")),
            };
            let files = EtcdTlsFiles { ca, identity };
            etcd = etcd.tls(&files).map_err(|error| raised(py, &error.into()))?;
        } else if etcd_cert.is_some() || etcd_key.is_some() {
            return Err(invalid(py, "etcd_cert and etcd_key need etcd_ca"));
        }
        match (etcd_user, etcd_password) {
            (Some(user), Some(password)) => etcd = etcd.user(user, password),
            (None, None) => {}
            _ => return Err(invalid(py, "etcd_user and etcd_password come together")),
        }
        let db = py.detach(|| builder.etcd(etcd).open(address));
        let db = Held::new(db.map_err(|error| raised(py, &error))?);
        Ok(Store { db, address: address.to_owned() })
    }

    /// Names of all tables, in the order in which they stand in the pool.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let db = self.db(py)?;
        let tables = py.detach(|| db.tables()).map_err(|error| raised(py, &error))?;
        Ok(tables.into_iter().map(|table| table.name).collect())
    }

    /// Takes a table out of the pool and frees its memory.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let db = self.db(py)?;
        py.detach(|| db.drop_table(name)).map_err(|error| raised(py, &error))
    }

    /// Walks every node of every table; the problems, an empty list if all is well. For a quiet pool.
    fn verify(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let db = self.db(py)?;
        let report = py.detach(|| db.verify()).map_err(|error| raised(py, &error))?;
        let mut problems: Vec<String> = report.problems().collect();
        if problems.is_empty() && !report.closes() {
            problems.push(
                "some memory is not accounted for: lost, or of a process that works on the pool or has died and is not \
                 recovered yet"
                    .to_owned(),
            );
        }
        Ok(problems)
    }

    /// Leaves the pool: waits for operations of all threads that have begun. Later calls do nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let db = self.db(py)?.clone();
        py.detach(|| db.close()).map_err(|error| raised(py, &error))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("store"))
    }

    fn __repr__(&self) -> String {
        format!("<farleaf.Store {:?}>", self.address)
    }
}

/// The error of pickling a handle.
#[cold]
pub(crate) fn no_pickle(what: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "a {what} cannot be pickled: it is open in this process alone; open it in the other process"
    ))
}

/// The error of a content that there is none of.
#[cold]
pub(crate) fn no_content(content: &str) -> PyErr {
    PyValueError::new_err(format!("content={content:?}: it is \"raw\" or \"records\""))
}
