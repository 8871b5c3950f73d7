//! Knobs: named, typed and documented settings of engines, from one list each.
//!
//! An engine states each of its settings once, in `knobs!`: field, type, default, name,
//! kind, meaning, and the paper's value. Everything above the engines knows names and texts alone:
//! [`Settings`], which the store, the bench, the lab and the command pass through, and which the
//! engine reads when it opens a table.

use std::fmt;
use std::str::FromStr;

use crate::suggest::{did_you_mean, nearest};
use crate::units::{Count, Share, Size};

/// The name of the setting that all engines with a cache share: its bytes.
pub const CACHE: &str = "cache";
/// The name of the setting that all engines with a log share: whether acknowledged changes survive the death of
/// the compute server that made them.
pub const DURABILITY: &str = "durability";

/// A setting of an engine, as people see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob {
    /// Its name in settings, on command lines, in files and in reports.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: KnobKind,
    /// Its meaning, in one or more sentences.
    about: &'static str,
    /// The paper's value, with its section; `None` if the paper has no such setting.
    pub paper: Option<&'static str>,
}

impl Knob {
    /// A knob with that documentation.
    pub const fn new(
        name: &'static str,
        kind: KnobKind,
        about: &'static str,
        paper: Option<&'static str>,
    ) -> Self {
        Knob { name, kind, about, paper }
    }

    /// Its meaning, as plain text.
    pub fn about(&self) -> String {
        self.about.trim().replace(['`', '[', ']'], "")
    }
}

/// The kind of values that a knob takes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum KnobKind {
    /// `true` or `false`.
    Flag,
    /// A count of `unit` within a range.
    Count {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
        /// Of what, in the plural.
        unit: &'static str,
    },
    /// Bytes, with or without a unit, within a range.
    Bytes {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A share of a whole, 0 to 1 or 0% to 100%.
    Share,
    /// One of a few words.
    Words {
        /// The words.
        words: &'static [&'static str],
        /// A further form, in words for people.
        also: Option<&'static str>,
    },
}

impl KnobKind {
    /// A count of `unit`, at least `min`, of which a number of 32 bits holds the most.
    pub const fn count(min: u64, unit: &'static str) -> Self {
        KnobKind::Count { min, max: u32::MAX as u64, unit }
    }

    /// The unit of its values; `None` for words and flags.
    pub fn unit(&self) -> Option<&'static str> {
        match self {
            KnobKind::Flag | KnobKind::Words { .. } => None,
            KnobKind::Count { unit, .. } => Some(unit),
            KnobKind::Bytes { .. } => Some("bytes"),
            KnobKind::Share => Some("share"),
        }
    }

    /// The number that `text` stands for, if it is one of this kind.
    fn number(&self, text: &str) -> Option<u64> {
        let (number, min, max) = match *self {
            KnobKind::Count { min, max, .. } => (text.parse::<Count>().ok()?.0, min, max),
            KnobKind::Bytes { min, max } => (text.parse::<Size>().ok()?.0, min, max),
            _ => return None,
        };
        (min..=max).contains(&number).then_some(number)
    }
}

/// Says which values are expected: `a count of buckets, 1 or more`.
impl fmt::Display for KnobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |f: &mut fmt::Formatter<'_>, min: u64, max: u64, all: u64| match (min, max) {
            (0, max) if max >= all => Ok(()),
            (min, max) if max >= all => write!(f, ", {min} or more"),
            (min, max) => write!(f, ", {min} to {max}"),
        };
        match *self {
            KnobKind::Flag => f.write_str("true or false"),
            KnobKind::Count { min, max, unit } => {
                write!(f, "a count of {unit}")?;
                range(f, min, max, u64::from(u32::MAX))
            }
            KnobKind::Bytes { min, max } => {
                f.write_str("bytes, as in 4096 or 64MiB")?;
                range(f, min, max, u32::MAX.into())
            }
            KnobKind::Share => f.write_str("a share, 0 to 1 or 0% to 100%"),
            KnobKind::Words { words, also } => {
                f.write_str(&words.join(", "))?;
                also.map_or(Ok(()), |also| write!(f, ", or {also}"))
            }
        }
    }
}

/// A knob and the field of `T` that it sets.
#[derive(Debug)]
pub struct KnobOf<T> {
    /// The knob.
    pub knob: Knob,
    /// The field's value as text, which `set` reads back as the same value.
    pub get: fn(&T) -> String,
    /// Sets the field; `false` if the text is no value of the knob's kind, and nothing has changed.
    pub set: fn(&mut T, &str) -> bool,
}

