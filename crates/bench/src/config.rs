//! Bench configuration: describes a run, and refuses requests that make no sense.

use std::net::SocketAddr;

use farleaf_engines::{Engine, SettingError};
use farleaf_fabric::tcp::Tls;
use farleaf_fabric::verbs::CardConfig;
use farleaf_index::Settings;
use farleaf_index::knobs::CACHE;
use farleaf_index::suggest::did_you_mean;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::{
    distribution::DistributionError,
    keys::{KeyOrder, KeySpec},
    parts::Parts,
    units::{Rate, Share, UnitError},
    workload::Workload,
};

/// One run: an engine on a fabric, loaded with items and then asked for operations.
///
/// The default is YCSB's workload A on a million items, as `farleaf bench` without options.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchConfig {
    /// The engine under measurement.
    pub engine: Engine,
    /// The fabric that carries the operations.
    pub fabric: FabricKind,
    /// Operations, their items and the lengths of scans.
    pub workload: Workload,
    /// Items that are loaded, at least 1.
    pub keys: u64,
    /// The way in which the items are loaded.
    pub load: LoadKind,
    /// Operations before the measured ones, of all clients together.
    pub warmup_ops: u64,
    /// Operations of the warm-up, if they are others than the measured ones.
    pub warm_up: Option<Workload>,
    /// Measured operations, of all clients together; at least 1.
    pub ops: u64,
    /// Parts of the measured operations, one after the other; see
    /// [`Progress::pause`](crate::Progress::pause). The report adds up their times and costs.
    pub slices: u64,
    /// Clients (coroutines) of all compute servers together; a multiple of `compute_servers`.
    pub clients: usize,
    /// Threads of all compute servers together; a multiple of `compute_servers`.
    pub threads: usize,
    /// Compute servers, at least 1.
    pub compute_servers: usize,
    /// Memory servers, at least 1.
    pub memory_servers: usize,
    /// Seed of all randomness.
    pub seed: u64,
    /// Form of the keys.
    pub key_type: KeySpec,
    /// The length of every value in bytes.
    pub value_bytes: usize,
    /// Operations per second of all clients together, at which an open loop runs; `None` runs a
    /// closed loop.
    pub rate: Option<Rate>,
    /// Settings of the engine: of the table's shape, and of how compute servers open it. A `cache` such as
    /// `8%` is a share of the bytes that the table has in the pool once it is loaded.
    pub settings: Settings,
    /// Partitions, and the compute servers that serve them, for engines with owners.
    pub parts: Parts,
    /// Bytes of all memory servers together; `None` takes what the items need.
    pub pool_bytes: Option<u64>,
    /// True if the simulator's adversary tears and reorders words.
    pub torn: bool,
    /// Time that an operation takes on its worker thread beside its waits, nanoseconds of the simulator's time.
    pub local_ns: u64,
    /// Capabilities of the simulator beyond the contract.
    pub capabilities: CapabilityKind,
    /// Rates of the simulator's cards; `None` takes the simulator's own.
    pub card_model: Option<CardModel>,
    /// True if the run walks and checks the table at the end.
    pub verify: bool,
    /// The memory servers, for the fabrics `tcp` and `verbs`.
    pub cluster: Option<Cluster>,
    /// The card of this side, for the fabric `verbs`.
    pub card: CardConfig,
    /// TLS to the memory servers; `None` connects in the open.
    pub tls: Option<Tls>,
}

/// Memory servers on a network, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// Memory servers of this run alone, which overwrites their content.
    Own(Vec<SocketAddr>),
    /// Memory servers of a pool with other users: the run makes a table in it and drops it. If they
    /// hold no pool, the run makes one that stays.
    Shared(Vec<SocketAddr>),
}

impl Cluster {
    /// Addresses at which the memory servers listen.
    pub fn addresses(&self) -> &[SocketAddr] {
        match self {
            Cluster::Own(addresses) | Cluster::Shared(addresses) => addresses,
        }
    }
}

