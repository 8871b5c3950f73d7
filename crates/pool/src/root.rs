//! Root table: names the tables, and holds each one's engine, parameters and root address.
//!
//! Words of an entry: 0 state (bits 0 to 3: 0 free, 1 being made, 2 live, 3 being dropped; the rest a
//! version), 1 lengths of name (bits 0 to 7) and engine name (8 to 15), 2 to 17 name, 18 and 19 engine
//! name, 20 to 27 parameters, 28 root address, 29 checksum (xxh3-64 of words 1 to 27), 30 and 31 for
//! the dropper of a table, see [`crate::drops`].
//!
//! INV-ROOT-1: only the holder of the root lock (a word on server 0 that holds its lock token) changes
//! entries; word 30 is the dropper's. So an entry that the lock's holder finds half made is the rest of
//! a dead or failed one, and free.
//! INV-ROOT-2: no two live entries have the same name.

use std::sync::atomic::Ordering;

use farleaf_fabric::codec::Writer;
use farleaf_fabric::{Endpoint, GlobalAddr};
use xxhash_rust::xxh3::xxh3_64;

use crate::drops::{Dropping, UNCOUNTED};
use crate::geometry::ROOT_BYTES;
use crate::reliable::Reliable;
use crate::{LockToken, Pool, PoolError, Session};

const WORDS: usize = ROOT_BYTES as usize / 8;
const NAME_WORD: usize = 2;
const NAME_BYTES_MAX: usize = 128;
const ENGINE_WORD: usize = 18;
const ENGINE_BYTES_MAX: usize = 16;
const PARAMS_WORD: usize = 20;
const ADDR_WORD: usize = 28;
const CHECKSUM_WORD: usize = 29;
const BODY_END: usize = 30;
pub(crate) const LEFT_WORD: usize = 30;
pub(crate) const OWNER_WORD: usize = 31;

pub(crate) const FREE: u64 = 0;
/// A free entry with the last version but one.
pub(crate) const AGED: u64 = u64::MAX << 5 | FREE;
const MAKING: u64 = 1;
const LIVE: u64 = 2;
pub(crate) const DROPPING: u64 = 3;

/// Time to wait for the lock between two tries, tries between looks whether its holder lives,
/// and tries in all.
const WAIT_NS: u64 = 20_000;
const LOOK_TRIES: usize = 16;
const TRIES_MAX: usize = 10_000;
/// Entries that are read at once: 1 MiB.
const READ_ENTRIES: usize = 4096;
/// READs of an entry that is being made at that very moment.
const READS_MAX: usize = 4;

/// A named table: which engine it is of, and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its name: 1 to 128 bytes of UTF-8.
    pub name: String,
    /// The engine's name: 1 to 16 bytes.
    pub engine: String,
    /// The engine's own parameters.
    pub params: [u8; 64],
    /// The engine's first object.
    pub addr: GlobalAddr,
    /// Index in the pool's root table.
    pub slot: usize,
}

impl Session {
    /// Adds a table. The object at `addr` must be complete: others find it from then on.
    ///
    /// Cost: 1 READ of the root table for each 4,096 entries, 4 CAS, 1 WRITE.
    ///
    /// # Errors
    /// `TableExists`, `NoSlot` (tables that are being dropped count), `Invalid` (a name too long or
    /// empty), `Busy`: nothing was done.
    /// `Fabric`: look whether it exists.
    pub async fn create_root(
        &self,
        name: &str,
        engine: &str,
        params: &[u8; 64],
        addr: GlobalAddr,
    ) -> Result<Root, PoolError> {
        check_length("table name", name, NAME_BYTES_MAX)?;
        check_length("engine name", engine, ENGINE_BYTES_MAX)?;
        self.under_root_lock(async || {
            let table = self.read_roots().await?;
            let mut free = None;
            for (slot, entry) in table.chunks_exact(WORDS).enumerate() {
                if entry[0] & 15 == DROPPING {
                    continue;
                }
                if entry[0] & 15 != LIVE {
                    free = free.or(Some((slot, entry[0])));
                } else if name_in(entry) == Some(name.as_bytes().to_vec()) {
                    return Err(PoolError::TableExists(name.into()));
                }
            }
            let tables_max = self.pool().geometry().options().tables_max as usize;
            let (slot, word) = free.ok_or(PoolError::NoSlot("table", tables_max))?;
            let at = self.pool().geometry().root_addr(slot);
            let root =
                Root { name: name.into(), engine: engine.into(), params: *params, addr, slot };
            let making = (word >> 4).wrapping_add(1) << 4 | MAKING;
            self.change_root(at, word, making).await?;
            let body = self.client().buf((BODY_END - 1) * 8);
            let body = encode(&root, body);
            self.reliable().write(at.plus(8), body).await?;
            self.change_root(at, making, (making >> 4).wrapping_add(1) << 4 | LIVE).await?;
            Ok(root)
        })
        .await
    }

