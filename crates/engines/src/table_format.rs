//! Table format: engine, formats and geometry of a table, as its root keeps them.

use std::fmt;
use std::str::FromStr;

use farleaf_fabric::codec::Writer;
use farleaf_index::bnode::{KeyFormat, Layout, LayoutOptions, ValueFormat};
use farleaf_index::{IndexError, NodeRoom, PointerCheck, suggest};
use farleaf_pool::Root;

use super::{Engine, UnknownEngine};

/// The meaning of a table's values. Engines know nothing of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Byte strings, as they were given.
    #[default]
    Raw,
    /// Records: byte strings that may expire, and small hashes (`farleaf-records`).
    Records,
}

impl Content {
    /// Every content.
    pub const ALL: [Content; 2] = [Content::Raw, Content::Records];

    /// Its name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Content::Raw => "raw",
            Content::Records => "records",
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Content {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Content::ALL.into_iter().find(|content| content.name() == text).ok_or_else(|| {
            let names = Content::ALL.map(Content::name);
            format!(
                "no content of a table is named \"{text}\"{} (known: {})",
                suggest::hint(text, names),
                names.join(", ")
            )
        })
    }
}

/// A table's specification: engine, formats and geometry. Fixed when it is made, kept in its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFormat {
    /// The engine.
    pub engine: Engine,
    /// The keys that it takes.
    pub key: KeyFormat,
    /// The values that it takes.
    pub value: ValueFormat,
    /// Bytes of a node; `None` takes what suits the formats: 1024, or as much as the longest key
    /// needs, at least 4096 for byte strings.
    pub node_bytes: Option<u32>,
    /// Most entries of a leaf, if fewer than fit.
    pub cap_leaf: Option<u16>,
    /// Most separators of an inner node, if fewer than fit.
    pub cap_inner: Option<u16>,
    /// Bytes of a bucket, for an engine of hashed nodes; `None` takes the engine's default.
    pub bucket_bytes: Option<u16>,
    /// The room that each node of a radix tree has.
    pub nodes: NodeRoom,
    /// The proof of cached pointers in a radix tree.
    pub check: PointerCheck,
    /// The meaning of its values.
    pub content: Content,
}

