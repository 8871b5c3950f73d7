//! Experiment errors: say why an experiment failed.

use farleaf_index::KnobError;
use farleaf_index::suggest::did_you_mean;
use farleaf_index::{IndexError, dex::MoveError};
use thiserror::Error;

use super::{hosts::HostError, redis::RedisError};
use crate::run::BenchError;

/// An experiment that was not run to its end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReproError {
    /// There is no such experiment.
    #[error(
        "no experiment is named \"{read}\"{}; known: {known}",
        did_you_mean(suggestion.as_deref())
    )]
    UnknownExperiment {
        /// The name as it was given.
        read: String,
        /// What was probably meant.
        suggestion: Option<String>,
        /// What there is.
        known: String,
    },
    /// The scale is no share of the paper's.
    #[error(
        "a scale of {read} makes no sense: it is a share of the paper's sizes, above 0 and at most 1"
    )]
    Scale {
        /// What was given.
        read: f64,
    },
    /// So little is left at that scale that the experiment shows nothing.
    #[error("at scale {scale}, {what}: give at least {least}")]
    TooSmall {
        /// The scale.
        scale: f64,
        /// What is too little.
        what: String,
        /// The smallest scale that works.
        least: f64,
    },
    /// A setting that the engine does not take.
    #[error(transparent)]
    Setting(KnobError),
    /// A setting that the experiment chooses itself.
    #[error("{experiment} chooses {setting} itself: leave --set {setting} out")]
    Chosen {
        /// The experiment's name.
        experiment: &'static str,
        /// The setting's name.
        setting: String,
    },
    /// The papers' figures that are built in cannot be read.
    #[error("the papers' figures cannot be read: {0}")]
    Figures(#[source] serde_json::Error),
    /// The report could not be drawn.
    #[error("the report cannot be drawn: {0}")]
    Drawing(String),
    /// Setting up or loading failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// An operation failed.
    #[error("{kind} failed: {source}")]
    Operation {
        /// Which.
        kind: &'static str,
        /// Why.
        source: IndexError,
    },
    /// A range could not be given to another compute server.
    #[error("a range did not move: {0}")]
    Move(#[from] MoveError),
    /// A memory server does not start.
    #[error("a memory server does not start: {0}")]
    Host(#[source] HostError),
    /// Redis, or its bench, is missing or fails.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// An answer, or what was left behind, cannot be right.
    #[error("went wrong: {0}")]
    Wrong(String),
}
