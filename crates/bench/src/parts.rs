//! Parts: partitions of a table with their compute servers, and the choices that make no sense.

use serde_json::{Map, Value, json};

use crate::{
    config::{BenchConfig, BenchConfigError, Cluster, FabricKind, named},
    keys::KeySpec,
};

/// Choices of how a table is partitioned and served, for engines whose compute servers own keys;
/// `None` leaves the choice to the bench.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Partitions of the table, at least one for each compute server; `None` takes as many.
    pub partitions: Option<usize>,
    /// Rule by which partitions end.
    pub boundaries: Option<Boundaries>,
    /// Rule for the compute server at which an operation begins.
    pub routing: Option<Routing>,
    /// Threads of each memory server that serve offloaded requests.
    pub memory_threads: Option<usize>,
}

/// Rule by which partitions end. Reads and prints `sampled`, `equal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boundaries {
    /// Each partition gets an equal share of the loaded keys.
    #[default]
    Sampled,
    /// Each partition gets an equal share of all possible keys.
    Equal,
}

/// Rule for the compute server at which an operation begins. Reads and prints `owner`, `any`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// The owner of the key: clients know the partitions, as in the paper's harness.
    Owner,
    /// The compute server of the client, which forwards the operation if another one owns the key.
    Any,
}

named!(Boundaries, "kind of boundaries", Sampled = "sampled", Equal = "equal");
named!(Routing, "routing", Owner = "owner", Any = "any");

impl Parts {
    /// The most partitions that a table has.
    const PARTITIONS_MAX: usize = 4096;

    /// Those choices that an engine without owners takes on `fabric`: memory servers on a network
    /// have threads whatever the engine.
    pub fn of_plain_engine(&self, fabric: FabricKind) -> Parts {
        let memory_threads = self.memory_threads.filter(|_| fabric.is_network());
        Parts { memory_threads, ..Parts::default() }
    }