impl Default for BenchConfig {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            fabric: FabricKind::Mapped,
            workload: Workload::named("ycsb-a").expect("it is one of Workload::NAMES"),
            keys: 1_000_000,
            load: LoadKind::Bulk,
            warmup_ops: 100_000,
            warm_up: None,
            ops: 1_000_000,
            slices: 1,
            clients: 16,
            threads: 2,
            compute_servers: 1,
            memory_servers: 2,
            seed: 1,
            key_type: KeySpec::U64(KeyOrder::Hashed),
            value_bytes: 8,
            rate: None,
            settings: Settings::default(),
            parts: Parts::default(),
            pool_bytes: None,
            torn: false,
            local_ns: 0,
            capabilities: CapabilityKind::None,
            card_model: None,
            verify: false,
            cluster: None,
            card: CardConfig::default(),
            tls: None,
        }
    }
}

impl BenchConfig {
    /// The most clients, threads or servers that a run takes.
    pub const COUNT_MAX: usize = 1 << 16;
    /// The largest value in bytes.
    pub const VALUE_BYTES_MAX: usize = 1 << 20;

    /// Refuses a configuration that makes no sense.
    ///
    /// # Errors
    /// The first wrong setting.
    pub fn validate(&self) -> Result<(), BenchConfigError> {
        self.workload.request.validate()?;
        if let Some(warm_up) = &self.warm_up {
            warm_up.request.validate()?;
        }
        for (what, count) in [("keys", self.keys), ("ops", self.ops)] {
            if count == 0 {
                return Err(BenchConfigError::Zero { what });
            }
        }
        for (what, count) in [
            ("clients", self.clients),
            ("threads", self.threads),
            ("compute servers", self.compute_servers),
            ("memory servers", self.memory_servers),
        ] {
            if count == 0 {
                return Err(BenchConfigError::Zero { what });
            }
            if count > Self::COUNT_MAX {
                return Err(BenchConfigError::TooMany { what, count });
            }
        }
        if self.threads > self.clients {
            return Err(BenchConfigError::IdleThreads {
                threads: self.threads,
                clients: self.clients,
            });
        }
        for (what, count) in [("clients", self.clients), ("threads", self.threads)] {
            if !count.is_multiple_of(self.compute_servers) {
                let compute_servers = self.compute_servers;
                return Err(BenchConfigError::Uneven { what, count, compute_servers });
            }
        }
        if self.value_bytes > Self::VALUE_BYTES_MAX {
            return Err(BenchConfigError::ValueTooLong { value_bytes: self.value_bytes });
        }
        self.validate_settings()?;
        self.parts.validate(self)?;
        if self.torn && self.fabric != FabricKind::Sim {
            return Err(BenchConfigError::TornNeedsSim { fabric: self.fabric });
        }
        Ok(())
    }

    fn validate_settings(&self) -> Result<(), BenchConfigError> {
        let share = self.cache_share().transpose()?;
        self.engine.split(&self.settings_with_cache(|_| 256 << 20))?;
        let Some(share) = share else { return Ok(()) };
        if share.of(u64::MAX) == 0 {
            return Err(BenchConfigError::Zero { what: "bytes of cache" });
        }
        match self.load {
            LoadKind::Bulk => Ok(()),
            LoadKind::Insert => Err(BenchConfigError::ShareOfNothing),
        }
    }

    /// The cache as a share of the table, if the setting is one.
    pub(crate) fn cache_share(&self) -> Option<Result<Share, UnitError>> {
        let text = self.settings.get(CACHE).filter(|text| text.ends_with('%'))?;
        Some(text.parse())
    }

    /// The settings as an engine reads them: a cache that is a share has the bytes that `bytes_of` gives.
    pub(crate) fn settings_with_cache(&self, bytes_of: impl Fn(Share) -> u64) -> Settings {
        let mut settings = self.settings.clone();
        if let Some(Ok(share)) = self.cache_share() {
            settings.set(CACHE, &bytes_of(share).to_string());
        }
        settings
    }

