//! Violations: explain in few rows why a history is wrong.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Display, Formatter};
use std::ops::Bound;

use super::ops::{ABSENT, KeyOp, KeyState, NONE, UNSEEN};
use super::search::{Search, SearchVerdict, Trace};
use super::split::{FIRST_VALUE, Part};
use crate::history::{Answer, Event, History, Op};

/// Steps of one search for a shorter example.
const SHORTEN_STEPS: u64 = 200_000;

/// Longer examples are not tried without each of their reads.
const SHORTEN_OPS: usize = 300;

/// A history that no table may produce.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// It is none of a table: its recorder has made a mistake.
    Malformed {
        /// Place of the event in the history; `None` for the initial content.
        event: Option<usize>,
        /// The fault.
        what: String,
    },
    /// A scan's answer is wrong whatever the table held.
    Scan(Box<ScanViolation>),
    /// The operations on a key have no order that explains their answers.
    Key(KeyViolation),
}

impl Violation {
    pub(super) fn with_others(mut self, count: usize) -> Self {
        match &mut self {
            Violation::Malformed { .. } => {}
            Violation::Scan(scan) => scan.others = count,
            Violation::Key(key) => key.others = count,
        }
        self
    }
}

impl std::error::Error for Violation {}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Malformed { event: Some(event), what } => {
                write!(f, "event {event} of the history is malformed: {what}")
            }
            Violation::Malformed { event: None, what } => write!(f, "malformed history: {what}"),
            Violation::Scan(scan) => scan.fmt(f),
            Violation::Key(key) => key.fmt(f),
        }
    }
}

/// Fault of a scan's answer in itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScanFault {
    /// A key comes twice.
    Twice,
    /// A key comes before one that should stand in front of it.
    OutOfOrder,
    /// A key does not lie in the range.
    OutOfRange,
    /// There are more pairs than the scan's limit.
    OverLimit,
}

/// A scan's answer that is wrong whatever the table held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanViolation {
    /// The rule that it breaks.
    pub fault: ScanFault,
    /// The first key that shows it.
    pub key: Option<Vec<u8>>,
    /// The scan.
    pub row: Row,
    /// Further violations in the history, one per key or scan.
    pub others: usize,
}

impl ScanViolation {
    pub(super) fn new(
        history: &History,
        event: usize,
        fault: ScanFault,
        key: Option<Vec<u8>>,
    ) -> Self {
        let row = Row::new(history, event, None);
        ScanViolation { fault, key, row, others: 0 }
    }
}

impl Display for ScanViolation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            ScanFault::Twice => "returned a key twice",
            ScanFault::OutOfOrder => "returned keys out of order",
            ScanFault::OutOfRange => "returned a key outside of its range",
            ScanFault::OverLimit => "returned more pairs than it was asked for",
        };
        write!(f, "a scan {what}")?;
        if let Some(key) = &self.key {
            write!(f, ": {}", show(key))?;
        }
        writeln!(f)?;
        table(f, std::slice::from_ref(&self.row))?;
        more(f, self.others)
    }
}

/// Possible content of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nothing.
    Absent,
    /// This value.
    Value(Vec<u8>),
    /// Some value that no answer and no comparison names.
    Unseen,
}

impl Display for Held {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Held::Absent => f.write_str("absent"),
            Held::Value(value) => f.write_str(&show(value)),
            Held::Unseen => f.write_str("a value that nobody saw"),
        }
    }
}

/// Operations on one key that have no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    /// The key.
    pub key: Vec<u8>,
    /// Possible contents of the key before the first row. From none of these does an order exist.
    pub starts: Vec<Held>,
    /// Rows in order of calls, cut to an example. They come from the shortest beginning of the
    /// key's history that has no order. Of this they follow the last moment from which on there is
    /// none, without the reads that do not matter.
    pub rows: Vec<Row>,
    /// The row whose answer no order has got past.
    pub blocked: usize,
    /// Further violations in the history, one per key or scan.
    pub others: usize,
}

