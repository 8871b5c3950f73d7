//! Timed faults: kill, stop, slow or cut off servers at given times.

use std::fmt;
use std::str::FromStr;

use super::ScenarioError;

/// A fault of a server or a link, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A compute server dies.
    Kill(usize),
    /// A compute server dies, if it has not yet, and begins anew.
    Restart(usize),
    /// A compute server stands still. Memory that it exposes is served on, as by a card.
    Stop(usize),
    /// The same, and the memory that it exposes stands still as well.
    StopWithRegion(usize),
    /// It goes on.
    Resume(usize),
    /// A memory server takes this many times as long.
    Slow(usize, u32),
    /// A memory server stands still.
    StopMemory(usize),
    /// It goes on.
    ResumeMemory(usize),
    /// Messages of a compute server do not reach a memory server any more.
    CutRequests(usize, usize),
    /// Messages of a memory server do not reach a compute server any more.
    CutReplies(usize, usize),
    /// The link between a compute server and a memory server works again.
    Heal(usize, usize),
    /// Nothing comes from the first compute server to the second any more.
    CutCalls(usize, usize),
    /// It does again.
    HealCalls(usize, usize),
}

/// A fault at a certain time; written `kill:1@60000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedFault {
    /// Time, in nanoseconds from the start of the clients.
    pub at_ns: u64,
    /// The fault.
    pub kind: FaultKind,
}

/// A list of them in order of time; written with commas between them, or `none`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events(
    /// The list.
    pub Vec<TimedFault>,
);

const NAMES: &[&str] = &[
    "kill",
    "restart",
    "stop",
    "stop-with-region",
    "resume",
    "slow",
    "stop-memory",
    "resume-memory",
    "cut-requests",
    "cut-replies",
    "heal",
    "cut-calls",
    "heal-calls",
];

impl FaultKind {
    /// The compute server that it befalls, if one.
    pub fn compute(self) -> Option<usize> {
        match self {
            FaultKind::Kill(compute)
            | FaultKind::Restart(compute)
            | FaultKind::Stop(compute)
            | FaultKind::StopWithRegion(compute)
            | FaultKind::Resume(compute)
            | FaultKind::CutRequests(compute, _)
            | FaultKind::CutReplies(compute, _)
            | FaultKind::Heal(compute, _) => Some(compute),
            // The larger one decides whether both are there.
            FaultKind::CutCalls(from, to) | FaultKind::HealCalls(from, to) => Some(from.max(to)),
            _ => None,
        }
    }

    /// The memory server that it befalls, if one.
    pub fn server(self) -> Option<usize> {
        match self {
            FaultKind::Slow(server, _)
            | FaultKind::StopMemory(server)
            | FaultKind::ResumeMemory(server)
            | FaultKind::CutRequests(_, server)
            | FaultKind::CutReplies(_, server)
            | FaultKind::Heal(_, server) => Some(server),
            _ => None,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::Kill(compute) => write!(f, "kill:{compute}"),
            FaultKind::Restart(compute) => write!(f, "restart:{compute}"),
            FaultKind::Stop(compute) => write!(f, "stop:{compute}"),
            FaultKind::StopWithRegion(compute) => write!(f, "stop-with-region:{compute}"),
            FaultKind::Resume(compute) => write!(f, "resume:{compute}"),
            FaultKind::Slow(server, factor) => write!(f, "slow:{server}-{factor}"),
            FaultKind::StopMemory(server) => write!(f, "stop-memory:{server}"),
            FaultKind::ResumeMemory(server) => write!(f, "resume-memory:{server}"),
            FaultKind::CutRequests(compute, server) => {
                write!(f, "cut-requests:{compute}-{server}")
            }
            FaultKind::CutReplies(compute, server) => write!(f, "cut-replies:{compute}-{server}"),
            FaultKind::Heal(compute, server) => write!(f, "heal:{compute}-{server}"),
            FaultKind::CutCalls(from, to) => write!(f, "cut-calls:{from}-{to}"),
            FaultKind::HealCalls(from, to) => write!(f, "heal-calls:{from}-{to}"),
        }
    }
}

impl fmt::Display for TimedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.kind, self.at_ns)
    }
}

impl FromStr for TimedFault {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            ScenarioError(format!(
                "\"{text}\" is no event: as in kill:1@60000 (compute server 1 after 60 us), \
                 slow:0-8@0 (memory server 0, 8 times) or cut-replies:1-0@500 (compute server 1, \
                 memory server 0)"
            ))
        };
        let (what, at_ns) = text.split_once('@').ok_or_else(wrong)?;
        let at_ns = at_ns.parse().map_err(|_| wrong())?;
        let (name, numbers) = what.split_once(':').ok_or_else(wrong)?;
        if !NAMES.contains(&name) {
            return Err(ScenarioError::name("event", name, NAMES.iter().copied()));
        }
        let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number < 1 << 16);
        let one = || number(numbers).ok_or_else(wrong);
        let two = || {
            let (first, second) = numbers.split_once('-').ok_or_else(wrong)?;
            Ok((number(first).ok_or_else(wrong)?, number(second).ok_or_else(wrong)?))
        };
        let kind = match name {
            "kill" => FaultKind::Kill(one()?),
            "restart" => FaultKind::Restart(one()?),
            "stop" => FaultKind::Stop(one()?),
            "stop-with-region" => FaultKind::StopWithRegion(one()?),
            "resume" => FaultKind::Resume(one()?),
            "stop-memory" => FaultKind::StopMemory(one()?),
            "resume-memory" => FaultKind::ResumeMemory(one()?),
            "slow" => two().map(|(server, factor)| FaultKind::Slow(server, factor as u32))?,
            "cut-requests" => two().map(|(compute, to)| FaultKind::CutRequests(compute, to))?,
            "cut-replies" => two().map(|(compute, to)| FaultKind::CutReplies(compute, to))?,
            "cut-calls" => two().map(|(from, to)| FaultKind::CutCalls(from, to))?,
            "heal-calls" => two().map(|(from, to)| FaultKind::HealCalls(from, to))?,
            _ => two().map(|(compute, to)| FaultKind::Heal(compute, to))?,
        };
        Ok(TimedFault { at_ns, kind })
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        self.0
            .iter()
            .enumerate()
            .try_for_each(|(index, event)| write!(f, "{}{event}", if index > 0 { "," } else { "" }))
    }
}

impl FromStr for Events {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Events::default());
        }
        let mut events = text.split(',').map(str::parse).collect::<Result<Vec<TimedFault>, _>>()?;
        events.sort_by_key(|event| event.at_ns);
        Ok(Events(events))
    }
}
