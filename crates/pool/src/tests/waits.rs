//! Waits model: explores every order in which a recovery and a retirement can meet.
//!
//! The object `x` lies in a block of a dead member, whose inbox is open at first. `A` unlinks `x`, writes
//! it to its retire page only later, and frees it after the grace period: by the inbox if it is open, or
//! by a bit. `R` reads `x`. `B` recovers the dead member. Each remote operation is a step of its own. The
//! model is of INV-RETIRE-1, INV-REC-2 and INV-INBOX-1; each rule that it leaves out must show a fault.

#![allow(clippy::disallowed_types, reason = "the order of the set is never looked at")]

use std::collections::HashSet;

/// A rule that a variant of the protocol breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// What waits for its page is pinned at the view of the retirement, not at the operation's pin.
    PinsRetirementAtView,
    /// Nothing is pinned until the page is written.
    PinsNothing,
    /// The recoverer reads the pages at once after its walk.
    ReadsPagesAtOnce,
    /// The recoverer reads the bitmaps at once after the pages.
    ReadsBitmapsAtOnce,
    /// An inbox is looked at before the pin, by which the recoverer waits.
    LooksAtInboxUnpinned,
    /// The recoverer leaves the dead's inbox open.
    LeavesInboxOpen,
    /// The object is freed before its word of the page is cleared.
    FreesBeforeClearing,
}

const A: usize = 0;
const R: usize = 1;
const B: usize = 2;
const RETIRER_STEPS: u8 = 10;
const READER_STEPS: u8 = 3;
/// No pin, or an idle member's announcement.
const NONE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    epoch: u8,
    epoch_last: u8,
    /// An advance of that epoch has looked at all members, and is under way.
    advance: Option<u8>,
    views: [u8; 3],
    announced: [u8; 3],
    /// Operation (or recovery), page and reclaim.
    pins: [[u8; 3]; 3],
    steps: [u8; 3],
    is_dead: bool,
    is_linked: bool,
    retired_at: u8,
    in_page: bool,
    sees_open: bool,
    is_open: bool,
    in_inbox: bool,
    has_bit: bool,
    is_held: bool,
    waits_past: u8,
    is_marked: bool,
    is_kept: bool,
    is_freed: bool,
}

impl State {
    /// With a reader up to epoch 4; without one, which has far fewer orders, up to 6.
    fn first(has_reader: bool) -> State {
        State {
            epoch: 2,
            epoch_last: if has_reader { 4 } else { 6 },
            advance: None,
            views: [2; 3],
            announced: [2, if has_reader { 2 } else { NONE }, 2],
            pins: [[NONE; 3]; 3],
            steps: [0, if has_reader { 0 } else { READER_STEPS }, 0],
            is_dead: false,
            is_linked: true,
            retired_at: 0,
            in_page: false,
            sees_open: false,
            is_open: true,
            in_inbox: false,
            has_bit: false,
            is_held: false,
            waits_past: 0,
            is_marked: false,
            is_kept: false,
            is_freed: false,
        }
    }

    fn least_pin(&self, of: usize) -> u8 {
        self.pins[of].iter().copied().min().unwrap_or(NONE)
    }

    /// The least that the others of `of` announce, and what it may itself.
    fn bound(&self, of: usize) -> u8 {
        let others = (0..3).filter(|at| *at != of && !(*at == A && self.is_dead));
        let least = others.map(|at| self.announced[at]).min().unwrap_or(NONE);
        least.min(self.views[of]).min(self.least_pin(of))
    }

    /// Pins the view; a member that was idle announces itself first and learns the epoch.
    fn pin(&mut self, of: usize, pin: usize) {
        if self.announced[of] == NONE {
            self.announced[of] = self.views[of];
            self.views[of] = self.epoch;
        }
        self.pins[of][pin] = self.views[of];
    }