impl KeyViolation {
    /// The answered rows that have no place in the longest order, the blocked one among them.
    pub fn unplaced(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.place.is_none() && row.to_ns.is_some())
    }
}

impl Display for KeyViolation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "no order explains these operations on key {}", show(&self.key))?;
        write!(f, "before them the key is ")?;
        for (at, start) in self.starts.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", or " };
            write!(f, "{comma}{start}")?;
        }
        writeln!(f)?;
        table(f, &self.rows)?;
        if let Some(row) = self.rows.get(self.blocked) {
            writeln!(
                f,
                "cannot be placed before it ends: {} of client {}, answered {}",
                row.call, row.client, row.answer
            )?;
        }
        more(f, self.others)
    }
}

/// An operation in the example of a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its place among the history's events.
    pub event: usize,
    /// The client.
    pub client: u32,
    /// The request, in words.
    pub call: String,
    /// Time of the request.
    pub from_ns: u64,
    /// Time of the answer; `None` if none came.
    pub to_ns: Option<u64>,
    /// The answer, in words. For a scan's look at a key, what the scan saw there.
    pub answer: String,
    /// Its place in the longest order, from 1 up. `None`: it has none there.
    pub place: Option<usize>,
    /// Content of the key after it in that order.
    pub after: Option<Held>,
}

impl Row {
    /// With `key`, of a scan only its look at that key.
    fn new(history: &History, index: usize, key: Option<&[u8]>) -> Self {
        let event = &history.events[index];
        Row {
            event: index,
            client: event.client,
            call: show_call(&event.call),
            from_ns: event.from_ns,
            to_ns: event.answer.as_ref().map(|answer| answer.0),
            answer: show_answer(event, key),
            place: None,
            after: None,
        }
    }
}

/// The example of a key without an order.
pub(super) fn explain(
    history: &History,
    key: &[u8],
    part: &Part<'_>,
    blocked: u32,
    steps: u64,
) -> KeyViolation {
    let mut search = Search::default();
    let end_ns = part.ops[blocked as usize].to_ns;
    let mut ops = part.ops.clone();
    ops.retain(|op| op.from_ns <= end_ns);
    relink(&part.ops, &mut ops);
    let mut starts = BTreeSet::from([part.initial]);
    let mut trace = Trace::default();
    // It ends as the first search did, and so is an example.
    let mut budget = steps.saturating_mul(4);
    let verdict = search.run(&ops, part.initial, &mut budget, Some(&mut trace));
    if matches!(verdict, SearchVerdict::Impossible { .. }) {
        cut_front(&mut search, &mut ops, &mut starts, &trace);
        drop_reads(&mut search, &mut ops, &starts);
    }
    // The longest of the orders, over all starts.
    let mut best = Trace::default();
    let mut last = blocked;
    for &start in &starts {
        let mut trace = Trace::default();
        let mut budget = steps.saturating_mul(4).max(SHORTEN_STEPS);
        let verdict = search.run(&ops, start, &mut budget, Some(&mut trace));
        if best.best.is_empty() || trace.best.len() > best.best.len() {
            best = trace;
            if let SearchVerdict::Impossible { blocked } = verdict {
                last = ops[blocked as usize].event;
            }
        }
    }
    let held = |state: KeyState| match state {
        ABSENT => Held::Absent,
        UNSEEN => Held::Unseen,
        value => Held::Value(part.values[(value - FIRST_VALUE) as usize].to_vec()),
    };
    let mut rows: Vec<Row> =
        ops.iter().map(|op| Row::new(history, op.event as usize, Some(key))).collect();
    for (place, &(op, state)) in best.best.iter().enumerate() {
        rows[op as usize].place = Some(place + 1);
        rows[op as usize].after = Some(held(state));
    }
    KeyViolation {
        key: key.to_vec(),
        starts: starts.into_iter().map(held).collect(),
        blocked: rows.iter().position(|row| row.event == last as usize).unwrap_or(0),
        rows,
        others: 0,
    }
}

