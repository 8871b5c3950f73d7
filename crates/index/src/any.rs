//! The table of engines: which there are, and how a table's root names them.
//!
//! An engine is added here and nowhere else: one variant of [`Engine`], one of [`AnyIndex`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_pool::{Audit, PoolError, Root, Session};

use crate::blink::BlinkOptions;
use crate::bnode::{KeyFormat, Layout, LayoutOptions, ValueFormat};
use crate::engines::btree::BTree;
use crate::engines::dex::{Dex, DexOptions, Forward};
use crate::index::{Exchange, Index, ScanRange, SortedPairs, TableReport};
use crate::{Entries, IndexError, StoredTable};

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

/// What a table is: engine, formats and geometry. Fixed when it is made, kept in its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFormat {
    /// The engine.
    pub engine: Engine,
    /// Which keys it takes.
    pub key: KeyFormat,
    /// Which values it takes.
    pub value: ValueFormat,
    /// Bytes of a node; `None` takes what suits the formats: 1024, or as much as the longest key
    /// needs, at least 4096 for byte strings.
    pub node_bytes: Option<u32>,
    /// Most entries of a leaf, if fewer than fit.
    pub cap_leaf: Option<u16>,
    /// Most separators of an inner node, if fewer than fit.
    pub cap_inner: Option<u16>,
}

impl Default for TableFormat {
    fn default() -> Self {
        TableFormat {
            engine: Engine::BTree,
            key: KeyFormat::Bytes { max: 1024 },
            value: ValueFormat::Bytes,
            node_bytes: None,
            cap_leaf: None,
            cap_inner: None,
        }
    }
}

impl TableFormat {
    /// A table of `u64`-sized keys and values with dense nodes of 1 KiB.
    pub fn fixed8(engine: Engine) -> Self {
        let (key, value) = (KeyFormat::Fixed(8), ValueFormat::Fixed(8));
        TableFormat { engine, key, value, ..TableFormat::default() }
    }

    /// Bytes of a node.
    pub fn node_bytes(&self) -> u32 {
        self.node_bytes.unwrap_or(match (self.key, self.value) {
            (KeyFormat::Fixed(key), ValueFormat::Fixed(value)) if key <= 64 && value <= 64 => 1024,
            _ => 4096,
        })
    }

    /// The geometry of its nodes.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn layout(&self) -> Result<Layout, IndexError> {
        let options = LayoutOptions {
            cap_leaf: self.cap_leaf,
            cap_inner: self.cap_inner,
            ..LayoutOptions::new(self.node_bytes() as usize, self.key, self.value)
        };
        Layout::new(options).map_err(|error| IndexError::Invalid(error.to_string()))
    }

    /// As it stands in a root's parameters: words of version, key format, value format, node
    /// bytes and capacities, and the tree's own number.
    fn to_params(self, tree: u64) -> [u8; 64] {
        let key = match self.key {
            KeyFormat::Fixed(bytes) => 1 << 32 | bytes as u64,
            KeyFormat::Bytes { max } => 2 << 32 | max as u64,
        };
        let value = match self.value {
            ValueFormat::Fixed(bytes) => 1 << 32 | bytes as u64,
            ValueFormat::Bytes => 2 << 32,
        };
        let caps =
            u64::from(self.cap_leaf.unwrap_or(0)) << 16 | u64::from(self.cap_inner.unwrap_or(0));
        let words = [PARAMS_VERSION, key, value, u64::from(self.node_bytes()), caps, tree];
        let mut params = [0; 64];
        for (bytes, word) in params.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        params
    }

    /// The format and the tree's own number.
    pub(crate) fn from_root(root: &Root) -> Result<(Self, u64), IndexError> {
        let corrupt =
            |what: &str| IndexError::Corrupt(format!("the root of table {:?} {what}", root.name));
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(root.params.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let [version, key, value, node_bytes, caps, tree, ..] = words;
        if version != PARAMS_VERSION {
            return Err(IndexError::Invalid(format!(
                "table {:?} has format {version}, this program reads {PARAMS_VERSION}",
                root.name
            )));
        }
        let engine = root.engine.parse().map_err(|error: UnknownEngine| {
            IndexError::Invalid(format!("table {:?}: {error}", root.name))
        })?;
        let bytes = |word: u64| (word & 0xffff_ffff) as usize;
        let key = match key >> 32 {
            1 => KeyFormat::Fixed(bytes(key)),
            2 => KeyFormat::Bytes { max: bytes(key) },
            _ => return Err(corrupt("has no legal key format")),
        };
        let value = match value >> 32 {
            1 => ValueFormat::Fixed(bytes(value)),
            2 => ValueFormat::Bytes,
            _ => return Err(corrupt("has no legal value format")),
        };
        let cap = |cap: u64| (cap != 0).then_some(cap as u16);
        let node_bytes =
            u32::try_from(node_bytes).map_err(|_| corrupt("has no legal node size"))?;
        let format = TableFormat {
            engine,
            key,
            value,
            node_bytes: Some(node_bytes),
            cap_leaf: cap(caps >> 16 & 0xffff),
            cap_inner: cap(caps & 0xffff),
        };
        Ok((format, tree))
    }
}

const PARAMS_VERSION: u64 = 1;

/// How a compute server opens tables. Concerns it alone; an engine takes what it has a use for.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// For [`Engine::Dex`]: the cache, and how changes are kept.
    pub dex: DexOptions,
    /// For [`Engine::Dex`]: partitions that it takes at once, of those that nobody has.
    pub take: usize,
    /// For [`Engine::Dex`]: whether this compute server takes on keys that nobody has, or the dead had,
    /// when it meets them. One that does not only asks others, through `forward`.
    pub take_over: bool,
    /// For [`Engine::Dex`]: what carries operations to the compute servers that own the keys. Without
    /// one, operations on others' keys fail with `Unavailable`.
    pub forward: Option<Arc<dyn Forward>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { dex: DexOptions::default(), take: 0, take_over: true, forward: None }
    }
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

    async fn insert(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        each!(self, index => index.insert(session, key, value).await)
    }

    async fn update(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        each!(self, index => index.update(session, key, value).await)
    }

    async fn upsert(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        each!(self, index => index.upsert(session, key, value).await)
    }

    async fn remove(&self, session: &Session, key: &[u8]) -> Result<bool, IndexError> {
        each!(self, index => index.remove(session, key).await)
    }

    async fn compare_exchange(
        &self,
        session: &Session,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        found: &mut Vec<u8>,
    ) -> Result<(Exchange, bool), IndexError> {
        each!(self, index => index.compare_exchange(session, key, expected, new, found).await)
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

impl From<PoolError> for IndexError {
    fn from(error: PoolError) -> Self {
        use farleaf_fabric::OpErrorKind;
        let text = error.to_string();
        match error {
            PoolError::Fabric(error) => match error.kind {
                OpErrorKind::Fenced => IndexError::Closed(text),
                OpErrorKind::OutOfBounds { .. } | OpErrorKind::Misaligned { .. } => {
                    IndexError::Corrupt(text)
                }
                _ => IndexError::Unavailable(text),
            },
            PoolError::Full { .. } | PoolError::NoSlot(..) => IndexError::Full(text),
            PoolError::Corrupt(_) | PoolError::Format(_) => IndexError::Corrupt(text),
            PoolError::RetireFull | PoolError::Unsettled | PoolError::Busy(_) => {
                IndexError::Unavailable(text)
            }
            PoolError::Closed => IndexError::Closed(text),
            _ => IndexError::Invalid(text),
        }
    }
}