/// Settings that are stated by a list of knobs; `knobs!` implements it.
pub trait Knobs: Clone + Default + 'static {
    /// All of them, in the order in which people should read them.
    fn list() -> &'static [KnobOf<Self>];

    /// The value of the knob `name` as text; `None` if there is no such knob.
    fn get(&self, name: &str) -> Option<String> {
        let found = Self::list().iter().find(|it| it.knob.name == name)?;
        Some((found.get)(self))
    }

    /// Sets the knob `name`.
    ///
    /// # Errors
    /// [`KnobError`] if there is no such knob, or `text` is no value of it; nothing has changed.
    fn set(&mut self, name: &str, text: &str) -> Result<(), KnobError> {
        let names = || Self::list().iter().map(|it| it.knob.name);
        let found = Self::list().iter().find(|it| it.knob.name == name);
        let found = found.ok_or_else(|| KnobError::unknown(name, names()))?;
        if (found.set)(self, text.trim()) {
            return Ok(());
        }
        Err(KnobError::Value {
            name: found.knob.name,
            read: text.to_owned(),
            expected: found.knob.kind.to_string(),
        })
    }

    /// The defaults with `settings` in place of some.
    ///
    /// # Errors
    /// As [`Knobs::set`].
    fn read(settings: &Settings) -> Result<Self, KnobError> {
        let mut knobs = Self::default();
        for (name, text) in settings.iter() {
            knobs.set(name, text)?;
        }
        Ok(knobs)
    }

    /// Those that differ from the defaults.
    fn settings(&self) -> Settings {
        let default = Self::default();
        let mut settings = Settings::default();
        for it in Self::list() {
            let text = (it.get)(self);
            if text != (it.get)(&default) {
                settings.set(it.knob.name, &text);
            }
        }
        settings
    }
}

/// A type that a knob can set.
pub trait KnobValue: Sized {
    /// The value that `text` stands for; `None` if it is none of `kind`.
    fn read(kind: &KnobKind, text: &str) -> Option<Self>;

    /// The value as text, which [`KnobValue::read`] reads back as the same value.
    fn print(&self, kind: &KnobKind) -> String;
}

/// The options of an engine that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoOptions;

impl Knobs for NoOptions {
    fn list() -> &'static [KnobOf<Self>] {
        &[]
    }
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl KnobValue for $number {
            fn read(kind: &KnobKind, text: &str) -> Option<Self> {
                kind.number(text)?.try_into().ok()
            }

            fn print(&self, kind: &KnobKind) -> String {
                match kind {
                    KnobKind::Bytes { .. } => Size(*self as u64).to_string(),
                    _ => self.to_string(),
                }
            }
        }
    )+};
}

numbers!(u8, u16, u32, u64, usize);

impl KnobValue for bool {
    fn read(_: &KnobKind, text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    fn print(&self, _: &KnobKind) -> String {
        self.to_string()
    }
}

impl KnobValue for f64 {
    fn read(_: &KnobKind, text: &str) -> Option<Self> {
        // As a plain number first: what is printed is read back exactly.
        let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
        number.or_else(|| text.parse::<Share>().ok().map(Share::fraction))
    }

    fn print(&self, _: &KnobKind) -> String {
        self.to_string()
    }
}

/// `auto` stands for no value: the engine chooses.
impl<T: KnobValue> KnobValue for Option<T> {
    fn read(kind: &KnobKind, text: &str) -> Option<Self> {
        if text == "auto" { Some(None) } else { T::read(kind, text).map(Some) }
    }

