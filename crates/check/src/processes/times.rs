//! Recovery times: measure, from clients' answers, the time from each fault until all work goes on.
//!
//! The driver takes times only in rounds whose faults happen one at a time, with quiet before and
//! after: every other round. Keys count as served again when an operation on *every* key in question
//! has been answered, so that a key without a request counts against the time.

use serde::Serialize;

use super::calls::CALLS_MAX;
use super::config::Network;
use super::owners::Ranges;
use crate::history::{Answer, Event};

/// A fault of a process or a link.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) what: ProcessFault,
    /// The process, or the number of the memory server.
    pub(super) who: String,
    /// Begin, by the clock of the histories.
    pub(super) from_ns: u64,
    /// Time at which its target began to come back; of a kill, at once.
    pub(super) until_ns: u64,
    /// Time at which a memory server that was started again listened.
    pub(super) listens_ns: Option<u64>,
    /// The keys that a killed process had, if keys have owners.
    pub(super) had: Option<Ranges>,
    /// No other fault happened about that time.
    pub(super) is_alone: bool,
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessFault {
    /// `kill -9` of a compute server.
    KillCompute,
    /// SIGSTOP and SIGCONT of a compute server.
    StopCompute,
    /// `kill -9` of a memory server, and a new start over its file.
    KillMemory,
    /// SIGSTOP and SIGCONT of a memory server.
    StopMemory,
    /// A link was cut in both directions.
    Cut,
    /// A link was cut in one direction.
    HalfCut,
    /// A link was slow.
    Slow,
    /// All connections of a link were ended.
    EndConnections,
    /// Links between compute servers, all that lead to one or that from one to another, were cut in both
    /// directions.
    CallCut,
    /// They were cut in one direction.
    CallHalfCut,
    /// They were slow.
    CallSlow,
    /// All their connections were ended.
    CallEndConnections,
}

/// Faults of a run over a network, and the times until all work went on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NetworkReport {
    /// Lease in milliseconds: time for which a silent compute server counted as alive.
    pub lease_ms: f64,
    /// Leases within which the keys of a killed compute server were to be served again. No
    /// operation on others' keys was to take more than half of that. `None`: no limit.
    pub recovery_leases: Option<f64>,
    /// The number of memory servers.
    pub memory_servers: u16,
    /// Memory servers killed, and started again over their files.
    pub kills_memory: u64,
    /// Memory servers stopped and continued.
    pub stops_memory: u64,
    /// Links cut in both directions.
    pub cuts: u64,
    /// Links cut in one direction.
    pub half_cuts: u64,
    /// Links slowed.
    pub slows: u64,
    /// Links whose connections were all ended.
    pub ends: u64,
    /// Times that links between compute servers were cut in both directions: all that led to one,
    /// or that from one to another.
    pub call_cuts: u64,
    /// Times that they were cut in one direction.
    pub call_half_cuts: u64,
    /// Times that they were slowed.
    pub call_slows: u64,
    /// Times that all their connections were ended.
    pub call_ends: u64,
    /// Client processes that were cut off, or gave the pool up, and opened it anew.
    pub opened_anew: u64,
    /// From the kill of a compute server until each key that it had (each key of the table, if keys have no
    /// owners) was answered again, in milliseconds.
    pub kills_compute_served: Times,
    /// The longest operation of the others about such a kill, on keys that the dead one did not have (on
    /// any, if keys have no owners).
    pub kills_compute_stalls: Times,
    /// From the new start of a memory server until it listened.
    pub starts_listen: Times,
    /// From the new start of a memory server until each key was answered again.
    pub starts_served: Times,
    /// From the return of a memory server, a client process or a link until each key was answered
    /// again.
    pub returns_served: Times,
    /// All faults, one by one.
    pub faults: Vec<FaultReport>,
}

/// One fault.
#[derive(Clone, Debug, Serialize)]
pub struct FaultReport {
    /// The round, from 1.
    pub round: u64,
    /// Its kind.
    pub what: ProcessFault,
    /// The process; of links, the process and the memory server, or the asking and the asked
    /// process.
    pub who: String,
    /// Time that it was away, in milliseconds.
    pub away_ms: f64,
    /// No other fault happened about that time, so that the times tell of this one alone.
    pub is_alone: bool,
    /// From its return, or its death, until each key in question was answered again. `None`: not by the
    /// end of the round.
    pub served_ms: Option<f64>,
    /// The longest operation of the others meanwhile.
    pub stall_ms: f64,
    /// From the start of a memory server until it listened.
    pub listens_ms: Option<f64>,
}

