//! Leaf change: a change of one key in its leaf, with the record that may hold its value.

use std::ops::Deref;

use farleaf_index::bnode::{RecordRef, Value};
use farleaf_index::{Change, OwnedChange};

/// A change of one key in its leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafChange<'a> {
    pub(super) change: Change<'a>,
    /// The record that holds the new value, if that is too long for a leaf.
    pub(crate) record: Option<RecordRef>,
}

impl<'a> Deref for LeafChange<'a> {
    type Target = Change<'a>;

    fn deref(&self) -> &Change<'a> {
        &self.change
    }
}

impl<'a> LeafChange<'a> {
    /// Returns the value to store in the leaf.
    pub(super) fn stored(&self) -> Option<Value<'a>> {
        match (self.record, self.value) {
            (Some(record), _) => Some(Value::Record(record)),
            (None, value) => value.map(Value::Inline),
        }
    }
}

/// A [`LeafChange`] for a task that may outlive its caller.
#[derive(Clone, Debug)]
pub(crate) struct OwnedLeafChange {
    pub(crate) key: Vec<u8>,
    /// The change; of a value in a record, which stands for the value, with an empty one.
    change: OwnedChange,
    record: Option<RecordRef>,
}

impl OwnedLeafChange {
    /// Returns `change`, with its value in the leaf.
    pub(crate) fn inline(change: &Change<'_>) -> Self {
        Self::of(&LeafChange { change: *change, record: None })
    }

    pub(crate) fn of(change: &LeafChange<'_>) -> Self {
        let value = change.value.map(|value| if change.record.is_some() { &[] } else { value });
        let owned = OwnedChange::of(&Change { value, ..**change });
        OwnedLeafChange { key: change.key.to_vec(), change: owned, record: change.record }
    }

    pub(crate) fn borrowed(&self) -> LeafChange<'_> {
        LeafChange { change: self.change.of_key(&self.key), record: self.record }
    }
}
