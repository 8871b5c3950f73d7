//! Partitions: what a conductor and a member do with the lines of a table whose partitions change hands.
//!
//! A redo record without its lock (`INV-DM-8`): a lock that was in the memory of a dead compute server is lost, so it does not
//! tell whether the record is done. The upper tree does. A split and a merge change it last, and it names each version once.

use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr, Incarnation, ServerId};
use farleaf_index::IndexError;
use farleaf_index::compute::canaries::IGNORE_TERM;
use farleaf_index::compute::partitions::{
    Home, PartitionMap, PartitionMembership, PartitionWords, PartitionedTable, read_partitions,
};
use farleaf_index::compute::regions::{RegionEnd, attach_region, on_region};
use farleaf_pool::{LockToken, Session};

use super::LeafTree;
use super::homed::HomedTable;
use super::homes::{GROUP_BYTES, GROUP_LINES, LinePlace, Op, Parts, slice_bytes};
use super::line::{LINE_BYTES, Line};
use super::redo::LeafRedo;

farleaf_fabric::canaries! {
    pub(crate) MOVE_DROPS_LOCKS = "move-drops-locks",
        "lines that are copied to another compute server arrive without their lock words";
}

/// Redo areas that are READ at once.
const AREAS: u32 = 32;
/// Words of a line, and the one that is its lock.
const LINE_WORDS: usize = LINE_BYTES / 8;
const LOCK_WORD: usize = LINE_WORDS - 1;

impl LeafTree {
    /// The groups of lines of these partitions.
    fn groups<'a>(
        &'a self,
        parts: &'a Parts,
        session: &Session,
        partitions: &'a [u32],
    ) -> impl Iterator<Item = u64> + 'a {
        let count = self.lines.line_count(session.pool().geometry()).div_ceil(GROUP_LINES);
        (0..count).filter(move |group| partitions.contains(&parts.partition_of_group(*group)))
    }

    /// Finishes splits, merges and updates of dead clients that name a leaf of a partition in `closed`, as the conductor.
    ///
    /// Cost: 1 READ for each client and memory server; that of the changes.
    pub(super) async fn finish_dead_of(
        self: &Arc<Self>,
        session: &Session,
        closed: &[u32],
    ) -> Result<(), IndexError> {
        let Some(parts) = &self.parts else { return Ok(()) };
        let map = read_partitions(&parts.words, session).await?;
        let op = Op::of_conductor(session, map);
        // A record counts for every leaf that it names.
        let is_closed = |leaf: GlobalAddr| -> Result<bool, IndexError> {
            Ok(closed.contains(&parts.partition(self.lines.number(session, leaf)?)))
        };
        let clients = session.pool().geometry().options().clients_max;
        for server in 0..session.endpoint().server_count() {
            for first in (0..clients).step_by(AREAS as usize) {
                let some = first..(first + AREAS).min(clients);
                for record in self.redo_of_clients(session, ServerId(server as u16), some).await? {
                    let (token, concerns) = match &record {
                        LeafRedo::Pending(pending) => (
                            pending.token,
                            is_closed(pending.left.leaf)? || is_closed(pending.right.leaf)?,
                        ),
                        LeafRedo::Update(update) => (update.token, is_closed(update.leaf.leaf)?),
                    };
                    if !concerns || !session.owner_is_dead(token).await? {
                        continue;
                    }
                    match record {
                        LeafRedo::Pending(pending) => self.finish_left(&op, &pending).await?,
                        LeafRedo::Update(update) => self.finish_left_update(&op, &update).await?,
                    }
                }
            }
        }
        Ok(())
    }

    /// The redo records of this table that clients have left on a memory server.
    async fn redo_of_clients(
        &self,
        session: &Session,
        server: ServerId,
        clients: std::ops::Range<u32>,
    ) -> Result<Vec<LeafRedo>, IndexError> {
        let reliable = session.reliable();
        let mut ops = reliable.client().ops();
        let count = clients.len();
        for client in clients {
            // Any token of the client.
            let token = 1 << 63 | u64::from(client) << LockToken::COUNTER_BITS;
            let area = session.redo_addr_of(server, token)?;
            let bytes = LeafRedo::bytes(&self.shape);
            ops.read(area.plus(super::redo::redo_offset(session)), reliable.buf(bytes));
        }
        let mut ops = reliable.post_many(ops).await?;
        let decode = |index| LeafRedo::decode(&self.shape, ops.take_buf(index).bytes());
        Ok((0..count).filter_map(decode).collect())
    }

    /// Copies the lines of `partition`, lock words included.
    async fn copy_groups(
        self: &Arc<Self>,
        session: &Session,
        partition: u32,
        (from, to): (Home, Home),
        map: &PartitionMap,
    ) -> Result<(), IndexError> {
        let Some(parts) = &self.parts else { return Ok(()) };
        let (Some(giver), Some(taker)) = (from.owner, to.owner) else {
            // Nothing is copied to or from table objects. The taker's lines are zero, and are built when they are needed.
            return self.finish_dead_of(session, &[partition]).await;
        };
        let place = async |who| -> Result<(ServerId, u16), IndexError> {
            let server = attach_region(session, who).await?.ok_or_else(|| gone(who))?;
            let member = map.member(who).ok_or_else(|| gone(who))?;
            Ok((server, member.slice))
        };
        let (source, target) = (place(giver).await?, place(taker).await?);
        let wanted = [partition];
        for group in self.groups(parts, session, &wanted) {
            let first = group * GROUP_LINES;
            let old = self.region_line(session, source.0, source.1, first);
            let new = self.region_line(session, target.0, target.1, first);
            let reliable = session.reliable();
            let read = reliable.read(old, reliable.buf(GROUP_BYTES));
            let mut lines = done_at(giver, on_region(session, giver, read).await)?;
            if lines.words().iter().all(|word| *word == 0) {
                continue;
            }
            for index in 0..GROUP_LINES as usize {
                let offset = (index * LINE_BYTES) as u64;
                let mut one = reliable.buf(LINE_BYTES);
                let words = index * LINE_WORDS..(index + 1) * LINE_WORDS;
                one.words_mut().copy_from_slice(&lines.words()[words.clone()]);
                let (line, _) = Line::decode_any(self.shape.tree, old.plus(offset), &one);
                let to_words = &mut lines.words_mut()[words];
                match line.filter(|line| line.term == from.term) {
                    Some(line) => {
                        let there = LinePlace::at_home(new.plus(offset), to, partition);
                        let content = line.encode(session, self.shape.tree, there);
                        to_words[..LOCK_WORD].copy_from_slice(content.words());
                    }
                    None => to_words[..LOCK_WORD].fill(0),
                }
            }
            if MOVE_DROPS_LOCKS.is_armed() {
                let words = lines.words_mut().iter_mut();
                words.skip(LOCK_WORD).step_by(LINE_WORDS).for_each(|lock| *lock = 0);
            }
            let write = reliable.write(new, lines);
            done_at(taker, on_region(session, taker, write).await)?;
        }
        Ok(())
    }

    /// Zeroes the lines of `partitions` in this compute server's own memory, and their lock words.
    async fn clear_own_slice(
        &self,
        session: &Session,
        parts: &Parts,
        partitions: &[u32],
    ) -> Result<(), IndexError> {
        let Some(own) = session.endpoint().own_region() else { return Ok(()) };
        let view = parts.membership.as_ref().map(|own| own.view());
        let me = session.endpoint().incarnation();
        let Some(slice) = view.and_then(|view| view.slice(me)) else { return Ok(()) };
        let reliable = session.reliable();
        for group in self.groups(parts, session, partitions) {
            let at = self.region_line(session, own.number, slice, group * GROUP_LINES);
            let lines = reliable.read(at, reliable.buf(GROUP_BYTES)).await?;
            if lines.words().iter().any(|word| *word != 0) {
                let mut zeroes = reliable.buf(GROUP_BYTES);
                zeroes.words_mut().fill(0);
                reliable.write(at, zeroes).await?;
            }
        }
        Ok(())
    }

    /// Zeroes the lines of `partitions` in the table objects on memory servers, and their lock words.
    async fn clear_table_objects(
        &self,
        session: &Session,
        parts: &Parts,
        partitions: &[u32],
    ) -> Result<(), IndexError> {
        let reliable = session.reliable();
        let geometry = session.pool().geometry();
        for (object, table) in self.lines.table_objects(session).await? {
            let numbers = self.lines.numbers_of(geometry, object);
            for (index, number) in numbers.enumerate() {
                if !partitions.contains(&parts.partition(number)) {
                    continue;
                }
                let at = table.plus(((index + 1) * LINE_BYTES) as u64);
                let line = reliable.read(at, reliable.buf(LINE_BYTES)).await?;
                if line.words().iter().any(|word| *word != 0) {
                    let mut zeroes = reliable.buf(LINE_BYTES);
                    zeroes.words_mut().fill(0);
                    reliable.write(at, zeroes).await?;
                }
            }
        }
        Ok(())
    }
}

