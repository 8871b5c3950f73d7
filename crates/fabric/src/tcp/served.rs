//! Server counters: count the work of a memory server.

use std::sync::atomic::{AtomicU64, Ordering};

use super::wire::RequestKind;

/// Work of a memory server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// READs.
    pub reads: u64,
    /// WRITEs, those of single words included.
    pub writes: u64,
    /// CASes and FAAs.
    pub atomics: u64,
    /// RPCs, those by a card included.
    pub rpcs: u64,
    /// Bytes of requests and greetings, without what TLS adds; RPCs by a card included.
    pub bytes_in: u64,
    /// Bytes of answers, likewise.
    pub bytes_out: u64,
    /// Connections that were let in.
    pub let_in: u64,
    /// Connections that ended without being let in: of another version or pool, without a valid certificate,
    /// above the limit, of a compute server that was cut off, or silent.
    pub refused: u64,
    /// Fences that were carried out.
    pub fenced: u64,
}

/// The same, as threads count it: once for all requests that arrived together.
#[derive(Debug, Default)]
pub(super) struct Tally {
    reads: AtomicU64,
    writes: AtomicU64,
    atomics: AtomicU64,
    rpcs: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    pub(super) let_in: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) fenced: AtomicU64,
}

impl Served {
    /// One more request.
    #[inline]
    pub(super) fn count(&mut self, verb: RequestKind) {
        match verb {
            RequestKind::Read => self.reads += 1,
            RequestKind::Write | RequestKind::WriteWord => self.writes += 1,
            RequestKind::Cas | RequestKind::Faa => self.atomics += 1,
            RequestKind::Rpc => self.rpcs += 1,
            RequestKind::Beat
            | RequestKind::Fence
            | RequestKind::IsDead
            | RequestKind::Bye
            | RequestKind::Ask
            | RequestKind::Call => {}
        }
    }
}

impl Tally {
    /// Adds requests that arrived together.
    #[inline]
    pub(super) fn add(&self, served: &Served) {
        for (sum, more) in [
            (&self.reads, served.reads),
            (&self.writes, served.writes),
            (&self.atomics, served.atomics),
            (&self.rpcs, served.rpcs),
            (&self.bytes_in, served.bytes_in),
            (&self.bytes_out, served.bytes_out),
        ] {
            if more > 0 {
                sum.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn sums(&self) -> Served {
        let sum = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Served {
            reads: sum(&self.reads),
            writes: sum(&self.writes),
            atomics: sum(&self.atomics),
            rpcs: sum(&self.rpcs),
            bytes_in: sum(&self.bytes_in),
            bytes_out: sum(&self.bytes_out),
            let_in: sum(&self.let_in),
            refused: sum(&self.refused),
            fenced: sum(&self.fenced),
        }
    }
}