    fn fault(&self) -> Option<&'static str> {
        let frees = [self.in_inbox && self.is_open, self.has_bit, self.is_freed];
        if frees.iter().filter(|freed| **freed).count() > 1 {
            return Some("freed twice");
        }
        if frees.contains(&true) && self.is_held {
            return Some("freed under a reader");
        }
        if frees.contains(&true) && self.in_page && self.is_dead {
            // The recovery of the dead would free it once more.
            return Some("free, and in the page of the dead");
        }
        let is_over = self.steps[A] == RETIRER_STEPS && self.steps[B] == 8;
        (is_over && !frees.contains(&true)).then_some("lost")
    }

    /// Everything that can happen next.
    fn next(self, broken: Broken) -> Vec<State> {
        let mut all = Vec::new();
        let lives = |at: usize| at != A || !self.is_dead;
        for of in (0..3).filter(|of| lives(*of)) {
            if self.announced[of] != NONE {
                // A tick.
                let mut next = self;
                next.views[of] = self.epoch;
                next.announced[of] = self.epoch.min(self.least_pin(of));
                all.push(next);
            }
            if self.least_pin(of) == NONE {
                let announced =
                    std::array::from_fn(|at| if at == of { NONE } else { self.announced[at] });
                all.push(State { announced, ..self });
            }
        }
        let is_level = |at: usize| !lives(at) || [NONE, self.epoch].contains(&self.announced[at]);
        if self.advance.is_none() && self.epoch < self.epoch_last && (0..3).all(is_level) {
            all.push(State { advance: Some(self.epoch), ..self });
        }
        if let Some(from) = self.advance {
            let epoch = self.epoch + u8::from(self.epoch == from);
            all.push(State { advance: None, epoch, ..self });
        }
        if lives(A) && self.steps[A] < RETIRER_STEPS {
            all.push(State { is_dead: true, ..self });
            all.extend(self.retirer(broken).map(|next| next.stepped(A)));
        }
        all.extend(self.reader().map(|next| next.stepped(R)));
        all.extend(self.recoverer(broken).map(|next| next.stepped(B)));
        all
    }

    fn stepped(mut self, who: usize) -> State {
        self.steps[who] += 1;
        self
    }

    fn retirer(mut self, broken: Broken) -> Option<State> {
        let frees_first = broken == Broken::FreesBeforeClearing;
        let looks_early = broken == Broken::LooksAtInboxUnpinned;
        match self.steps[A] {
            0 => self.pin(A, 0),
            1 => self.is_linked = false,
            2 => {
                self.retired_at = self.views[A];
                self.pins[A][1] = match broken {
                    Broken::PinsRetirementAtView => self.views[A],
                    Broken::PinsNothing => NONE,
                    _ => self.pins[A][0],
                };
                self.pins[A][0] = NONE;
            }
            3 => self.in_page = true,
            4 => self.pins[A][1] = NONE,
            // The look at all members by which it is due.
            5 if self.bound(A) >= self.retired_at + 2 => self.sees_open = self.is_open,
            5 => return None,
            6 => self.pin(A, 2),
            7 if looks_early => {}
            7 => self.sees_open = self.is_open,
            8 if frees_first => self.give(),
            8 => self.in_page = false,
            9 => {
                if frees_first {
                    self.in_page = false
                } else {
                    self.give()
                }
                self.pins[A][2] = NONE;
            }
            _ => return None,
        }
        Some(self)
    }

    fn give(&mut self) {
        if self.sees_open { self.in_inbox = true } else { self.has_bit = true }
    }

    fn reader(mut self) -> Option<State> {
        match self.steps[R] {
            0 => self.pin(R, 0),
            1 => self.is_held = self.is_linked,
            2 => (self.is_held, self.pins[R][0]) = (false, NONE),
            _ => return None,
        }
        Some(self)
    }

    fn recoverer(mut self, broken: Broken) -> Option<State> {
        let has_waited = self.bound(B) > self.waits_past;
        match self.steps[B] {
            0 => self.pin(B, 0),
            1 if broken == Broken::LeavesInboxOpen => {}
            1 => (self.is_open, self.in_inbox) = (false, false),
            2 => self.is_marked = self.is_linked,
            3 => {
                self.pins[B][0] = NONE;
                (self.views[B], self.waits_past) = (self.epoch, self.epoch);
            }
            4 if has_waited || broken == Broken::ReadsPagesAtOnce => self.is_kept = self.in_page,
            5 => (self.views[B], self.waits_past) = (self.epoch, self.epoch),
            6 if has_waited || broken == Broken::ReadsBitmapsAtOnce => self.is_kept |= self.has_bit,
            7 => self.is_freed = !self.is_marked && !self.is_kept,
            _ => return None,
        }
        Some(self)
    }
}

/// The first fault of the protocol that breaks `broken`, and the number of states.
fn explore(broken: Broken, has_reader: bool) -> (Option<&'static str>, usize) {
    let first = State::first(has_reader);
    let mut seen = HashSet::from([first]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        if let Some(fault) = state.fault() {
            return (Some(fault), seen.len());
        }
        open.extend(state.next(broken).into_iter().filter(|next| seen.insert(*next)));
    }
    (None, seen.len())
}

