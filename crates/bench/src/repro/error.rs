//! Experiment errors: say why an experiment failed.

use farleaf_index::KnobError;
use farleaf_index::suggest::did_you_mean;
use farleaf_index::{IndexError, compute::MoveError};
use thiserror::Error;

use super::{hosts::HostError, redis::RedisError};
use crate::run::BenchError;

/// Failure of an experiment.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReproError {
    /// No experiment has that name.
    #[error(
        "no experiment is named \"{read}\"{}; known: {known}",
        did_you_mean(suggestion.as_deref())
    )]
    UnknownExperiment {
        /// The name as it was given.
        read: String,
        /// The known name that was probably meant.
        suggestion: Option<String>,
        /// The known names.
        known: String,
    },
    /// The scale is no share of the paper's.
    #[error(
        "a scale of {read} is invalid: it is a share of the paper's sizes, above 0 and at most 1"
    )]
    Scale {
        /// The scale that was given.
        read: f64,
    },
    /// The scale is neither a known word nor a number.
    #[error(
        "\"{read}\" is no scale{}: give small, usual, full, or a share of the paper's sizes such as 0.01",
        did_you_mean(suggestion.as_deref())
    )]
    ScaleWord {
        /// The text that was given.
        read: String,
        /// The word that was probably meant.
        suggestion: Option<String>,
    },
    /// At that scale the experiment is too small to show anything.
    #[error("at scale {scale}, {what}: give at least {least}")]
    TooSmall {
        /// The scale.
        scale: f64,
        /// The part that is too small.
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
        /// Name of the operation.
        kind: &'static str,
        /// Cause of the failure.
        source: IndexError,
    },
    /// A range could not move to another compute server.
    #[error("a range did not move: {0}")]
    Move(#[from] MoveError),
    /// A memory server does not start.
    #[error("a memory server does not start: {0}")]
    Host(#[source] HostError),
    /// Redis, or its bench, is missing or fails.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// An answer, or the final content, is wrong.
    #[error("went wrong: {0}")]
    Wrong(String),
}