/// Some times, in milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Times {
    /// The number of times.
    pub count: u64,
    /// Times of these not reached by the end of the round.
    pub never: u64,
    /// The one in the middle.
    pub median_ms: f64,
    /// The longest.
    pub longest_ms: f64,
    #[serde(skip)]
    all_ms: Vec<f64>,
}

impl Times {
    fn add(&mut self, time_ms: Option<f64>) {
        self.count += 1;
        let Some(time_ms) = time_ms else {
            self.never += 1;
            return;
        };
        let at = self.all_ms.partition_point(|known| *known < time_ms);
        self.all_ms.insert(at, time_ms);
        self.median_ms = self.all_ms[self.all_ms.len() / 2];
        self.longest_ms = self.longest_ms.max(time_ms);
    }
}

impl NetworkReport {
    /// The report of a run that has not begun.
    pub(super) fn of(network: &Network) -> Self {
        let lease_ms = network.lease.as_secs_f64() * 1e3;
        NetworkReport {
            lease_ms,
            recovery_leases: network.recovery_leases,
            memory_servers: network.memory_servers,
            ..Self::default()
        }
    }

    /// Adds a fault of that round, of whose history `events` are.
    ///
    /// # Errors
    /// The operation or recovery that took longer than it may.
    pub(super) fn add(
        &mut self,
        round: u64,
        fault: &Fault,
        keys: &[Vec<u8>],
        events: &[&Event],
    ) -> Result<(), String> {
        self.count(fault.what);
        let has = |key: &[u8]| fault.had.as_ref().is_none_or(|had| had.contains(key));
        let is_kill = fault.what == ProcessFault::KillCompute;
        let wanted = keys.iter().filter(|key| !is_kill || has(key));
        // If the target was only away, an answer to an earlier call counts as well.
        let begun_ns = if is_kill { fault.from_ns } else { 0 };
        let answered = wanted.map(|key| first_answer(events, key, begun_ns, fault.until_ns));
        let served_ns = answered.collect::<Option<Vec<u64>>>();
        let served_ns = served_ns.map(|times| times.into_iter().max().unwrap_or(fault.until_ns));
        let served_ms = served_ns.map(|time| ms(time - fault.until_ns));
        let is_others = |key: &[u8]| !is_kill || fault.had.is_none() || !has(key);
        let until_ns = served_ns.unwrap_or(u64::MAX);
        let stall_ms = longest(events, fault.from_ns, until_ns, is_others);
        let listens_ms = fault.listens_ns.map(|time| ms(time.saturating_sub(fault.until_ns)));
        if fault.is_alone {
            match fault.what {
                ProcessFault::KillCompute => {
                    if !fault.had.as_ref().is_some_and(Ranges::is_empty) {
                        self.kills_compute_served.add(served_ms);
                    }
                    self.kills_compute_stalls.add(Some(stall_ms));
                }
                ProcessFault::KillMemory => self.starts_served.add(served_ms),
                _ => self.returns_served.add(served_ms),
            }
        }
        if let Some(time_ms) = listens_ms {
            self.starts_listen.add(Some(time_ms));
        }
        self.faults.push(FaultReport {
            round,
            what: fault.what,
            who: fault.who.clone(),
            away_ms: ms(fault.until_ns - fault.from_ns),
            is_alone: fault.is_alone,
            served_ms,
            stall_ms,
            listens_ms,
        });
        if !(is_kill && fault.is_alone) {
            return Ok(());
        }
        let answered = events.iter().filter_map(|event| event.answer.as_ref());
        let seen_ns = answered.map(|(at_ns, _)| *at_ns).max().unwrap_or(0);
        let seen_ms = ms(seen_ns.saturating_sub(fault.until_ns));
        self.judge(fault, served_ms, stall_ms, seen_ms)
    }

    /// Checks that a death was over in time, if a limit is set; the round went on for `seen_ms`.
    fn judge(
        &self,
        fault: &Fault,
        served_ms: Option<f64>,
        stall_ms: f64,
        seen_ms: f64,
    ) -> Result<(), String> {
        let Some(leases) = self.recovery_leases else { return Ok(()) };
        let (most_ms, lease_ms) = (leases * self.lease_ms, self.lease_ms);
        let late = "a compute server was killed, and nothing else went wrong:";
        let has_keys = !fault.had.as_ref().is_some_and(Ranges::is_empty);
        if has_keys && served_ms.unwrap_or(seen_ms) > most_ms {
            let served = match served_ms {
                Some(served_ms) => format!("were served again after {served_ms:.0} ms"),
                None => format!("were not all served again after {seen_ms:.0} ms"),
            };
            return Err(format!(
                "{late} the keys of {} {served}, allowed are {leases} leases of {lease_ms:.0} ms",
                fault.who
            ));
        }
        // Without owners, all keys are the dead one's as well, which may hold a lock on any.
        if fault.had.is_some() && stall_ms > most_ms / 2.0 {
            return Err(format!(
                "{late} an operation on a key that {} did not have took {stall_ms:.0} ms, allowed is half of \
                 {leases} leases of {lease_ms:.0} ms",
                fault.who
            ));
        }
        Ok(())
    }