#[test]
fn every_order_of_a_retirement_and_a_recovery_frees_once() {
    for has_reader in [true, false] {
        let (fault, states) = explore(Broken::Nothing, has_reader);
        assert_eq!(fault, None);
        assert!(states > 50_000, "{states} states");
    }
    for broken in [
        Broken::PinsRetirementAtView,
        Broken::PinsNothing,
        Broken::ReadsPagesAtOnce,
        Broken::ReadsBitmapsAtOnce,
        Broken::LooksAtInboxUnpinned,
        Broken::LeavesInboxOpen,
        Broken::FreesBeforeClearing,
    ] {
        let (fault, states) = explore(broken, false);
        assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
    }
}

/// The object `x` lies in an orphan, free or lost. `C` adopts the block, takes `x` if it is free, links it, and
/// gives the block up. `B` recovers or sweeps: it notes the orphan, walks, claims and frees (INV-REC-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Adoption {
    is_orphan: bool,
    version: u8,
    noted: Option<u8>,
    has_bit: bool,
    is_taken: bool,
    is_linked: bool,
    is_marked: bool,
    is_freed: bool,
    adopter_steps: u8,
    recoverer_steps: u8,
}

const ADOPTER_STEPS: u8 = 4;
const SWEEPER_STEPS: u8 = 4;

impl Adoption {
    fn first(has_bit: bool) -> Self {
        Adoption {
            is_orphan: true,
            version: 0,
            noted: None,
            has_bit,
            is_taken: false,
            is_linked: false,
            is_marked: false,
            is_freed: false,
            adopter_steps: 0,
            recoverer_steps: 0,
        }
    }

    fn fault(&self) -> Option<&'static str> {
        if self.is_freed && self.is_taken {
            return Some("freed although its new user has it");
        }
        // Nobody adopted it: what was lost is free.
        let is_over = self.adopter_steps == 0 && self.recoverer_steps == SWEEPER_STEPS;
        (is_over && !self.is_freed && !self.has_bit).then_some("lost")
    }

    fn adopter(mut self) -> Option<Self> {
        match self.adopter_steps {
            0 if self.is_orphan => (self.is_orphan, self.version) = (false, self.version + 1),
            1 => (self.is_taken, self.has_bit) = (self.has_bit, false),
            2 => self.is_linked = self.is_taken,
            3 => (self.is_orphan, self.version) = (true, self.version + 1),
            _ => return None,
        }
        self.adopter_steps += 1;
        Some(self)
    }

    fn sweeper(mut self, ignores_version: bool) -> Option<Self> {
        self.recoverer_steps += 1;
        match self.recoverer_steps - 1 {
            0 if self.is_orphan => self.noted = Some(self.version),
            1 => self.is_marked = self.is_linked,
            2 if self.is_orphan && (ignores_version || self.noted == Some(self.version)) => {
                self.is_orphan = false;
            }
            3 => self.is_freed = !self.is_marked && !self.has_bit,
            // Not this one's to search.
            0 | 2 => self.recoverer_steps = SWEEPER_STEPS + 1,
            _ => return None,
        }
        Some(self)
    }
}

fn explore_adoption(ignores_version: bool) -> (Option<&'static str>, usize) {
    let mut open: Vec<Adoption> = [true, false].map(Adoption::first).to_vec();
    let mut seen: HashSet<Adoption> = open.iter().copied().collect();
    while let Some(state) = open.pop() {
        if let Some(fault) = state.fault() {
            return (Some(fault), seen.len());
        }
        let adopted = (state.adopter_steps < ADOPTER_STEPS).then(|| state.adopter()).flatten();
        let swept = (state.recoverer_steps < SWEEPER_STEPS)
            .then(|| state.sweeper(ignores_version))
            .flatten();
        open.extend(adopted.into_iter().chain(swept).filter(|next| seen.insert(*next)));
    }
    (None, seen.len())
}

#[test]
fn every_order_of_an_adoption_and_a_recovery_frees_only_what_is_lost() {
    let (fault, states) = explore_adoption(false);
    assert_eq!(fault, None);
    assert!(states > 20, "{states} states");
    assert!(explore_adoption(true).0.is_some(), "a claim whatever the version shows no fault");
}
