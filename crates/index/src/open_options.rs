//! Open options: settings by which one compute server opens a table.

use std::sync::Arc;

use crate::Settings;
use crate::engines::dex::Forward;

/// The options with which a compute server opens tables. They concern it alone; an engine takes what it has a use for.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Settings of the engine, by name; see [`crate::Engine::options`].
    pub settings: Settings,
    /// For engines with owners: partitions that it takes at once, of those that nobody has.
    pub take: usize,
    /// For engines with owners: whether this compute server takes on keys that nobody has, or the dead had,
    /// when it meets them. One that does not only asks others, through `forward`.
    pub take_over: bool,
    /// For engines with owners: what carries operations to the compute servers that own the keys. Without
    /// one, operations on others' keys fail with `Unavailable`.
    pub forward: Option<Arc<dyn Forward>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { settings: Settings::default(), take: 0, take_over: true, forward: None }
    }
}
