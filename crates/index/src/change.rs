//! Change: names one key's new content and its condition.

use farleaf_fabric::OpKind;

/// The result of a compare-exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// The key held what was expected and holds the new value now, or is gone if there is none.
    Done,
    /// The key held something else; nothing was changed.
    Differs,
}

/// A change of one key: insert, update, upsert, remove and compare-exchange in one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The new value; `None` removes the key.
    pub value: Option<&'a [u8]>,
    /// Adds the key if it is absent.
    pub adds: bool,
    /// Changes or removes the key if it is present.
    pub replaces: bool,
    /// Changes nothing unless the key holds this value; `Some(None)`: unless it is absent.
    pub expected: Option<Option<&'a [u8]>>,
    /// The kind of operation that it counts as.
    pub kind: OpKind,
}

impl<'a> Change<'a> {
    /// Adds an absent key.
    pub fn insert(key: &'a [u8], value: &'a [u8]) -> Self {
        Change { replaces: false, kind: OpKind::Insert, ..Change::upsert(key, value) }
    }

    /// Gives a present key a new value.
    pub fn update(key: &'a [u8], value: &'a [u8]) -> Self {
        Change { adds: false, kind: OpKind::Update, ..Change::upsert(key, value) }
    }

    /// Adds a key or gives it a new value.
    pub fn upsert(key: &'a [u8], value: &'a [u8]) -> Self {
        let (value, kind) = (Some(value), OpKind::Upsert);
        Change { key, value, adds: true, replaces: true, expected: None, kind }
    }

    /// Removes a key.
    pub fn remove(key: &'a [u8]) -> Self {
        let kind = OpKind::Remove;
        Change { key, value: None, adds: false, replaces: true, expected: None, kind }
    }

    /// Gives `key` the value `new` (`None`: removes it) if it holds `expected` (`None`: is absent).
    pub fn compare_exchange(
        key: &'a [u8],
        expected: Option<&'a [u8]>,
        new: Option<&'a [u8]>,
    ) -> Self {
        let (expected, kind) = (Some(expected), OpKind::CompareExchange);
        Change { key, value: new, adds: new.is_some(), replaces: true, expected, kind }
    }

    /// Decides by what the key holds. `existed` says whether it is present; `held` is its value, which only
    /// a change with an expectation looks at.
    pub fn decide(&self, existed: bool, held: Option<&[u8]>) -> Decision {
        let outcome = Outcome { existed, differs: false };
        if let Some(expected) = self.expected
            && expected != held
        {
            return Decision::Leave(Outcome { differs: true, ..outcome });
        }
        let allowed = if existed { self.replaces } else { self.adds };
        if !allowed || (!existed && self.value.is_none()) {
            return Decision::Leave(outcome);
        }
        Decision::Apply(outcome)
    }
}

/// A change without its key, for another operation on that key that does it.
#[derive(Clone, Debug)]
pub struct OwnedChange {
    value: Option<Vec<u8>>,
    adds: bool,
    replaces: bool,
    expected: Option<Option<Vec<u8>>>,
    kind: OpKind,
}

impl OwnedChange {
    /// Copies a change, without its key.
    pub fn of(change: &Change<'_>) -> Self {
        let Change { key: _, value, adds, replaces, expected, kind } = *change;
        let value = value.map(<[u8]>::to_vec);
        let expected = expected.map(|expected| expected.map(<[u8]>::to_vec));
        OwnedChange { value, adds, replaces, expected, kind }
    }

    /// The change as one of `key`.
    pub fn of_key<'a>(&'a self, key: &'a [u8]) -> Change<'a> {
        let OwnedChange { value, adds, replaces, expected, kind } = self;
        let expected = expected.as_ref().map(Option::as_deref);
        let (adds, replaces, kind) = (*adds, *replaces, *kind);
        Change { key, value: value.as_deref(), adds, replaces, expected, kind }
    }
}

/// The effect of a change on a key in a certain state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing; the operation ends with this outcome.
    Leave(Outcome),
    /// It applies; the operation ends with this outcome once it is published.
    Apply(Outcome),
}

/// The end of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The key was present.
    pub existed: bool,
    /// The key did not hold what was expected, and was left alone.
    pub differs: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_decides_by_presence_and_expectation() {
        let cases: [(Change<'_>, [bool; 2]); 6] = [
            // Applies to an absent key, to one that holds "old".
            (Change::insert(b"k", b"v"), [true, false]),
            (Change::update(b"k", b"v"), [false, true]),
            (Change::upsert(b"k", b"v"), [true, true]),
            (Change::remove(b"k"), [false, true]),
            (Change::compare_exchange(b"k", None, Some(b"v")), [true, false]),
            (Change::compare_exchange(b"k", Some(b"old"), None), [false, true]),
        ];
        for (change, applies) in cases {
            for (held, applies) in [None, Some(&b"old"[..])].into_iter().zip(applies) {
                let decision = change.decide(held.is_some(), held);
                assert_eq!(
                    matches!(decision, Decision::Apply(_)),
                    applies,
                    "{change:?} on {held:?}"
                );
            }
        }
        let absent = Change::compare_exchange(b"k", Some(b"old"), Some(b"v")).decide(false, None);
        assert_eq!(absent, Decision::Leave(Outcome { existed: false, differs: true }));
        let gone = Change::compare_exchange(b"k", None, None).decide(false, None);
        assert_eq!(gone, Decision::Leave(Outcome { existed: false, differs: false }));
    }
}
