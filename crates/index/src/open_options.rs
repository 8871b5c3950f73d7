//! Open options: settings by which one compute server opens a table.

use crate::Settings;

/// The options with which a compute server opens tables. They concern it alone; an engine takes what it has a use for.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Settings of the engine, by name; see [`crate::engine::Engine::Options`].
    pub settings: Settings,
    /// For engines with owners: partitions that it takes at once, of those that nobody has.
    pub take: usize,
    /// For engines with owners: whether this compute server takes on keys that nobody has, or the dead had,
    /// when it meets them. One that does not only asks others.
    pub take_over: bool,
    /// For engines with owners: operations on keys that nobody has which this compute server does as a guest,
    /// without becoming their owner, before it takes such keys on. They are slower than an owner's.
    pub guest_operations: u64,
    /// For engines with owners: whether operations go to the compute servers that own the keys
    /// ([`crate::compute`]). Without that, operations on others' keys fail with `Unavailable`.
    pub calls: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            settings: Settings::default(),
            take: 0,
            take_over: true,
            guest_operations: 0,
            calls: false,
        }
    }
}
