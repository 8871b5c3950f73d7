//! Operation faults: probabilities and delays of torn, late and lost operations, and clock errors.

use std::fmt;
use std::str::FromStr;

use super::ScenarioError;

/// Faults of single operations: probabilities and times. Written `torn=0.5,late=0.01`, or `none`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that an operation of several words is torn.
    pub torn: f64,
    /// The longest further time over which half of the torn operations are spread, in nanoseconds.
    pub stretch: f64,
    /// Probability that an atomic stores later than it loads.
    pub split: f64,
    /// Spread of the latency of messages, in nanoseconds.
    pub jitter: f64,
    /// Probability that an operation comes late.
    pub late: f64,
    /// The longest delay, in nanoseconds; 0 takes the simulator's default, as below.
    pub late_ns: f64,
    /// Probability that an operation or its answer is lost.
    pub lost: f64,
    /// The longest time after which a lost operation may still take effect, in nanoseconds.
    pub lost_ns: f64,
    /// Time after which a client learns that there is no answer, in nanoseconds.
    pub timeout_ns: f64,
    /// Above 0: tasks that are ready at one moment run in any order.
    pub shuffle: f64,
    /// Time after which a stopped compute server counts as dead, in nanoseconds; 0: never.
    pub lease: f64,
    /// Largest difference between clocks of compute servers, in nanoseconds.
    pub skew: f64,
    /// Largest error in the speed of compute servers' clocks, in millionths.
    pub drift: f64,
    /// Most operations of a thread under way to a memory server; 0: any number.
    pub queue: f64,
    /// Probability that a message between compute servers comes twice.
    pub repeated: f64,
}

/// A fault's name and its place in [`Faults`].
pub(crate) type Field = (&'static str, fn(&mut Faults) -> &mut f64);

/// Every fault by name, with the largest value that makes sense.
pub(crate) const FIELDS: &[(Field, f64)] = &[
    (("torn", |faults| &mut faults.torn), 1.0),
    (("stretch", |faults| &mut faults.stretch), 1e6),
    (("split", |faults| &mut faults.split), 1.0),
    (("jitter", |faults| &mut faults.jitter), 1_500.0),
    (("late", |faults| &mut faults.late), 1.0),
    (("late-ns", |faults| &mut faults.late_ns), 1e9),
    (("lost", |faults| &mut faults.lost), 1.0),
    (("lost-ns", |faults| &mut faults.lost_ns), 1e9),
    (("timeout-ns", |faults| &mut faults.timeout_ns), 1e9),
    (("shuffle", |faults| &mut faults.shuffle), 1.0),
    (("lease", |faults| &mut faults.lease), 1e9),
    (("skew", |faults| &mut faults.skew), 1e9),
    (("drift", |faults| &mut faults.drift), 1e5),
    (("queue", |faults| &mut faults.queue), 65_536.0),
    (("repeated", |faults| &mut faults.repeated), 1.0),
];

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut faults = self.clone();
        let mut is_first = true;
        for ((name, place), _) in FIELDS {
            let value = *place(&mut faults);
            if value != 0.0 {
                write!(f, "{}{name}={value}", if is_first { "" } else { "," })?;
                is_first = false;
            }
        }
        if is_first { f.write_str("none") } else { Ok(()) }
    }
}

impl FromStr for Faults {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = Faults::default();
        if text == "none" {
            return Ok(faults);
        }
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, "0.5"));
            let Some(((_, place), most)) = FIELDS.iter().find(|((known, _), _)| *known == name)
            else {
                let names = FIELDS.iter().map(|((name, _), _)| *name);
                return Err(ScenarioError::name("fault", name, names));
            };
            let value: f64 = value.parse().unwrap_or(f64::NAN);
            if !(0.0..=*most).contains(&value) {
                let why = format!("\"{part}\": {name} takes 0 to {most}, as in {name}={most}");
                return Err(ScenarioError(why));
            }
            *place(&mut faults) = value;
        }
        Ok(faults)
    }
}

/// A range of numbers of remote operations, from the start of the clients; written `100..2000`,
/// `100..` or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first.
    pub from: u64,
    /// One more than the last; `u64::MAX`: no end.
    pub to: u64,
}

impl Default for Window {
    fn default() -> Self {
        Window { from: 0, to: u64::MAX }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.to) {
            (0, u64::MAX) => f.write_str("all"),
            (from, u64::MAX) => write!(f, "{from}.."),
            (from, to) => write!(f, "{from}..{to}"),
        }
    }
}

impl FromStr for Window {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Window::default());
        }
        let end = |text: &str, open: u64| match text {
            "" => Some(open),
            _ => text.parse().ok(),
        };
        let ends = text.split_once("..").and_then(|(from, to)| {
            let (from, to) = (end(from, 0)?, end(to, u64::MAX)?);
            (from <= to).then_some(Window { from, to })
        });
        ends.ok_or_else(|| {
            ScenarioError(format!("\"{text}\" is no window: all, or as in 100..2000 or 100.."))
        })
    }
}
