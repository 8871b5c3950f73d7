//! Formats: name the table formats of runs.

use std::fmt;
use std::str::FromStr;

use farleaf_engines::{Engine, TableFormat};
use farleaf_harness::lab_table;

/// A format of table: one of those that every engine has, some so small that small trees are deep
/// ([`lab_table`]), or an engine's variant of a tiny one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatName {
    /// The name of the common format.
    common: &'static str,
    /// The name of the variant, in the place of the common format's if the engine has none.
    variant: Option<&'static str>,
}

/// The formats that every engine has.
const COMMON: [&str; 8] =
    ["u64-tiny", "u64-small", "u64", "wide-tiny", "short-tiny", "bytes-tiny", "bytes", "odd"];
/// Those of which a variant is drawn, with their names in flags.
const VARIED: [(&str, &str); 2] = [("u64-tiny", "u64"), ("short-tiny", "short")];

impl FormatName {
    /// Those that differ for every engine.
    pub(super) fn common() -> [FormatName; COMMON.len()] {
        COMMON.map(|common| FormatName { common, variant: None })
    }

    /// The tiny ones.
    pub(super) fn tiny() -> [FormatName; 3] {
        ["u64-tiny", "wide-tiny", "short-tiny"].map(|common| FormatName { common, variant: None })
    }

    /// The drawn variants of an engine's tables: of each, all formats.
    pub(super) fn variants(engine: Engine) -> Vec<[FormatName; VARIED.len()]> {
        let drawn = engine.variants().iter().filter(|variant| variant.is_drawn);
        let of = |name| VARIED.map(|(common, _)| FormatName { common, variant: Some(name) });
        drawn.map(|variant| of(variant.name)).collect()
    }

    /// Every format.
    pub fn all() -> Vec<FormatName> {
        let mut all = FormatName::common().to_vec();
        for format in Engine::ALL.iter().flat_map(|it| FormatName::variants(*it)).flatten() {
            if !all.contains(&format) {
                all.push(format);
            }
        }
        all
    }

    /// The format of a table of `engine`.
    pub fn table(self, engine: Engine) -> TableFormat {
        let common = lab_table(engine, self.common);
        let variant = engine.variants().iter().find(|it| Some(it.name) == self.variant);
        let varied = variant.and_then(|it| engine.variant_table(it, common.spec).ok());
        varied.unwrap_or(common)
    }
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(variant) = self.variant else { return f.write_str(self.common) };
        let short = VARIED.iter().find(|(common, _)| *common == self.common);
        write!(f, "{}-{variant}", short.map_or(self.common, |(_, short)| short))
    }
}

impl FromStr for FormatName {
    type Err = super::ScenarioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = FormatName::all();
        let names: Vec<String> = all.iter().map(FormatName::to_string).collect();
        let found = names.iter().position(|name| name == text);
        let unknown =
            || super::ScenarioError::name("format", text, names.iter().map(String::as_str));
        found.map(|at| all[at]).ok_or_else(unknown)
    }
}