    /// The table of that name.
    ///
    /// Cost: 1 READ of the root table for each 4,096 entries.
    ///
    /// # Errors
    /// `NoSuchTable`, `Corrupt` (an entry is damaged, perhaps this one), `Fabric`.
    pub async fn open_root(&self, name: &str) -> Result<Root, PoolError> {
        let table = self.read_roots().await?;
        let mut outcome = PoolError::NoSuchTable(name.into());
        for slot in 0..table.len() / WORDS {
            match self.parse_root(&table, slot).await {
                Ok(Some(root)) if root.name == name => return Ok(root),
                Ok(_) => {}
                Err(error) => outcome = error,
            }
        }
        Err(outcome)
    }

    /// All tables, in the order of their slots.
    ///
    /// Cost: 1 READ of the root table for each 4,096 entries.
    ///
    /// # Errors
    /// `Corrupt` if an entry is damaged, `Fabric`.
    pub async fn list_roots(&self) -> Result<Vec<Root>, PoolError> {
        let table = self.read_roots().await?;
        let mut roots = Vec::new();
        for slot in 0..table.len() / WORDS {
            roots.extend(self.parse_root(&table, slot).await?);
        }
        Ok(roots)
    }

    /// Takes the table of that name out: nobody finds it from then on, and the name is free. Its root
    /// entry is the dropper's until [`Session::end_drop`], and its objects are retired by
    /// [`Session::retire_dropped`] alone. Should this compute server die before, another finishes it
    /// ([`Session::adopt_drop`]).
    ///
    /// Cost: 1 READ of the root table for each 4,096 entries, 1 READ, 1 WRITE, 3 CAS.
    ///
    /// # Errors
    /// `NoSuchTable`, `Busy`: nothing was done. `Corrupt`, `Fabric`.
    pub async fn drop_root(&self, name: &str) -> Result<Dropping, PoolError> {
        self.under_root_lock(async || {
            let root = self.open_root(name).await?;
            let at = self.pool().geometry().root_addr(root.slot);
            let word = self.reliable().word(at).await?;
            let owner = self.lock_token();
            let mut words = self.client().buf(16);
            words.words_mut().copy_from_slice(&[UNCOUNTED, owner]);
            // Nobody reads them while the table is live.
            self.reliable().write(at.plus(LEFT_WORD as u64 * 8), words).await?;
            let state = (word >> 4).wrapping_add(1) << 4 | DROPPING;
            self.change_root(at, word, state).await?;
            Ok(Dropping { root, left: None, state, owner })
        })
        .await
    }

    /// The tables that are being dropped, also by compute servers that have died meanwhile. Their
    /// names are free. A walk that looks for lost objects has to mark what is left of them.
    ///
    /// Cost: 1 READ of the root table for each 4,096 entries, and 2 for each table that is being
    /// dropped.
    ///
    /// # Errors
    /// `Corrupt` if an entry is damaged, `Fabric`.
    pub async fn list_drops(&self) -> Result<Vec<Dropping>, PoolError> {
        let table = self.read_roots().await?;
        let mut drops = Vec::new();
        for (slot, entry) in table.chunks_exact(WORDS).enumerate() {
            if entry[0] & 15 == DROPPING {
                drops.extend(self.read_drop(slot).await?);
            }
        }
        Ok(drops)
    }

