//! Store errors: the one error type of this library.

use std::io;
use std::sync::Arc;

use farleaf_engines::{SettingError, UnknownEngine};
use farleaf_fabric::verbs::VerbsError;
use farleaf_fabric::{FabricError, OpErrorKind, Refusal};
use farleaf_index::IndexError;
use farleaf_pool::{FormatFault, PoolError};
use farleaf_records::RecordError;

/// The result of this library's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call. [`Error::kind`] says what a caller can do about it, the message says the rest.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<io::Error>>,
}

/// The kind of an [`Error`], by what its caller would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is invalid: a key too large for the table, a malformed address.
    /// Nothing was done.
    Invalid,
    /// The key of a table of records holds a value of another kind than the call is for: a hash, or a string.
    /// Nothing was done.
    WrongType,
    /// There is no such table or compute server. Nothing was done.
    NotFound,
    /// There is no pool at the address, and none can be made there. Nothing was done.
    NoPool,
    /// A table of that name is there. Nothing was done.
    AlreadyExists,
    /// The pool cannot be reached, or a lock was not released in time. Nothing was done; trying
    /// again may help.
    Unavailable,
    /// A change may have happened, or may still happen.
    OutcomeUnknown,
    /// The pool has no memory left, or no free entry for one more table, thread or compute server.
    /// Nothing was done.
    Full,
    /// The pool does not hold what it must.
    Corrupt,
    /// The handle was closed, or this process was cut off from the pool: open it again. Nothing
    /// was done.
    Closed,
    /// The operating system refused; [`std::error::Error::source`] is its error.
    Io,
    /// A fault of this library.
    Internal,
}

impl Error {
    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    #[cold]
    pub(crate) fn closed() -> Self {
        Error::new(ErrorKind::Closed, "the store is closed: open it again")
    }

    /// Puts in front what failed.
    #[cold]
    pub(crate) fn within(mut self, what: impl std::fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The system refused `what`.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Error { kind: ErrorKind::Io, message: what.into(), source: Some(Arc::new(source)) }
    }
}

impl From<RecordError> for Error {
    #[cold]
    fn from(error: RecordError) -> Self {
        let kind = match &error {
            RecordError::Index(_) => None,
            RecordError::WrongKind { .. } => Some(ErrorKind::WrongType),
            RecordError::Format { .. } => Some(ErrorKind::Corrupt),
            _ => Some(ErrorKind::Invalid),
        };
        match (kind, error) {
            (_, RecordError::Index(error)) => error.into(),
            (kind, error) => Error::new(kind.unwrap_or(ErrorKind::Invalid), error.to_string()),
        }
    }
}

