//! Offloaded operations: gets, changes and scans that memory servers execute for this tree.

use std::sync::Arc;

use farleaf_index::bnode::RecordRef;
use farleaf_index::detach::{TimedOut, unfinished_change};
use farleaf_index::{IndexError, Outcome, ScanCursor, Seek};
use farleaf_pool::Session;

use super::DexTree;
use crate::dex::change::OwnedLeafChange;
use crate::dex::offload::{
    Asked, Channel, FOUND_BYTES, Gathered, OffloadMark, OffloadReply, Operation, Question,
    RECORD_BYTES, Status, Sweep, Target, key_bytes_max, u64_at,
};

/// Bytes of pairs that one reply to a scan may have, at most.
const SCAN_ROOM: usize = 16 << 10;

impl DexTree {
    /// Copies `key`'s value from its memory server into `value`; `None` if the caller is to fetch.
    ///
    /// Cost: 1 RPC, 1 READ for a value in a record.
    pub(super) async fn get_offloaded(
        self: &Arc<Self>,
        session: &Session,
        mark: OffloadMark,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>, IndexError> {
        let (operation, key) = (Operation::Get, key.to_vec());
        let room = RECORD_BYTES.max(self.layout().inline_value_max());
        let partition = Target::Key;
        let question = Question { operation, key, value: Vec::new(), room, partition };
        let (reply, content) = match self.offload(session, mark, question).await? {
            Some(replied) => replied,
            None => return Ok(None),
        };
        match reply.status {
            Status::Ok if reply.is_record => {
                let record = RecordRef { addr: u64_at(&content, 0), len: u64_at(&content, 8) };
                self.remote.read_record(session, record, value).await?;
                Ok(Some(true))
            }
            Status::Ok => {
                *value = content;
                Ok(Some(true))
            }
            _ => {
                value.clear();
                Ok(Some(false))
            }
        }
    }

    /// Returns the pairs that `cursor` wants next from their memory server, and the fence that ends them;
    /// `None` if the caller is to fetch.
    ///
    /// Cost: 1 RPC.
    pub(super) async fn scan_offloaded(
        self: &Arc<Self>,
        session: &Session,
        mark: OffloadMark,
        cursor: &ScanCursor<'_>,
        wanted: usize,
    ) -> Result<Option<Gathered>, IndexError> {
        let reverse = cursor.is_reverse();
        let (key, excluded, partition) = match cursor.seek() {
            Seek::First => (None, false, Target::First),
            Seek::Last => (None, false, Target::Last),
            // The key that a descending scan goes on at may be the end of its range, and not in it.
            Seek::At(key) => (Some(key), reverse && cursor.leaves_out(key), Target::Key),
            Seek::After(key) => (Some(key), true, Target::Above),
        };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let (from_end, far) = (key.is_none(), cursor.far_end());
        let sweep = Sweep { reverse, excluded, from_end, wanted, far };
        if !sweep.fits(self.layout(), key.map_or(0, <[u8]>::len)) {
            return Ok(None);
        }
        let value = sweep.encode();
        let pairs = (wanted as usize).saturating_mul(Gathered::pair_bytes_max(self.layout()));
        let room = FOUND_BYTES + key_bytes_max(self.layout()) + pairs.min(SCAN_ROOM);
        let key = key.unwrap_or(&[]).to_vec();
        let question = Question { operation: Operation::Scan, key, value, room, partition };
        let node = mark.addr();
        let Some((_, content)) = self.offload(session, mark, question).await? else {
            return Ok(None);
        };
        match Gathered::decode(self.layout(), &content) {
            Some(found) => {
                self.stats.offload_scans.add();
                self.stats.offload_scan_pairs.add_many(found.count.into());
                Ok(Some(found))
            }
            None => Err(IndexError::Corrupt(format!(
                "the memory server's reply to a scan at node {node:#x} is not one of this table"
            ))),
        }
    }

    /// Changes a leaf through its memory server; `None` if the caller is to fetch. Returns beside the
    /// outcome whether the leaf was changed.
    ///
    /// Cost: 1 RPC.
    pub(super) async fn change_offloaded(
        self: &Arc<Self>,
        session: &Session,
        mark: OffloadMark,
        owned: OwnedLeafChange,
    ) -> Result<Option<(Outcome, bool)>, IndexError> {
        let change = owned.borrowed();
        let operation = match (change.value, change.adds, change.replaces) {
            (None, ..) => Operation::Remove,
            (Some(_), true, true) => Operation::Upsert,
            (Some(_), true, false) => Operation::Insert,
            (Some(_), false, _) => Operation::Update,
        };
        let value = change.value.map_or(Vec::new(), <[u8]>::to_vec);
        let (room, partition) = (0, Target::Key);
        let question = Question { operation, key: owned.key, value, room, partition };
        let Some((reply, _)) = self.offload(session, mark, question).await? else {
            return Ok(None);
        };
        let outcome = Outcome { existed: reply.existed, differs: false };
        Ok(Some((outcome, reply.status == Status::Ok)))
    }

    /// Asks a memory server and acts upon the reply, in a task that runs to its end. `None`: fetch.
    async fn offload(
        self: &Arc<Self>,
        session: &Session,
        mark: OffloadMark,
        question: Question,
    ) -> Result<Option<(OffloadReply, Vec<u8>)>, IndexError> {
        let reads = mark.reads();
        let task = |tree: Arc<Self>, session| async move {
            tree.offload_now(&session, mark, question).await
        };
        match self.detach_within(session, task).await {
            Some(done) => done,
            None if reads => TimedOut::timed_out(),
            None => Err(unfinished_change("the change")),
        }
    }

    async fn offload_now(
        self: &Arc<Self>,
        session: &Session,
        mark: OffloadMark,
        question: Question,
    ) -> Result<Option<(OffloadReply, Vec<u8>)>, IndexError> {
        let channel = if mark.reads() { None } else { Channel::take(&self.offloads) };
        if !mark.reads() && channel.is_none() {
            return Ok(None);
        }
        let asked = self
            .offloads
            .ask(session, &mark, &question, &self.ownership.view(), channel.as_ref())
            .await;
        let (reply, value) = match asked {
            Asked::Answered(reply, value) => (reply, value),
            Asked::Fetch => return Ok(None),
            Asked::Unknown(error) => {
                self.stats.offload_unknown.add();
                if !mark.reads() {
                    self.offloads.settle_later(session, mark, question.key);
                }
                return Err(error);
            }
        };
        let stats = &self.stats;
        let count = match reply.status {
            Status::Ok => &stats.offload_ok,
            Status::Absent => &stats.offload_absent,
            Status::Exists => &stats.offload_exists,
            Status::NeedSmo => &stats.offload_need_smo,
            Status::WrongFence => &stats.offload_wrong_fence,
            Status::CrossServer => &stats.offload_cross_server,
            Status::Busy => &stats.offload_busy,
            Status::NoSession | Status::Refused => &stats.offload_refused,
        };
        count.add();
        match reply.status {
            Status::Ok if !mark.reads() => {
                // INV-DEX-OFF-5.
                self.ownership.must_succeed(self.offloads.drop_copy(session, reply.leaf))?;
                Ok(Some((reply, value)))
            }
            Status::Ok | Status::Absent | Status::Exists => Ok(Some((reply, value))),
            _ => Ok(None),
        }
    }
}