    /// Returns whether the pool has other users.
    pub(crate) fn shares_pool(&self) -> bool {
        matches!(self.cluster, Some(Cluster::Shared(_)))
    }

    /// The addresses of memory servers with other users.
    fn connect(&self) -> Option<Vec<String>> {
        match &self.cluster {
            Some(Cluster::Shared(addresses)) => {
                Some(addresses.iter().map(SocketAddr::to_string).collect())
            }
            _ => None,
        }
    }

    /// The configuration as it stands in a [`Report`](crate::Report).
    pub fn to_json(&self) -> Map<String, Value> {
        let Workload { name, mix, request, scan_length } = &self.workload;
        let fields = [
            ("engine", json!(self.engine.name())),
            ("fabric", json!(self.fabric.name())),
            ("workload", json!(name)),
            ("mix", json!(mix.to_string())),
            ("distribution", json!(request.to_string())),
            ("scan_length", json!(scan_length.to_string())),
            ("keys", json!(self.keys)),
            ("load", json!(self.load.name())),
            ("warmup_ops", json!(self.warmup_ops)),
            ("ops", json!(self.ops)),
            ("clients", json!(self.clients)),
            ("threads", json!(self.threads)),
            ("compute_servers", json!(self.compute_servers)),
            ("memory_servers", json!(self.memory_servers)),
            ("seed", json!(self.seed)),
            ("key_type", json!(self.key_type.to_string())),
            ("value_bytes", json!(self.value_bytes)),
            ("rate_ops_per_s", json!(self.rate.map(Rate::per_second))),
            ("pool_bytes", json!(self.pool_bytes)),
            ("settings", settings_json(self.settings.iter())),
            ("torn", json!(self.torn)),
            ("local_ns", json!(self.local_ns)),
            ("verify", json!(self.verify)),
            ("connect", json!(self.connect())),
        ];
        let mut all: Map<String, Value> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        self.parts.add_to(&mut all);
        if let Some(warm_up) = &self.warm_up {
            all.insert("warm_up".to_owned(), json!(warm_up.name));
        }
        if let Some(CardModel { ops_per_s, atomics_per_s }) = self.card_model {
            all.insert("card_ops_per_s".to_owned(), json!(ops_per_s));
            all.insert("card_atomics_per_s".to_owned(), json!(atomics_per_s));
        }
        all
    }
}

/// Settings as an object of texts.
pub(crate) fn settings_json<'a>(settings: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    settings.map(|(name, text)| (name.to_owned(), json!(text))).collect::<Map<_, _>>().into()
}

/// Fabric that carries the operations. Reads and prints `mapped`, `sim`, `tcp`, `verbs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricKind {
    /// This process's memory, in real time.
    Mapped,
    /// The simulator, in virtual time.
    Sim,
    /// Memory servers on a network, in real time.
    Tcp,
    /// Memory servers on a network, reached by RDMA, in real time.
    Verbs,
}

impl FabricKind {
    /// Returns whether the fabric needs memory servers in processes of their own.
    pub fn is_network(self) -> bool {
        matches!(self, FabricKind::Tcp | FabricKind::Verbs)
    }
}

/// Way to load the items. Reads and prints `bulk`, `insert`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKind {
    /// Sorted, in one bulk load.
    Bulk,
    /// Inserted by all clients, in shuffled order.
    Insert,
}

/// Rates of every server's card in the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardModel {
    /// Operations per second, each way.
    pub ops_per_s: u64,
    /// CASes and FAAs per second.
    pub atomics_per_s: u64,
}

/// Capabilities of a simulated fabric beyond the contract. Reads and prints `none`, `mapped`, `write-vs-rmw`.
/// Mapped memory always has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapabilityKind {
    /// No capabilities.
    None,
    /// Those of mapped memory.
    Mapped,
    /// A WRITE of a word and a CAS of it exclude each other; nothing else.
    WriteRmw,
}