    /// The option name of the first choice that is set.
    fn first(&self) -> Option<&'static str> {
        [
            ("partitions", self.partitions.is_some()),
            ("boundaries", self.boundaries.is_some()),
            ("routing", self.routing.is_some()),
            ("memory-threads", self.memory_threads.is_some()),
        ]
        .into_iter()
        .find_map(|(name, is_set)| is_set.then_some(name))
    }

    /// Refuses choices that make no sense in `config`, whose parts these are.
    pub(crate) fn validate(&self, config: &BenchConfig) -> Result<(), BenchConfigError> {
        let BenchConfig { engine, fabric, compute_servers, .. } = *config;
        if let Some(threads) = self.memory_threads {
            match fabric {
                _ if threads == 0 => {
                    return Err(BenchConfigError::Zero { what: "memory threads" });
                }
                FabricKind::Mapped => return Err(BenchConfigError::NoMemoryThreads { fabric }),
                _ if matches!(config.cluster, Some(Cluster::Shared(_))) => {
                    return Err(BenchConfigError::ForeignMemoryThreads);
                }
                FabricKind::Sim | FabricKind::Tcp | FabricKind::Verbs => {}
            }
        }
        if !engine.traits().owned {
            let none = self.of_plain_engine(fabric);
            let left = Parts { memory_threads: None, ..self.clone() };
            let threads = (*self != none).then_some("memory-threads");
            return match left.first().or(threads) {
                Some(part) => Err(BenchConfigError::NoPart { engine, part }),
                None => Ok(()),
            };
        }
        if let Some(partitions) = self.partitions {
            if partitions < compute_servers {
                return Err(BenchConfigError::TooFewPartitions { partitions, compute_servers });
            }
            if partitions > Self::PARTITIONS_MAX {
                return Err(BenchConfigError::TooManyPartitions {
                    count: partitions,
                    most: Self::PARTITIONS_MAX,
                });
            }
        }
        if self.boundaries == Some(Boundaries::Equal) && !matches!(config.key_type, KeySpec::U64(_))
        {
            return Err(BenchConfigError::EqualNeedsNumbers);
        }
        if self.routing == Some(Routing::Owner) && config.rate.is_some() && compute_servers > 1 {
            return Err(BenchConfigError::OwnersKeepNoRate);
        }
        Ok(())
    }

    /// The routing that was chosen, or else the default for `config`.
    pub(crate) fn routing(&self, config: &BenchConfig) -> Routing {
        let own = if config.rate.is_some() { Routing::Any } else { Routing::Owner };
        self.routing.unwrap_or(own)
    }

    /// The number of partitions.
    pub(crate) fn partitions(&self, config: &BenchConfig) -> usize {
        self.partitions.unwrap_or(config.compute_servers)
    }

    /// Adds the choices to a configuration for a report.
    pub(crate) fn add_to(&self, fields: &mut Map<String, Value>) {
        let text = |part: Option<String>| json!(part);
        for (name, value) in [
            ("partitions", json!(self.partitions)),
            ("boundaries", text(self.boundaries.map(|it| it.to_string()))),
            ("routing", text(self.routing.map(|it| it.to_string()))),
            ("memory_threads", json!(self.memory_threads)),
        ] {
            fields.insert(name.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use farleaf_engines::Engine;

    use super::*;
    use crate::{KeyOrder, LoadKind, units::Rate};

    fn refusal(change: impl FnOnce(&mut BenchConfig)) -> String {
        let mut config = BenchConfig { engine: Engine::Dex, ..BenchConfig::default() };
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn parts_of_other_engines_are_refused_by_name() {
        let every = Parts {
            partitions: Some(4),
            boundaries: Some(Boundaries::Equal),
            routing: Some(Routing::Owner),
            memory_threads: Some(2),
        };
        let sim = BenchConfig { fabric: FabricKind::Sim, ..BenchConfig::default() };
        let dex = BenchConfig { engine: Engine::Dex, parts: every.clone(), ..sim.clone() };
        assert_eq!(dex.validate(), Ok(()));
        type Keep = fn(&Parts) -> Parts;
        let cases: [(&str, Keep); 4] = [
            ("partitions", |it| Parts { partitions: it.partitions, ..Parts::default() }),
            ("boundaries", |it| Parts { boundaries: it.boundaries, ..Parts::default() }),
            ("routing", |it| Parts { routing: it.routing, ..Parts::default() }),
            ("memory-threads", |it| Parts {
                memory_threads: it.memory_threads,
                ..Parts::default()
            }),
        ];
        for (part, keep) in cases {
            let config = BenchConfig { parts: keep(&every), ..sim.clone() };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(&format!("btree has nothing that --{part} sets")), "{error}");
            assert!(error.contains("dex"), "{error}");
        }
        let tcp = BenchConfig { fabric: FabricKind::Tcp, ..sim };
        let parts = every.of_plain_engine(FabricKind::Tcp);
        assert_eq!(parts.memory_threads, Some(2));
        assert_eq!(BenchConfig { parts, ..tcp }.validate(), Ok(()));
        assert_eq!(every.of_plain_engine(FabricKind::Sim), Parts::default());
    }

    #[test]
    fn invalid_options_are_refused_with_a_message() {
        let cache = refusal(|it| it.settings.set("cache", "0%"));
        assert!(cache.contains("0 bytes of cache"), "{cache}");
        let share = refusal(|it| {
            it.settings.set("cache", "8%");
            it.load = LoadKind::Insert;
        });
        assert!(share.contains("--load bulk"), "{share}");
        let beyond = refusal(|it| it.settings.set("cache", "101%"));
        assert!(beyond.contains("0 to 100 %"), "{beyond}");
        let unknown = refusal(|it| it.settings.set("cahce", "8%"));
        assert!(unknown.contains("engine dex: no setting is named \"cahce\""), "{unknown}");
        let few = refusal(|it| (it.compute_servers, it.parts.partitions) = (2, Some(1)));
        assert!(few.contains("1 partitions for 2 compute servers"), "{few}");
        let many = refusal(|it| it.parts.partitions = Some(5000));
        assert!(many.contains("at most 4096"), "{many}");
        let bytes = refusal(|it| {
            it.key_type = KeySpec::Bytes(KeyOrder::Hashed);
            it.parts.boundaries = Some(Boundaries::Equal);
        });
        assert!(bytes.contains("sampled"), "{bytes}");
        let open = refusal(|it| {
            (it.compute_servers, it.rate) = (2, Rate::new(1000));
            it.parts.routing = Some(Routing::Owner);
        });
        assert!(open.contains("--routing any"), "{open}");
        let threads = refusal(|it| it.parts.memory_threads = Some(2));
        assert!(threads.contains("mapped has no threads"), "{threads}");
        let threads = refusal(|it| {
            (it.fabric, it.parts.memory_threads) = (FabricKind::Tcp, Some(2));
            it.cluster = Some(Cluster::Shared(Vec::new()));
        });
        assert!(threads.contains("that are there"), "{threads}");
        assert!(refusal(|it| it.parts.memory_threads = Some(0)).contains("0 memory threads"));
    }

    #[test]
    fn open_loops_are_not_routed_unless_asked() {
        let mut config = BenchConfig { engine: Engine::Dex, ..BenchConfig::default() };
        assert_eq!(config.parts.routing(&config), Routing::Owner);
        config.rate = Rate::new(1000);
        assert_eq!(config.parts.routing(&config), Routing::Any);
    }
}
