//! Example engine: one sorted list under one remote lock, built for tests only (feature `example`).
//!
//! It shows the parts of an engine; `CONTRIBUTING.md` walks through it. The meta object names the list, an
//! object that never changes: a change writes a new list, then names it and gives the lock back in one chain.
//!
//! | operation | READ | WRITE | CAS | round trips |
//! |---|---|---|---|---|
//! | get, scan | 3 | 0 | 0 | 3 |
//! | change | 3 | 4 | 1 | 7 |
//!
//! - `INV-EX-1` A list is written in whole before the meta object names it. So the table is whole at every
//!   moment, and a dead holder of the lock has left nothing half done.
//! - `INV-EX-2` A list is retired once the meta object names another; a reader holds a pin, so that the list
//!   which it was led to is not reused.

#[cfg(feature = "lab")]
mod lab;

use farleaf_fabric::codec::{Reader, Writer};
use farleaf_fabric::{Buf, GlobalAddr, OpKind};
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::knobs::NoOptions;
use farleaf_index::remote_lock::{Lock, lock_word};
use farleaf_index::{
    Change, Decision, Entries, Index, IndexError, NoShape, OpenOptions, Outcome, ScanRange,
    SortedPairs, Stored, TableReport, TableSpec, Visitor, collect_sorted,
};
use farleaf_pool::{Audit, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Words of the meta object: the tag, the list's address (0: none) and, on a line of its own, the lock.
const META_BYTES: usize = 128;
const META_TAG: u64 = u64::from_le_bytes(*b"FLexamp1");
const META_LIST: u64 = 8;
const META_LOCK: u64 = 64;
/// Words of a list: the tag, the bytes that follow, their checksum; then the bytes.
const HEAD_BYTES: usize = 24;
const LIST_TAG: u64 = u64::from_le_bytes(*b"FLexlst1");

/// A table of this engine.
#[derive(Clone, Debug)]
pub struct Example(Stored<NoShape>);

/// The pairs of a list, and the object that holds them.
struct List {
    at: Option<(GlobalAddr, usize)>,
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Example {
    /// READs the list that the meta object names: 3 READs.
    async fn read(&self, session: &Session) -> Result<List, IndexError> {
        let reliable = session.reliable();
        let corrupt = |what| IndexError::Corrupt(format!("the table at {}: {what}", self.0.meta));
        let meta = reliable.read(self.0.meta, reliable.buf(META_BYTES)).await?;
        if meta.words()[0] != META_TAG {
            return Err(corrupt("no meta object is there"));
        }
        let word = meta.words()[META_LIST as usize / 8];
        if word == 0 {
            return Ok(List { at: None, pairs: Vec::new() });
        }
        let addr = GlobalAddr::from_word(word).filter(|addr| addr.offset() % 64 == 0);
        let addr = addr.ok_or_else(|| corrupt("its list has no address"))?;
        let head = reliable.read(addr, reliable.buf(HEAD_BYTES)).await?;
        let [tag, len, sum] = [head.words()[0], head.words()[1], head.words()[2]];
        let most = session.pool().geometry().object_bytes_max() - HEAD_BYTES;
        if tag != LIST_TAG || len as usize > most {
            return Err(corrupt("no list is where it should be"));
        }
        let bytes = HEAD_BYTES + (len as usize).next_multiple_of(8);
        let list = reliable.read(addr, reliable.buf(bytes)).await?;
        let content = &list.bytes()[HEAD_BYTES..HEAD_BYTES + len as usize];
        if sum != xxh3_64_with_seed(content, self.0.meta.word()) {
            return Err(corrupt("the checksum of its list does not fit"));
        }
        let pairs = decode(content).ok_or_else(|| corrupt("its list ends within a pair"))?;
        Ok(List { at: Some((addr, bytes)), pairs })
    }

    /// Writes `pairs` as a new list, names it in place of `old` and gives the lock back: 4 WRITEs.
    async fn publish(
        &self,
        session: &Session,
        lock: Lock,
        old: Option<GlobalAddr>,
        pairs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), IndexError> {
        let bytes = HEAD_BYTES + encoded_bytes(pairs).next_multiple_of(8);
        if bytes > session.pool().geometry().object_bytes_max() {
            lock.release().await?;
            return Err(IndexError::Full(format!(
                "a list of {bytes} bytes is too long for the pool"
            )));
        }
        let new = session.alloc_unlinked(session.place(), bytes).await?;
        new.write(encode(session.client().buf(bytes), pairs, self.0.meta)).await?;
        let retiring = match old {
            Some(old) => Some(session.prepare_retire(old).await?),
            None => None,
        };
        new.keep();
        let mut ops = session.client().ops();
        ops.write_word(self.0.meta.plus(META_LIST), new.addr().word());
        lock.finish(ops, 0, retiring).await
    }
}

fn encoded_bytes(pairs: &[(Vec<u8>, Vec<u8>)]) -> usize {
    pairs.iter().map(|(key, value)| 8 + key.len() + value.len()).sum()
}

fn encode(mut buf: Buf, pairs: &[(Vec<u8>, Vec<u8>)], meta: GlobalAddr) -> Buf {
    let mut out = Writer::default();
    for (key, value) in pairs {
        out.u32(key.len() as u32).u32(value.len() as u32).put(key).put(value);
    }
    let content = out.finish();
    let sum = xxh3_64_with_seed(&content, meta.word());
    buf.words_mut().fill(0);
    buf.words_mut()[..3].copy_from_slice(&[LIST_TAG, content.len() as u64, sum]);
    buf.bytes_mut()[HEAD_BYTES..][..content.len()].copy_from_slice(&content);
    buf
}

fn decode(content: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut input, mut pairs) = (Reader::new(content), Vec::new());
    while !input.is_empty() {
        let (key, value) = (input.u32().ok()? as usize, input.u32().ok()? as usize);
        pairs.push((input.take(key).ok()?.to_vec(), input.take(value).ok()?.to_vec()));
    }
    Some(pairs)
}

impl Engine for Example {
    const NAME: &'static str = "example";
    const ABOUT: &'static str = "sorted list under one lock: an example, for tests only";

    const TRAITS: Traits = Traits::NONE;

    type Shape = NoShape;
    type Options = NoOptions;
    type Table = Example;

    /// Cost: 1 WRITE.
    async fn create(
        session: &Session,
        _table: &TableSpec<NoShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let meta = session.alloc_unlinked(session.place(), META_BYTES).await?;
        let mut content = session.client().buf(META_BYTES);
        content.words_mut().fill(0);
        content.words_mut()[0] = META_TAG;
        meta.write(content).await?;
        meta.keep();
        Ok(meta.addr())
    }

    async fn open(
        _session: &Session,
        table: &Stored<NoShape>,
        _options: NoOptions,
        _join: &OpenOptions,
    ) -> Result<Example, IndexError> {
        Ok(Example(*table))
    }

    /// Cost: 3 READs.
    async fn walk(
        session: &Session,
        table: &Stored<NoShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        visitor.object("meta object", table.meta, META_BYTES);
        if visitor.is_done() {
            return Ok(());
        }
        let list = Example(*table).read(session).await?;
        if let Some((addr, bytes)) = list.at {
            visitor.object("list", addr, bytes);
            report.node_bytes += bytes as u64;
        }
        report.keys += list.pairs.len() as u64;
        report.data_bytes += encoded_bytes(&list.pairs) as u64 - 8 * list.pairs.len() as u64;
        report.nodes_per_level = vec![u64::from(list.at.is_some())];
        if !list.pairs.is_sorted_by(|a, b| a.0 < b.0) {
            report.problems.push("INV-EX-1: the list is not in order".into());
        }
        Ok(())
    }
}

impl Index for Example {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.spec.check_key(key)?;
        let _pin = session.begin(OpKind::Get).await?;
        let list = self.read(session).await?;
        let found = list.pairs.binary_search_by(|pair| pair.0.as_slice().cmp(key));
        value.clear();
        value.extend_from_slice(found.map_or(&[], |index| &list.pairs[index].1));
        Ok(found.is_ok())
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.spec.check_change(change)?;
        let _pin = session.begin(change.kind).await?;
        let lock = lock_word(session, self.0.meta.plus(META_LOCK)).await?;
        let List { at, mut pairs } = self.read(session).await?;
        let found = pairs.binary_search_by(|pair| pair.0.as_slice().cmp(change.key));
        let holds = found.ok().map(|index| pairs[index].1.as_slice());
        if change.expected.is_some() {
            held.clear();
            held.extend_from_slice(holds.unwrap_or_default());
        }
        let outcome = match change.decide(found.is_ok(), holds) {
            Decision::Leave(outcome) => {
                lock.release().await?;
                return Ok(outcome);
            }
            Decision::Apply(outcome) => outcome,
        };
        match (found, change.value) {
            (Ok(index), Some(value)) => pairs[index].1 = value.to_vec(),
            (Ok(index), None) => drop(pairs.remove(index)),
            (Err(index), Some(value)) => {
                pairs.insert(index, (change.key.to_vec(), value.to_vec()));
            }
            (Err(_), None) => {}
        }
        self.publish(session, lock, at.map(|(addr, _)| addr), &pairs).await?;
        Ok(outcome)
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Scan).await?;
        let mut pairs = self.read(session).await?.pairs;
        pairs.retain(|(key, _)| range.holds(key));
        if range.reverse {
            pairs.reverse();
        }
        pairs.iter().take(limit).for_each(|(key, value)| out.push(key, value));
        Ok(())
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let list = collect_sorted(pairs, &self.0.spec)?;
        let _pin = session.begin(OpKind::BulkLoad).await?;
        let lock = lock_word(session, self.0.meta.plus(META_LOCK)).await?;
        let old = self.read(session).await?;
        if !old.pairs.is_empty() {
            lock.release().await?;
            return Err(IndexError::Invalid("a bulk load fills an empty table".into()));
        }
        self.publish(session, lock, old.at.map(|(addr, _)| addr), &list).await?;
        Ok(list.len() as u64)
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.0.mark::<Example>(session, audit, None).await
    }
}
