//! Models: explore every order in which clients retire a collapsed node, and use what they remember.
//!
//! Each remote operation is a step of its own. A variant that leaves out a rule must show a fault.

#![allow(clippy::disallowed_types, reason = "the order of the sets is never looked at")]

use std::collections::HashSet;
use std::hash::Hash;

/// The first fault in what can follow from `first`, and the number of states.
fn explore<S: Copy + Eq + Hash>(
    first: S,
    fault: impl Fn(&S) -> Option<&'static str>,
    next: impl Fn(S) -> Vec<S>,
) -> (Option<&'static str>, usize) {
    let (mut seen, mut open) = (HashSet::from([first]), vec![first]);
    while let Some(state) = open.pop() {
        if let Some(fault) = fault(&state) {
            return (Some(fault), seen.len());
        }
        open.extend(next(state).into_iter().filter(|next| seen.insert(*next)));
    }
    (None, seen.len())
}

/// The claim by which a node with at most one live child is retired (`node_switch.rs`): the word that is put in
/// its place does not tell whose CAS it was. Any completion of that CAS may be lost, any client may die.
mod claim {
    use super::explore;

    /// A rule that a variant breaks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Broken {
        Nothing,
        /// A client that may have unlinked the node retires it without a claim.
        DoubtRetires,
        /// A client that may have unlinked the node leaves it to others.
        DoubtLeaves,
        /// A client that knows that it has unlinked the node claims nothing.
        WinnerSkipsClaim,
        /// A client claims the node before it is unlinked, and retires it in any case.
        ClaimsLinkedNode,
    }

    const CLIENTS: usize = 3;
    const OVER: u8 = u8::MAX;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct State {
        is_linked: bool,
        claimed_by: Option<u8>,
        retired: u8,
        is_retired_linked: bool,
        has_death: bool,
        steps: [u8; CLIENTS],
        in_doubt: [bool; CLIENTS],
    }

    fn fault(state: &State) -> Option<&'static str> {
        if state.retired > 1 {
            return Some("retired twice");
        }
        if state.is_retired_linked {
            return Some("retired while it is linked");
        }
        let is_over = state.steps.iter().all(|step| *step == OVER);
        (is_over && !state.has_death && state.retired == 0).then_some("lost")
    }

    fn next(state: State, broken: Broken) -> Vec<State> {
        let mut all = Vec::new();
        for client in (0..CLIENTS).filter(|client| state.steps[*client] != OVER) {
            let mut dead = State { has_death: true, ..state };
            dead.steps[client] = OVER;
            all.push(dead);
            let mut add = |step: u8, change: &dyn Fn(&mut State)| {
                let mut next = state;
                next.steps[client] = step;
                change(&mut next);
                all.push(next);
            };
            let claims_early = broken == Broken::ClaimsLinkedNode;
            match state.steps[client] {
                // A fresh way to the node.
                0 if claims_early => add(4, &|_| {}),
                0 if state.is_linked => add(1, &|_| {}),
                0 => add(3, &|_| {}),
                // The CAS that unlinks it: done, lost to another, or without a completion.
                1 if state.is_linked => {
                    let then = if broken == Broken::WinnerSkipsClaim { 5 } else { 4 };
                    add(then, &|next| next.is_linked = false);
                    add(2, &|next| next.is_linked = false);
                    add(2, &|_| {});
                }
                1 => {
                    add(0, &|_| {});
                    add(2, &|_| {});
                }
                // The slot is read again.
                2 => add(0, &|next| next.in_doubt[client] |= !next.is_linked),
                // The node is gone.
                3 if !state.in_doubt[client] || broken == Broken::DoubtLeaves => add(OVER, &|_| {}),
                3 if broken == Broken::DoubtRetires => add(5, &|_| {}),
                3 => add(4, &|_| {}),
                4 if state.claimed_by.is_none() => {
                    add(5, &|next| next.claimed_by = Some(client as u8));
                }
                4 => add(OVER, &|_| {}),
                _ => add(OVER, &|next| {
                    next.retired += 1;
                    next.is_retired_linked |= next.is_linked;
                }),
            }
        }
        all
    }

    fn run(broken: Broken) -> (Option<&'static str>, usize) {
        let first = State {
            is_linked: true,
            claimed_by: None,
            retired: 0,
            is_retired_linked: false,
            has_death: false,
            steps: [0; CLIENTS],
            in_doubt: [false; CLIENTS],
        };
        explore(first, fault, |state| next(state, broken))
    }

    #[test]
    fn a_collapsed_node_is_retired_once_and_only_the_dead_lose_it() {
        let (fault, states) = run(Broken::Nothing);
        assert_eq!(fault, None);
        assert!(states > 400, "{states} states");
        for broken in [
            Broken::DoubtRetires,
            Broken::DoubtLeaves,
            Broken::WinnerSkipsClaim,
            Broken::ClaimsLinkedNode,
        ] {
            let (fault, states) = run(broken);
            assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
        }
    }
}

/// A compute server remembers entries of the skip table (`cache.rs`), with the pool's rule for reuse (INV-EPOCH-7). A
/// switcher elsewhere unlinks `x`, takes its entry out, leaves a notice and retires it. Two threads of one compute
/// server run two operations each: they check the line, begin at what they remember or probe, and learn.
mod notices {
    use super::explore;