    /// The entry in `slot`, if its table is being dropped.
    ///
    /// The words of one READ may be of different moments; those between two looks at the same state
    /// are of that state.
    async fn read_drop(&self, slot: usize) -> Result<Option<Dropping>, PoolError> {
        let at = self.pool().geometry().root_addr(slot);
        let mut before = self.reliable().word(at).await?;
        for _ in 0..READS_MAX {
            if before & 15 != DROPPING {
                return Ok(None);
            }
            let entry = self.reliable().read(at, self.client().buf(ROOT_BYTES as usize)).await?;
            let after = self.reliable().word(at).await?;
            if after == before {
                let words = entry.words();
                let root = decode(words, slot).map_err(|why| {
                    PoolError::Corrupt(format!("entry {slot} of the root table: {why}"))
                })?;
                let left = (words[LEFT_WORD] != UNCOUNTED).then_some(words[LEFT_WORD]);
                let owner = words[OWNER_WORD];
                return Ok(Some(Dropping { root, left, state: before, owner }));
            }
            before = after;
        }
        Err(PoolError::Corrupt(format!("entry {slot} of the root table changed during every read")))
    }

    async fn read_roots(&self) -> Result<Vec<u64>, PoolError> {
        let geometry = self.pool().geometry();
        let tables_max = geometry.options().tables_max as usize;
        let mut table = Vec::with_capacity(tables_max * WORDS);
        // The largest table is longer than any buffer.
        for first in (0..tables_max).step_by(READ_ENTRIES) {
            let bytes = READ_ENTRIES.min(tables_max - first) * ROOT_BYTES as usize;
            let part = self.client().buf(bytes);
            let part = self.reliable().read(geometry.root_addr(first), part).await?;
            table.extend_from_slice(part.words());
        }
        Ok(table)
    }

    /// The entry in `slot` of a table that was read; `None` if it is not live.
    async fn parse_root(&self, table: &[u64], slot: usize) -> Result<Option<Root>, PoolError> {
        let mut entry = table[slot * WORDS..(slot + 1) * WORDS].to_vec();
        let mut problem = String::new();
        for _ in 0..READS_MAX {
            if entry[0] & 15 != LIVE {
                return Ok(None);
            }
            match decode(&entry, slot) {
                Ok(root) => return Ok(Some(root)),
                Err(why) => problem = why,
            }
            // Its words may be of before and after it was made.
            let at = self.pool().geometry().root_addr(slot);
            let buf = self.reliable().read(at, self.client().buf(ROOT_BYTES as usize)).await?;
            entry.copy_from_slice(buf.words());
        }
        Err(PoolError::Corrupt(format!("entry {slot} of the root table: {problem}")))
    }

    /// Runs `work` with the root lock held.
    pub(crate) async fn under_root_lock<T>(
        &self,
        work: impl AsyncFnOnce() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let lock = RootLock::acquire(self).await?;
        let outcome = work().await;
        lock.release().await?;
        outcome
    }

    pub(crate) async fn change_root(
        &self,
        at: GlobalAddr,
        from: u64,
        to: u64,
    ) -> Result<(), PoolError> {
        let found = self.reliable().cas(at, from, to).await?;
        if found == from {
            return Ok(());
        }
        Err(PoolError::Corrupt(format!("the root entry at {at} was changed without the lock")))
    }
}

