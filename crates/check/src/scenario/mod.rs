//! Scenario: everything that determines one run, drawn from one seed, and its command line.
//!
//! - INV-SCENARIO-1: a field is drawn from the seed and from fields above it alone, each with a
//!   generator of its own. So pinning one leaves those above as they are.
//! - INV-SCENARIO-2: [`Scenario::flags`], read back, give the same scenario: they leave out only
//!   fields to which the seed and the flags in front lead.

mod choices;
mod draw;
mod events;
mod faults;
mod formats;
mod subset;
#[cfg(test)]
mod tests;
mod workload;

use farleaf_engines::{Engine, TableFormat};
use farleaf_index::Settings;

pub use choices::{Choices, ScenarioError};
pub use events::{Events, FaultKind, TimedFault};
pub use faults::{Faults, Window};
pub use formats::FormatName;
pub use subset::Subset;
pub use workload::Workload;

/// One run, completely: the same scenario is the same run, bit for bit.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Seed of the operations, and of all that is not pinned.
    pub seed: u64,
    /// Changes the simulator's random choices and nothing else.
    pub salt: u64,
    /// The engine.
    pub engine: Engine,
    /// The table's format.
    pub format: FormatName,
    /// Settings by which compute servers open the table.
    pub settings: Settings,
    /// Memory servers: 1 to 16.
    pub memory_servers: usize,
    /// Compute servers that run clients: 1 to 16. One more observes and checks at the end.
    pub compute_servers: usize,
    /// Clients of all compute servers together: 1 to 64. Client `c` runs on compute server `c`
    /// modulo their number.
    pub clients: usize,
    /// Mix of operations and keys.
    pub workload: Workload,
    /// Operations of each client: 1 to 100,000.
    pub ops: usize,
    /// Different keys: 1 to 1,000,000.
    pub keys: u64,
    /// Keys of these that the table has at first.
    pub preload: u64,
    /// Bytes of each memory server, in KiB.
    pub region_kib: u64,
    /// Bytes of memory that each compute server exposes to the others, in KiB, a multiple of 4.
    pub expose_kib: u64,
    /// Mean time between two operations of a client, in nanoseconds.
    pub think_ns: u64,
    /// Probability that a caller gives an operation up half done.
    pub impatience: f64,
    /// Faults of single operations.
    pub faults: Faults,
    /// Remote operations that may have faults, by number from the start of the clients.
    pub window: Window,
    /// Faults of servers, and their times.
    pub events: Events,
    /// True if counters start just before they wrap: those of the pool, and versions of nodes.
    pub aged: bool,
    /// Operations to run.
    pub only: Subset,
}

impl Scenario {
    /// The format of its table, with what its settings say of the shape.
    pub fn table(&self) -> TableFormat {
        let format = self.format.table(self.engine);
        // If the engine cannot use them, the run reports it.
        let shape = self.engine.split(&self.settings).map(|(shape, _)| shape).unwrap_or_default();
        format.shaped(&shape).unwrap_or(format)
    }

    /// The flags of the command line that gives this scenario, in order.
    pub fn flags(&self) -> Vec<(&'static str, String)> {
        let mut flags = vec![("engine", self.engine.to_string()), ("seed", self.seed.to_string())];
        let mut choices = Choices { engine: Some(self.engine), ..Choices::default() };
        for (flag, told) in self.told() {
            let drawn = choices.scenario(self.seed);
            if drawn.told().any(|other| other == (flag, told.clone())) {
                continue;
            }
            // A printed flag can be read: a test reads back thousands of scenarios.
            let _ = choices.set(flag, &told);
            flags.push((flag, told));
        }
        flags
    }

    /// Every field but seed and engine, in the form that its flag takes, in the order of drawing.
    fn told(&self) -> impl Iterator<Item = (&'static str, String)> {
        [
            ("salt", self.salt.to_string()),
            ("format", self.format.to_string()),
            ("set", choices::settings_text(&self.settings)),
            ("memory-servers", self.memory_servers.to_string()),
            ("compute-servers", self.compute_servers.to_string()),
            ("clients", self.clients.to_string()),
            ("workload", self.workload.to_string()),
            ("ops", self.ops.to_string()),
            ("keys", self.keys.to_string()),
            ("preload", self.preload.to_string()),
            ("region-kib", self.region_kib.to_string()),
            ("expose-kib", self.expose_kib.to_string()),
            ("think-ns", self.think_ns.to_string()),
            ("impatience", self.impatience.to_string()),
            ("faults", self.faults.to_string()),
            ("window", self.window.to_string()),
            ("event", self.events.to_string()),
            ("aged", choices::yes_or_no(self.aged).to_owned()),
            ("only", self.only.to_string()),
        ]
        .into_iter()
    }

    /// Rough time of the clients if nothing goes wrong, in nanoseconds.
    pub fn likely_ns(&self) -> u64 {
        self.ops as u64 * (self.think_ns + 14_000)
    }

    /// Returns whether a client may lose memory that only a sweep finds again: clients that die,
    /// give up, or lose what they sent.
    pub fn loses_memory(&self) -> bool {
        self.impatience > 0.0 || self.faults.lost > 0.0 || !self.events.0.is_empty()
    }
}

/// The command line that replays it.
impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("farleaf check")?;
        self.flags().iter().try_for_each(|(flag, value)| write!(f, " --{flag} {value}"))
    }
}

/// A number that depends on both and looks like neither.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut word = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
