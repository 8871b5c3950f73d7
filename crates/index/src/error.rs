//! Index errors: say why an index operation failed.

use farleaf_fabric::OpError;
use farleaf_pool::PoolError;

/// A failed index operation, by what its caller would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The request makes no sense for this table. Nothing was done.
    #[error("{0}")]
    Invalid(String),
    /// There is no table of that name, perhaps since a moment ago. Nothing was done.
    #[error("{0}")]
    NoTable(String),
    /// Servers cannot be reached, or a lock was not released in time. Nothing was done; trying
    /// again may help.
    #[error("{0}")]
    Unavailable(String),
    /// A change may have happened, or may still happen.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
    /// The pool has no memory left. Nothing was done.
    #[error("{0}")]
    Full(String),
    /// Remote memory does not hold what it must.
    #[error("corrupt: {0}")]
    Corrupt(String),
    /// This compute server has been cut off and must open the pool anew.
    #[error("{0}")]
    Closed(String),
}

impl From<OpError> for IndexError {
    fn from(error: OpError) -> Self {
        IndexError::from(PoolError::from(error))
    }
}

impl From<PoolError> for IndexError {
    fn from(error: PoolError) -> Self {
        use farleaf_fabric::OpErrorKind;
        let text = error.to_string();
        match error {
            PoolError::Fabric(error) => match error.kind {
                OpErrorKind::Fenced => IndexError::Closed(text),
                OpErrorKind::OutOfBounds { .. } | OpErrorKind::Misaligned { .. } => {
                    IndexError::Corrupt(text)
                }
                _ => IndexError::Unavailable(text),
            },
            PoolError::Full { .. } | PoolError::NoSlot(..) => IndexError::Full(text),
            PoolError::Corrupt(_) | PoolError::Format(_) => IndexError::Corrupt(text),
            PoolError::RetireFull
            | PoolError::Unsettled
            | PoolError::Searching
            | PoolError::Busy(_) => IndexError::Unavailable(text),
            PoolError::Closed => IndexError::Closed(text),
            PoolError::NoSuchTable(_) => IndexError::NoTable(text),
            _ => IndexError::Invalid(text),
        }
    }
}