/// Gives an enum's variants names, which it reads and prints.
macro_rules! named {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl $type {
            /// Every name.
            pub const NAMES: &[&str] = &[$($name),+];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::BenchConfigError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $($name => Ok(Self::$variant),)+
                    lower => Err($crate::BenchConfigError::UnknownName {
                        what: $what,
                        read: text.to_owned(),
                        suggestion: farleaf_index::suggest::nearest(lower, Self::NAMES.iter().copied()).map(str::to_owned),
                        known: Self::NAMES.join(", "),
                    }),
                }
            }
        }
    };
}

pub(crate) use named;

named!(FabricKind, "fabric", Mapped = "mapped", Sim = "sim", Tcp = "tcp", Verbs = "verbs");
named!(LoadKind, "way to load", Bulk = "bulk", Insert = "insert");
named!(
    CapabilityKind,
    "set of capabilities",
    None = "none",
    Mapped = "mapped",
    WriteRmw = "write-vs-rmw"
);

fn having_owners() -> String {
    let all = Engine::ALL.iter().filter(|engine| engine.traits().owned);
    all.map(|engine| engine.name()).collect::<Vec<_>>().join(", ")
}

/// A configuration that makes no sense.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum BenchConfigError {
    /// The engine does not take a setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A cache is no share.
    #[error(transparent)]
    Share(#[from] UnitError),
    /// A count is 0.
    #[error("a bench with 0 {what} measures nothing: give at least 1")]
    Zero {
        /// Name of the count.
        what: &'static str,
    },
    /// A count is beyond [`BenchConfig::COUNT_MAX`].
    #[error("{count} {what} are too many: at most {}", BenchConfig::COUNT_MAX)]
    TooMany {
        /// Name of the count.
        what: &'static str,
        /// The count.
        count: usize,
    },
    /// Some threads would have no client.
    #[error("{threads} threads for {clients} clients: each thread needs at least one client")]
    IdleThreads {
        /// Threads of all compute servers.
        threads: usize,
        /// Clients of all compute servers.
        clients: usize,
    },
    /// Clients or threads do not divide evenly among compute servers.
    #[error(
        "{count} {what} cannot be shared evenly by {compute_servers} compute servers (the count \
        is of all compute servers together)"
    )]
    Uneven {
        /// `clients` or `threads`.
        what: &'static str,
        /// The count.
        count: usize,
        /// Compute servers.
        compute_servers: usize,
    },
    /// Values are longer than a table takes.
    #[error("values of {value_bytes} bytes are too long: at most {}", BenchConfig::VALUE_BYTES_MAX)]
    ValueTooLong {
        /// Their length.
        value_bytes: usize,
    },
    /// The engine does not take this option.
    #[error("{engine} has nothing that --{part} sets: of the engines, {} has", having_owners())]
    NoPart {
        /// The engine.
        engine: Engine,
        /// The option's name.
        part: &'static str,
    },
    /// A cache would be a share of data that are not loaded yet.
    #[error(
        "a cache that is a share of the data needs --load bulk: it is opened when the data is there"
    )]
    ShareOfNothing,
    /// Some compute servers would own no partition.
    #[error(
        "{partitions} partitions for {compute_servers} compute servers: each needs at least one"
    )]
    TooFewPartitions {
        /// Partitions that were asked for.
        partitions: usize,
        /// Compute servers.
        compute_servers: usize,
    },
    /// A table cannot have so many partitions.
    #[error("{count} partitions are too many: a table has at most {most}")]
    TooManyPartitions {
        /// Partitions that were asked for.
        count: usize,
        /// The most partitions of a table.
        most: usize,
    },
    /// Equal boundaries need numbers: byte strings have no width.
    #[error("equal boundaries cut a space of numbers (--key-type u64): take sampled")]
    EqualNeedsNumbers,
    /// An open loop begins operations at their time, so it cannot route them to their owner.
    #[error(
        "with --rate operations begin where and when they come, which --routing any does: an \
        owner's clients take what others made as soon as they can"
    )]
    OwnersKeepNoRate,
    /// The fabric's memory servers have no threads.
    #[error(
        "the fabric {fabric} has no threads of memory servers, whose work its callers do: sim, tcp \
        and verbs have"
    )]
    NoMemoryThreads {
        /// The fabric that was asked for.
        fabric: FabricKind,
    },
    /// Memory threads were given for memory servers that the bench does not start.
    #[error(
        "--memory-threads is for memory servers that the bench starts, not for some that are there"
    )]
    ForeignMemoryThreads,
    /// Only the simulator has an adversary.
    #[error("torn words are the simulator's: the fabric {fabric} does not have them")]
    TornNeedsSim {
        /// The fabric that was asked for.
        fabric: FabricKind,
    },
    /// No variant has that name.
    #[error("no {what} is named \"{read}\"{}; known: {known}", did_you_mean(suggestion.as_deref()))]
    UnknownName {
        /// The sort of names.
        what: &'static str,
        /// The name as it was given.
        read: String,
        /// The known name that was probably meant.
        suggestion: Option<String>,
        /// The known names.
        known: String,
    },
    /// The workload's distribution is wrong.
    #[error(transparent)]
    Distribution(#[from] DistributionError),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::RequestDistribution;

    fn refusal(change: impl FnOnce(&mut BenchConfig)) -> String {
        let mut config = BenchConfig::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn invalid_options_are_refused_with_a_message() {
        assert_eq!(BenchConfig::default().validate(), Ok(()));
        assert!(refusal(|it| it.clients = 0).contains("0 clients"));
        assert!(refusal(|it| it.keys = 0).contains("0 keys"));
        assert!(refusal(|it| it.ops = 0).contains("0 ops"));
        assert!(refusal(|it| it.memory_servers = 0).contains("0 memory servers"));
        assert!(refusal(|it| it.clients = 1 << 20).contains("too many"));
        assert!(refusal(|it| it.threads = 17).contains("17 threads for 16 clients"));
        assert!(refusal(|it| it.compute_servers = 3).contains("16 clients cannot be shared"));
        let threads = refusal(|it| (it.clients, it.threads, it.compute_servers) = (8, 2, 4));
        assert!(threads.contains("2 threads cannot be shared"), "{threads}");
        assert!(refusal(|it| it.value_bytes = 1 << 21).contains("too long"));
        assert!(refusal(|it| it.torn = true).contains("mapped does not have them"));
        let theta = refusal(|it| it.workload.request = RequestDistribution::Zipfian { theta: 0.0 });
        assert!(theta.contains("theta must be"), "{theta}");
    }

    #[test]
    fn names_are_read_printed_and_corrected() {
        for name in FabricKind::NAMES {
            assert_eq!(name.parse::<FabricKind>().unwrap().to_string(), *name);
        }
        for name in LoadKind::NAMES {
            assert_eq!(name.parse::<LoadKind>().unwrap().to_string(), *name);
        }
        let message = "maped".parse::<FabricKind>().unwrap_err().to_string();
        assert_eq!(
            message,
            "no fabric is named \"maped\"; did you mean \"mapped\"?; known: mapped, sim, tcp, verbs"
        );
    }

    #[test]
    fn the_configuration_lists_every_field() {
        let told = BenchConfig::default().to_json();
        assert_eq!(told["workload"], "ycsb-a");
        assert_eq!(told["distribution"], "zipfian:0.99");
        assert_eq!(told["keys"], 1_000_000);
        assert_eq!(told["rate_ops_per_s"], Value::Null);
        assert_eq!(told["partitions"], Value::Null);
        assert_eq!(told["settings"], Value::Object(Map::new()));
        assert_eq!(told.len(), 28);
    }
}
