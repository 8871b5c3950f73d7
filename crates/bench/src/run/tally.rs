//! Tally: counts the operations of one thread's clients, and turns the counts into a report.

use std::collections::BTreeMap;

use farleaf_fabric::{Cost, OpKind as FabricKind, Snapshot};
use farleaf_index::IndexError;

use super::error::BenchError;
use crate::{
    generator::Op,
    histogram::LatencyHistogram,
    report::{KindReport, PerOp, PhaseReport, ReportKind, RunReport, TargetCosts},
    workload::OpKind,
};

/// Latencies by kind, errors, and bytes added and removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    kinds: [Option<Box<LatencyHistogram>>; OpKind::ALL.len()],
    errors: u64,
    first_error: Option<String>,
    /// The first failure because the pool was full.
    full: Option<IndexError>,
    /// Bytes of keys and values added, less those removed.
    data_bytes: i64,
}

impl Tally {
    /// Counts an operation.
    #[inline]
    pub(crate) fn done(&mut self, kind: OpKind, nanos: u64) {
        self.kinds[kind.index()].get_or_insert_default().record(nanos);
    }

    /// Counts a wrong answer. Calls `text` for the first only.
    #[cold]
    pub(crate) fn wrong(&mut self, text: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(text);
    }

    /// Counts a failed operation.
    #[cold]
    pub(super) fn failed(&mut self, op: Op, error: IndexError) {
        self.wrong(|| format!("{} of item {}: {error}", op.kind.name(), op.item));
        if matches!(error, IndexError::Full(_)) {
            self.full.get_or_insert(error);
        }
    }

    /// Counts added data, or with a negative number removed data.
    #[inline]
    pub(super) fn data(&mut self, bytes: i64) {
        self.data_bytes += bytes;
    }

    /// Bytes of keys and values added, less those removed.
    pub(super) fn data_bytes(&self) -> i64 {
        self.data_bytes
    }

    /// Returns whether there were errors.
    pub(super) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The message of the first error.
    pub(crate) fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// # Errors
    /// The first error of a load: `PoolTooSmall` or `WrongLoad`.
    pub(super) fn check_load(&self, pool_bytes: u64) -> Result<(), BenchError> {
        match (&self.full, &self.first_error) {
            (Some(full), _) => Err(BenchError::PoolTooSmall { pool_bytes, source: full.clone() }),
            (None, Some(text)) => Err(BenchError::WrongLoad(text.clone())),
            (None, None) => Ok(()),
        }
    }

    /// Forgets latencies, but neither errors nor data: a wrong answer counts in every phase.
    pub(crate) fn restart(&mut self) {
        self.kinds.iter_mut().flatten().for_each(|histogram| histogram.clear());
    }

    /// Adds another thread's tally.
    pub(super) fn add(&mut self, other: Tally) {
        for (mine, theirs) in self.kinds.iter_mut().zip(other.kinds) {
            match (mine, theirs) {
                (Some(mine), Some(theirs)) => mine.merge(&theirs),
                (mine @ None, theirs) => *mine = theirs,
                (Some(_), None) => {}
            }
        }
        self.errors += other.errors;
        self.data_bytes += other.data_bytes;
        self.first_error = self.first_error.take().or(other.first_error);
        self.full = self.full.take().or(other.full);
    }

    /// The report of a run that took `seconds` and cost `cost`.
    ///
    /// Costs by kind follow from the fabric's counters, which count by index operation. A
    /// read-modify-write is a get and an update: it is given the average of each, over all gets
    /// and updates of the run.
    pub(crate) fn report(&self, seconds: f64, cost: &Snapshot) -> RunReport {
        let mut all = LatencyHistogram::new();
        let mut by_kind = BTreeMap::new();
        let by_target = cost.by_target();
        let ops = self.kinds.iter().flatten().map(|it| it.count()).sum();
        let targets = TargetCosts::of(by_target.each_ref().map(|it| PerOp::of(it.total(), ops)));
        for kind in OpKind::ALL {
            let Some(histogram) = &self.kinds[kind.index()] else { continue };
            if histogram.count() == 0 {
                continue;
            }
            all.merge(histogram);
            let report = KindReport {
                ops: histogram.count(),
                latency_us: Some(histogram.summary()),
                per_op: index_kinds(kind).iter().map(|kind| average(cost, *kind)).sum(),
                targets: targets.map(|_| targets_of(&by_target, kind)),
            };
            by_kind.insert(ReportKind::Op(kind), report);
        }
        let mut beside = Cost::default();
        for kind in [FabricKind::Maintenance, FabricKind::Other] {
            beside += cost.kind(kind);
        }
        if beside != Cost::default() {
            let per_op = PerOp::of(beside, ops);
            by_kind.insert(
                ReportKind::Maintenance,
                KindReport { ops, latency_us: None, per_op, targets: None },
            );
        }
        RunReport {
            phase: PhaseReport::new(seconds, ops),
            errors: self.errors,
            first_error: self.first_error.clone(),
            latency_us: all.summary(),
            per_op: PerOp::of(cost.total(), ops),
            targets,
            by_kind,
            counters: None,
            busiest_card: None,
        }
    }
}

/// The index operations that an operation of a workload consists of.
fn index_kinds(kind: OpKind) -> &'static [FabricKind] {
    match kind {
        OpKind::Get => &[FabricKind::Get],
        OpKind::Update => &[FabricKind::Update],
        OpKind::Insert => &[FabricKind::Insert],
        OpKind::Scan => &[FabricKind::Scan],
        OpKind::ReadModifyWrite => &[FabricKind::Get, FabricKind::Update],
        OpKind::Remove => &[FabricKind::Remove],
        OpKind::Upsert => &[FabricKind::Upsert],
    }
}

/// The cost of an operation by the kind of server.
fn targets_of(by_target: &[Snapshot; 3], kind: OpKind) -> TargetCosts {
    let of = |cost: &Snapshot| index_kinds(kind).iter().map(|kind| average(cost, *kind)).sum();
    let [memory, compute, own] = by_target.each_ref().map(of);
    TargetCosts { memory, compute, own }
}

fn average(cost: &Snapshot, kind: FabricKind) -> PerOp {
    PerOp::of(cost.kind(kind), cost.ops(kind))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn threads_add_up_and_the_first_error_stays() {
        let mut sum = Tally::default();
        for thread in 0..3u64 {
            let mut tally = Tally::default();
            tally.done(OpKind::Get, 1000 * (thread + 1));
            if thread > 0 {
                tally.done(OpKind::Insert, 10);
                tally.wrong(|| format!("thread {thread}"));
                tally.wrong(|| unreachable!("only the first is asked"));
            }
            tally.data(-5);
            sum.add(tally);
        }
        let report = sum.report(2.0, &Snapshot::default());
        assert_eq!((report.phase.ops, report.errors), (5, 4));
        assert_eq!(report.phase.ops_per_s, 2.5);
        assert_eq!(report.first_error.as_deref(), Some("thread 1"));
        assert_eq!(report.by_kind[&ReportKind::Op(OpKind::Get)].ops, 3);
        assert_eq!(report.by_kind[&ReportKind::Op(OpKind::Get)].latency_us.unwrap().max, 3.0);
        assert_eq!(report.by_kind[&ReportKind::Op(OpKind::Insert)].ops, 2);
        assert_eq!(report.by_kind.len(), 2, "no maintenance where none was done");
        assert_eq!(sum.data_bytes(), -15);

        sum.restart();
        let report = sum.report(1.0, &Snapshot::default());
        assert_eq!((report.phase.ops, report.errors, report.by_kind.len()), (0, 4, 0));
    }
}
