//! Table options: describe a table that a store makes.

use farleaf_engines::typed::EngineOptions;
use farleaf_engines::{Content, Engine, SettingError, StoredTable, TableFormat};
use farleaf_index::Settings;
pub use farleaf_index::{KeyFormat, ValueFormat};
use farleaf_pool::Root;

use crate::error::Result;

/// Options for making a table. The default takes keys of up to 1024 bytes and values of any length.
///
/// ```
/// use farleaf::{Farleaf, KeyFormat, TableOptions, ValueFormat};
///
/// let db = Farleaf::open("mem:")?;
/// let counts = TableOptions::default().keys(KeyFormat::Fixed(8)).values(ValueFormat::Fixed(8));
/// let table = db.create_table("counts", counts)?;
/// table.insert(7_u64.to_be_bytes(), 1_u64.to_le_bytes())?;
/// assert_eq!(table.info().keys, KeyFormat::Fixed(8));
/// # Ok::<(), farleaf::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    format: TableFormat,
    settings: Settings,
}

impl TableOptions {
    /// The design of the index. `docs/engines.md` says which is for whom. The default is quick
    /// wherever memory is shared without a network, and needs nothing of other compute servers on one.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.format.engine = engine;
        self
    }

    /// Sets the keys that the table takes. Fixed lengths make smaller nodes and quicker operations; write
    /// integers with their most significant byte first, so that they sort as numbers. Default: up
    /// to 1024 bytes.
    pub fn keys(mut self, keys: KeyFormat) -> Self {
        self.format.spec.key = keys;
        self
    }

    /// Sets the values that the table takes. Default: any.
    pub fn values(mut self, values: ValueFormat) -> Self {
        self.format.spec.value = values;
        self
    }

    /// Sets the meaning of values. Strings that expire, and hashes, need [`Content::Records`], which takes values of any
    /// length alone. Default: [`Content::Raw`].
    pub fn content(mut self, content: Content) -> Self {
        self.format.content = content;
        self
    }

    /// A setting of the engine: of the table's shape ([`Engine::shape`], as in `.set("cap_leaf", "64")`), or
    /// of how this process opens the table ([`Engine::options`], as in `.set("cache", "64MiB")`), which
    /// counts before [`Builder::set`](crate::Builder::set). `farleaf engines NAME` lists both.
    /// [`Farleaf::create_table`](crate::Farleaf::create_table) refuses what the engine does not have.
    ///
    /// ```
    /// use farleaf::{Engine, Farleaf, KeyFormat, TableOptions};
    ///
    /// let db = Farleaf::open("mem:")?;
    /// let engine = Engine::ALL.iter().find(|engine| engine.traits().logged).expect("there is one");
    /// let options = TableOptions::default().engine(*engine).keys(KeyFormat::Fixed(8));
    /// let table = db.create_table("t", options.clone().set("node_bytes", "2KiB").set("cache", "1MiB"))?;
    /// assert_eq!(table.info().shape.get("node_bytes"), Some("2KiB"));
    /// let error = db.create_table("u", options.set("cahce", "1MiB")).unwrap_err();
    /// assert!(error.to_string().contains("no setting is named \"cahce\"; did you mean \"cache\"?"));
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.set(name, value);
        self
    }

    /// All of `settings`, as by [`TableOptions::set`].
    pub fn set_all(mut self, settings: &Settings) -> Self {
        self.settings.set_all(settings);
        self
    }

    /// A table of the engine that has these options ([`typed`](crate::typed)), which sets each that differs from its
    /// default, as [`TableOptions::set`] does.
    ///
    /// ```
    /// use farleaf::typed::{DexOptions, Durability};
    /// use farleaf::{Farleaf, TableOptions};
    ///
    /// let db = Farleaf::open("mem:")?;
    /// let options = DexOptions { cache_bytes: 1 << 20, durability: Durability::Volatile, ..DexOptions::default() };
    /// db.create_table("t", TableOptions::from(options))?;
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    pub fn from<O: EngineOptions>(options: O) -> Self {
        TableOptions::default().engine(O::engine()).set_all(&options.settings())
    }

    /// Returns the format to make a table with, and the settings to open it by.
    pub(crate) fn split(&self) -> std::result::Result<(TableFormat, Settings), SettingError> {
        let engine = self.format.engine;
        let (shape, options) = engine.split(&self.settings)?;
        let format = self.format.shaped(&shape).map_err(|error| SettingError { engine, error })?;
        Ok((format, options))
    }

    /// Settings by which a table is opened that others may have made, of whichever engine.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// A table's name, engine and formats.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// The design of its index.
    pub engine: Engine,
    /// The keys that it takes.
    pub keys: KeyFormat,
    /// The values that it takes.
    pub values: ValueFormat,
    /// The settings of its shape that differ from the defaults, with what the engine chose.
    pub shape: Settings,
    /// The meaning of its values.
    pub content: Content,
}

impl TableInfo {
    /// Of the table that `root` names.
    pub(crate) fn of(root: &Root) -> Result<Self> {
        let table = StoredTable::of(root)?;
        let format = table.format();
        Ok(TableInfo {
            name: root.name.clone(),
            engine: format.engine,
            keys: format.spec.key,
            values: format.spec.value,
            shape: format.shape(),
            content: format.content,
        })
    }
}
