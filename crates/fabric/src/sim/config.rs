//! Simulation configuration: number and speed of servers, and faults.

use std::ops::Range;

use crate::mapped::check_geometry;
use crate::{Capabilities, FabricError};

/// Picoseconds in a nanosecond: the simulator's unit of time.
pub(super) const PS: u64 = 1000;
/// The longest delay of a fault: 10 s.
const FAULT_NS_MAX: u64 = 10_000_000_000;
/// The longest lease and the largest skew: 1,000 s.
const LEASE_NS_MAX: u64 = 1_000_000_000_000;
/// The largest drift: one in a hundred.
const DRIFT_PPM_MAX: u32 = 10_000;

/// A simulated cluster. [`SimConfig::default`] is one memory server and one compute server on a
/// 100 Gb/s network as ConnectX-5 cards make it; change the fields that matter.
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Everything random follows from it. Default 1.
    pub seed: u64,
    /// Servers that expose memory. Default 1.
    pub memory_servers: usize,
    /// Servers that run clients. Default 1.
    pub compute_servers: usize,
    /// Worker threads of each compute server, each a serial resource. Default 4.
    pub threads: usize,
    /// Bytes that each memory server exposes, a multiple of 4,096. The system commits pages as
    /// they are first touched. Default 64 MiB.
    pub region_bytes: u64,
    /// Latency.
    pub network: NetworkConfig,
    /// The card of each memory server.
    pub memory_nic: NicConfig,
    /// The card of each compute server.
    pub compute_nic: NicConfig,
    /// CPU cost of operations on a worker thread.
    pub cpu: CpuConfig,
    /// RPC handling.
    pub rpc: RpcConfig,
    /// Injected faults. Default: none.
    pub adversary: AdversaryConfig,
    /// Promises that endpoints report. The adversary keeps to them. Default [`Capabilities::NONE`].
    pub capabilities: Capabilities,
    /// Events after which a run ends with [`super::SimError::TooManyEvents`], against clients that make no
    /// progress. Default `u64::MAX`.
    pub events_max: u64,
    /// Operations in flight per worker thread and memory server, each of a chain or batch; more
    /// wait in posted order for room, as in a full send queue. A longer chain goes alone. Default
    /// `usize::MAX`: no limit.
    pub queue_depth: usize,
    /// If a compute server is stopped for longer than this, it is dead ([`crate::Endpoint::is_dead`]) to each
    /// server that asks meanwhile, and from then on to all. It may still be resumed, as a zombie. Default 0:
    /// there are no leases.
    pub lease_ns: u64,
    /// Largest lead of a compute server's clock over true time at the start, chosen by the seed; so two
    /// clocks differ by at most this. Default 0.
    pub clock_skew_ns: u64,
    /// Largest error of a compute server's clock rate, in millionths; at most 10,000. The server's sleeps
    /// follow its clock. Default 0.
    pub clock_drift_ppm: u32,
    /// Keeps a record of every remote operation; see [`super::Sim::recorded`]. Default false.
    pub record: bool,
}

/// Latency of the simulated network.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// From a request's last byte leaving an idle client card to an empty answer's arrival, on
    /// average. Default 1,850: with the CPU's share of 140 and the transfer of some 20, a READ of
    /// 64 bytes takes 2.0 us.
    pub rtt_ns: u64,
    /// Width of the latency's uniform spread per direction: each message takes up to half of it
    /// more or less. Messages overtake each other by it. Default 100.
    pub jitter_ns: u64,
    /// The part of `rtt_ns` that the server's card spends on an operation between its first and
    /// its last effect. Default 300, about one access over PCIe.
    pub service_ns: u64,
    /// From one operation of a chain to the next. Default 100.
    pub chain_step_ns: u64,
    /// Bytes that every message takes beside its payload. Default 80, as in RoCE v2.
    pub header_bytes: u64,
    /// The same as `rtt_ns` for an operation of a compute server on its own region, which crosses its own
    /// card in both directions and no wire; no jitter. Default 900: two crossings of the bus. An estimate,
    /// which nobody has measured.
    pub loopback_ns: u64,
}

/// Rates of one network card. Each direction is a queue of its own; a message takes the longer of
/// its share of the message rate and its share of the bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct NicConfig {
    /// Operations that come in per second. Default 75 M.
    pub in_ops_per_s: u64,
    /// Messages that go out per second. Default 75 M.
    pub out_ops_per_s: u64,
    /// Bits that come in per second. Default 100 G.
    pub in_bits_per_s: u64,
    /// Bits that go out per second. Default 100 G.
    pub out_bits_per_s: u64,
    /// CASes and FAAs per second, for the whole card. Default 10 M.
    pub atomics_per_s: u64,
}