    fn print(&self, kind: &KnobKind) -> String {
        self.as_ref().map_or_else(|| "auto".to_owned(), |value| value.print(kind))
    }
}

/// Defines a struct of settings: its fields, their defaults, and the list of its [`Knobs`].
///
/// A field reads: documentation, which is the knob's meaning as well; the knob's name; `=>`; field,
/// type and default; the [`KnobKind`]; and the paper's value, if the paper has one.
#[macro_export]
macro_rules! knobs {
    (
        $(#[$meta:meta])*
        $visible:vis struct $type:ident {$(
            $(#[doc = $about:literal])+
            $name:literal => $field:ident: $of:ty = $default:expr, $kind:expr $(, paper $paper:literal)?;
        )+}
    ) => {
        $(#[$meta])*
        $visible struct $type {$(
            $(#[doc = $about])+
            $visible $field: $of,
        )+}

        impl Default for $type {
            fn default() -> Self {
                $type { $($field: $default),+ }
            }
        }

        impl $crate::Knobs for $type {
            fn list() -> &'static [$crate::KnobOf<Self>] {
                const LIST: &[$crate::KnobOf<$type>] = &[$({
                    const KIND: $crate::KnobKind = $kind;
                    const PAPER: &[&str] = &[$($paper)?];
                    $crate::KnobOf {
                        knob: $crate::Knob::new($name, KIND, concat!($($about),+), PAPER.first().copied()),
                        get: |it| $crate::KnobValue::print(&it.$field, &KIND),
                        set: |it, text| match $crate::KnobValue::read(&KIND, text) {
                            Some(value) => {
                                it.$field = value;
                                true
                            }
                            None => false,
                        },
                    }
                }),+];
                LIST
            }
        }
    };
}

/// Has knobs set a type by its `FromStr` and `Display`.
#[macro_export]
macro_rules! knob_words {
    ($($type:ty),+) => {$(
        impl $crate::KnobValue for $type {
            fn read(_: &$crate::KnobKind, text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn print(&self, _: &$crate::KnobKind) -> String {
                self.to_string()
            }
        }
    )+};
}

/// Defines a setting of a few words: its values, and the word by which each is read and printed.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $type:ident { $($(#[$of:meta])+ $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$of])+ $variant),+
        }

        impl $type {
            /// The words of all its values.
            pub const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl std::str::FromStr for $type {
            type Err = ();

            fn from_str(word: &str) -> Result<Self, ()> {
                match word {
                    $($word => Ok($type::$variant),)+
                    _ => Err(()),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($type::$variant => $word),+
                })
            }
        }

        $crate::knob_words!($type);

        /// Its place in the list of words.
        impl $crate::shape::ShapeValue for $type {
            fn to_bits(&self) -> u32 {
                *self as u32
            }

            fn of_bits(bits: u32) -> Option<Self> {
                [$($type::$variant),+].get(bits as usize).copied()
            }
        }
    };
}

/// One `name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The knob's name; `-` in it is read as `_`.
    pub name: String,
    /// The value, as it was written.
    pub text: String,
}

impl FromStr for Setting {
    type Err = KnobError;

    fn from_str(text: &str) -> Result<Self, KnobError> {
        let pair = text.split_once('=').filter(|(name, _)| !name.trim().is_empty());
        let (name, value) = pair.ok_or_else(|| KnobError::NoPair(text.to_owned()))?;
        Ok(Setting { name: name_of(name), text: value.trim().to_owned() })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.text)
    }
}

fn name_of(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('-', "_")
}

/// Names and values of settings that differ from an engine's defaults, in the order in which they were
/// given. Nothing in it is checked before an engine reads it: `Engine::check` of the crate `farleaf-engines`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(Vec<Setting>);

impl Settings {
    /// Sets `name`, in place of an earlier value.
    pub fn set(&mut self, name: &str, text: &str) {
        let (name, text) = (name_of(name), text.trim().to_owned());
        match self.0.iter_mut().find(|it| it.name == name) {
            Some(earlier) => earlier.text = text,
            None => self.0.push(Setting { name, text }),
        }
    }

    /// The same with `name` set.
    #[must_use]
    pub fn with(mut self, name: &str, text: &str) -> Self {
        self.set(name, text);
        self
    }

    /// The same with all of `later` set.
    #[must_use]
    pub fn and(mut self, later: &Settings) -> Self {
        self.set_all(later);
        self
    }

    /// Sets all of `later`.
    pub fn set_all(&mut self, later: &Settings) {
        later.iter().for_each(|(name, text)| self.set(name, text));
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find_map(|(known, text)| (known == name).then_some(text))
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|it| (it.name.as_str(), it.text.as_str()))
    }

    /// Tells whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those whose name `keep` accepts.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(&str) -> bool) -> Settings {
        Settings(self.0.iter().filter(|it| keep(&it.name)).cloned().collect())
    }
}

