//! Engines: one folder for each design, and the table of them.
//!
//! An engine is added here and nowhere else: one variant of [`Engine`], one of [`AnyIndex`].

pub mod btree;
pub mod dex;

use std::fmt;
use std::str::FromStr;

use farleaf_fabric::Endpoint;
use farleaf_pool::{Audit, Root, Session};

use crate::change::{Change, Outcome};
use crate::index::{Index, ScanRange, SortedPairs, TableReport};
use crate::{BlinkOptions, Entries, IndexError, OpenOptions, StoredTable, TableFormat};
use btree::BTree;
use dex::Dex;

/// A design of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Engine {
    /// The naive one-sided B+-tree; see [`crate::btree`].
    BTree,
    /// The partitioned B+-tree with a cache on each compute server; see [`crate::engines::dex`].
    Dex,
}

impl Engine {
    /// Every engine there is.
    pub const ALL: &'static [Engine] = &[Engine::BTree, Engine::Dex];

    /// Its name on command lines, in results and in pools.
    pub fn name(self) -> &'static str {
        match self {
            Engine::BTree => "btree",
            Engine::Dex => "dex",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no engine of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no engine {0:?}; there are: {names}", names = names())]
pub struct UnknownEngine(pub String);

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        let found = Engine::ALL.iter().find(|engine| engine.name() == name);
        found.copied().ok_or_else(|| UnknownEngine(name.to_string()))
    }
}

fn names() -> String {
    Engine::ALL.iter().map(|engine| engine.name()).collect::<Vec<_>>().join(", ")
}

/// An open table of any engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyIndex {
    /// The naive one-sided B+-tree.
    BTree(BTree),
    /// The partitioned B+-tree with a cache.
    Dex(Dex),
}

/// Calls the same method of whichever engine it is.
macro_rules! each {
    ($self:ident, $index:ident => $call:expr) => {
        match $self {
            AnyIndex::BTree($index) => $call,
            AnyIndex::Dex($index) => $call,
        }
    };
}

impl AnyIndex {
    /// Makes a table and enters it under `name`. Once its objects are written, it waits for
    /// memory servers that cannot be reached for as long as it takes.
    ///
    /// # Errors
    /// `Invalid` for a name in use or a format that makes no sense, `Full`.
    pub async fn create(
        session: &Session,
        name: &str,
        format: &TableFormat,
    ) -> Result<Root, IndexError> {
        let tree = session.endpoint().random();
        let layout = format.layout()?.for_tree(tree);
        let meta = match format.engine {
            Engine::BTree => BTree::create(session, &layout).await?,
            Engine::Dex => Dex::create_cut(session, &layout).await?,
        };
        let (engine, params) = (format.engine.name(), format.to_params(tree));
        // From here on it is not given up half way.
        let session = session.patient();
        match session.create_root(name, engine, &params, meta).await {
            Ok(root) => Ok(root),
            Err(error) => {
                let table = StoredTable::at(*format, layout, meta);
                table.destroy(&session).await?;
                Err(error.into())
            }
        }
    }

    /// Opens the table that `root` names. A table is open in a member of the pool once: who opens it
    /// again gets the same, with the options of the first time, until it is closed.
    ///
    /// Cost: none; for [`Engine::Dex`] 3 READs the first time.
    ///
    /// # Errors
    /// `Invalid` for an engine or a version that this program does not have, or options that make no
    /// sense; `Unavailable` if another member of this compute server has it open; `Corrupt`.
    pub async fn open(
        session: &Session,
        root: &Root,
        options: &OpenOptions,
    ) -> Result<AnyIndex, IndexError> {
        let table = StoredTable::of(root)?;
        let (meta, layout) = (table.meta(), *table.layout());
        Ok(match table.format().engine {
            Engine::BTree => AnyIndex::BTree(BTree::open(meta, layout, BlinkOptions::default())),
            Engine::Dex => AnyIndex::Dex(Dex::open_kept(session, meta, layout, options).await?),
        })
    }

    /// Closes the table in this member of the pool, for all who have it open there: what it had to
    /// itself is written back and free for others. No operation may be running; later ones fail with
    /// `Closed`. Before a member leaves the pool it closes its tables.
    ///
    /// Cost: none; for [`Engine::Dex`] that of a flush, and a change of the ownership map.
    ///
    /// # Errors
    /// As any operation; it is still open then.
    pub async fn close(&self, session: &Session) -> Result<(), IndexError> {
        match self {
            AnyIndex::BTree(_) => Ok(()),
            AnyIndex::Dex(dex) => dex.close_kept(session).await,
        }
    }

    /// Takes the table `name` out of the pool's roots and frees all that it consists of. The name is
    /// free at once, its place in the root table only in the end. Waits for memory servers that
    /// cannot be reached for as long as it takes; a caller that does not wait leaves the rest to a
    /// task of its thread, and if the compute server dies, whoever recovers it finishes this.
    ///
    /// Cost: 2 READs per node, then per 64 objects a batch of WRITEs and a CAS, and what freeing costs.
    ///
    /// # Errors
    /// `Invalid` if there is no such table, or some compute server has a part of it to itself (close it
    /// there). `Unavailable` if other compute servers keep memory from being reused for long: the
    /// table is gone, and freed later. `Corrupt` if it is damaged: it is gone, and what has not been
    /// freed is lost until it is swept.
    pub async fn drop_table(session: &Session, name: &str) -> Result<(), IndexError> {
        let table = StoredTable::of(&session.open_root(name).await?)?;
        table.release_dead(session).await?;
        table.check_unowned(session).await?;
        // From here on it is not given up half way. It is another table of that name, if somebody has
        // dropped the first and made it meanwhile.
        let name = name.to_owned();
        crate::drops::spawn(session, async move |session| Ok(session.drop_root(&name).await?)).await
    }

    /// Its engine.
    pub fn engine(&self) -> Engine {
        match self {
            AnyIndex::BTree(_) => Engine::BTree,
            AnyIndex::Dex(_) => Engine::Dex,
        }
    }
}

impl Index for AnyIndex {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        each!(self, index => index.get(session, key, value).await)
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        each!(self, index => index.change(session, change, held).await)
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        each!(self, index => index.scan(session, range, limit, out).await)
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        each!(self, index => index.bulk_load(session, pairs).await)
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        each!(self, index => index.verify(session, audit).await)
    }
}
