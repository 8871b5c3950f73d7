//! Lock table: lock words of a tree's nodes in objects of their own, one on each memory server.
//!
//! A writer that comes by a remembered address must not CAS there: the memory may be another table's by now. A word of a
//! lock table is a lock word as long as the table lives. The word of a node is a function of its address, and lies on its
//! server, so that locking and reading are one chain. Nodes share words: collisions cost waiting, never correctness.
//!
//! The *directory* object names the tables. Words: 0 tag, 1 number of the tree, 2 words of each table, 3 servers,
//! 4 checksum; from 8 on the table of each server.

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};
use farleaf_pool::{Session, Unlinked};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::IndexError;

const TAG: u64 = u64::from_le_bytes(*b"FLlocks1");
const HEADER_WORDS: usize = 8;
const SUM_AT: usize = 4;
/// A lock table takes at most this part of a memory server's memory.
const REGION_PART: u64 = 256;

/// The lock tables of a tree, as its directory names them.
#[derive(Clone, Debug)]
pub(super) struct LockTables {
    directory: GlobalAddr,
    tables: Box<[GlobalAddr]>,
    words: u64,
}

fn directory_bytes(servers: usize) -> usize {
    (HEADER_WORDS + servers) * 8
}

fn sum(words: &[u64]) -> u64 {
    let (head, tables) = (&words[..SUM_AT], &words[HEADER_WORDS..]);
    xxh3_64_with_seed(tables.as_bytes(), xxh3_64_with_seed(head.as_bytes(), TAG))
}

/// Lock words that each server of this pool has for a table that asks for `wanted`.
fn words_here(session: &Session, wanted: u64) -> u64 {
    let endpoint = session.endpoint();
    let regions = (0..endpoint.server_count()).map(|it| endpoint.region_bytes(ServerId(it as u16)));
    let part = regions.min().unwrap_or(0) / REGION_PART;
    let most = part.min(session.pool().geometry().object_bytes_max() as u64) / 8;
    1 << wanted.min(most.max(1)).ilog2()
}

impl LockTables {
    /// Makes zeroed tables of about `wanted` words, a power of two, and their directory: kept by the caller.
    ///
    /// Cost: 1 WRITE for each memory server, and 1.
    ///
    /// # Errors
    /// `Full` if a memory server has no room.
    pub(super) async fn create(
        session: &Session,
        tree: u64,
        wanted: u32,
    ) -> Result<Vec<Unlinked>, IndexError> {
        let words = words_here(session, u64::from(wanted));
        let servers = session.endpoint().server_count();
        let mut objects = Vec::with_capacity(servers + 1);
        let bytes = words as usize * 8;
        for server in (0..servers).map(|it| ServerId(it as u16)) {
            let object = session.alloc_unlinked(server, bytes).await?;
            if object.addr().server() != server {
                return Err(IndexError::Full(format!(
                    "memory server {server} has no room for {bytes} bytes of lock words, which each server needs: free \
                     some, or ask for fewer lock_words"
                )));
            }
            let mut zero = session.client().buf(bytes);
            zero.words_mut().fill(0);
            object.write(zero).await?;
            objects.push(object);
        }
        let directory = session.alloc_unlinked(session.place(), directory_bytes(servers)).await?;
        let mut content = session.client().buf(directory_bytes(servers));
        let list = content.words_mut();
        list.fill(0);
        list[..SUM_AT].copy_from_slice(&[TAG, tree, words, servers as u64]);
        for (word, object) in list[HEADER_WORDS..].iter_mut().zip(&objects) {
            *word = object.addr().word();
        }
        list[SUM_AT] = sum(list);
        directory.write(content).await?;
        objects.push(directory);
        Ok(objects)
    }

    /// The tables that the directory at `directory` names. 1 READ.
    ///
    /// # Errors
    /// `Corrupt` if that is no directory of the tree numbered `tree`.
    pub(super) async fn open(
        session: &Session,
        directory: GlobalAddr,
        tree: u64,
    ) -> Result<Self, IndexError> {
        let servers = session.endpoint().server_count();
        let reliable = session.reliable();
        let bytes = directory_bytes(servers);
        let content = reliable.read(directory, reliable.buf(bytes)).await?;
        let list = content.words();
        let words = list[2];
        let is_whole = list[..2] == [TAG, tree]
            && list[3] == servers as u64
            && words.is_power_of_two()
            && list[SUM_AT] == sum(list);
        let table = |(word, server): (&u64, usize)| {
            let addr = GlobalAddr::from_word(*word)?;
            let end = addr.offset().checked_add(words.checked_mul(8)?)?;
            let is_inside = addr.server().index() == server
                && addr.offset().is_multiple_of(64)
                && end <= session.endpoint().region_bytes(addr.server());
            is_inside.then_some(addr)
        };
        let tables = list[HEADER_WORDS..].iter().zip(0..).map(table).collect::<Option<_>>();
        match tables {
            Some(tables) if is_whole => Ok(LockTables { directory, tables, words }),
            _ => Err(IndexError::Corrupt(format!(
                "the object at {directory} is no directory of lock tables of tree {tree:#x} in a pool of {servers} memory \
                 servers: the table is damaged, restore it from a copy"
            ))),
        }
    }

    /// The lock word of the node at `addr`.
    #[inline]
    pub(super) fn word(&self, addr: GlobalAddr) -> GlobalAddr {
        let table = self.tables[addr.server().index() % self.tables.len()];
        let mixed = (addr.word() >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        table.plus(8 * ((mixed >> 32) & (self.words - 1)))
    }

    /// The objects: kind, address, bytes.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&'static str, GlobalAddr, usize)> {
        let bytes = self.words as usize * 8;
        let directory = ("lock directory", self.directory, directory_bytes(self.tables.len()));
        let tables = self.tables.iter().map(move |table| ("lock table", *table, bytes));
        std::iter::once(directory).chain(tables)
    }

    /// The words that are not 0, with their addresses. 1 READ for each memory server.
    pub(super) async fn held(
        &self,
        session: &Session,
    ) -> Result<Vec<(GlobalAddr, u64)>, IndexError> {
        let (reliable, mut held) = (session.reliable(), Vec::new());
        for table in &self.tables {
            let content = reliable.read(*table, reliable.buf(self.words as usize * 8)).await?;
            let words = content.words().iter().zip(0..).filter(|(word, _)| **word != 0);
            held.extend(words.map(|(word, index)| (table.plus(8 * index), *word)));
        }
        Ok(held)
    }
}