/// CPU cost on the client's worker thread.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuConfig {
    /// Posting one operation, one chain or the first of a batch. Default 80.
    pub post_ns: u64,
    /// Each further operation of a chain or batch: they share the doorbell. Default 20.
    pub post_more_ns: u64,
    /// Taking one completion and going on with its task. Default 60.
    pub completion_ns: u64,
    /// Taking over a line of the processor's cache that another thread of the compute server has changed last, where
    /// code tells of such a change ([`crate::SharedLines`]); threads take it over one after the other. Default 0: contention
    /// of threads costs nothing.
    pub handover_ns: u64,
    /// `yield_now` and `is_dead`. At least 1, so that a loop over them makes progress. Default 50.
    pub yield_ns: u64,
}

/// RPC handling on memory servers.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcConfig {
    /// CPU threads per memory server that run handlers. Default 1: memory servers are weak.
    pub threads: usize,
    /// Cost of every request on such a thread beside the handler's own [`crate::ServiceReply::cpu_ns`].
    /// Default 400.
    pub dispatch_ns: u64,
    /// Requests that wait, for each thread, before [`crate::Service::busy`] is asked. Default 256.
    pub queue_max: usize,
}

/// Injected faults. The seed, the number of the operation's post and the kind of fault alone choose the
/// operations that a fault strikes. So a narrower [`AdversaryConfig::window`] changes no other choice.
#[derive(Clone, Debug, PartialEq)]
pub struct AdversaryConfig {
    /// Probability that an operation of more than one word is torn: its words are sampled or land
    /// at 2 to 4 instants, any word at any of them. A fence then also cuts WRITEs in the
    /// middle. Keeps to `line_atomic`, `write_inorder` and `crash_atomic_bytes`, and takes no time but
    /// `stretch_ns`. Default 0.
    pub torn: f64,
    /// The longest further time over which half of the torn operations are spread. The next operation of the
    /// chain, or the answer, waits for it. Default 0.
    pub stretch_ns: u64,
    /// Probability that a CAS or FAA stores later than it loads, so that a WRITE to its word that
    /// comes between is lost. Other fabric atomics never come between. Never happens under the
    /// capability `write_vs_rmw`. Default 0.
    pub split_rmw: f64,
    /// Probability that a message (a single operation, a chain, a part of a batch, an RPC, a
    /// fence, a reconnect) is delayed, on its way there, on its way back, or partly on both.
    /// Default 0.
    pub late: f64,
    /// The longest such delay, both ways together. Default 10,000.
    pub late_ns: u64,
    /// Probability that a message's outcome stays unknown: its client gets [`crate::OpErrorKind::Timeout`].
    /// In one third of the cases it never happens (a prefix of a chain does; a torn WRITE may land in part).
    /// In one third it happens as usual. In one third it (or the rest of a chain) happens later, unless it
    /// has been fenced before or its thread has reconnected. Default 0.
    pub lost: f64,
    /// The longest delay of a lost message that happens later. Default 100,000.
    pub lost_ns: u64,
    /// Probability that the request of a call comes to its receiver twice, the second time up to `late_ns`
    /// later. Default 0.
    pub repeated: f64,
    /// Time from the sending of a message without an answer to its client's [`crate::OpErrorKind::Timeout`].
    /// Holds for lost messages, for those that wait at a stopped memory server, and for those that a broken
    /// link has swallowed. Default 50,000.
    pub timeout_ns: u64,
    /// Numbers of posts, from 1 on, that the faults above may strike, to find by halving the one that breaks
    /// a run. [`super::Sim::posts`] returns their number so far. Default `0..u64::MAX`: all.
    pub window: Range<u64>,
    /// Polls tasks that are ready at one instant in an order drawn from the seed, in place of the order of
    /// their wake-ups. Default false.
    pub shuffle: bool,
}

impl Default for AdversaryConfig {
    fn default() -> Self {
        AdversaryConfig {
            torn: 0.0,
            stretch_ns: 0,
            split_rmw: 0.0,
            late: 0.0,
            late_ns: 10_000,
            lost: 0.0,
            lost_ns: 100_000,
            repeated: 0.0,
            timeout_ns: 50_000,
            window: 0..u64::MAX,
            shuffle: false,
        }
    }
}

impl AdversaryConfig {
    fn check(&self) -> Result<(), FabricError> {
        let probabilities = [self.torn, self.split_rmw, self.late, self.lost, self.repeated];
        if probabilities.iter().any(|probability| !(0.0..=1.0).contains(probability)) {
            return Err(FabricError::Config(format!("{self:?}: probabilities are 0 to 1")));
        }
        let times = [self.late_ns, self.lost_ns, self.timeout_ns];
        if times.iter().any(|ns| !(1..=FAULT_NS_MAX).contains(ns)) {
            return Err(FabricError::Config(format!(
                "{self:?}: late_ns, lost_ns and timeout_ns take 1 to {FAULT_NS_MAX}"
            )));
        }
        if self.stretch_ns > FAULT_NS_MAX {
            return Err(FabricError::Config(format!(
                "{self:?}: stretch_ns takes 0 to {FAULT_NS_MAX}"
            )));
        }
        Ok(())
    }
}