impl From<FabricError> for Error {
    #[cold]
    fn from(error: FabricError) -> Self {
        let kind = match error {
            FabricError::Io { what, path, source } => {
                let rights = farleaf_fabric::missing_rights(&path, &source);
                return Error::io(format!("cannot {what} {}{rights}", path.display()), source);
            }
            FabricError::Verbs(error) => return error.into(),
            FabricError::NotAPool { .. } => ErrorKind::NoPool,
            FabricError::Damaged { .. } => ErrorKind::Corrupt,
            FabricError::Config(_) => ErrorKind::Invalid,
            FabricError::NoMemory { .. } | FabricError::NoSpace { .. } => ErrorKind::Full,
            FabricError::Unreachable { .. } => ErrorKind::Unavailable,
            FabricError::Refused { reason, .. } => match reason {
                Refusal::NoMemoryServer => ErrorKind::NoPool,
                Refusal::OtherVersion => ErrorKind::Corrupt,
                Refusal::OtherServer | Refusal::NoCard => ErrorKind::Invalid,
                Refusal::Full => ErrorKind::Full,
                Refusal::NotTrusted | Refusal::NoWay | Refusal::OtherWay => ErrorKind::Unavailable,
                _ => ErrorKind::Closed,
            },
            FabricError::CutOff { .. } | FabricError::GivenUp => ErrorKind::Closed,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<VerbsError> for Error {
    #[cold]
    fn from(error: VerbsError) -> Self {
        let told = error.to_string();
        match error {
            VerbsError::Config(_)
            | VerbsError::Gid { .. }
            | VerbsError::NoDevice { wanted: Some(_), .. } => Error::invalid(told),
            VerbsError::Denied { source, .. }
            | VerbsError::Memory { source, .. }
            | VerbsError::Failed { source, .. } => Error::io(told, source),
            _ => Error::new(ErrorKind::Unavailable, told),
        }
    }
}

impl From<IndexError> for Error {
    #[cold]
    fn from(error: IndexError) -> Self {
        let kind = match &error {
            IndexError::Invalid(_) => ErrorKind::Invalid,
            IndexError::NoTable(_) => ErrorKind::NotFound,
            IndexError::Unavailable(_) => ErrorKind::Unavailable,
            IndexError::OutcomeUnknown(_) => ErrorKind::OutcomeUnknown,
            IndexError::Full(_) => ErrorKind::Full,
            IndexError::Corrupt(_) => ErrorKind::Corrupt,
            IndexError::Closed(_) => ErrorKind::Closed,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<SettingError> for Error {
    #[cold]
    fn from(error: SettingError) -> Self {
        Error::invalid(error.to_string())
    }
}

impl From<PoolError> for Error {
    #[cold]
    fn from(error: PoolError) -> Self {
        let kind = match &error {
            PoolError::Fabric(error) => match error.kind {
                OpErrorKind::Unavailable | OpErrorKind::Timeout | OpErrorKind::StillAlive => {
                    ErrorKind::Unavailable
                }
                OpErrorKind::Fenced => ErrorKind::Closed,
                OpErrorKind::OutOfBounds { .. } | OpErrorKind::Misaligned { .. } => {
                    ErrorKind::Corrupt
                }
                _ => ErrorKind::Internal,
            },
            PoolError::Full { .. } | PoolError::NoSlot(..) => ErrorKind::Full,
            PoolError::Format(error) if error.fault == FormatFault::NotFormatted => {
                ErrorKind::NoPool
            }
            PoolError::Corrupt(_) | PoolError::Format(_) => ErrorKind::Corrupt,
            PoolError::NoSuchTable(_) => ErrorKind::NotFound,
            PoolError::TableExists(_) => ErrorKind::AlreadyExists,
            PoolError::RetireFull
            | PoolError::Unsettled
            | PoolError::Searching
            | PoolError::Busy(_) => ErrorKind::Unavailable,
            PoolError::Invalid(_) => ErrorKind::Invalid,
            PoolError::Closed => ErrorKind::Closed,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, error.to_string())
    }
}

#[cfg(feature = "etcd")]
impl From<farleaf_cluster::ClusterError> for Error {
    #[cold]
    fn from(error: farleaf_cluster::ClusterError) -> Self {
        use farleaf_cluster::ClusterError;
        let kind = match &error {
            ClusterError::Unreachable { .. }
            | ClusterError::Missing { .. }
            | ClusterError::NotTrusted { .. }
            | ClusterError::CertificateRefused { .. }
            | ClusterError::Refused { .. } => ErrorKind::Unavailable,
            ClusterError::NotEtcd { .. } | ClusterError::NoSuchCluster { .. } => ErrorKind::NoPool,
            ClusterError::NoSuchServer { .. } => ErrorKind::NotFound,
            ClusterError::Address(_)
            | ClusterError::Files(_)
            | ClusterError::WantsCertificate { .. }
            | ClusterError::WantsTls { .. }
            | ClusterError::WantsPlain { .. }
            | ClusterError::NoUser { .. }
            | ClusterError::CommonName { .. }
            | ClusterError::WrongPassword { .. }
            | ClusterError::UsersOff { .. }
            | ClusterError::NotAllowed { .. }
            | ClusterError::OtherCount { .. }
            | ClusterError::OtherWay { .. }
            | ClusterError::OtherPool { .. }
            | ClusterError::NumberTaken { .. } => ErrorKind::Invalid,
            ClusterError::Foreign { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<UnknownEngine> for Error {
    fn from(error: UnknownEngine) -> Self {
        Error::invalid(error.to_string())
    }
}
