//! Index trait: the operations that every engine's tables implement.

use std::ops::Bound;

use std::future::Future;

use farleaf_pool::{Audit, Session};

use crate::change::{Change, Exchange, Outcome};
use crate::compute::OwnedTable;
use crate::compute::partitions::PartitionCalls;
use crate::counters::{CacheControl, CounterSet};
use crate::entries::SortedPairs;
use crate::scan_range::ScanRange;
use crate::walk::TableReport;
use crate::{Entries, IndexError};

/// One table of one engine, as one compute server sees it. Shared by all sessions of the server.
///
/// Keys are byte strings in lexicographic order. Point operations are linearizable across compute
/// servers. All `async` methods may be dropped at any await: what was begun is then finished by a
/// task of the engine, or had not begun.
///
/// Every method's errors: `Invalid` (key or value too large for the table; nothing done),
/// `Unavailable` (nothing done; try again), `OutcomeUnknown` (a change that may have happened),
/// `Full` (no memory; nothing done), `Corrupt` (remote memory does not hold what it must).
#[allow(async_fn_in_trait, reason = "a session and all its tasks stay on one thread")]
pub trait Index: Send + Sync + 'static {
    /// Copies `key`'s value into `value`, which is cleared first; `false` if there is none.
    fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> impl Future<Output = Result<bool, IndexError>>;

    /// Changes one key. What it held is left in `held` if the change has an expectation.
    ///
    /// [`Index::insert`], `update`, `upsert`, `remove` and `compare_exchange` are this in other words.
    fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> impl Future<Output = Result<Outcome, IndexError>>;

    /// Adds an absent key; `false` if it is present, which changes nothing.
    async fn insert(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        let change = Change::insert(key, value);
        Ok(!self.change(session, &change, &mut Vec::new()).await?.existed)
    }

    /// Changes a present key; `false` if it is absent, which changes nothing.
    async fn update(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        let change = Change::update(key, value);
        Ok(self.change(session, &change, &mut Vec::new()).await?.existed)
    }

    /// Adds or changes a key; `true` if it was absent.
    async fn upsert(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        let change = Change::upsert(key, value);
        Ok(!self.change(session, &change, &mut Vec::new()).await?.existed)
    }

    /// Removes a key; `false` if it was absent.
    async fn remove(&self, session: &Session, key: &[u8]) -> Result<bool, IndexError> {
        let change = Change::remove(key);
        Ok(self.change(session, &change, &mut Vec::new()).await?.existed)
    }

    /// Gives `key` the value `new` (`None`: removes it) if it holds `expected` (`None`: is
    /// absent). What it held is left in `found`; `false` beside [`Exchange::Differs`] if nothing.
    async fn compare_exchange(
        &self,
        session: &Session,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        found: &mut Vec<u8>,
    ) -> Result<(Exchange, bool), IndexError> {
        let change = Change::compare_exchange(key, expected, new);
        let outcome = self.change(session, &change, found).await?;
        let exchange = if outcome.differs { Exchange::Differs } else { Exchange::Done };
        Ok((exchange, outcome.existed))
    }

    /// Appends at most `limit` pairs of `range` to `out`, in order. Every key that was present
    /// throughout is returned (up to the limit), none that was absent throughout, each once, with
    /// a value that it had during the scan. Not a snapshot.
    fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> impl Future<Output = Result<(), IndexError>>;

    /// Appends the pair with the longest key that `key` begins with to `out`, if there is one; `key` itself counts.
    /// The pair was there at a moment of the call, and no longer prefix was present throughout it.
    ///
    /// Here by [`longest_prefix_by_floors`].
    async fn longest_prefix(
        &self,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        longest_prefix_by_floors(self, session, key, out).await
    }

    /// Fills an empty table from sorted pairs; returns how many. `Invalid` for an unsorted or
    /// repeated key (says which) or a table that is not empty; the table is then still empty.
    fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> impl Future<Output = Result<u64, IndexError>>;

    /// Walks the whole structure, checks its numbered invariants, and marks every object that it
    /// reaches in `audit`. Meant for a quiet table; with writers about, changes that are under way
    /// may be reported.
    fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> impl Future<Output = Result<TableReport, IndexError>>;

    /// Closes the table in this member of the pool, for everybody who has it open there: what this
    /// compute server had to itself is written back and free for others. No operation may be running;
    /// later ones fail with `Closed`.
    ///
    /// # Errors
    /// As any operation; the table is still open then.
    fn close(&self, _session: &Session) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }

    /// The calls on ranges and their owners, of a table that has some.
    fn owned(&self) -> Option<&dyn OwnedTable> {
        None
    }

    /// The calls on numbered partitions, of a table that has some.
    fn partitions(&self) -> Option<&dyn PartitionCalls> {
        None
    }

    /// The cache of this compute server, of a table that has one.
    fn cache(&self) -> Option<&dyn CacheControl> {
        None
    }

    /// Adds the engine's counts of what this compute server has done with the table, by name.
    fn counters(&self, _counters: &mut CounterSet) {}

    /// Parts of the table that no option tells of, as this compute server knows them, each in a few words. No remote
    /// operation.
    fn parts(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Finds the longest key that `key` begins with by scans of one pair, and appends its pair to `out`.
///
/// Every key between a prefix of `key` and `key` begins with that prefix. So no prefix is longer than what the last
/// key up to `key` has in common with it.
///
/// Cost: a scan of one pair for each step; at most one step for each byte of `key`, one to three as a rule.
///
/// # Errors
/// As [`Index::scan`].
pub async fn longest_prefix_by_floors<I: Index + ?Sized>(
    index: &I,
    session: &Session,
    key: &[u8],
    out: &mut Entries,
) -> Result<(), IndexError> {
    let mut probe = key;
    let mut floor = Entries::new();
    loop {
        floor.clear();
        let range = ScanRange { to: Bound::Included(probe), reverse: true, ..ScanRange::ALL };
        index.scan(session, range, 1, &mut floor).await?;
        let Some((found, value)) = floor.get(0) else { return Ok(()) };
        let common = common_bytes(probe, found);
        if common == found.len() {
            out.push(found, value);
            return Ok(());
        }
        if probe.is_empty() {
            return Ok(());
        }
        // It leaves the probe before its end, or it would be above it: each step shortens the probe.
        probe = &probe[..common.min(probe.len() - 1)];
    }
}

/// The number of bytes that both begin with.
pub fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
