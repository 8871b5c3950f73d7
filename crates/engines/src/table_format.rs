//! Table format: engine, keys, values and shape of a table, as its root keeps them.

use std::fmt;
use std::str::FromStr;

use farleaf_fabric::codec::Writer;
use farleaf_index::engine::Engine as Design;
use farleaf_index::{
    IndexError, KeptShape, KeyFormat, KnobError, Knobs, Settings, Shape, Spec, TableSpec,
    ValueFormat, suggest,
};
use farleaf_pool::{Root, Session};

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

/// Version of a root's parameters.
const PARAMS_VERSION: u64 = 3;
/// The kinds of keys and values, in the upper half of their word; the lower half has the bytes.
const FIXED: u64 = 1;
const BYTES: u64 = 2;
/// Values of any length that are records.
const RECORDS: u64 = 3;
/// The word of a root's parameters that has the table's number.
const NUMBER_WORD: usize = 3;

/// A table's specification: engine, formats and shape. Fixed when it is made, kept in its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFormat {
    /// The engine.
    pub engine: Engine,
    /// The keys and values that it takes.
    pub spec: Spec,
    /// The meaning of its values.
    pub content: Content,
    /// The shape, in the engine's own words.
    shape: ShapeWords,
}

/// The words that keep the shape of some engine's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ShapeWords([u64; 4]);

impl Default for TableFormat {
    fn default() -> Self {
        TableFormat::new(Engine::default(), Spec::ANY)
    }
}

impl TableFormat {
    /// A table of that engine, of the shape that the engine chooses.
    pub fn new(engine: Engine, spec: Spec) -> Self {
        TableFormat { engine, spec, content: Content::Raw, shape: ShapeWords::default() }
    }

    /// A table of `u64`-sized keys and values.
    pub fn fixed8(engine: Engine) -> Self {
        TableFormat::new(engine, Spec::FIXED8)
    }

    /// The same table of keys and values by `spec`.
    #[must_use]
    pub fn with_spec(self, spec: Spec) -> Self {
        TableFormat { spec, ..self }
    }

    /// The same table with other keys.
    #[must_use]
    pub fn with_keys(self, key: KeyFormat) -> Self {
        self.with_spec(Spec { key, ..self.spec })
    }

    /// The same table with other values.
    #[must_use]
    pub fn with_values(self, value: ValueFormat) -> Self {
        self.with_spec(Spec { value, ..self.spec })
    }

    /// The same table whose values have that meaning.
    #[must_use]
    pub fn with_content(self, content: Content) -> Self {
        TableFormat { content, ..self }
    }

    /// The same with the settings of its shape in place of what it has.
    ///
    /// # Errors
    /// The first that is no setting of the engine's shape.
    pub fn shaped(self, settings: &Settings) -> Result<Self, KnobError> {
        let words = on_engine!(self.engine, D => {
            let mut shape = self.shape.of_engine::<D>().unwrap_or_default();
            for (name, text) in settings.iter() {
                shape.set(name, text)?;
            }
            shape.to_words()
        });
        Ok(TableFormat { shape: ShapeWords(words), ..self })
    }

    /// The settings of its shape that differ from the engine's defaults.
    pub fn shape(&self) -> Settings {
        on_engine!(self.engine, D => {
            self.shape.of_engine::<D>().map(|shape| shape.settings()).unwrap_or_default()
        })
    }

    /// The same with all that its engine chooses: what the root of such a table keeps. Completed again, it is the
    /// same.
    ///
    /// # Errors
    /// `Invalid` if the engine has no such tables.
    pub fn complete(self) -> Result<Self, IndexError> {
        self.spec.check()?;
        if let (Content::Records, ValueFormat::Fixed(_)) = (self.content, self.spec.value) {
            let why =
                "records have no fixed length: take values of any length, or a table of raw values";
            return Err(IndexError::Invalid(why.to_owned()));
        }
        let words = on_engine!(self.engine, D => {
            <D as Design>::shape_for(&self.spec, self.shape_of::<D>()?)?.to_words()
        });
        Ok(TableFormat { shape: ShapeWords(words), ..self })
    }

    /// Refuses a shape that this program was built without.
    pub(crate) fn check_build(&self) -> Result<(), IndexError> {
        on_engine!(self.engine, D => self.shape_of::<D>()?.check_build())
    }

    /// Bytes of a usual node: the unit in which tests and the bench state the size of a cache.
    pub fn node_bytes(&self) -> usize {
        on_engine!(self.engine, D => {
            let shape = self.shape.of_engine::<D>().unwrap_or_default();
            shape.node_bytes(&self.spec)
        })
    }

    /// Bytes that such a table needs of each redo area of its pool.
    pub fn redo_bytes(&self) -> usize {
        on_engine!(self.engine, D => {
            let shape = self.shape.of_engine::<D>().unwrap_or_default();
            shape.redo_bytes(&self.spec)
        })
    }