    fn count(&mut self, what: ProcessFault) {
        match what {
            // Counted with those of runs on shared memory.
            ProcessFault::KillCompute | ProcessFault::StopCompute => {}
            ProcessFault::KillMemory => self.kills_memory += 1,
            ProcessFault::StopMemory => self.stops_memory += 1,
            ProcessFault::Cut => self.cuts += 1,
            ProcessFault::HalfCut => self.half_cuts += 1,
            ProcessFault::Slow => self.slows += 1,
            ProcessFault::EndConnections => self.ends += 1,
            ProcessFault::CallCut => self.call_cuts += 1,
            ProcessFault::CallHalfCut => self.call_half_cuts += 1,
            ProcessFault::CallSlow => self.call_slows += 1,
            ProcessFault::CallEndConnections => self.call_ends += 1,
        }
    }
}

/// The time at which an operation on `key` that began from `begun_ns` on was first answered after
/// `after_ns`.
fn first_answer(events: &[&Event], key: &[u8], begun_ns: u64, after_ns: u64) -> Option<u64> {
    let answers = events.iter().filter_map(|event| match event.answer {
        None | Some((_, Answer::Nothing)) => None,
        Some((at_ns, _)) if event.from_ns < begun_ns || at_ns < after_ns => None,
        Some((at_ns, _)) => (event.call.key() == Some(key)).then_some(at_ns),
    });
    answers.min()
}

/// The longest operation on such a key, answered or refused, that overlaps this time. An operation
/// on several keys counts if all of them are such keys.
fn longest(events: &[&Event], from_ns: u64, until_ns: u64, of: impl Fn(&[u8]) -> bool) -> f64 {
    let mut meant = Vec::new();
    let mut others = Vec::new();
    for event in events {
        let (Some((at_ns, _)), Some(key)) = (&event.answer, event.call.key()) else { continue };
        if event.from_ns <= until_ns && *at_ns >= from_ns {
            let side = if of(key) { &mut meant } else { &mut others };
            side.push((event.client, event.from_ns, *at_ns));
        }
    }
    meant.retain(|one| !others.iter().any(|other| are_of_one_call(*one, *other)));
    let times = meant.into_iter().map(|(_, from_ns, at_ns)| at_ns - from_ns);
    ms(times.max().unwrap_or(0))
}

