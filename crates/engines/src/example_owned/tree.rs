//! Tree: the lists of a table, and this engine's side of ownership.

use std::future::Future;
use std::sync::Arc;

use farleaf_fabric::codec::{Reader, Writer};
use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::compute::ownership::{
    MapWords, Ownership, Range, ScanEnd, WholeTable, scan_parts,
};
use farleaf_index::compute::{MoveError, NoGuests, RangeOwner};
use farleaf_index::detach::{run_to_end, unfinished_change};
use farleaf_index::remote_lock::{Lock, lock_word};
use farleaf_index::{
    Change, Decision, Entries, IndexError, Outcome, OwnedChange, ScanCursor, ScanRange,
    SortedPairs, Stored, TableReport, Visitor, collect_sorted,
};
use farleaf_pool::{Session, Unlinked};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{ExampleOwned, ListsOptions, ListsShape};

farleaf_fabric::canaries! {
    pub(super) SPLIT_FORGETS_UPPER = "split-forgets-upper",
        "a split names the lower half of a list alone";
}

/// Words of the meta object, each on a line of its own: the tag, and behind it the directory's address (0: none); the
/// lock; the ownership map and its lock.
pub(super) const META_BYTES: usize = 256;
pub(super) const META_TAG: u64 = u64::from_le_bytes(*b"FLexown1");
const META_DIRECTORY: u64 = 8;
const META_LOCK: u64 = 64;
/// Words of an object: the tag, the bytes that follow, their checksum; then the bytes.
const HEAD_BYTES: usize = 24;
const LIST_TAG: u64 = u64::from_le_bytes(*b"FLexols1");

/// The words of the meta object that hold the ownership map.
pub(super) fn map_words(meta: GlobalAddr) -> MapWords {
    MapWords { meta, map: meta.plus(128), lock: meta.plus(192) }
}

/// The content of a list, or of the directory: there the value is the list's address.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The lists of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lists(pub(super) Stored<ListsShape>);

/// The directory as an operation has read it.
struct Directory {
    object: Option<(GlobalAddr, usize)>,
    lists: Pairs,
}

impl Directory {
    /// The number of the list that `key` belongs to; 0 if there is none.
    fn list_of(&self, key: &[u8]) -> usize {
        self.lists.partition_point(|(first, _)| first.as_slice() <= key).saturating_sub(1)
    }
}

impl Lists {
    fn corrupt(&self, what: &str) -> IndexError {
        IndexError::Corrupt(format!("the table at {}: {what}", self.0.meta))
    }

    /// Reads an object: 2 READs. Returns its bytes as well.
    async fn read(&self, session: &Session, at: GlobalAddr) -> Result<(Pairs, usize), IndexError> {
        let reliable = session.reliable();
        let head = reliable.read(at, reliable.buf(HEAD_BYTES)).await?;
        let [tag, len, sum] = [head.words()[0], head.words()[1], head.words()[2]];
        let most = session.pool().geometry().object_bytes_max() - HEAD_BYTES;
        if tag != LIST_TAG || len as usize > most {
            return Err(self.corrupt("no list is where it should be"));
        }
        let bytes = HEAD_BYTES + (len as usize).next_multiple_of(8);
        let object = reliable.read(at, reliable.buf(bytes)).await?;
        let content = &object.bytes()[HEAD_BYTES..HEAD_BYTES + len as usize];
        if sum != xxh3_64_with_seed(content, self.0.meta.word()) {
            return Err(self.corrupt("the checksum of a list does not fit"));
        }
        let (mut input, mut pairs) = (Reader::new(content), Vec::new());
        while !input.is_empty() {
            let mut pair = || {
                let (key, value) = (input.u32().ok()? as usize, input.u32().ok()? as usize);
                Some((input.take(key).ok()?.to_vec(), input.take(value).ok()?.to_vec()))
            };
            pairs.push(pair().ok_or_else(|| self.corrupt("a list ends within a pair"))?);
        }
        Ok((pairs, bytes))
    }

    /// Reads the directory: 3 READs.
    async fn directory(&self, session: &Session) -> Result<Directory, IndexError> {
        let meta = session.reliable().read(self.0.meta, session.reliable().buf(16)).await?;
        if meta.words()[0] != META_TAG {
            return Err(self.corrupt("no meta object is there"));
        }
        if meta.words()[1] == 0 {
            return Ok(Directory { object: None, lists: Vec::new() });
        }
        let at = self.addr(&meta.bytes()[8..16])?;
        let (lists, bytes) = self.read(session, at).await?;
        Ok(Directory { object: Some((at, bytes)), lists })
    }

    fn addr(&self, bytes: &[u8]) -> Result<GlobalAddr, IndexError> {
        let word = bytes.try_into().ok().map(u64::from_le_bytes);
        let addr = word.and_then(GlobalAddr::from_word).filter(|addr| addr.offset() % 64 == 0);
        addr.ok_or_else(|| self.corrupt("a list has no address"))
    }