    /// Refuses a pool whose redo areas are too small for such a table.
    pub(crate) fn check_pool(&self, session: &Session) -> Result<(), IndexError> {
        let (needs, has) = (self.redo_bytes(), session.redo_bytes());
        if needs <= has {
            return Ok(());
        }
        let (engine, shape) = (self.engine, &self.shape());
        let shape: Vec<String> =
            shape.iter().map(|(name, text)| format!("{name}={text}")).collect();
        Err(IndexError::Invalid(format!(
            "a table of the engine {engine} with {} needs redo areas of {needs} bytes, and this pool's have {has}: \
             take smaller nodes",
            shape.join(", ")
        )))
    }

    /// The shape, as the type of the format's engine `D`.
    pub(crate) fn shape_of<D: Design>(&self) -> Result<D::Shape, IndexError> {
        let engine = self.engine;
        self.shape.of_engine::<D>().ok_or_else(|| {
            IndexError::Corrupt(format!(
                "a table of the engine {engine} has no shape of that engine"
            ))
        })
    }

    /// The table as its engine `D` makes it.
    pub(crate) fn table<D: Design>(&self, number: u64) -> Result<TableSpec<D::Shape>, IndexError> {
        Ok(TableSpec { spec: self.spec, shape: self.shape_of::<D>()?, number })
    }

    /// As it stands in a root's parameters: words of version, key format, value format with the content, and the
    /// table's number; then the shape's.
    pub(crate) fn to_params(self, number: u64) -> [u8; 64] {
        let key = match self.spec.key {
            KeyFormat::Fixed(bytes) => FIXED << 32 | bytes as u64,
            KeyFormat::Bytes { max } => BYTES << 32 | max as u64,
        };
        let value = match (self.spec.value, self.content) {
            (ValueFormat::Fixed(bytes), _) => FIXED << 32 | bytes as u64,
            (ValueFormat::Bytes, Content::Raw) => BYTES << 32,
            (ValueFormat::Bytes, Content::Records) => RECORDS << 32,
        };
        let [a, b, c, d] = self.shape.0;
        let mut params = Writer::default();
        params.words(&[PARAMS_VERSION, key, value, number, a, b, c, d]).padded()
    }

    /// The number of the table that `root` names: its checksums are bound to it.
    pub fn number_of(root: &Root) -> u64 {
        words_of(root)[NUMBER_WORD]
    }

    /// The format and the table's number.
    pub(crate) fn from_root(root: &Root) -> Result<(Self, u64), IndexError> {
        let corrupt =
            |what: &str| IndexError::Corrupt(format!("the root of table {:?} {what}", root.name));
        let [version, key, value, number, shape @ ..] = words_of(root);
        if version != PARAMS_VERSION {
            let (made, remedy) = match version < PARAMS_VERSION {
                true => ("an earlier", "copy its pairs with the version that made it"),
                false => ("a later", "use that version"),
            };
            return Err(IndexError::Invalid(format!(
                "table {:?} was made by {made} version: it has format {version}, this program reads \
                 {PARAMS_VERSION}; {remedy}",
                root.name
            )));
        }
        let engine: Engine = root.engine.parse().map_err(|error: UnknownEngine| {
            IndexError::Invalid(format!("table {:?}: {error}", root.name))
        })?;
        let bytes = |word: u64| (word & 0xffff_ffff) as usize;
        let key = match key >> 32 {
            FIXED => KeyFormat::Fixed(bytes(key)),
            BYTES => KeyFormat::Bytes { max: bytes(key) },
            _ => return Err(corrupt("has no legal key format")),
        };
        let (value, content) = match value >> 32 {
            FIXED => (ValueFormat::Fixed(bytes(value)), Content::Raw),
            BYTES if bytes(value) == 0 => (ValueFormat::Bytes, Content::Raw),
            RECORDS if bytes(value) == 0 => (ValueFormat::Bytes, Content::Records),
            _ => return Err(corrupt("has no legal value format")),
        };
        let shape = ShapeWords(shape);
        if on_engine!(engine, D => shape.of_engine::<D>().is_none()) {
            return Err(corrupt(
                "has a shape that this program does not know: it was made by a later version, or is damaged",
            ));
        }
        Ok((TableFormat { engine, spec: Spec { key, value }, content, shape }, number))
    }
}

impl ShapeWords {
    fn of_engine<D: Design>(self) -> Option<D::Shape> {
        D::Shape::of_words(self.0)
    }
}

