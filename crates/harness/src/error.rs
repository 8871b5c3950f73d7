//! Harness error: a cluster that cannot be made, or a pool that is out of order.

use std::fmt;

use farleaf_fabric::sim::SimError;
use farleaf_fabric::{FabricError, OpError};
use farleaf_index::IndexError;
use farleaf_pool::PoolError;

/// Failure of a cluster, a pool or a check, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HarnessError(pub String);

impl HarnessError {
    /// The same failure, with the activity in front.
    #[must_use]
    pub fn within(self, activity: impl fmt::Display) -> HarnessError {
        HarnessError(format!("{activity}: {}", self.0))
    }
}

/// Does nothing if `holds`.
///
/// # Errors
/// Else the failure in the words of `why`.
pub fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), HarnessError> {
    if holds { Ok(()) } else { Err(HarnessError(why())) }
}

macro_rules! from {
    ($($error:ty),*) => {
        $(impl From<$error> for HarnessError {
            fn from(error: $error) -> Self {
                HarnessError(format!("{error} ({error:?})"))
            }
        })*
    };
}

from!(SimError, FabricError, OpError, PoolError, IndexError);
