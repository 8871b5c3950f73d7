//! Registry: an engine and an open table by value, and the dispatch to both.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr, Service, ServiceId};
use farleaf_index::compute::messages::{OpReply, Request};
use farleaf_index::compute::{HostedTable, OwnedTable};
use farleaf_index::engine::Engine as Design;
use farleaf_index::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, Knobs, OpenOptions, Outcome,
    ScanRange, SortedPairs, TableReport,
};
use farleaf_pool::{Audit, Root, Session};

use crate::{AnyIndex, Engine, StoredTable, TableFormat, drops};

/// Settings by which one compute server opens a table of one engine, by type.
pub trait EngineOptions: Knobs {
    /// The engine.
    fn engine() -> Engine;
}

/// Opens a table of the design `D`.
pub(crate) async fn open<D: Design>(
    session: &Session,
    table: &StoredTable,
    join: &OpenOptions,
) -> Result<D::Table, IndexError> {
    let options = <D::Options as Knobs>::read(&join.settings)
        .map_err(|error| IndexError::Invalid(format!("engine {}: {error}", D::NAME)))?;
    D::open(session, &table.of_engine::<D>()?, options, join).await
}

/// The engine of a table when nobody names one.
impl Default for Engine {
    fn default() -> Self {
        Engine::BTree
    }
}

impl Engine {
    /// Its name on command lines, in results and in pools.
    pub fn name(self) -> &'static str {
        on_engine!(self, D => <D as Design>::NAME)
    }

    /// Returns whether it is an example of an engine, for tests only.
    pub fn is_example(self) -> bool {
        self.name().starts_with("example")
    }

    /// One line about it: what it is; paper, venue, year.
    pub fn about(self) -> &'static str {
        on_engine!(self, D => <D as Design>::ABOUT)
    }

    /// Services that memory servers run for the engines. `life` differs from that of every process that ran
    /// them on the same memory before: the time at which the process began, say.
    pub fn services(life: u64) -> Vec<(ServiceId, Arc<dyn Service>)> {
        let of = |engine: &Engine| on_engine!(engine, D => <D as Design>::services(life));
        Engine::ALL.iter().flat_map(of).collect()
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
        let number = session.endpoint().random();
        let format = format.complete()?;
        format.check_pool(session)?;
        let meta = on_engine!(format.engine, D => {
            <D as Design>::create(session, &format.table::<D>(number)?).await?
        });
        let (engine, params) = (format.engine.name(), format.to_params(number));
        // From here on it is not given up half way.
        let session = session.without_deadline();
        match session.create_root(name, engine, &params, meta).await {
            Ok(root) => Ok(root),
            Err(error) => {
                StoredTable::new(format, number, meta).destroy(&session).await?;
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
        AnyIndex::open_stored(session, &StoredTable::of(root)?, options).await
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
        drops::spawn(session, async move |session| Ok(session.drop_root(&name).await?)).await
    }
}

impl HostedTable for AnyIndex {
    /// Returns the meta object of a table with owners, and null for any other table.
    fn meta(&self) -> GlobalAddr {
        self.owned().map_or(GlobalAddr::NULL, OwnedTable::meta)
    }

    async fn serve(&self, session: &Session, request: Request) -> Result<OpReply, IndexError> {
        match self.owned() {
            Some(table) => table.serve(session, request).await,
            None => Err(IndexError::Invalid(format!(
                "an operation for the owner of a key, and tables of the engine {} have no owners",
                self.engine()
            ))),
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
        on_table!(self, index => index.get(session, key, value).await)
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        on_table!(self, index => index.change(session, change, held).await)
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        on_table!(self, index => index.scan(session, range, limit, out).await)
    }

    async fn longest_prefix(
        &self,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        on_table!(self, index => index.longest_prefix(session, key, out).await)
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        on_table!(self, index => index.bulk_load(session, pairs).await)
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        on_table!(self, index => index.verify(session, audit).await)
    }

    async fn close(&self, session: &Session) -> Result<(), IndexError> {
        on_table!(self, index => Index::close(index, session).await)
    }

    fn owned(&self) -> Option<&dyn OwnedTable> {
        on_table!(self, index => index.owned())
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        on_table!(self, index => index.cache())
    }

    fn counters(&self, counters: &mut CounterSet) {
        on_table!(self, index => Index::counters(index, counters));
    }

    fn parts(&self) -> Vec<String> {
        on_table!(self, index => index.parts())
    }
}