impl Pool {
    /// Gives back a root lock that a dropped call left behind. 1 CAS if there is one.
    pub(crate) async fn release_root_leftover(
        &self,
        client: Reliable<'_>,
    ) -> Result<(), PoolError> {
        let token = self.root_leftover.load(Ordering::SeqCst);
        if token != 0 {
            client.cas_release(self.geometry().root_lock_addr(), token, 0).await?;
            // Unless another has been left behind meanwhile.
            let _ =
                self.root_leftover.compare_exchange(token, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// The root lock, held.
struct RootLock<'a> {
    session: &'a Session,
    token: u64,
    released: bool,
}

impl<'a> RootLock<'a> {
    async fn acquire(session: &'a Session) -> Result<Self, PoolError> {
        let pool = session.pool();
        pool.check_open()?;
        session.fill_tokens().await?;
        let token = session.lock_token();
        let at = pool.geometry().root_lock_addr();
        // One of this member's sessions at a time; so any other token of this member's is left
        // over from a call that was dropped or failed.
        let order = Ordering::SeqCst;
        let mut tries = 0;
        while pool.root_token.compare_exchange(0, token, order, order).is_err() {
            tries += 1;
            if tries > TRIES_MAX {
                return Err(PoolError::Busy("the root table"));
            }
            session.endpoint().sleep(WAIT_NS).await;
        }
        let lock = RootLock { session, token, released: false };
        let mut expected = 0;
        for tries in 1..=TRIES_MAX {
            let found = session.reliable().cas(at, expected, token).await?;
            if found == expected {
                return Ok(lock);
            }
            expected = 0;
            if LockToken::from_word(found).is_some_and(|of| of.member() == pool.member) {
                expected = found;
                continue;
            }
            if found != 0 && tries % LOOK_TRIES == 0 && session.owner_is_dead(found).await? {
                expected = found;
                continue;
            }
            session.endpoint().sleep(WAIT_NS).await;
        }
        Err(PoolError::Busy("the root table"))
    }

    async fn release(mut self) -> Result<(), PoolError> {
        let at = self.session.pool().geometry().root_lock_addr();
        self.session.reliable().cas_release(at, self.token, 0).await?;
        self.released = true;
        Ok(())
    }
}

impl Drop for RootLock<'_> {
    fn drop(&mut self) {
        let pool = self.session.pool();
        if !self.released {
            // Where this thread does not come to it, a tick does.
            pool.root_leftover.store(self.token, Ordering::SeqCst);
            let token = self.token;
            self.session.spawn(async move |session| {
                let at = session.pool().geometry().root_lock_addr();
                // The CAS that was to take it may be under way still.
                if session.maintenance().settle(at.server()).await.is_ok() {
                    let _ = session.maintenance().cas_release(at, token, 0).await;
                }
            });
        }
        pool.root_token.store(0, Ordering::SeqCst);
    }
}

fn check_length(what: &str, name: &str, most: usize) -> Result<(), PoolError> {
    if (1..=most).contains(&name.len()) {
        return Ok(());
    }
    Err(PoolError::Invalid(format!("a {what} of {} bytes: 1 to {most} are allowed", name.len())))
}

/// Words 1 to 29 of the root's entry.
fn encode(root: &Root, mut body: farleaf_fabric::Buf) -> farleaf_fabric::Buf {
    let bytes = body.bytes_mut();
    bytes.fill(0);
    // Word 1 of the entry is the body's first.
    let at = |word: usize| (word - 1) * 8;
    bytes[0] = root.name.len() as u8;
    bytes[1] = root.engine.len() as u8;
    bytes[at(NAME_WORD)..][..root.name.len()].copy_from_slice(root.name.as_bytes());
    bytes[at(ENGINE_WORD)..][..root.engine.len()].copy_from_slice(root.engine.as_bytes());
    bytes[at(PARAMS_WORD)..][..64].copy_from_slice(&root.params);
    let checksum = xxh3_64(&bytes[..at(ADDR_WORD)]);
    bytes[at(ADDR_WORD)..][..8].copy_from_slice(&root.addr.word().to_le_bytes());
    bytes[at(CHECKSUM_WORD)..][..8].copy_from_slice(&checksum.to_le_bytes());
    body
}

fn decode(entry: &[u64], slot: usize) -> Result<Root, String> {
    let bytes = Writer::bytes_of(entry);
    if xxh3_64(&bytes[8..ADDR_WORD * 8]) != entry[CHECKSUM_WORD] {
        return Err("its checksum does not match".into());
    }
    let name = name_in(entry).ok_or("its name is too long")?;
    let engine_bytes = usize::from(bytes[9]);
    let engine = bytes[ENGINE_WORD * 8..]
        .get(..engine_bytes)
        .filter(|engine| engine.len() <= ENGINE_BYTES_MAX)
        .ok_or("its engine's name is too long")?;
    let text = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec()).map_err(|_| "a name is no UTF-8".to_string())
    };
    let mut params = [0; 64];
    params.copy_from_slice(&bytes[PARAMS_WORD * 8..ADDR_WORD * 8]);
    let addr = GlobalAddr::from_word(entry[ADDR_WORD]).ok_or("its address is none")?;
    Ok(Root { name: text(&name)?, engine: text(engine)?, params, addr, slot })
}

/// The bytes of an entry's name; `None` if its length is invalid.
fn name_in(entry: &[u64]) -> Option<Vec<u8>> {
    let length = (entry[1] & 0xff) as usize;
    Writer::bytes_of(&entry[NAME_WORD..ENGINE_WORD]).get(..length).map(<[u8]>::to_vec)
}
