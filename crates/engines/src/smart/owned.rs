//! Owned: SMART's side of ownership, [`Partitioned`], which makes P-SMART of it.
//!
//! The protocol beneath stays that of all compute servers. Beyond it, an owner believes its cache about its own nodes
//! (`own_nodes.rs`).

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_index::bnode::KeyFormat;
use farleaf_index::compute::ownership::{MapWords, Ownership, read_map};
use farleaf_index::compute::{Owned, OwnedSettings, Partitioned};
use farleaf_index::engine::choose;
use farleaf_index::{
    Change, Entries, IndexError, Outcome, ScanRange, Settings, Stored, TableReport, Visitor,
};
use farleaf_pool::canary::Canary;
use farleaf_pool::{Audit, Session};
use fastrand::Rng;

use super::layout::{META_MAP, META_MAP_LOCK, check_pool};
use super::own_nodes::OwnRanges;
use super::scan::{Item, meets};
use super::tree::{Fail, Tree};
use super::{Smart, lab, stored_tree};
use crate::p_smart::PSmartOptions;

/// So many subtrees of a range tell where its middle is.
const MIDDLE_OF: usize = 64;

fn map_words(meta: GlobalAddr) -> MapWords {
    let [map, lock] = [META_MAP, META_MAP_LOCK].map(|offset| meta.plus(offset));
    MapWords { meta, map, lock, guests: None }
}

impl OwnedSettings for Smart {
    type OwnedOptions = PSmartOptions;
}

impl Partitioned for Smart {
    const OWNED_NAME: &'static str = "p-smart";
    const OWNED_ABOUT: &'static str =
        "P-SMART: smart with owned key ranges; Lu et al., PVLDB 17(10), 2024";
    const OWNED_CANARIES: &'static [Canary] = lab::OWNED_CANARIES;

    const OWNED_SHAPE: &'static [&'static str] = &["cap_inner", "nodes"];

    fn map_words(meta: GlobalAddr) -> MapWords {
        map_words(meta)
    }

    fn open_owned(
        session: &Session,
        table: &Stored,
        options: PSmartOptions,
        ownership: &Arc<Ownership>,
    ) -> Result<Smart, IndexError> {
        check_pool(session)?;
        let owner = Some(OwnRanges::new(ownership, options.owner_writes));
        let tree = Tree::new(table.meta(), *table.layout(), options.into(), owner);
        Ok(Smart { stored: table.clone(), tree })
    }

    async fn walk_owned(
        session: &Session,
        table: &Stored,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let tree = stored_tree(table);
        tree.visit_meta(visitor);
        if visitor.is_done() {
            return Ok(());
        }
        let map = read_map(&map_words(table.meta()), session).await?;
        visitor.object("ownership map", map.addr, map.bytes);
        if visitor.is_done() {
            return Ok(());
        }
        tree.walk_behind_meta(session, visitor, report).await
    }

    async fn verify_owned(
        table: &Smart,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        table.verify_as::<Owned<Smart>>(session, audit).await
    }

    fn draw_owned(rng: &mut Rng) -> Settings {
        lab::draw_owned(rng)
            .with("owner_writes", choose(rng, &["exclusive", "exclusive", "exclusive", "shared"]))
    }

    fn check_change(table: &Smart, change: &Change<'_>) -> Result<(), IndexError> {
        table.tree.check_change(change)
    }

    async fn get_pinned(
        table: &Smart,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        table.tree.get_delegated(session, key, value).await
    }

    async fn change_pinned(
        table: &Smart,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        table.tree.change_combined(session, change, held).await
    }

    async fn change_alone(
        table: &Smart,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        table.tree.change(session, change, held, None).await
    }

    async fn scan_pinned(
        table: &Smart,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        table.tree.scan(session, range, limit, out).await
    }

    fn drop_cached(table: &Smart, range: ScanRange<'_>) {
        if !Canary::KeepExactEntries.is_armed() {
            table.tree.cache.forget_all(|prefix| meets(&range, prefix));
        }
    }

    fn is_clearing_due(table: &Smart, is_last: bool) -> bool {
        table.tree.is_unlinking_due(is_last)
    }

    fn take_removed(table: &Smart, is_wanted: &dyn Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        table.tree.take_removed(is_wanted)
    }

    /// Cost: the READs of its way, 1 WRITE and 2 CASes; more if its node becomes small or empty.
    async fn clear_removed(table: &Smart, session: &Session, key: &[u8]) -> Result<(), IndexError> {
        table.tree.unlink_whole(session, key).await
    }

    /// Between two subtrees, half of those of the range on each side.
    ///
    /// Cost: 1 READ for each node of the upper levels, until there are 64 subtrees.
    async fn middle(
        table: &Smart,
        session: &Session,
        range: ScanRange<'_>,
    ) -> Result<Option<Vec<u8>>, IndexError> {
        let middle = table.tree.middle(session, range).await;
        middle.map_err(|fail| fail.or_unavailable("the tree changes all the time: try again"))
    }
}

impl Tree {
    async fn middle(
        &self,
        session: &Session,
        range: ScanRange<'_>,
    ) -> Result<Option<Vec<u8>>, Fail> {
        let root = self.root_node(session).await?;
        let mut subtrees = self.expand(&root, &[], &range);
        let is_node = |item: &Item| matches!(item, Item::Child { slot, .. } if !slot.is_leaf());
        while subtrees.len() < MIDDLE_OF && subtrees.iter().any(is_node) {
            let mut below = Vec::new();
            for item in subtrees {
                match item {
                    Item::Child { slot, up, prefix } if !slot.is_leaf() => {
                        let held =
                            self.read_child(session, slot, (&prefix, prefix.len()), up).await?;
                        below.extend(self.expand(&held, &prefix, &range));
                    }
                    leaf => below.push(leaf),
                }
            }
            subtrees = below;
        }
        let prefixes = subtrees.into_iter().filter_map(|item| match item {
            Item::Child { prefix, .. } => Some(prefix),
            _ => None,
        });
        let mut prefixes: Vec<Vec<u8>> = prefixes.collect();
        if prefixes.len() < 2 {
            return Ok(None);
        }
        let middle = prefixes.len() / 2;
        Ok(match self.layout.options().key {
            // The last key that the left one may hold.
            KeyFormat::Fixed(bytes) => {
                let mut key = prefixes.swap_remove(middle - 1);
                key.resize(bytes, 0xff);
                Some(key)
            }
            // The first key that the right one may hold.
            KeyFormat::Bytes { .. } => Some(prefixes.swap_remove(middle)),
        })
    }
}