    /// Reads list `number`, and its address; an empty one if there is none.
    async fn list(
        &self,
        session: &Session,
        directory: &Directory,
        number: usize,
    ) -> Result<(Pairs, Option<GlobalAddr>), IndexError> {
        let Some((_, addr)) = directory.lists.get(number) else { return Ok((Vec::new(), None)) };
        let at = self.addr(addr)?;
        Ok((self.read(session, at).await?.0, Some(at)))
    }

    /// Writes an object that nothing leads to yet: 1 WRITE.
    async fn write(&self, session: &Session, pairs: &Pairs) -> Result<Unlinked, IndexError> {
        let mut out = Writer::default();
        for (key, value) in pairs {
            out.u32(key.len() as u32).u32(value.len() as u32).put(key).put(value);
        }
        let content = out.finish();
        let bytes = HEAD_BYTES + content.len().next_multiple_of(8);
        if bytes > session.pool().geometry().object_bytes_max() {
            return Err(IndexError::Full(format!(
                "a list of {bytes} bytes: too long for the pool"
            )));
        }
        let mut buf = session.client().buf(bytes);
        let sum = xxh3_64_with_seed(&content, self.0.meta.word());
        buf.words_mut().fill(0);
        buf.words_mut()[..3].copy_from_slice(&[LIST_TAG, content.len() as u64, sum]);
        buf.bytes_mut()[HEAD_BYTES..][..content.len()].copy_from_slice(&content);
        let new = session.alloc_unlinked(session.place(), bytes).await?;
        new.write(buf).await?;
        Ok(new)
    }

    /// Puts `pairs` in the place of list `number`, in as many lists as they need, and gives the lock back. For a task that
    /// runs to its end.
    async fn publish(
        &self,
        session: &Session,
        lock: Lock,
        mut directory: Directory,
        (number, old): (usize, Option<GlobalAddr>),
        pairs: &Pairs,
    ) -> Result<(), IndexError> {
        let most = usize::from(self.0.shape.list_pairs.unwrap_or(64));
        let lists = pairs.len().div_ceil(most).max(1);
        let (mut new, mut written) = (Vec::new(), Vec::new());
        for part in pairs.chunks(pairs.len().div_ceil(lists).max(1)) {
            if new.is_empty() || !SPLIT_FORGETS_UPPER.is_armed() {
                let list = self.write(session, &part.to_vec()).await?;
                new.push((part[0].0.clone(), list.addr().word().to_le_bytes().to_vec()));
                written.push(list);
            }
        }
        let end = number + usize::from(old.is_some());
        directory.lists.splice(number..end, new);
        let mut named = 0;
        if !directory.lists.is_empty() {
            written.push(self.write(session, &directory.lists).await?);
            named = written[written.len() - 1].addr().word();
        }
        let mut retiring = Vec::new();
        for addr in old.into_iter().chain(directory.object.map(|(at, _)| at)) {
            retiring.push(session.prepare_retire(addr).await?);
        }
        written.into_iter().for_each(|it| it.keep());
        let mut ops = session.client().ops();
        ops.write_word(self.0.meta.plus(META_DIRECTORY), named);
        lock.finish(ops, 0, None).await?;
        retiring.into_iter().for_each(|it| session.retire(it));
        Ok(())
    }

    /// For a task that runs to its end.
    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
    ) -> Result<(Outcome, Vec<u8>), IndexError> {
        let lock = lock_word(session, self.0.meta.plus(META_LOCK)).await?;
        let directory = self.directory(session).await?;
        let number = directory.list_of(change.key);
        let (mut pairs, old) = self.list(session, &directory, number).await?;
        let found = pairs.binary_search_by(|pair| pair.0.as_slice().cmp(change.key));
        let held = found.ok().map(|index| pairs[index].1.clone());
        let outcome = match change.decide(found.is_ok(), held.as_deref()) {
            Decision::Leave(outcome) => {
                lock.release().await?;
                return Ok((outcome, held.unwrap_or_default()));
            }
            Decision::Apply(outcome) => outcome,
        };
        match (found, change.value) {
            (Ok(index), Some(value)) => pairs[index].1 = value.to_vec(),
            (Ok(index), None) => drop(pairs.remove(index)),
            (Err(index), value) => {
                pairs.insert(index, (change.key.to_vec(), value.unwrap_or_default().to_vec()));
            }
        }
        self.publish(session, lock, directory, (number, old), &pairs).await?;
        Ok((outcome, held.unwrap_or_default()))
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let directory = self.directory(session).await?;
        let (count, end) = (directory.lists.len(), out.len().saturating_add(limit));
        for number in 0..count {
            let number = if range.reverse { count - 1 - number } else { number };
            let (mut pairs, _) = self.list(session, &directory, number).await?;
            pairs.retain(|(key, _)| range.holds(key));
            if range.reverse {
                pairs.reverse();
            }
            pairs.truncate(end - out.len());
            pairs.iter().for_each(|(key, value)| out.push(key, value));
            if out.len() == end {
                break;
            }
        }
        Ok(())
    }

    /// Visits the directory and the lists, and checks `INV-EXO-3`. The caller has a pin.
    pub(super) async fn walk(
        &self,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let Directory { object, lists } = self.directory(session).await?;
        let Some((at, bytes)) = object else { return Ok(()) };
        visitor.object("directory", at, bytes);
        let (mut all, most) = (Vec::new(), self.0.shape.list_pairs.unwrap_or(64));
        for (first, addr) in &lists {
            if visitor.is_done() {
                return Ok(());
            }
            let at = self.addr(addr)?;
            let (pairs, bytes) = self.read(session, at).await?;
            visitor.object("list", at, bytes);
            report.node_bytes += bytes as u64;
            if pairs.first().is_none_or(|pair| pair.0 != *first) || pairs.len() > most.into() {
                report.problems.push(format!("INV-EXO-3: the list at {at}"));
            }
            all.extend(pairs);
        }
        report.keys += all.len() as u64;
        report.nodes_per_level = vec![lists.len() as u64, 1];
        if !all.is_sorted_by(|a, b| a.0 < b.0) {
            report.problems.push("INV-EXO-3: the lists are not in order".into());
        }
        Ok(())
    }
}

