//! Lines: places of fingerprint tables in memory servers.
//!
//! The line of a leaf is a function of the leaf's address: its block's table object holds a line for each object that the
//! block has room for, and a directory names the table objects. A table object lies on the server of its block, so that
//! a change of a leaf and of its line are one chain. It lives as long as the table. Its first line is its header, by which
//! a compute server makes sure that a directory's word leads to lines of that table, before it writes there.
//!
//! Header of a table object, words: 0 tag, 1 tree, 2 number in the directory, 3 own address, 4 checksum.

use std::collections::BTreeMap;
use std::ops::Range;

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::sync::{Mutex, lock};
use farleaf_pool::{Geometry, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::line::LINE_BYTES;

/// Most lines of a table object, its header among them.
const TABLE_LINES_MAX: u64 = 1 << 14;
const TAG: u64 = u64::from_le_bytes(*b"FLfplin1");
/// Words of the directory in one READ.
pub(super) const DIRECTORY_WORDS: usize = 512;
/// Words of a table object's header.
const HEADER_WORDS: usize = 5;

/// The directory of a table's lines, with what this compute server has seen of it.
#[derive(Debug)]
pub(super) struct Lines {
    directory: GlobalAddr,
    tree: u64,
    leaf_bytes: usize,
    known: Mutex<BTreeMap<u64, GlobalAddr>>,
}

/// Lines of a block: no fewer than leaves begin in it.
fn block_lines(geometry: &Geometry, leaf_bytes: usize) -> u64 {
    geometry.options().block_bytes.div_ceil(leaf_bytes as u64)
}

/// Lines of leaves in a table object.
fn part_lines(geometry: &Geometry, leaf_bytes: usize) -> u64 {
    block_lines(geometry, leaf_bytes).min(TABLE_LINES_MAX - 1)
}

/// Table objects for each block.
fn parts(geometry: &Geometry, leaf_bytes: usize) -> u64 {
    block_lines(geometry, leaf_bytes).div_ceil(part_lines(geometry, leaf_bytes))
}

/// Bytes of a table object.
pub(super) fn table_bytes(geometry: &Geometry, leaf_bytes: usize) -> usize {
    (part_lines(geometry, leaf_bytes) as usize + 1) * LINE_BYTES
}

/// Words of a directory.
pub(super) fn directory_words(geometry: &Geometry, leaf_bytes: usize) -> usize {
    (geometry.blocks_in_pool() * parts(geometry, leaf_bytes)) as usize
}

/// The header of the table object at `addr`.
fn header(tree: u64, number: u64, addr: GlobalAddr) -> [u64; HEADER_WORDS] {
    let words = [TAG, tree, number, addr.word()];
    let sum = words.iter().fold(0, |sum, word| xxh3_64_with_seed(&word.to_le_bytes(), sum));
    [words[0], words[1], words[2], words[3], sum]
}

impl Lines {
    pub(super) fn new(directory: GlobalAddr, tree: u64, leaf_bytes: usize) -> Self {
        Lines { directory, tree, leaf_bytes, known: Mutex::default() }
    }

    pub(super) fn directory(&self) -> GlobalAddr {
        self.directory
    }

    /// The table objects that this compute server has seen.
    pub(super) fn known(&self) -> impl Iterator<Item = GlobalAddr> {
        let known: Vec<GlobalAddr> = lock(&self.known).values().copied().collect();
        known.into_iter()
    }

    /// The number of the table object of a leaf, and the line in it.
    fn place(&self, session: &Session, leaf: GlobalAddr) -> Result<(u64, u64), IndexError> {
        let geometry = session.pool().geometry();
        let place = geometry.place_of(leaf, self.leaf_bytes).ok_or_else(|| {
            IndexError::Corrupt(format!("no leaf of {} bytes can lie at {leaf}", self.leaf_bytes))
        })?;
        let lines = part_lines(geometry, self.leaf_bytes);
        let index = u64::from(place.index);
        let number = place.block * parts(geometry, self.leaf_bytes) + index / lines;
        Ok((number, (index % lines + 1) * LINE_BYTES as u64))
    }

    /// The number of a leaf's line among those of all leaves that the pool has places for.
    pub(super) fn number(&self, session: &Session, leaf: GlobalAddr) -> Result<u64, IndexError> {
        let (object, offset) = self.place(session, leaf)?;
        let numbers = self.numbers_of(session.pool().geometry(), object);
        Ok(numbers.start + offset / LINE_BYTES as u64 - 1)
    }

    /// The numbers of the lines in table object `object`.
    pub(super) fn numbers_of(&self, geometry: &Geometry, object: u64) -> Range<u64> {
        let (all, lines) =
            (block_lines(geometry, self.leaf_bytes), part_lines(geometry, self.leaf_bytes));
        let parts = parts(geometry, self.leaf_bytes);
        let (block, part) = (object / parts, object % parts);
        let from = (part * lines).min(all);
        block * all + from..block * all + (from + lines).min(all)
    }

    /// Number of lines that leaves of this size may have in the pool.
    pub(super) fn line_count(&self, geometry: &Geometry) -> u64 {
        geometry.blocks_in_pool() * block_lines(geometry, self.leaf_bytes)
    }

    /// The table object that word `number` of the directory names, if it names one. 1 READ.
    ///
    /// # Errors
    /// `Corrupt` for anything else than a table object of that tree and number.
    pub(super) async fn named(
        &self,
        session: &Session,
        number: u64,
        word: u64,
    ) -> Result<Option<GlobalAddr>, IndexError> {
        if word == 0 {
            return Ok(None);
        }
        let foreign = || {
            IndexError::Corrupt(format!(
                "word {number} of the directory at {} is {word:#018x}, which leads to no lines of this table",
                self.directory
            ))
        };
        let is_inside = |addr: &GlobalAddr| {
            let endpoint = session.endpoint();
            let bytes = table_bytes(session.pool().geometry(), self.leaf_bytes) as u64;
            addr.offset().is_multiple_of(64)
                && addr.server().index() < endpoint.server_count()
                && addr.offset().saturating_add(bytes) <= endpoint.region_bytes(addr.server())
        };
        let addr = GlobalAddr::from_word(word).filter(is_inside).ok_or_else(foreign)?;
        let reliable = session.reliable();
        let found = reliable.read(addr, reliable.buf(LINE_BYTES)).await?;
        if found.words()[..HEADER_WORDS] != header(self.tree, number, addr) {
            return Err(foreign());
        }
        Ok(Some(addr))
    }

    /// All table objects that there are, each with its number. 1 READ for each, and for each part of the directory.
    pub(super) async fn table_objects(
        &self,
        session: &Session,
    ) -> Result<Vec<(u64, GlobalAddr)>, IndexError> {
        let words = directory_words(session.pool().geometry(), self.leaf_bytes);
        let (reliable, mut objects) = (session.reliable(), Vec::new());
        for first in (0..words).step_by(DIRECTORY_WORDS) {
            let count = DIRECTORY_WORDS.min(words - first);
            let from = self.directory.plus(first as u64 * 8);
            let part = reliable.read(from, reliable.buf(count * 8)).await?;
            for (number, word) in (first as u64..).zip(part.words()) {
                let table = self.named(session, number, *word).await?;
                objects.extend(table.map(|table| (number, table)));
            }
        }
        Ok(objects)
    }

    /// The line of a leaf.
    ///
    /// Cost: 2 READs the first time for each table object.
    pub(super) async fn of(
        &self,
        session: &Session,
        leaf: GlobalAddr,
    ) -> Result<GlobalAddr, IndexError> {
        self.find(session, leaf).await?.ok_or_else(|| {
            IndexError::Corrupt(format!(
                "the leaf {leaf} has no line: its word of the directory at {} is empty",
                self.directory
            ))
        })
    }

    /// The line of a leaf, if there is a table object for it.
    ///
    /// Cost: 2 READs the first time for each table object.
    pub(super) async fn find(
        &self,
        session: &Session,
        leaf: GlobalAddr,
    ) -> Result<Option<GlobalAddr>, IndexError> {
        let (number, offset) = self.place(session, leaf)?;
        if let Some(table) = lock(&self.known).get(&number) {
            return Ok(Some(table.plus(offset)));
        }
        let word = session.reliable().word(self.directory.plus(number * 8)).await?;
        let Some(table) = self.named(session, number, word).await? else { return Ok(None) };
        lock(&self.known).insert(number, table);
        Ok(Some(table.plus(offset)))
    }

    /// The line of a new leaf, whose table object is made if there is none.
    ///
    /// Cost: that of [`Lines::of`]; 1 WRITE and 1 CAS for a new table object.
    ///
    /// # Errors
    /// `Full` if that server has no room for the table object.
    pub(super) async fn of_new(
        &self,
        session: &Session,
        leaf: GlobalAddr,
    ) -> Result<GlobalAddr, IndexError> {
        let (number, offset) = self.place(session, leaf)?;
        if let Some(table) = lock(&self.known).get(&number) {
            return Ok(table.plus(offset));
        }
        let at = self.directory.plus(number * 8);
        let word = session.reliable().word(at).await?;
        let mut table = self.named(session, number, word).await?;
        if table.is_none() {
            let bytes = table_bytes(session.pool().geometry(), self.leaf_bytes);
            let object = session.alloc_unlinked(leaf.server(), bytes).await?;
            if object.addr().server() != leaf.server() {
                return Err(IndexError::Full(format!(
                    "memory server {} has no room for {bytes} bytes of lines, beside its leaves",
                    leaf.server()
                )));
            }
            let mut lines = session.client().buf(bytes);
            lines.words_mut().fill(0);
            let header = header(self.tree, number, object.addr());
            lines.words_mut()[..HEADER_WORDS].copy_from_slice(&header);
            object.write(lines).await?;
            object.keep();
            let found = session.reliable().cas(at, 0, object.addr().word()).await?;
            if found == 0 {
                table = Some(object.addr());
            } else {
                object.unkeep();
                table = self.named(session, number, found).await?;
            }
        }
        let table = table.ok_or_else(|| IndexError::Corrupt("no table object".into()))?;
        lock(&self.known).insert(number, table);
        Ok(table.plus(offset))
    }
}
