//! Model of `own_leaves.rs`: an owner stores a leaf by WRITEs alone beside clients that take over from the dead.
//!
//! A client had taken the lock by CAS and posted its content when it died; it may have left a redo record. What of its
//! content has not landed when it is fenced never does. Then the leaf has an owner, which stores twice: by CAS of the
//! lock what another has stored last, then by WRITEs what a session of its own has, which is closed by then. A walker
//! reads the leaf at any time, and a recovery replays the record.

use super::torn_leaf::{BY, LOCK, VALUE, is_whole, sum};
use super::{Model, explore};

/// The rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The owner stores by WRITEs over another's content, too.
    StoresOverOthers,
    /// The walker takes over by what it has read before the token's client was dead or closed.
    TakesByOldRead,
    /// The owner's lock word lands among the words of its content.
    LockInContent,
}

/// Tokens: of the client before, of the dead one, of the owner's closed session, of its open one, and of the takers.
const BEFORE: u8 = 0;
const DEAD: u8 = 1;
const CLOSED: u8 = 2;
const OWNER: u8 = 3;
const WALKER: u8 = 4;
const RECOVERY: u8 = 5;

/// The value that the owner stores first, and then.
const FIRST: u8 = 2;
const LAST: u8 = 3;

type Words = [u8; 4];
type Flight = [Option<u8>; 4];
const LANDED: Flight = [None; 4];

fn is_free(words: Words) -> bool {
    is_whole(words) && words[LOCK] == words[BY]
}

/// The words of a content that differ from what is there.
fn content(value: u8, by: u8, now: Words) -> Flight {
    let mut flight = LANDED;
    for (at, word) in [value, sum(value, by), by].into_iter().enumerate() {
        flight[at] = (now[at] != word).then_some(word);
    }
    flight
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// READs its next word.
    Reads(usize),
    Judges,
    /// Before the CAS of the lock from what was seen.
    Locks,
    /// READs the content again under the lock.
    Rereads(usize),
    /// Before the WRITE of the lock word in front of the content.
    WritesLock,
    /// The content is under way.
    Writes,
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    token: u8,
    step: Step,
    seen: Words,
    flight: Flight,
    /// Tokens that counted as dead when the READ began.
    dead: [bool; 2],
    lock_first: bool,
    /// It stores a value of its own, and does not make whole what is there.
    stores: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    words: Words,
    /// The words of the dead client that have not landed.
    flight: Flight,
    is_fenced: bool,
    owner: Client,
    walker: Client,
    recovery: Client,
}

impl Client {
    fn of(token: u8, lock_first: bool) -> Client {
        Client {
            token,
            step: Step::Reads(0),
            seen: [0; 4],
            flight: LANDED,
            dead: [false; 2],
            lock_first,
            stores: false,
        }
    }

    fn holds(&self) -> bool {
        matches!(self.step, Step::Rereads(_) | Step::WritesLock | Step::Writes)
    }

    /// The step that has no choice of its own; `None` if there is none now.
    fn go_on(&mut self, words: &mut Words, dead: [bool; 2]) -> Option<()> {
        match self.step {
            Step::Reads(at) => {
                if at == 0 {
                    self.dead = dead;
                }
                let word = if self.lock_first { (at + LOCK) % 4 } else { at };
                self.seen[word] = words[word];
                self.step = if at < 3 { Step::Reads(at + 1) } else { Step::Judges };
            }
            Step::Locks if words[LOCK] != self.seen[LOCK] => self.step = Step::Reads(0),
            Step::Locks => {
                words[LOCK] = self.token;
                self.step = Step::Rereads(0);
                if self.stores {
                    self.flight = content(FIRST, self.token, self.seen);
                    self.step = Step::Writes;
                }
            }
            Step::Rereads(at) => {
                self.seen[at] = words[at];
                self.step = if at < BY { Step::Rereads(at + 1) } else { Step::Writes };
                if at == BY {
                    // The record's value, or what is there.
                    let value = if self.token == RECOVERY { 1 } else { self.seen[VALUE] };
                    self.flight = content(value, self.token, self.seen);
                }
            }
            Step::WritesLock => {
                words[LOCK] = self.token;
                self.step = Step::Writes;
            }
            Step::Judges | Step::Writes | Step::Ends => return None,
        }
        Some(())
    }

    /// Returns whether it may take the lock from what it has seen.
    fn may_take(&self, now: [bool; 2], takes_by_old: bool) -> bool {
        let dead = if takes_by_old { now } else { self.dead };
        match self.seen[LOCK] {
            DEAD => dead[0],
            CLOSED => dead[1],
            _ => false,
        }
    }
}

impl State {
    /// The owner beside those of the others that are asked for.
    fn firsts(has_walker: bool, has_recovery: bool) -> impl Iterator<Item = State> {
        (0..8).map(move |number| {
            let words = [0, sum(0, BEFORE), BEFORE, DEAD];
            let client = |token, bit: u8, is_there| {
                let client = Client::of(token, number & bit > 0);
                let step = if is_there { client.step } else { Step::Ends };
                Client { step, ..client }
            };
            State {
                words,
                flight: content(1, DEAD, words),
                is_fenced: false,
                owner: client(CLOSED, 1, true),
                walker: client(WALKER, 2, has_walker),
                recovery: client(RECOVERY, 4, has_recovery),
            }
        })
    }

