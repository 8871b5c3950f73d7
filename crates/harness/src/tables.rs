//! Tables: the formats of tests and the lab, and how to make a table and open it with a cache that holds some of it.

use farleaf_engines::{AnyIndex, Engine, StoredTable, TableFormat};
use farleaf_index::bnode::{BnodeShape, Layout};
use farleaf_index::knobs::CACHE;
use farleaf_index::lab::LabSize;
use farleaf_index::{IndexError, KeyFormat, Knobs, OpenOptions, Settings, Spec, ValueFormat};
use farleaf_pool::Session;

/// The table of `engine` in the lab's format `name`:
///
/// | name | keys, values | shape |
/// |---|---|---|
/// | `u64-tiny` | 8 bytes, 8 bytes | 4 keys a leaf, 3 separators an inner node; the smallest nodes of a radix tree |
/// | `u64-small` | 8 bytes, 8 bytes | nodes of 256 bytes |
/// | `u64` | 8 bytes, 8 bytes | the engine's |
/// | `wide-tiny` | 16 bytes, 24 bytes | as `u64-tiny` with nodes of 512 bytes |
/// | `short-tiny` | up to 40 bytes, any | as `u64-tiny` |
/// | `bytes-tiny` | up to 1,024 bytes, any | 3 keys a leaf, 2 separators; the smallest nodes of a radix tree |
/// | `bytes` | up to 1,024 bytes, any | the engine's |
/// | `odd` | 5 bytes, 3 bytes | the engine's |
///
/// # Panics
/// If there is no such format.
pub fn lab_table(engine: Engine, name: &str) -> TableFormat {
    let fixed = |key, value| Spec { key: KeyFormat::Fixed(key), value: ValueFormat::Fixed(value) };
    let short = Spec { key: KeyFormat::Bytes { max: 40 }, ..Spec::ANY };
    let (spec, size) = match name {
        "u64-tiny" => (Spec::FIXED8, LabSize::Tiny),
        "u64-small" => (Spec::FIXED8, LabSize::Small),
        "u64" => (Spec::FIXED8, LabSize::Usual),
        "wide-tiny" => (fixed(16, 24), LabSize::Tiny),
        "short-tiny" => (short, LabSize::Tiny),
        "bytes-tiny" => (Spec::ANY, LabSize::Tiny),
        "bytes" => (Spec::ANY, LabSize::Usual),
        "odd" => (fixed(5, 3), LabSize::Usual),
        _ => panic!("no format of the lab is named {name:?}"),
    };
    match engine.lab_table(size, spec) {
        Ok(table) => table,
        Err(error) => panic!("engine {engine}: {error}"),
    }
}

/// The same table with those of the settings that the engine's shape has.
///
/// # Panics
/// If the shape does not take a value.
pub fn with_shape(format: TableFormat, settings: &[(&str, &str)]) -> TableFormat {
    let shape = format.engine.shape();
    let known = settings.iter().filter(|(name, _)| shape.iter().any(|it| it.knob.name == *name));
    let known = known.fold(Settings::default(), |all, (name, value)| all.with(name, value));
    match format.shaped(&known) {
        Ok(shaped) => shaped,
        Err(error) => panic!("engine {}: {error}", format.engine),
    }
}

/// The layout of the nodes of a table of a B+-tree, bound to no table yet.
///
/// # Panics
/// If its engine is no B+-tree.
pub fn bnode_layout(format: &TableFormat) -> Layout {
    match BnodeShape::read(&format.shape()).map(|shape| shape.layout(&format.spec)) {
        Ok(Ok(layout)) => layout,
        other => panic!("a table of the engine {}: {other:?}", format.engine),
    }
}

/// The same table with the setting `name=value` of its shape; `None` if its engine has no such table.
pub fn try_shape(format: TableFormat, name: &str, value: &str) -> Option<TableFormat> {
    let shaped = format.shaped(&Settings::default().with(name, value)).ok()?;
    shaped.complete().is_ok().then_some(shaped)
}

/// Makes a table and opens it; see [`open_table`].
///
/// # Errors
/// As [`AnyIndex::create`] and [`AnyIndex::open`].
pub async fn create_table(
    session: &Session,
    name: &str,
    format: &TableFormat,
    cache_nodes: u64,
    settings: &Settings,
) -> Result<AnyIndex, IndexError> {
    AnyIndex::create(session, name, format).await?;
    open_table(session, name, cache_nodes, settings).await
}

/// Opens a table with a cache of `cache_nodes` nodes, if its engine has one. Settings that the engine does not know
/// are left out. A compute server that has the table open gets the same one again.
///
/// # Errors
/// As [`AnyIndex::open`].
pub async fn open_table(
    session: &Session,
    name: &str,
    cache_nodes: u64,
    settings: &Settings,
) -> Result<AnyIndex, IndexError> {
    let root = session.open_root(name).await?;
    let format = *StoredTable::of(&root)?.format();
    let cache_bytes = cache_nodes * format.node_bytes() as u64;
    let cache = Settings::default().with(CACHE, &cache_bytes.to_string());
    let settings = format.engine.options_of(&cache.and(settings));
    AnyIndex::open(session, &root, &OpenOptions { settings, ..OpenOptions::default() }).await
}
