//! Torn leaves: a writer dies in the middle of a leaf's content, and another client meets what it left.
//!
//! The content is value, sum and the writer's token `by`; a WRITE of it lands word by word, in any order. `lock` names
//! the last locker. In the shared variant a CAS of the lock comes first; in that of a range's owner, a WRITE of the
//! lock in one chain with the content, or, which must show a fault, in the same WRITE.

use super::{Model, explore};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The holder of a torn leaf's lock is asked after only if the lock looks held.
    AsksHeldAlone,
    /// The taker does not look at the content again after it has the lock.
    SealsWhatItSaw,
    /// The owner's lock word and content are one WRITE.
    LockInContent,
}

/// Tokens: of the client that wrote the leaf before, and is dead; of the writer; of the taker.
const BEFORE: u8 = 0;
const WRITER: u8 = 1;
const TAKER: u8 = 2;
const WORDS: usize = 4;
pub(super) const VALUE: usize = 0;
pub(super) const SUM: usize = 1;
pub(super) const BY: usize = 2;
pub(super) const LOCK: usize = 3;

/// Values are below 10, and so are tokens.
pub(super) fn sum(value: u8, by: u8) -> u8 {
    10 + 10 * value + by
}

pub(super) fn is_whole(words: [u8; WORDS]) -> bool {
    words[SUM] == sum(words[VALUE], words[BY])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    words: [u8; WORDS],
    /// The words of the writer's WRITE that have not landed.
    in_flight: [Option<u8>; WORDS],
    has_written: bool,
    is_owner: bool,
    /// The taker's READs sample the lock in front of the content.
    lock_first: bool,
    is_dead: bool,
    is_acked: bool,
    taker: Step,
    seen: [u8; WORDS],
    /// The value that the taker has read from a whole leaf.
    read: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Reads(usize),
    Judges,
    Locks,
    Rereads(usize),
    Seals(usize),
    Ends,
}

impl State {
    fn firsts(is_owner: bool) -> [State; 2] {
        [false, true].map(|lock_first| State { lock_first, ..State::first(is_owner) })
    }

    fn first(is_owner: bool) -> State {
        let words = [0, sum(0, BEFORE), BEFORE, BEFORE];
        State {
            words,
            in_flight: [None; WORDS],
            has_written: false,
            is_owner,
            lock_first: false,
            is_dead: false,
            is_acked: false,
            taker: Step::Reads(0),
            seen: [0; WORDS],
            read: None,
        }
    }

    fn is_quiet(&self) -> bool {
        self.in_flight.iter().all(Option::is_none)
    }

    fn writer(self, broken: Broken) -> Vec<State> {
        let mut all = Vec::new();
        for at in 0..WORDS {
            if let Some(word) = self.in_flight[at] {
                let mut next = self;
                next.words[at] = word;
                next.in_flight[at] = None;
                next.is_acked = next.is_quiet();
                all.push(next);
            }
        }
        if self.is_dead {
            return all;
        }
        // The dead is fenced: its operations that have not landed never do.
        all.push(State { is_dead: true, in_flight: [None; WORDS], ..self });
        if self.has_written {
            return all;
        }
        let mut content = [Some(1), Some(sum(1, WRITER)), Some(WRITER), None];
        if self.is_owner && broken == Broken::LockInContent {
            content[LOCK] = Some(WRITER);
            all.push(State { in_flight: content, has_written: true, ..self });
        } else if self.words[LOCK] == WRITER {
            all.push(State { in_flight: content, has_written: true, ..self });
        } else if self.words[LOCK] == BEFORE && is_whole(self.words) {
            // A CAS of the lock, or the owner's WRITE of it.
            let mut next = self;
            next.words[LOCK] = WRITER;
            all.push(next);
        }
        all
    }

    fn holder_is_dead(&self, lock: u8) -> bool {
        lock == BEFORE || lock == WRITER && self.is_dead
    }

    /// Returns whether the taker asks after the holder of what it saw.
    fn asks(seen: [u8; WORDS], broken: Broken) -> bool {
        !is_whole(seen) && (broken != Broken::AsksHeldAlone || seen[LOCK] != seen[BY])
    }

    fn taker(mut self, broken: Broken) -> Option<State> {
        match self.taker {
            Step::Reads(at) => {
                let word = if self.lock_first { (at + LOCK) % WORDS } else { at };
                self.seen[word] = self.words[word];
                self.taker = if at + 1 < WORDS { Step::Reads(at + 1) } else { Step::Judges };
            }
            Step::Judges if is_whole(self.seen) => {
                self.read = Some(self.seen[VALUE]);
                self.taker = Step::Ends;
            }
            Step::Judges
                if Self::asks(self.seen, broken) && self.holder_is_dead(self.seen[LOCK]) =>
            {
                self.taker = Step::Locks;
            }
            // Another READ.
            Step::Judges => self.taker = Step::Reads(0),
            Step::Locks if self.words[LOCK] != self.seen[LOCK] => self.taker = Step::Reads(0),
            Step::Locks => {
                self.words[LOCK] = TAKER;
                self.taker = match broken {
                    Broken::SealsWhatItSaw => Step::Seals(0),
                    _ => Step::Rereads(0),
                };
            }
            Step::Rereads(at) => {
                self.seen[at] = self.words[at];
                self.taker = if at < BY { Step::Rereads(at + 1) } else { Step::Seals(0) };
            }
            Step::Seals(at) => {
                // The words that differ: the value stays.
                let sealed = [self.seen[VALUE], sum(self.seen[VALUE], TAKER), TAKER];
                if at != VALUE {
                    self.words[at] = sealed[at];
                }
                self.taker = if at < BY { Step::Seals(at + 1) } else { Step::Reads(0) };
            }
            Step::Ends => return None,
        }
        Some(self)
    }
}

impl Model for State {
    type Broken = Broken;

    fn next(self, broken: Broken) -> Vec<State> {
        let mut all = self.writer(broken);
        all.extend(self.taker(broken));
        all
    }

    fn fault(&self, broken: Broken, is_end: bool) -> Option<&'static str> {
        let is_over = self.is_quiet() && (self.is_dead || self.has_written);
        let is_taking = matches!(self.taker, Step::Locks | Step::Rereads(_) | Step::Seals(_));
        let goes_on = Self::asks(self.words, broken) && self.holder_is_dead(self.words[LOCK]);
        if is_over && !is_taking && !is_whole(self.words) && !goes_on {
            return Some("a leaf is torn and nobody will make it whole");
        }
        let must_stay = self.is_acked || self.read == Some(1);
        (is_end && must_stay && self.words[VALUE] != 1).then_some("an acknowledged value is lost")
    }
}

#[test]
fn a_torn_leaf_is_made_whole_whoever_left_it() {
    for is_owner in [false, true] {
        let (fault, states) = explore(State::firsts(is_owner), Broken::Nothing);
        println!("torn leaf, owner {is_owner}: {states} states");
        assert_eq!(fault, None);
        assert!(states > 100, "{states} states");
    }
    for (broken, is_owner) in [
        (Broken::AsksHeldAlone, false),
        (Broken::AsksHeldAlone, true),
        (Broken::SealsWhatItSaw, false),
        (Broken::LockInContent, true),
    ] {
        let (fault, states) = explore(State::firsts(is_owner), broken);
        println!("torn leaf, {broken:?}: {states} states until {fault:?}");
        assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
    }
}
