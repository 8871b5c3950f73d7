//! Owner: P-SMART's side of ownership, for its own ranges and for guests.

use farleaf_fabric::{Incarnation, OpKind};
use farleaf_index::KeyFormat;
use farleaf_index::compute::ownership::{Ownership, Partitions, Range};
use farleaf_index::compute::{Guest, MoveError, RangeOwner};
use farleaf_index::{Change, Entries, IndexError, Outcome, ScanCursor, ScanRange, Seek};
use farleaf_pool::Session;
use farleaf_pool::canary::Canary;

use super::owned::PSmart;
use super::scan::{Item, meets};
use super::tree::{Fail, Tree};

/// Pairs that a scan reads between two looks at the guard.
const PAIRS_INSIDE_MAX: usize = 1024;
/// So many subtrees of a range tell where its middle is.
const MIDDLE_OF: usize = 64;

impl RangeOwner for PSmart {
    fn ownership(&self) -> &Ownership {
        &self.0.ownership
    }

    fn takes_key(&self, len: usize) -> bool {
        self.0.smart.stored.spec.takes_key(len)
    }

    fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError> {
        self.tree().check_change(change)
    }

    async fn get_own(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.ownership.check_open()?;
        let _pin = session.begin(OpKind::Get).await?;
        self.tree().get_delegated(session, key, value).await
    }

    async fn change_own(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.tree().check_change(change)?;
        self.0.ownership.check_open()?;
        let _pin = session.begin(change.kind).await?;
        self.tree().change_combined(session, change, held).await
    }

    async fn scan_own(
        &self,
        session: &Session,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<Option<usize>, IndexError> {
        loop {
            let seek = cursor.seek();
            // For each part anew, so that a long scan does not keep a range from changing hands.
            let (_inside, part) = match self.acquire_part(session, seek).await? {
                Ok(part) => part,
                Err(number) => return Ok(Some(number)),
            };
            self.0.ownership.check_open()?;
            let (low, high) = (part.low.as_deref(), part.high.as_deref());
            let (from, to, wanted) = cursor.rest_in(low, high, out);
            let reverse = cursor.is_reverse();
            let range = ScanRange::between(&from, &to, reverse);
            let limit = wanted.min(PAIRS_INSIDE_MAX);
            let begun = out.len();
            {
                let _pin = session.begin(OpKind::Scan).await?;
                self.tree().scan(session, range, limit, out).await?;
            }
            let is_whole = out.len() - begun < limit;
            let goes_on = match out.last() {
                Some((last, _)) if !is_whole => {
                    let last = last.to_vec();
                    cursor.go_on_behind(&last, out)
                }
                _ => cursor.skip_to(if reverse { low } else { high }, out),
            };
            if !goes_on {
                return Ok(None);
            }
        }
    }

    fn guest(&self) -> Option<&Guest> {
        self.0.guest.get()
    }

    async fn get_unowned(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.tree().get_delegated(session, key, value).await
    }

    async fn change_unowned(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.tree().change(session, change, held, None).await
    }

    async fn scan_unowned(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        self.tree().scan(session, range, limit, out).await
    }

    async fn clear_unowned(
        &self,
        session: &Session,
        map: &Partitions,
        is_last: bool,
    ) -> Result<(), IndexError> {
        if self.tree().is_unlinking_due(is_last) {
            let is_unowned = |key: &[u8]| map.owners[map.of(key, false)] == 0;
            for key in self.tree().take_removed(is_unowned) {
                self.tree().unlink_whole(session, &key).await?;
            }
        }
        Ok(())
    }

    /// No object of keys alone has bounds.
    async fn make_bound(&self, _session: &Session, _bound: &[u8]) -> Result<(), IndexError> {
        Ok(())
    }

    /// Nothing is ever dirty. Clears what is left of removed keys, which nobody does once they are another's.
    async fn write_back(
        &self,
        session: &Session,
        range: &Range,
        _most: usize,
    ) -> Result<usize, IndexError> {
        for key in self.tree().take_removed(|key: &[u8]| range.holds(key, false)) {
            self.tree().unlink_whole(session, &key).await?;
        }
        Ok(0)
    }

    async fn flush(&self, _session: &Session) -> Result<(), IndexError> {
        Ok(())
    }

    async fn hand_over(&self, _session: &Session, range: &Range) -> Result<(), MoveError> {
        if !Canary::KeepExactEntries.is_armed() {
            self.tree().cache.forget_all(|prefix| meets(&range.as_scan(), prefix));
        }
        Ok(())
    }

    /// Does nothing: the cache's entries of the range are hints, which each operation proves.
    async fn take_in(&self, _session: &Session) -> Result<(), IndexError> {
        Ok(())
    }

    /// Nothing that the dead have acknowledged is theirs alone.
    async fn replay(
        &self,
        _session: &Session,
        _map: &Partitions,
        _dead: Incarnation,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    async fn middle(&self, session: &Session, range: &Range) -> Result<Option<Vec<u8>>, MoveError> {
        let seek = range.low.as_deref().map_or(Seek::First, Seek::After);
        let Ok(_inside) = self.0.ownership.acquire(session, seek).await? else {
            return Err(MoveError::NotOwned);
        };
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let middle = self.tree().middle(session, range.as_scan()).await;
        let middle =
            middle.map_err(|fail| fail.or_unavailable("a walk lost its way: try again"))?;
        Ok(middle.filter(|key| {
            self.takes_key(key.len()) && range.holds(key, false) && range.high.as_ref() != Some(key)
        }))
    }

    fn let_go(&self, session: &Session) {
        session.pool().let_go(self.0.ownership.words().meta, &self.0);
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
        Ok(match self.spec.key {
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