    /// A rule that a variant breaks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Broken {
        Nothing,
        /// The switcher retires the node before it leaves the notice.
        RetiresFirst,
        /// The switcher leaves the notice before it takes the entry out.
        NotifiesFirst,
        /// An operation learns whatever was forgotten since its probe.
        LearnsAlways,
        /// No operation checks the line.
        NeverChecks,
        /// A check counts for the next moment, too.
        CheckLasts,
        /// A place that is not written yet counts as heeded.
        PassesUnwritten,
    }

    const THREADS: usize = 2;
    const OPS: u8 = 2;
    const MOMENTS: u8 = 2;
    const NONE: u8 = u8::MAX;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct State {
        moment: u8,
        has_entry: bool,
        head: u8,
        is_written: bool,
        retired_at: u8,
        is_reused: bool,
        switch: u8,
        // The compute server.
        checked: u8,
        known: u8,
        generation: u8,
        remembers: bool,
        threads: [Thread; THREADS],
        has_fault: bool,
    }

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    struct Thread {
        step: u8,
        ops: u8,
        pin: u8,
        asked: u8,
        head: u8,
        sees_notice: bool,
        generation: u8,
        holds: bool,
        has_probed: bool,
    }

    fn next(state: State, broken: Broken) -> Vec<State> {
        let mut all = Vec::new();
        if state.moment < MOMENTS {
            all.push(State { moment: state.moment + 1, ..state });
        }
        all.extend(switcher(state, broken));
        for at in 0..THREADS {
            all.extend(thread(state, at, broken));
        }
        all
    }

    fn switcher(state: State, broken: Broken) -> Option<State> {
        let mut next = State { switch: state.switch + 1, ..state };
        let order: [u8; 5] = match broken {
            Broken::RetiresFirst => [0, 3, 1, 2, 4],
            Broken::NotifiesFirst => [1, 2, 0, 3, 4],
            _ => [0, 1, 2, 3, 4],
        };
        match *order.get(usize::from(state.switch))? {
            0 => next.has_entry = false,
            1 => next.head = 1,
            2 => next.is_written = true,
            3 => next.retired_at = state.moment,
            // The retirer's view may be one behind: it waits for one moment more than its own.
            _ => {
                let passed = |moment: u8| moment > state.retired_at;
                let pins = state.threads.iter().filter(|thread| thread.step > 0);
                if !passed(state.moment) || !pins.map(|thread| thread.pin).all(passed) {
                    return None;
                }
                next.is_reused = true;
            }
        }
        Some(next)
    }

    fn thread(state: State, at: usize, broken: Broken) -> Option<State> {
        let mut next = state;
        let old = state.threads[at];
        let thread = &mut next.threads[at];
        thread.step += 1;
        match old.step {
            0 if old.ops == OPS => return None,
            0 => thread.pin = state.moment,
            // The line, unless it was read at this moment.
            1 => {
                let lasts = broken == Broken::CheckLasts && state.checked != NONE;
                let is_checked = state.checked == state.moment
                    || (lasts && state.checked + 1 == state.moment)
                    || broken == Broken::NeverChecks;
                if is_checked {
                    thread.step = 4;
                } else {
                    (thread.asked, thread.head) = (state.moment, state.head);
                }
            }
            2 => thread.sees_notice = state.known < old.head && state.is_written,
            3 => {
                let is_unwritten = state.known < old.head && !old.sees_notice;
                if old.sees_notice {
                    next.generation += 1;
                    next.remembers = false;
                }
                if !is_unwritten || broken == Broken::PassesUnwritten {
                    next.known = next.known.max(old.head);
                }
                next.checked = old.asked;
            }
            4 => thread.generation = state.generation,
            5 => {
                thread.has_probed = !state.remembers;
                thread.holds = state.remembers || state.has_entry;
            }
            6 => next.has_fault |= old.holds && state.is_reused,
            _ => {
                let is_new = old.generation == state.generation || broken == Broken::LearnsAlways;
                next.remembers |= old.has_probed && old.holds && is_new;
                next.threads[at] = Thread { ops: old.ops + 1, ..Thread::default() };
            }
        }
        Some(next)
    }

    fn run(broken: Broken) -> (Option<&'static str>, usize) {
        let first = State {
            moment: 0,
            has_entry: true,
            head: 0,
            is_written: false,
            retired_at: NONE,
            is_reused: false,
            switch: 0,
            checked: NONE,
            known: 0,
            generation: 0,
            remembers: false,
            threads: [Thread::default(); THREADS],
            has_fault: false,
        };
        let fault = |state: &State| state.has_fault.then_some("follows what was freed");
        explore(first, fault, |state| next(state, broken))
    }

    #[test]
    fn a_remembered_node_is_never_used_after_it_was_freed() {
        let (fault, states) = run(Broken::Nothing);
        assert_eq!(fault, None);
        assert!(states > 5_000, "{states} states");
        for broken in [
            Broken::RetiresFirst,
            Broken::NotifiesFirst,
            Broken::LearnsAlways,
            Broken::NeverChecks,
            Broken::CheckLasts,
            Broken::PassesUnwritten,
        ] {
            let (fault, states) = run(broken);
            assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
        }
    }
}
