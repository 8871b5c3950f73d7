//! Formats: name the table formats of runs.

use std::fmt;
use std::str::FromStr;

use farleaf_engines::{Engine, TableFormat};
use farleaf_harness::{lab_table, try_shape};
use farleaf_index::ValueFormat;

/// A format of table, chosen so that small trees are deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatName {
    /// `u64` to `u64`, 4 keys a leaf, 3 separators an inner node.
    U64Tiny,
    /// `u64` to `u64`, nodes of 256 bytes.
    U64Small,
    /// `u64` to `u64`, nodes of 1 KiB.
    U64,
    /// 16 bytes to 24, 4 keys a leaf.
    WideTiny,
    /// Keys of up to 40 bytes, values of any length, 4 keys a leaf.
    ShortTiny,
    /// Keys of up to 1,024 bytes, values of any length, 3 keys a leaf, 2 separators.
    BytesTiny,
    /// Keys of up to 1,024 bytes, values of any length.
    Bytes,
    /// 5 bytes to 3.
    Odd,
    /// As `U64Tiny`; nodes reserve their room, if the engine can.
    U64Reserved,
    /// As `ShortTiny`; nodes reserve their room, if the engine can.
    ShortReserved,
    /// As `U64Reserved`; objects point back to what leads to them, if the engine can.
    U64Reverse,
    /// As `ShortReserved` with values of 8 bytes; objects point back to what leads to them, if the engine can.
    ShortReverse,
}

/// The formats and their names in flags.
const TABLE: [(FormatName, &str); 12] = [
    (FormatName::U64Tiny, "u64-tiny"),
    (FormatName::U64Small, "u64-small"),
    (FormatName::U64, "u64"),
    (FormatName::WideTiny, "wide-tiny"),
    (FormatName::ShortTiny, "short-tiny"),
    (FormatName::BytesTiny, "bytes-tiny"),
    (FormatName::Bytes, "bytes"),
    (FormatName::Odd, "odd"),
    (FormatName::U64Reserved, "u64-reserved"),
    (FormatName::ShortReserved, "short-reserved"),
    (FormatName::U64Reverse, "u64-reverse"),
    (FormatName::ShortReverse, "short-reverse"),
];

impl FormatName {
    /// The first so many differ for every engine.
    pub(super) const COMMON: usize = 8;

    /// Every format.
    pub fn all() -> [FormatName; TABLE.len()] {
        TABLE.map(|(format, _)| format)
    }

    /// The name in flags.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The format of a table of `engine`.
    pub fn table(self, engine: Engine) -> TableFormat {
        let reserved = |tiny: FormatName| {
            let table = tiny.table(engine);
            try_shape(table, "nodes", "reserve").unwrap_or(table)
        };
        // Pointers back take values of one length.
        let reversed = |tiny: FormatName| {
            let fixed = tiny.table(engine).with_values(ValueFormat::Fixed(8));
            try_shape(fixed, "nodes", "reverse").unwrap_or_else(|| reserved(tiny))
        };
        match self {
            FormatName::U64Reserved => reserved(FormatName::U64Tiny),
            FormatName::ShortReserved => reserved(FormatName::ShortTiny),
            FormatName::U64Reverse => reversed(FormatName::U64Tiny),
            FormatName::ShortReverse => reversed(FormatName::ShortTiny),
            common => lab_table(engine, common.name()),
        }
    }
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FormatName {
    type Err = super::ScenarioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = FormatName::all().into_iter().find(|format| format.name() == text);
        let names = FormatName::all().map(FormatName::name);
        found.ok_or_else(|| super::ScenarioError::name("format", text, names))
    }
}