    /// The clients whose tokens count as dead ones: the dead one, and the closed session.
    fn dead(&self) -> [bool; 2] {
        [self.is_fenced, self.owner.token != CLOSED]
    }

    fn owner(mut self, broken: Broken) -> Option<State> {
        let dead = self.dead();
        let (seen, owner) = (self.owner.seen, &mut self.owner);
        match owner.step {
            Step::Judges if is_free(seen) => {
                owner.stores = true;
                let is_own = seen[BY] == CLOSED;
                if is_own || broken == Broken::StoresOverOthers {
                    owner.token = OWNER;
                    owner.flight = content(LAST, OWNER, seen);
                    owner.step = Step::WritesLock;
                    if broken == Broken::LockInContent {
                        owner.flight[LOCK] = Some(OWNER);
                        owner.step = Step::Writes;
                    }
                } else {
                    owner.step = Step::Locks;
                }
            }
            Step::Judges => {
                owner.stores = false;
                let takes = owner.may_take(dead, false);
                owner.step = if takes { Step::Locks } else { Step::Reads(0) };
            }
            Step::Writes if owner.flight == LANDED && owner.token == OWNER => {
                owner.step = Step::Ends;
            }
            Step::Writes if owner.flight == LANDED => {
                // The content, stored or made whole, is the closed session's.
                owner.step = Step::Reads(0);
            }
            _ => owner.go_on(&mut self.words, dead)?,
        }
        Some(self)
    }

    fn walker(mut self, broken: Broken) -> Option<State> {
        let dead = self.dead();
        let walker = &mut self.walker;
        let takes = walker.may_take(dead, broken == Broken::TakesByOldRead);
        match walker.step {
            Step::Judges if is_whole(walker.seen) => walker.step = Step::Ends,
            Step::Judges => walker.step = if takes { Step::Locks } else { Step::Reads(0) },
            Step::Writes if walker.flight == LANDED => walker.step = Step::Ends,
            _ => walker.go_on(&mut self.words, dead)?,
        }
        Some(self)
    }

    fn recovery(mut self) -> Option<State> {
        let dead = self.dead();
        let recovery = &mut self.recovery;
        match recovery.step {
            Step::Judges if recovery.seen[LOCK] != DEAD => recovery.step = Step::Ends,
            Step::Judges => recovery.step = Step::Locks,
            Step::Writes if recovery.flight == LANDED => recovery.step = Step::Ends,
            _ => recovery.go_on(&mut self.words, dead)?,
        }
        Some(self)
    }
}

impl Model for State {
    type Broken = Broken;

    fn next(self, broken: Broken) -> Vec<State> {
        let mut all = Vec::new();
        let flights: [fn(&mut State) -> &mut Flight; 4] = [
            |it| &mut it.flight,
            |it| &mut it.owner.flight,
            |it| &mut it.walker.flight,
            |it| &mut it.recovery.flight,
        ];
        let lock_is_late = self.owner.step == Step::WritesLock;
        for (who, flight) in flights.into_iter().enumerate() {
            for at in (0..4).filter(|_| who != 1 || !lock_is_late) {
                let mut next = self;
                if let Some(word) = flight(&mut next)[at].take() {
                    next.words[at] = word;
                    all.push(next);
                }
            }
        }
        if !self.is_fenced {
            all.push(State { is_fenced: true, flight: LANDED, ..self });
        }
        all.extend(self.walker(broken));
        if self.is_fenced {
            all.extend(self.owner(broken));
            all.extend(self.recovery());
        }
        all
    }

    fn fault(&self, _broken: Broken, _is_end: bool) -> Option<&'static str> {
        let clients = [&self.owner, &self.walker, &self.recovery];
        let is_quiet = self.flight == LANDED && !clients.iter().any(|it| it.holds());
        if is_quiet && self.words[LOCK] != DEAD && !is_free(self.words) {
            return Some("a leaf stays torn or locked");
        }
        let is_lost = self.owner.step == Step::Ends && is_quiet && self.words[VALUE] != LAST;
        is_lost.then_some("an acknowledged value is lost")
    }
}

#[test]
fn an_owner_stores_a_leaf_beside_takers() {
    for (has_walker, has_recovery) in [(true, false), (false, true)] {
        let (fault, states) = explore(State::firsts(has_walker, has_recovery), Broken::Nothing);
        println!("own leaf, walker {has_walker}, recovery {has_recovery}: {states} states");
        assert_eq!(fault, None);
        assert!(states > 5_000, "{states} states");
    }
    for (broken, has_walker) in [
        (Broken::StoresOverOthers, false),
        (Broken::TakesByOldRead, true),
        (Broken::LockInContent, true),
    ] {
        let (fault, states) = explore(State::firsts(has_walker, !has_walker), broken);
        println!("own leaf, {broken:?}: {states} states until {fault:?}");
        assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
    }
}
