//! Open options: settings by which one compute server opens a table.

use std::sync::Arc;

use crate::engines::dex::{DexOptions, Forward};

/// How a compute server opens tables. Concerns it alone; an engine takes what it has a use for.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// For [`Engine::Dex`]: the cache, and how changes are kept.
    pub dex: DexOptions,
    /// For [`Engine::Dex`]: partitions that it takes at once, of those that nobody has.
    pub take: usize,
    /// For [`Engine::Dex`]: whether this compute server takes on keys that nobody has, or the dead had,
    /// when it meets them. One that does not only asks others, through `forward`.
    pub take_over: bool,
    /// For [`Engine::Dex`]: what carries operations to the compute servers that own the keys. Without
    /// one, operations on others' keys fail with `Unavailable`.
    pub forward: Option<Arc<dyn Forward>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { dex: DexOptions::default(), take: 0, take_over: true, forward: None }
    }
}
