//! `--set name=value`: settings of engines on the command line, the same for every command.

use clap::Args;
use farleaf::{Setting, Settings};

/// Settings of the engine, by name.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SetArgs {
    /// A setting of the engine, as in cache=64MiB; may be given more than once ('farleaf engines NAME'
    /// lists them)
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',')]
    pub(crate) set: Vec<Setting>,
}

impl SetArgs {
    /// All of them; of those with the same name the last.
    pub(crate) fn settings(&self) -> Settings {
        self.set.iter().cloned().collect()
    }
}