fn gone(who: Incarnation) -> IndexError {
    IndexError::Unavailable(format!("compute server {who} is gone"))
}

/// The outcome of an operation on the region of `who`.
fn done_at<T>(who: Incarnation, end: RegionEnd<T>) -> Result<T, IndexError> {
    match end {
        RegionEnd::Done(done) => Ok(done),
        RegionEnd::Gone => Err(gone(who)),
        RegionEnd::Unreachable(error) => Err(error.into()),
    }
}

impl PartitionedTable for HomedTable {
    fn words(&self) -> &PartitionWords {
        &self.parts().words
    }

    fn membership(&self) -> Option<&PartitionMembership> {
        self.0.membership()
    }

    fn slice_bytes(&self, session: &Session) -> u64 {
        slice_bytes(session.pool().geometry())
    }

    async fn finish_dead(&self, session: &Session, closed: &[u32]) -> Result<(), IndexError> {
        self.0.finish_dead_of(session, closed).await
    }

    async fn copy_lines(
        &self,
        session: &Session,
        partition: u32,
        from: Home,
        to: Home,
    ) -> Result<(), IndexError> {
        let map = read_partitions(self.words(), session).await?;
        self.0.copy_groups(session, partition, (from, to), &map).await
    }

    async fn clear_unowned(&self, session: &Session, partitions: &[u32]) -> Result<(), IndexError> {
        self.0.clear_table_objects(session, self.parts(), partitions).await
    }

    async fn forget_lines(&self, session: &Session, partitions: &[u32]) -> Result<(), IndexError> {
        // Else no line of an earlier term is left to be compared.
        if IGNORE_TERM.is_armed() {
            return Ok(());
        }
        self.0.clear_own_slice(session, self.parts(), partitions).await
    }
}