/// Returns whether two operations come from one call, such as `get_many`: each is given by client,
/// begin and end. They have numbers of one thread, and are written down at once.
fn are_of_one_call(one: (u32, u64, u64), other: (u32, u64, u64)) -> bool {
    let at_once = |one: u64, other: u64| one.abs_diff(other) < 1_000_000;
    one.0.abs_diff(other.0) < CALLS_MAX as u32 && at_once(one.1, other.1) && at_once(one.2, other.2)
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::history::Op;

    fn get(key: &str, from_ms: u64, answered_ms: Option<u64>) -> Event {
        Event {
            client: 0,
            call: Op::Get { key: key.as_bytes().to_vec() },
            from_ns: from_ms * 1_000_000,
            answer: answered_ms.map(|at| (at * 1_000_000, Answer::Value(None))),
        }
    }

    fn refused(key: &str, from_ms: u64, answered_ms: u64) -> Event {
        let answer = Some((answered_ms * 1_000_000, Answer::Nothing));
        Event { answer, ..get(key, from_ms, None) }
    }

    fn fault(what: ProcessFault, from_ms: u64, until_ms: u64) -> Fault {
        Fault {
            what,
            who: "somebody".to_owned(),
            from_ns: from_ms * 1_000_000,
            until_ns: until_ms * 1_000_000,
            listens_ns: None,
            had: None,
            is_alone: true,
        }
    }

    fn keys() -> Vec<Vec<u8>> {
        ["a", "b"].map(|key| key.as_bytes().to_vec()).to_vec()
    }

    #[test]
    fn recovery_ends_when_later_calls_for_every_key_were_answered() {
        let events = [
            get("a", 90, Some(101)), // asked before: says nothing
            get("a", 100, Some(130)),
            refused("b", 100, 300),
            get("b", 310, Some(350)),
            get("b", 360, Some(361)),
            get("a", 90, None),
        ];
        let events: Vec<&Event> = events.iter().collect();
        let mut report = NetworkReport::default();
        report.add(1, &fault(ProcessFault::KillCompute, 100, 100), &keys(), &events).unwrap();
        assert_eq!(report.faults[0].served_ms, Some(250.0));
        assert_eq!(report.faults[0].stall_ms, 200.0);
        assert_eq!(report.kills_compute_served.longest_ms, 250.0);
        report.add(1, &fault(ProcessFault::KillCompute, 360, 360), &keys(), &events).unwrap();
        assert_eq!(report.faults[1].served_ms, None, "nobody asked for a");
        assert_eq!((report.kills_compute_served.count, report.kills_compute_served.never), (2, 1));
    }

    #[test]
    fn a_return_ends_when_calls_for_every_key_were_answered() {
        let events = [&get("a", 90, Some(210)), &get("b", 205, Some(230))];
        let mut report = NetworkReport::default();
        let returned =
            Fault { listens_ns: Some(204_000_000), ..fault(ProcessFault::KillMemory, 100, 200) };
        report.add(3, &returned, &keys(), &events).unwrap();
        let told = &report.faults[0];
        assert_eq!((told.served_ms, told.listens_ms, told.away_ms), (Some(30.0), Some(4.0), 100.0));
        assert_eq!(report.kills_memory, 1);
        assert_eq!((report.starts_served.count, report.starts_listen.count), (1, 1));
        let crowded = Fault { is_alone: false, ..returned };
        report.add(4, &crowded, &keys(), &events).unwrap();
        assert_eq!((report.starts_served.count, report.faults.len()), (1, 2));
    }

    /// `get_many` of a key of the dead one and of another's took as long as the first, and failed a run.
    #[test]
    fn a_call_for_keys_of_the_dead_and_of_others_is_no_stall_of_the_others() {
        let by = |client: u32, event: Event| Event { client, ..event };
        let events = [
            by(8, get("a", 99, Some(180))),
            by(9, get("b", 99, Some(180))),
            by(12, get("b", 100, Some(110))),
            by(10, get("b", 120, Some(140))),
            by(8, get("a", 100, Some(150))),
        ];
        let stall_ms =
            |events: &[&Event]| longest(events, 100_000_000, 200_000_000, |key| key == b"b");
        let all: Vec<&Event> = events.iter().collect();
        assert_eq!(stall_ms(&all), 20.0);
        assert_eq!(stall_ms(&all[1..]), 81.0, "alone");
    }

    #[test]
    fn a_late_recovery_fails_the_run_if_there_is_a_limit() {
        let killed =
            Fault { had: Some(Ranges::everything()), ..fault(ProcessFault::KillCompute, 100, 100) };
        let events = [
            get("a", 100, Some(130)),
            get("b", 200, Some(350)),
            get("a", 900, Some(950)),
            get("c", 60, Some(210)),
        ];
        let events: Vec<&Event> = events.iter().collect();
        let judged = |leases: f64, killed: &Fault| {
            let mut report = NetworkReport {
                lease_ms: 100.0,
                recovery_leases: Some(leases),
                ..Default::default()
            };
            report.add(1, killed, &keys(), &events)
        };
        assert_eq!(judged(2.5, &killed), Ok(()));
        let late = judged(2.4, &killed).unwrap_err();
        assert!(late.contains("served again after 250 ms, allowed are 2.4 leases"), "{late}");
        // The killed server owned no keys: all are others', and the slowest operation on one took
        // 150 ms.
        let nothing = Fault { had: Some(Ranges::default()), ..killed.clone() };
        assert_eq!(judged(3.0, &nothing), Ok(()));
        let stalled = judged(2.9, &nothing).unwrap_err();
        assert!(stalled.contains("took 150 ms, allowed is half of 2.9 leases"), "{stalled}");
        // Without owners no key is another's.
        let shared = Fault { had: None, ..killed.clone() };
        assert_eq!(judged(2.5, &shared), Ok(()));
        assert!(judged(2.4, &shared).is_err());
        // Not served by the end of the round: a failure only if the limit ended before it.
        let never = Fault { from_ns: 400_000_000, until_ns: 400_000_000, ..shared };
        assert!(judged(5.4, &never).unwrap_err().contains("not all served again after 550 ms"));
        assert_eq!(judged(5.6, &never), Ok(()));
        let crowded = Fault { is_alone: false, ..never };
        assert_eq!(judged(0.1, &crowded), Ok(()));
    }

    #[test]
    fn times_report_their_median() {
        let mut times = Times::default();
        for time in [5.0, 1.0, 9.0, 2.0, 3.0] {
            times.add(Some(time));
        }
        assert_eq!((times.count, times.median_ms, times.longest_ms), (5, 3.0, 9.0));
    }
}