/// The example of a key that nobody changes and that an operation saw with other content.
pub(super) fn explain_still(
    history: &History,
    key: &[u8],
    held: Option<&[u8]>,
    event: usize,
) -> KeyViolation {
    let start = held.map_or(Held::Absent, |value| Held::Value(value.to_vec()));
    KeyViolation {
        key: key.to_vec(),
        starts: vec![start],
        rows: vec![Row::new(history, event, Some(key))],
        blocked: 0,
        others: 0,
    }
}

/// Returns whether `ops` certainly have no order from any of `starts` on.
fn is_impossible(search: &mut Search, ops: &[KeyOp], starts: &BTreeSet<KeyState>) -> bool {
    starts.iter().all(|&start| {
        let mut steps = SHORTEN_STEPS;
        matches!(search.run(ops, start, &mut steps, None), SearchVerdict::Impossible { .. })
    })
}

/// Leaves out operations answered before the last moment that has no operation under way and no
/// order from there on, for any content of the key. Operations without an answer stay: they may
/// take effect later.
fn cut_front(
    search: &mut Search,
    ops: &mut Vec<KeyOp>,
    starts: &mut BTreeSet<KeyState>,
    trace: &Trace,
) {
    let mut skip = 0;
    let mut quiet = trace.quiet.iter().rev();
    while let Some((&first, states)) = quiet.nth(skip) {
        skip = skip * 2 + 1;
        if first == 0 {
            continue;
        }
        let mut rest: Vec<KeyOp> = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            if index as u32 >= first || !op.is_known() {
                rest.push(*op);
            }
        }
        relink(ops, &mut rest);
        if is_impossible(search, &rest, states) {
            *ops = rest;
            starts.clone_from(states);
            return;
        }
    }
}

/// Leaves out operations that change nothing, as long as there is still no order. That is right:
/// if there is none without them, there is none with them.
fn drop_reads(search: &mut Search, ops: &mut Vec<KeyOp>, starts: &BTreeSet<KeyState>) {
    if ops.len() > SHORTEN_OPS {
        return;
    }
    for index in (0..ops.len()).rev() {
        if !ops[index].is_pure() {
            continue;
        }
        let mut fewer = ops.clone();
        fewer.remove(index);
        relink(ops, &mut fewer);
        if is_impossible(search, &fewer, starts) {
            *ops = fewer;
        }
    }
}

/// Makes `after` name places in `ops`, a part of `all`.
fn relink(all: &[KeyOp], ops: &mut [KeyOp]) {
    let mut before = Vec::with_capacity(ops.len());
    for op in ops.iter() {
        before.push((op.after != NONE).then(|| all[op.after as usize].event));
    }
    let places: HashMap<u32, usize> =
        ops.iter().enumerate().map(|(place, op)| (op.event, place)).collect();
    for (op, before) in ops.iter_mut().zip(before) {
        let place = before.and_then(|event| places.get(&event));
        op.after = place.map_or(NONE, |&place| place as u32);
    }
}

fn more(f: &mut Formatter<'_>, others: usize) -> fmt::Result {
    if others == 0 { Ok(()) } else { writeln!(f, "and {others} more violations") }
}

