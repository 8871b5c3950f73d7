//! Lab: the seeded bugs, crash cases and small tables of this engine, which are those of its tree.

use farleaf_index::blink::lab;
use farleaf_index::bnode::BnodeShape;
use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, changes};
use farleaf_index::{IndexError, Spec, Stored, TableReport};
use farleaf_pool::Session;

use super::{BTree, stored_tree};

impl Lab for BTree {
    fn hunts() -> Vec<Hunt> {
        lab::hunts()
    }

    fn shape(size: LabSize, spec: &Spec) -> BnodeShape {
        lab::shape(size, spec)
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_btree(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        lab::cases(true)
    }

    /// Seals every node with one of the last versions that there are.
    ///
    /// Cost: 2 READs and 1 WRITE for each node.
    async fn age(session: &Session, table: &Stored<BnodeShape>) -> Result<(), IndexError> {
        stored_tree(table)?.age(session).await
    }
}
