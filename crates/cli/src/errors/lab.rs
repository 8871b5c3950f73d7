//! Errors of the commands `bench` and `repro`, and their exit codes.

use std::error::Error;

use farleaf_bench::{BenchError, repro::ReproError};
use farleaf_fabric::FabricError;
use farleaf_pool::PoolError;

use super::{Exit, exit_of_kind};

/// The exit code of `cause`, if it is an error of theirs.
pub(super) fn exit_of(cause: &(dyn Error + 'static)) -> Option<Exit> {
    match (cause.downcast_ref::<BenchError>(), cause.downcast_ref::<ReproError>()) {
        (Some(error), _) => Some(exit_of_bench(error)),
        (None, error) => error.map(exit_of_repro),
    }
}

fn exit_of_repro(error: &ReproError) -> Exit {
    match error {
        ReproError::UnknownExperiment { .. }
        | ReproError::Scale { .. }
        | ReproError::ScaleWord { .. }
        | ReproError::Setting(_)
        | ReproError::Chosen { .. }
        | ReproError::TooSmall { .. } => Exit::Usage,
        ReproError::Bench(error) => exit_of_bench(error),
        ReproError::Host(_) | ReproError::Redis(_) => Exit::Unavailable,
        _ => Exit::Internal,
    }
}

fn exit_of_bench(error: &BenchError) -> Exit {
    match error {
        BenchError::Config(_)
        | BenchError::Workload(_)
        | BenchError::Distribution(_)
        | BenchError::TooFewLines { .. }
        | BenchError::Table(_)
        | BenchError::SmallShare { .. }
        | BenchError::NoCluster => Exit::Usage,
        BenchError::Lines(_) | BenchError::Key(_) => Exit::Malformed,
        BenchError::Fabric(error) => exit_of_fabric(error),
        BenchError::Pool { source, .. } => exit_of_pool(source),
        BenchError::PoolTooSmall { .. } => Exit::Full,
        BenchError::Damaged { .. } | BenchError::Verify(_) => Exit::Corrupt,
        BenchError::Open(error) | BenchError::Load(error) | BenchError::Clear(error) => {
            exit_of_kind(farleaf::Error::from(error.clone()).kind())
        }
        BenchError::Thread(_) => Exit::Unavailable,
        _ => Exit::Internal,
    }
}

fn exit_of_fabric(error: &FabricError) -> Exit {
    match error {
        FabricError::Config(_) => Exit::Usage,
        FabricError::NoMemory { .. } | FabricError::NoSpace { .. } => Exit::Full,
        FabricError::Damaged { .. } => Exit::Corrupt,
        _ => Exit::Unavailable,
    }
}

fn exit_of_pool(error: &PoolError) -> Exit {
    match error {
        PoolError::Fabric(_) | PoolError::Closed => Exit::Unavailable,
        PoolError::NoSlot(..) => Exit::Full,
        PoolError::Corrupt(_) | PoolError::Format(_) => Exit::Corrupt,
        // Sizes of the pool that the command line asks for.
        _ => Exit::Usage,
    }
}
