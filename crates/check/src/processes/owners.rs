//! Who owns which keys: a child that looks, and what the driver makes of it.

use std::fs;
use std::path::Path;

use farleaf::Farleaf;
use serde::{Deserialize, Serialize};

use super::spec::{Failed, OwnersSpec};

/// The keys above `low`, up to and including `high`, and the name of the compute server that has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owned {
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    owner: Option<String>,
}

/// Ranges of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Owned>);

pub(super) fn run(spec: &OwnersSpec) -> Result<(), Failed> {
    let at_start = |error| Failed::at_start(&spec.pool, error);
    let db = Farleaf::open(&spec.pool).map_err(at_start)?;
    let table = db.table(&spec.table).map_err(at_start)?;
    let partitions = table.partitions().map_err(at_start)?.into_iter();
    let owned = partitions.map(|partition| Owned {
        low: partition.low,
        high: partition.high,
        owner: partition.owner.map(|owner| owner.to_string()),
    });
    let owned: Vec<Owned> = owned.collect();
    drop(table);
    db.close().or_else(|error| Failed::at_end(&spec.pool, error))?;
    let text = serde_json::to_vec(&owned).map_err(|error| Failed::Fault(error.to_string()))?;
    fs::write(&spec.owners, text)
        .map_err(|error| Failed::Fault(format!("cannot write who owns what: {error}")))
}

/// What the child has found; nothing if it could not look.
pub(super) fn read(path: &Path) -> Vec<Owned> {
    let text = fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// The names that a client process has had, the last one now.
pub(super) fn names(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

impl Ranges {
    /// Those of that compute server.
    pub(super) fn of(owner: &str, owned: &[Owned]) -> Ranges {
        let is_its = |range: &&Owned| range.owner.as_deref() == Some(owner);
        Ranges(owned.iter().filter(is_its).cloned().collect())
    }

    #[cfg(test)]
    pub(super) fn everything() -> Ranges {
        Ranges(vec![Owned { low: None, high: None, owner: None }])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.0.iter().any(|range| {
            range.low.as_deref().is_none_or(|low| key > low)
                && range.high.as_deref().is_none_or(|high| key <= high)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_their_owner() {
        let owned = |low: Option<&str>, high: Option<&str>, owner: &str| Owned {
            low: low.map(|key| key.as_bytes().to_vec()),
            high: high.map(|key| key.as_bytes().to_vec()),
            owner: Some(owner.to_owned()),
        };
        let map = [
            owned(None, Some("c"), "one"),
            owned(Some("c"), Some("f"), "two"),
            owned(Some("f"), None, "one"),
        ];
        let one = Ranges::of("one", &map);
        for (key, is_its) in [("a", true), ("c", true), ("cc", false), ("f", false), ("x", true)] {
            assert_eq!(one.contains(key.as_bytes()), is_its, "{key}");
            assert_eq!(Ranges::of("two", &map).contains(key.as_bytes()), !is_its, "{key}");
        }
        assert!(!one.is_empty() && Ranges::of("three", &map).is_empty());
    }
}