impl SimConfig {
    /// The default cluster with another seed.
    pub fn seeded(seed: u64) -> Self {
        SimConfig { seed, ..SimConfig::default() }
    }

    pub(super) fn check(&self) -> Result<(), FabricError> {
        check_geometry(self.memory_servers, self.region_bytes)?;
        let refuse = |why: String| Err(FabricError::Config(why));
        for (name, count) in [
            ("compute_servers", self.compute_servers),
            ("threads", self.threads),
            ("rpc.threads", self.rpc.threads),
        ] {
            if count == 0 || count > 1 << 16 {
                return refuse(format!("{name} is {count}: it takes 1 to 65536"));
            }
        }
        for (name, nic) in [("memory_nic", &self.memory_nic), ("compute_nic", &self.compute_nic)] {
            let rates = [nic.in_ops_per_s, nic.out_ops_per_s, nic.atomics_per_s];
            let bits = [nic.in_bits_per_s, nic.out_bits_per_s];
            if rates.iter().any(|rate| !(1..=1_000_000_000_000).contains(rate))
                || bits.iter().any(|bits| !(8_000..=8_000_000_000_000).contains(bits))
            {
                return refuse(format!("{name} has a rate of 0 or an absurd one: {nic:?}"));
            }
        }
        let network = &self.network;
        if network.service_ns.saturating_add(network.jitter_ns) > network.rtt_ns {
            return refuse(format!(
                "rtt_ns is {}: it takes at least service_ns and jitter_ns, {} and {}",
                network.rtt_ns, network.service_ns, network.jitter_ns
            ));
        }
        let times = [
            network.rtt_ns,
            network.chain_step_ns,
            network.header_bytes,
            network.loopback_ns,
            self.cpu.post_ns,
            self.cpu.post_more_ns,
            self.cpu.completion_ns,
            self.cpu.handover_ns,
            self.cpu.yield_ns,
            self.rpc.dispatch_ns,
        ];
        if times.iter().any(|ns| *ns > 1_000_000_000) {
            return refuse("a latency or a cost of more than a second".to_owned());
        }
        if self.cpu.yield_ns == 0 || network.service_ns == 0 || network.chain_step_ns == 0 {
            return refuse("yield_ns, service_ns and chain_step_ns take at least 1".to_owned());
        }
        if self.queue_depth == 0 {
            return refuse("queue_depth is 0: nothing could ever be sent".to_owned());
        }
        if self.lease_ns > LEASE_NS_MAX || self.clock_skew_ns > LEASE_NS_MAX {
            return refuse(format!(
                "lease_ns is {}, clock_skew_ns {}: they take at most {LEASE_NS_MAX}",
                self.lease_ns, self.clock_skew_ns
            ));
        }
        if self.clock_drift_ppm > DRIFT_PPM_MAX {
            return refuse(format!(
                "clock_drift_ppm is {}: it takes at most {DRIFT_PPM_MAX}",
                self.clock_drift_ppm
            ));
        }
        self.adversary.check()
    }
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            seed: 1,
            memory_servers: 1,
            compute_servers: 1,
            threads: 4,
            region_bytes: 64 << 20,
            network: NetworkConfig::default(),
            memory_nic: NicConfig::default(),
            compute_nic: NicConfig::default(),
            cpu: CpuConfig::default(),
            rpc: RpcConfig::default(),
            adversary: AdversaryConfig::default(),
            capabilities: Capabilities::NONE,
            events_max: u64::MAX,
            queue_depth: usize::MAX,
            lease_ns: 0,
            clock_skew_ns: 0,
            clock_drift_ppm: 0,
            record: false,
        }
    }
}

impl Default for NetworkConfig {
    fn default() -> Self {
        NetworkConfig {
            rtt_ns: 1_850,
            jitter_ns: 100,
            service_ns: 300,
            chain_step_ns: 100,
            header_bytes: 80,
            loopback_ns: 900,
        }
    }
}

impl Default for NicConfig {
    fn default() -> Self {
        NicConfig {
            in_ops_per_s: 75_000_000,
            out_ops_per_s: 75_000_000,
            in_bits_per_s: 100_000_000_000,
            out_bits_per_s: 100_000_000_000,
            atomics_per_s: 10_000_000,
        }
    }
}

impl Default for CpuConfig {
    fn default() -> Self {
        CpuConfig { post_ns: 80, post_more_ns: 20, completion_ns: 60, handover_ns: 0, yield_ns: 50 }
    }
}

impl Default for RpcConfig {
    fn default() -> Self {
        RpcConfig { threads: 1, dispatch_ns: 400, queue_max: 256 }
    }
}