/// Prints rows under each other.
fn table(f: &mut Formatter<'_>, rows: &[Row]) -> fmt::Result {
    let heads = ["event", "client", "from ns", "to ns", "call", "answer", "place", "then"];
    let mut cells = vec![heads.map(str::to_owned)];
    for row in rows {
        cells.push([
            row.event.to_string(),
            row.client.to_string(),
            row.from_ns.to_string(),
            row.to_ns.map_or("-".to_owned(), |to_ns| to_ns.to_string()),
            row.call.clone(),
            row.answer.clone(),
            match (row.place, row.to_ns) {
                (Some(place), _) => place.to_string(),
                (None, Some(_)) => "none".to_owned(),
                (None, None) => "-".to_owned(),
            },
            row.after.as_ref().map_or(String::new(), Held::to_string),
        ]);
    }
    let mut widths = [0; 8];
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    for row in &cells {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            if at < 4 {
                line += &format!("  {cell:>width$}");
            } else {
                line += &format!("  {cell:<width$}");
            }
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

fn show_call(call: &Op) -> String {
    let mut text = match call {
        Op::Get { .. } => "get".to_owned(),
        Op::Insert { value, .. } => format!("insert {}", show(value)),
        Op::Update { value, .. } => format!("update {}", show(value)),
        Op::Upsert { value, .. } => format!("upsert {}", show(value)),
        Op::Remove { .. } => "remove".to_owned(),
        Op::CompareExchange { expected, new, .. } => format!(
            "exchange {} for {}",
            show_option(expected.as_deref()),
            show_option(new.as_deref())
        ),
        Op::Scan { from, to, reverse, limit } => {
            let (from, to) = show_range(from, to, ["(", ")"], show);
            let down = if *reverse { " down" } else { "" };
            let limit =
                if *limit == usize::MAX { String::new() } else { format!(" limit {limit}") };
            format!("scan{down} {from}, {to}{limit}")
        }
    };
    if text.len() > 80 {
        text.truncate(77);
        text += "...";
    }
    text
}

/// The ends of a range, of which `open` stand for none.
pub(crate) fn show_range(
    from: &Bound<Vec<u8>>,
    to: &Bound<Vec<u8>>,
    open: [&str; 2],
    show: fn(&[u8]) -> String,
) -> (String, String) {
    let from = match from {
        Bound::Included(key) => format!("[{}", show(key)),
        Bound::Excluded(key) => format!("({}", show(key)),
        Bound::Unbounded => open[0].to_owned(),
    };
    let to = match to {
        Bound::Included(key) => format!("{}]", show(key)),
        Bound::Excluded(key) => format!("{})", show(key)),
        Bound::Unbounded => open[1].to_owned(),
    };
    (from, to)
}

fn show_answer(event: &Event, key: Option<&[u8]>) -> String {
    match event.answer.as_ref().map(|answer| &answer.1) {
        None => "unknown".to_owned(),
        Some(Answer::Value(value)) => show_option(value.as_deref()),
        Some(Answer::Flag(flag)) => match (&event.call, flag) {
            (Op::Upsert { .. }, true) => "was absent".to_owned(),
            (Op::Upsert { .. }, false) => "was present".to_owned(),
            (_, true) => "done".to_owned(),
            (Op::Insert { .. }, false) => "not done: present".to_owned(),
            (_, false) => "not done: absent".to_owned(),
        },
        Some(Answer::Exchanged { done, held }) => {
            let done = if *done { "done" } else { "not done" };
            format!("{done}, held {}", show_option(held.as_deref()))
        }
        Some(Answer::Nothing) => "failed".to_owned(),
        Some(Answer::Pairs(pairs)) => match key.filter(|_| event.call.key().is_none()) {
            Some(key) => {
                let pair = pairs.iter().find(|pair| pair.0 == key);
                format!("saw {}", show_option(pair.map(|pair| &pair.1[..])))
            }
            None => {
                let keys: Vec<String> = pairs.iter().take(8).map(|pair| show(&pair.0)).collect();
                let dots = if pairs.len() > 8 { ", ..." } else { "" };
                format!("{} pairs: {}{dots}", pairs.len(), keys.join(", "))
            }
        },
    }
}

fn show_option(bytes: Option<&[u8]>) -> String {
    bytes.map_or("absent".to_owned(), show)
}

/// Printable bytes as text, others in hexadecimal; at most 24 of them.
pub(super) fn show(bytes: &[u8]) -> String {
    let (head, dots) = match bytes.get(..24) {
        Some(head) if bytes.len() > 24 => (head, "..."),
        _ => (bytes, ""),
    };
    if !head.is_empty() && head.iter().all(|byte| byte.is_ascii_graphic()) {
        return format!("{}{dots}", String::from_utf8_lossy(head));
    }
    let hex: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{hex}{dots}")
}