/// The lists of a table with the ownership of its ranges.
#[derive(Debug)]
pub struct ListsTree {
    lists: Lists,
    ownership: Arc<Ownership>,
}

impl RangeOwner for ListsTree {
    type Engine = ExampleOwned;
    type Unowned = NoGuests;

    fn map_words(meta: GlobalAddr) -> MapWords {
        map_words(meta)
    }

    async fn new(
        _session: &Session,
        table: &Stored<ListsShape>,
        _options: ListsOptions,
        ownership: impl Future<Output = Result<Arc<Ownership>, IndexError>>,
    ) -> Result<Arc<Self>, IndexError> {
        Ok(Arc::new(ListsTree { lists: Lists(*table), ownership: ownership.await? }))
    }

    fn ownership(&self) -> &Arc<Ownership> {
        &self.ownership
    }

    async fn get_own(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.ownership.check_open()?;
        let _pin = session.begin(OpKind::Get).await?;
        let directory = self.lists.directory(session).await?;
        let (pairs, _) = self.lists.list(session, &directory, directory.list_of(key)).await?;
        let found = pairs.binary_search_by(|pair| pair.0.as_slice().cmp(key));
        value.clear();
        value.extend_from_slice(found.map_or(&[], |index| &pairs[index].1));
        session.vouch()?;
        Ok(found.is_ok())
    }

    async fn change_own(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.ownership.check_open()?;
        let _pin = session.begin(change.kind).await?;
        let (lists, key, owned) = (self.lists, change.key.to_vec(), OwnedChange::of(change));
        let patient = session.without_deadline();
        let task = async move { lists.change(&patient, &owned.of_key(&key)).await };
        let done = run_to_end(session, Box::pin(task), self.ownership.enter_task(session)).await;
        let (outcome, found) = done.unwrap_or_else(|| Err(unfinished_change("the change")))?;
        if change.expected.is_some() {
            *held = found;
        }
        session.vouch()?;
        Ok(outcome)
    }

    async fn scan_own(
        self: &Arc<Self>,
        session: &Session,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<ScanEnd, IndexError> {
        let scan = async |range: ScanRange<'_>, limit, out: &mut Entries| {
            let _pin = session.begin(OpKind::Scan).await?;
            self.lists.scan(session, range, limit, out).await
        };
        scan_parts(&self.ownership, session, cursor, out, scan).await
    }

    async fn bulk_load(
        self: &Arc<Self>,
        session: &Session,
        _whole: WholeTable,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let all = collect_sorted(pairs, &self.lists.0.spec)?;
        let _pin = session.begin(OpKind::BulkLoad).await?;
        let lock = lock_word(session, self.lists.0.meta.plus(META_LOCK)).await?;
        let directory = self.lists.directory(session).await?;
        if !directory.lists.is_empty() {
            lock.release().await?;
            return Err(IndexError::Invalid("a bulk load fills an empty table".into()));
        }
        self.lists.publish(session, lock, directory, (0, None), &all).await?;
        Ok(all.len() as u64)
    }

    /// Nothing is cached.
    async fn hand_over(
        self: &Arc<Self>,
        _session: &Session,
        _range: &Range,
    ) -> Result<(), MoveError> {
        Ok(())
    }

    /// The first key of the list in the middle.
    async fn middle(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
    ) -> Result<Option<Vec<u8>>, MoveError> {
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let mut firsts = self.lists.directory(session).await?.lists;
        firsts.retain(|(first, _)| range.holds(first, false) && range.high.as_ref() != Some(first));
        Ok((!firsts.is_empty()).then(|| firsts.swap_remove(firsts.len() / 2).0))
    }
}
