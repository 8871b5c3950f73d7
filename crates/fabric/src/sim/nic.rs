//! Simulated network cards: queues that store only the time at which they become free.

use super::config::NicConfig;

/// One direction of a card, or its unit for atomics.
///
/// Messages must pass in the order of time; then each finds the queue as it really is.
#[derive(Debug)]
pub(super) struct Pipe {
    free_at: u64,
    op_ps: u64,
    byte_fs: u64,
    /// The configured values of both.
    base: (u64, u64),
    /// Load that has passed so far.
    used: CardLoad,
}

/// Load of a message on a card, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardLoad {
    /// Operations: each of a chain counts.
    pub ops: u64,
    /// Bytes, headers included.
    pub bytes: u64,
}

/// Work of one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardUse {
    /// Load that came in.
    pub inbound: CardLoad,
    /// Load that went out.
    pub outbound: CardLoad,
    /// CASes and FAAs that it carried out.
    pub atomics: u64,
}

impl CardUse {
    /// The part of such a card that was in use for longest during `ns` nanoseconds, and the share of that time.
    pub fn busiest(&self, card: &NicConfig, ns: u64) -> (&'static str, f64) {
        let share = |count: u64, per_s: u64| count as f64 / per_s as f64 / (ns.max(1) as f64 / 1e9);
        [
            ("operations in", share(self.inbound.ops, card.in_ops_per_s)),
            ("bytes in", share(8 * self.inbound.bytes, card.in_bits_per_s)),
            ("operations out", share(self.outbound.ops, card.out_ops_per_s)),
            ("bytes out", share(8 * self.outbound.bytes, card.out_bits_per_s)),
            ("atomics", share(self.atomics, card.atomics_per_s)),
        ]
        .into_iter()
        .fold(("operations in", 0.0), |most, part| if part.1 > most.1 { part } else { most })
    }

    /// The work since `earlier`, an earlier value for the same card.
    pub fn since(self, earlier: CardUse) -> CardUse {
        let less = |now: CardLoad, before: CardLoad| CardLoad {
            ops: now.ops - before.ops,
            bytes: now.bytes - before.bytes,
        };
        CardUse {
            inbound: less(self.inbound, earlier.inbound),
            outbound: less(self.outbound, earlier.outbound),
            atomics: self.atomics - earlier.atomics,
        }
    }
}

impl Pipe {
    fn new(ops_per_s: u64, bits_per_s: u64) -> Self {
        let op_ps = 1_000_000_000_000_u64.div_ceil(ops_per_s);
        let byte_fs = 8_000_000_000_000_000_u64.div_ceil(bits_per_s);
        Pipe { free_at: 0, op_ps, byte_fs, base: (op_ps, byte_fs), used: CardLoad::default() }
    }

    /// Everything takes `factor` times its configured time from now on.
    fn slow(&mut self, factor: f64) {
        self.op_ps = (self.base.0 as f64 * factor) as u64;
        self.byte_fs = (self.base.1 as f64 * factor) as u64;
    }

    /// Time to transfer that many bytes.
    #[inline]
    pub(super) fn transfer_ps(&self, bytes: u64) -> u64 {
        bytes * self.byte_fs / 1000
    }

    /// Returns the time for which `load` occupies the pipe.
    #[inline]
    pub(super) fn cost_ps(&self, load: CardLoad) -> u64 {
        (load.ops * self.op_ps).max(self.transfer_ps(load.bytes))
    }

    /// The time between two operations of a server that is not slow, the least there is between any two: those
    /// that queue may have come before it was slow.
    pub(super) fn least_op_ps(&self) -> u64 {
        self.base.0
    }

    /// Takes `load`, which would be through at `idle_done` if the pipe were idle; returns the time at which
    /// it is through.
    #[inline]
    pub(super) fn pass(&mut self, idle_done: u64, load: CardLoad) -> u64 {
        self.used.ops += load.ops;
        self.used.bytes += load.bytes;
        self.free_at = idle_done.max(self.free_at + self.cost_ps(load));
        self.free_at
    }
}

/// A server's card.
#[derive(Debug)]
pub(super) struct Nic {
    pub inbound: Pipe,
    pub outbound: Pipe,
    pub atomics: Pipe,
}

impl Nic {
    pub(super) fn new(config: &NicConfig) -> Self {
        Nic {
            inbound: Pipe::new(config.in_ops_per_s, config.in_bits_per_s),
            outbound: Pipe::new(config.out_ops_per_s, config.out_bits_per_s),
            atomics: Pipe::new(config.atomics_per_s, u64::MAX),
        }
    }

    /// Returns its work so far.
    pub(super) fn used(&self) -> CardUse {
        CardUse {
            inbound: self.inbound.used,
            outbound: self.outbound.used,
            atomics: self.atomics.used.ops,
        }
    }

    /// The whole card takes `factor` times its configured time from now on.
    pub(super) fn slow(&mut self, factor: f64) {
        for pipe in [&mut self.inbound, &mut self.outbound, &mut self.atomics] {
            pipe.slow(factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_is_in_use_for_longest_is_found() {
        let card = NicConfig::default();
        let load = |ops, bytes| CardLoad { ops, bytes };
        // 75 M operations, 12.5 GB and 10 M atomics a second.
        let used = CardUse {
            inbound: load(30_000, 1_250_000),
            outbound: load(1, 11_250_000),
            atomics: 5_000,
        };
        let busiest = |used: CardUse, ns| {
            let (part, share) = used.busiest(&card, ns);
            (part, (100.0 * share).round())
        };
        assert_eq!(busiest(used, 1_000_000), ("bytes out", 90.0));
        let used = CardUse { outbound: load(1, 0), ..used };
        assert_eq!(busiest(used, 1_000_000), ("atomics", 50.0));
        assert_eq!(busiest(CardUse { atomics: 0, ..used }, 1_000_000), ("operations in", 40.0));
        assert_eq!(busiest(CardUse::default(), 0), ("operations in", 0.0));
    }

    #[test]
    fn an_idle_pipe_delays_nothing_and_a_busy_one_keeps_its_rate() {
        let mut pipe = Pipe::new(1_000_000, 8_000_000_000);
        let load = CardLoad { ops: 1, bytes: 100 };
        assert_eq!((pipe.transfer_ps(100), pipe.cost_ps(load)), (100_000, 1_000_000));
        assert_eq!(pipe.pass(5_000_000, load), 5_000_000);
        assert_eq!(pipe.pass(5_000_001, load), 6_000_000);
        assert_eq!(pipe.pass(5_000_002, load), 7_000_000);
        assert_eq!(pipe.pass(9_000_000, load), 9_000_000);
        let large = CardLoad { ops: 1, bytes: 10_000 };
        assert_eq!(pipe.pass(9_000_000, large), 19_000_000);
    }
}