impl FromIterator<Setting> for Settings {
    fn from_iter<I: IntoIterator<Item = Setting>>(all: I) -> Self {
        let mut settings = Settings::default();
        all.into_iter().for_each(|it| settings.set(&it.name, &it.text));
        settings
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KnobError {
    /// It is not of the form `name=value`.
    #[error("\"{0}\" is not of the form name=value, as in cache=64MiB")]
    NoPair(String),
    /// No knob has that name.
    #[error("no setting is named \"{name}\"{}; known: {known}", did_you_mean(*suggestion))]
    Unknown {
        /// The name as it was given.
        name: String,
        /// The known name that was probably meant.
        suggestion: Option<&'static str>,
        /// All known names.
        known: String,
    },
    /// The text is no value of the knob.
    #[error("\"{read}\" is no value of {name}: expected {expected}")]
    Value {
        /// The knob's name.
        name: &'static str,
        /// The text as it was given.
        read: String,
        /// The values that the knob takes.
        expected: String,
    },
    /// The knob belongs to a table's shape, and the table is there.
    #[error("{0} is fixed when a table is made, and cannot be set when one is opened")]
    Fixed(&'static str),
}

impl KnobError {
    /// The error for a name that is not among `known`.
    pub fn unknown(name: &str, known: impl Iterator<Item = &'static str> + Clone) -> Self {
        KnobError::Unknown {
            name: name.to_owned(),
            suggestion: nearest(name, known.clone()),
            known: known.collect::<Vec<_>>().join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    knobs! {
        /// For these tests.
        #[derive(Clone, Debug, PartialEq)]
        struct Options {
            /// Bytes of the cache.
            /// At least [`8`] nodes.
            "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 1, max: u64::MAX }, paper "256 MB (section 7)";
            /// Buckets.
            "buckets" => buckets: usize = 8, KnobKind::Count { min: 1, max: 100, unit: "buckets" };
            /// Share.
            "ratio" => ratio: f64 = 0.1, KnobKind::Share;
            /// Flag.
            "journal" => journal: bool = false, KnobKind::Flag;
            /// Most entries.
            "cap_leaf" => cap_leaf: Option<u16> = None, KnobKind::count(2, "entries");
        }
    }

    #[test]
    fn knobs_are_read_and_printed() {
        let mut options = Options::default();
        let mut settings = Settings::default();
        for (name, text, printed) in [
            ("cache", "64MiB", "64MiB"),
            ("buckets", "16", "16"),
            ("ratio", "30%", "0.3"),
            ("journal", "on", "true"),
            ("cap_leaf", "4", "4"),
        ] {
            options.set(name, text).unwrap();
            assert_eq!(options.get(name).as_deref(), Some(printed));
            settings.set(name, printed);
        }
        assert_eq!(options.cache_bytes, 64 << 20);
        assert_eq!(options.settings(), settings);
        assert_eq!(Options::read(&settings).unwrap(), options);
        assert!(Options::default().settings().is_empty());
        options.set("cap_leaf", "auto").unwrap();
        assert_eq!(options.cap_leaf, None);
    }

    #[test]
    fn documentation_is_the_meaning() {
        let cache = &Options::list()[0].knob;
        assert_eq!(cache.about(), "Bytes of the cache. At least 8 nodes.");
        assert_eq!(cache.paper, Some("256 MB (section 7)"));
        assert_eq!(Options::list()[1].knob.paper, None);
    }

    #[test]
    fn bad_settings_are_refused_with_a_sentence() {
        let mut options = Options::default();
        for (name, text, sentence) in [
            ("cahce", "1", "no setting is named \"cahce\"; did you mean \"cache\"? known: cache"),
            ("cache", "64K", "\"64K\" is no value of cache: expected bytes, as in 4096 or 64MiB"),
            ("buckets", "0", "expected a count of buckets, 1 to 100"),
            ("ratio", "2", "a share, 0 to 1 or 0% to 100%"),
            ("ratio", "NaN", "a share, 0 to 1"),
            ("journal", "maybe", "true or false"),
            ("cap_leaf", "1", "a count of entries, 2 or more"),
            ("cap_leaf", "70K", "a count of entries"),
        ] {
            let told = options.set(name, text).unwrap_err().to_string();
            let sentence = sentence.replace("? known", "?; known");
            assert!(told.contains(&sentence), "{told}");
        }
        assert_eq!(options, Options::default());
    }

    #[test]
    fn settings_are_pairs_and_the_last_counts() {
        let parse = |text: &str| text.parse::<Setting>();
        let all = ["cache=1MiB", "Offload-Level = 2", "cache=8%"];
        let settings: Settings = all.iter().map(|text| parse(text).unwrap()).collect();
        let pairs: Vec<_> = settings.iter().collect();
        assert_eq!(pairs, [("cache", "8%"), ("offload_level", "2")]);
        assert!(parse("cache").unwrap_err().to_string().contains("name=value"));
        assert!(parse("=1").is_err());
    }
}
