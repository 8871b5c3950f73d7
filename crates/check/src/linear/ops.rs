//! Key operations: encode the operations on one key in small numbers.

/// Content of a key: [`ABSENT`], [`UNSEEN`], or the number of a value that an answer or a
/// comparison names.
pub(super) type KeyState = u32;

/// The key is absent.
pub(super) const ABSENT: KeyState = 0;

/// The key holds some value that no answer and no comparison names. All these are one state: no
/// answer of the history can tell them apart. So an order exists with them told apart exactly if
/// one exists without.
pub(super) const UNSEEN: KeyState = 1;

/// No operation.
pub(super) const NONE: u32 = u32::MAX;

/// Effect of an operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Finds this state. Also a scan's view of the key.
    Get(KeyState),
    Insert(KeyState),
    Update(KeyState),
    Upsert(KeyState),
    Remove,
    Exchange {
        expected: KeyState,
        new: KeyState,
        /// Content of the key by its answer; meaningless if the answer is unknown.
        held: KeyState,
    },
}

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyOp {
    pub(super) kind: Kind,
    /// The flag of its answer; `None` if unknown. True for gets.
    pub(super) answer: Option<bool>,
    pub(super) from_ns: u64,
    /// `u64::MAX` if unknown.
    pub(super) to_ns: u64,
    /// Its place in the history.
    pub(super) event: u32,
    /// The operation on this key which the same client ended at the very moment at which this one
    /// began, or [`NONE`]. Counted among the key's operations.
    pub(super) after: u32,
}

impl KeyOp {
    /// The state after it if it takes effect in `state`, or `None` if its answer does not fit.
    pub(super) fn apply(&self, state: KeyState) -> Option<KeyState> {
        let (next, flag) = match self.kind {
            Kind::Get(value) => return (state == value).then_some(state),
            Kind::Insert(value) if state == ABSENT => (value, true),
            Kind::Update(value) if state != ABSENT => (value, true),
            Kind::Insert(_) | Kind::Update(_) => (state, false),
            Kind::Upsert(value) => (value, state == ABSENT),
            Kind::Remove => (ABSENT, state != ABSENT),
            Kind::Exchange { held, .. } if self.answer.is_some() && held != state => return None,
            Kind::Exchange { expected, new, .. } if expected == state => (new, true),
            Kind::Exchange { .. } => (state, false),
        };
        match self.answer {
            Some(told) if told != flag => None,
            _ => Some(next),
        }
    }

    /// Returns whether, with its answer, it leaves every state in which it can take effect as it
    /// is.
    pub(super) fn is_pure(&self) -> bool {
        match self.kind {
            Kind::Get(_) => true,
            Kind::Upsert(_) => false,
            Kind::Exchange { expected, new, .. } if expected == new => self.answer.is_some(),
            _ => self.answer == Some(false),
        }
    }

    /// Returns whether it has an answer.
    pub(super) fn is_known(&self) -> bool {
        self.answer.is_some()
    }
}