impl Default for TableFormat {
    fn default() -> Self {
        TableFormat {
            engine: Engine::default(),
            key: KeyFormat::Bytes { max: 1024 },
            value: ValueFormat::Bytes,
            node_bytes: None,
            cap_leaf: None,
            cap_inner: None,
            bucket_bytes: None,
            nodes: NodeRoom::Relocate,
            check: PointerCheck::Birth,
            content: Content::Raw,
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
    /// `Invalid` if there is none, or the engine cannot have it.
    pub fn layout(&self) -> Result<Layout, IndexError> {
        if self.nodes == NodeRoom::Reserve && !self.engine.can_reserve() {
            let able = Engine::ALL.iter().filter(|it| it.can_reserve());
            let able: Vec<&str> = able.map(|it| it.name()).collect();
            return Err(IndexError::Invalid(format!(
                "engine {}: nodes=reserve is for tables of the engines {}",
                self.engine,
                able.join(", ")
            )));
        }
        self.check_reverse()?;
        if let (Content::Records, ValueFormat::Fixed(_)) = (self.content, self.value) {
            let why =
                "records have no fixed length: take values of any length, or a table of raw values";
            return Err(IndexError::Invalid(why.to_owned()));
        }
        let options = LayoutOptions {
            cap_leaf: self.cap_leaf,
            cap_inner: self.cap_inner,
            bucket_bytes: self.bucket_bytes,
            nodes: self.nodes,
            check: self.check,
            ..LayoutOptions::new(self.node_bytes() as usize, self.key, self.value)
        };
        Layout::new(options).map_err(|error| IndexError::Invalid(error.to_string()))
    }

    /// Refuses `check=reverse` where an object would leave the tree: a node that is replaced, or a leaf whose value
    /// needs another one. Its address would be used again, and a pointer back does not tell the two apart.
    fn check_reverse(&self) -> Result<(), IndexError> {
        if self.check == PointerCheck::Birth {
            return Ok(());
        }
        let what = match (self.nodes, self.value) {
            _ if !self.engine.can_point_back() => {
                let able = Engine::ALL.iter().filter(|it| it.can_point_back());
                let able: Vec<&str> = able.map(|it| it.name()).collect();
                format!("check=reverse is for tables of the engine {}", able.join(", "))
            }
            (NodeRoom::Relocate, _) => {
                "check=reverse needs nodes=reserve: a node that moves leaves an address that is used again"
                    .to_owned()
            }
            (_, ValueFormat::Bytes) => {
                "check=reverse needs values of one length: a value that outgrows its leaf leaves an address \
                 that is used again"
                    .to_owned()
            }
            _ => return Ok(()),
        };
        Err(IndexError::Invalid(format!("engine {}: {what}", self.engine)))
    }

    /// As it stands in a root's parameters: words of version, key format, value format, node
    /// bytes, capacities, bucket bytes, the room of nodes and the check of pointers, the tree's own number, and the
    /// content. Tables of raw values have the version of before there were others, so that older programs use them.
    pub(crate) fn to_params(self, tree: u64) -> [u8; 64] {
        let key = match self.key {
            KeyFormat::Fixed(bytes) => 1 << 32 | bytes as u64,
            KeyFormat::Bytes { max } => 2 << 32 | max as u64,
        };
        let value = match self.value {
            ValueFormat::Fixed(bytes) => 1 << 32 | bytes as u64,
            ValueFormat::Bytes => 2 << 32,
        };
        let number = |number: Option<u16>| u64::from(number.unwrap_or(0));
        let caps = u64::from(self.check == PointerCheck::Reverse) << 49
            | u64::from(self.nodes == NodeRoom::Reserve) << 48
            | number(self.bucket_bytes) << 32
            | number(self.cap_leaf) << 16
            | number(self.cap_inner);
        let node_bytes = self.node_bytes().into();
        let mut params = Writer::default();
        let (version, content) = match self.content {
            Content::Raw => (PARAMS_VERSION_RAW, 0),
            Content::Records => (PARAMS_VERSION, CONTENT_RECORDS),
        };
        params.words(&[version, key, value, node_bytes, caps, tree, content]).padded()
    }

    /// The format and the tree's own number.
    pub(crate) fn from_root(root: &Root) -> Result<(Self, u64), IndexError> {
        let corrupt =
            |what: &str| IndexError::Corrupt(format!("the root of table {:?} {what}", root.name));
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(root.params.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let [version, key, value, node_bytes, caps, tree, content, _] = words;
        let content = match (version, content) {
            (PARAMS_VERSION_RAW, 0) => Content::Raw,
            (PARAMS_VERSION, CONTENT_RECORDS) => Content::Records,
            (PARAMS_VERSION_RAW | PARAMS_VERSION, _) => {
                return Err(corrupt("has no legal content"));
            }
            _ => {
                return Err(IndexError::Invalid(format!(
                    "table {:?} has format {version}, this program reads {PARAMS_VERSION_RAW} and \
                     {PARAMS_VERSION}",
                    root.name
                )));
            }
        };
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
        let number = |number: u64| (number & 0xffff != 0).then_some(number as u16);
        let node_bytes =
            u32::try_from(node_bytes).map_err(|_| corrupt("has no legal node size"))?;
        let format = TableFormat {
            engine,
            key,
            value,
            node_bytes: Some(node_bytes),
            cap_leaf: number(caps >> 16),
            cap_inner: number(caps),
            bucket_bytes: number(caps >> 32),
            nodes: match caps >> 48 {
                0 => NodeRoom::Relocate,
                1 | 3 => NodeRoom::Reserve,
                _ => return Err(corrupt("has no legal room of nodes or check of pointers")),
            },
            check: if caps >> 49 == 0 { PointerCheck::Birth } else { PointerCheck::Reverse },
            content,
        };
        Ok((format, tree))
    }
}

/// Version of the parameters of a table of raw values, and of any other.
const PARAMS_VERSION_RAW: u64 = 1;
const PARAMS_VERSION: u64 = 2;
const CONTENT_RECORDS: u64 = 1;