fn words_of(root: &Root) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(root.params.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use farleaf_fabric::GlobalAddr;
    use farleaf_index::KnobKind;

    use super::*;
    use crate::KnobDefault;

    fn root(format: TableFormat) -> Root {
        let addr = GlobalAddr::from_word(4096).unwrap();
        let (name, engine) = ("t".to_owned(), format.engine.name().to_owned());
        Root { name, engine, params: format.to_params(9), addr, slot: 0 }
    }

    /// A root with one word in the place of another.
    fn with_word(root: &Root, at: usize, word: u64) -> Root {
        let mut root = root.clone();
        root.params[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        root
    }

    fn values(of: &KnobDefault) -> Vec<String> {
        let mut values = vec![of.default.clone()];
        match of.knob.kind {
            KnobKind::Flag => values.extend(["true".to_owned(), "false".to_owned()]),
            KnobKind::Words { words, .. } => values.extend(words.iter().map(|it| it.to_string())),
            KnobKind::Count { min, max, .. } | KnobKind::Bytes { min, max } => {
                values.extend([min, max].map(|it| it.to_string()));
            }
            other => panic!("{other:?} is no kind of a shape's setting"),
        }
        values
    }

    #[test]
    fn every_shape_comes_back_from_its_root() {
        for engine in Engine::ALL {
            let format = TableFormat::fixed8(*engine);
            assert_eq!(format.shape.0, [0; 4], "{engine}: each default is 0");
            for setting in engine.shape() {
                for value in values(&setting) {
                    let one = Settings::default().with(setting.knob.name, &value);
                    let shaped = format.shaped(&one).unwrap();
                    assert_eq!(TableFormat::from_root(&root(shaped)).unwrap(), (shaped, 9));
                    // Told as people write it, 64KiB for 65536.
                    let told = shaped.shape();
                    assert_eq!(format.shaped(&told).unwrap(), shaped);
                    assert_eq!(told == Settings::default(), value == setting.default);
                }
            }
            let records = format.with_spec(Spec::ANY).with_content(Content::Records);
            for wanted in [format, format.with_spec(Spec::ANY), records] {
                let whole = wanted.complete().unwrap();
                assert_eq!(whole.complete(), Ok(whole), "{engine}");
                let kept = root(whole);
                assert_eq!(TableFormat::from_root(&kept).unwrap(), (whole, 9));
                assert_eq!(TableFormat::number_of(&kept), 9);
                // A root that is older than all of the engine's settings.
                let old = (4..8).fold(kept, |root, at| with_word(&root, at, 0));
                let (old, _) = TableFormat::from_root(&old).unwrap();
                assert_eq!(old.complete(), Ok(whole), "{engine}");
            }
        }
    }

    #[test]
    fn roots_of_other_versions_are_refused() {
        let kept = root(TableFormat::fixed8(Engine::default()));
        for (version, what) in [
            (1, "an earlier version: it has format 1"),
            (2, "an earlier version: it has format 2"),
            (4, "a later version"),
        ] {
            let told = TableFormat::from_root(&with_word(&kept, 0, version)).unwrap_err();
            assert!(matches!(told, IndexError::Invalid(_)), "{told:?}");
            assert!(told.to_string().contains(&format!("was made by {what}")), "{told}");
        }
    }

    #[test]
    fn records_of_a_fixed_length_are_refused() {
        let fixed = TableFormat::default().with_content(Content::Records);
        let told = fixed.with_values(ValueFormat::Fixed(8)).complete().unwrap_err();
        assert!(told.to_string().contains("records have no fixed length"), "{told}");
        // Neither does a root say so.
        let kept = root(fixed.complete().unwrap());
        for value in [RECORDS << 32 | 8, BYTES << 32 | 8, 4 << 32] {
            let told = TableFormat::from_root(&with_word(&kept, 2, value)).unwrap_err();
            assert!(told.to_string().contains("no legal value format"), "{told}");
        }
    }

    #[test]
    fn shapes_of_unknown_bits_are_refused() {
        for engine in Engine::ALL {
            let kept = root(TableFormat::fixed8(*engine).complete().unwrap());
            let settings = engine.shape().len();
            // The half behind the last setting, and the last of all: what a later version keeps there.
            for half in [settings, 7].into_iter().filter(|half| *half < 8) {
                let root = with_word(
                    &kept,
                    4 + half / 2,
                    words_of(&kept)[4 + half / 2] | 1 << (32 * (half % 2)),
                );
                let told = TableFormat::from_root(&root).unwrap_err();
                assert!(matches!(told, IndexError::Corrupt(_)), "{engine}: {told:?}");
                assert!(
                    told.to_string().contains("a shape that this program does not know"),
                    "{told}"
                );
            }
            // A value that no setting takes.
            if settings > 0 {
                let told = TableFormat::from_root(&with_word(&kept, 4, 0xffff_fff0)).unwrap_err();
                assert!(matches!(told, IndexError::Corrupt(_)), "{engine}: {told:?}");
            }
        }
    }
}
