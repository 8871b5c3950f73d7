//! Owners: a child reads the ownership map, and the driver judges it.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use farleaf::{Farleaf, ServerName};
use farleaf_fabric::Incarnation;
use serde::{Deserialize, Serialize};

use super::spec::{ChildFailed, OwnersSpec};

/// The keys above `low`, up to and including `high`, and the name of the compute server that owns
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owned {
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    owner: Option<String>,
}

/// Ranges of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Owned>);

pub(super) fn run(spec: &OwnersSpec) -> Result<(), ChildFailed> {
    let at_start = |error| ChildFailed::at_start(&spec.pool, error);
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
    db.close().or_else(|error| ChildFailed::at_end(&spec.pool, error))?;
    ChildFailed::write(&spec.owners, "write who owns what", &owned)
}

/// Reads the child's findings; nothing if it could not look.
pub(super) fn read(path: &Path) -> Vec<Owned> {
    let text = fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Writes down the name of this compute server, and its address if it listens for others. Without
/// the note the others do not learn of them, and nothing else fails.
pub(super) fn note(path: &Path, own: Option<(ServerName, SocketAddr)>) {
    let line = own.map_or_else(String::new, |(name, listens)| format!("{name} {listens}"));
    let noted = File::options().create(true).append(true).open(path);
    // In one piece, as others read it meanwhile.
    let _ = noted.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
}

/// The notes of a client process, the last one of now.
fn notes(path: &Path) -> Vec<(String, Option<SocketAddr>)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let note = |line: &str| {
        let (name, listens) = line.split_once(' ').unwrap_or((line, ""));
        (name.to_owned(), listens.parse().ok())
    };
    text.lines().map(note).collect()
}

/// The names that a client process has had, the present one last.
pub(super) fn names(path: &Path) -> Vec<String> {
    notes(path).into_iter().map(|(name, _)| name).collect()
}

/// The incarnations of these names, by which the process greets others.
pub(super) fn incarnations(path: &Path) -> Vec<Incarnation> {
    names(path).into_iter().filter_map(|name| name.parse().ok()).collect()
}

/// The address at which a client process listens.
pub(super) fn listens(path: &Path) -> Option<SocketAddr> {
    notes(path).pop()?.1
}

impl Ranges {
    /// The ranges of that compute server.
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
