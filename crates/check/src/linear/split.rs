//! Split: divides a history into one history per key.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use super::Checked;
use super::ops::{ABSENT, KeyOp, KeyState, Kind, NONE, UNSEEN};
use super::report::{self, ScanFault, ScanViolation, Violation};
use crate::history::{Answer, Event, History, Op};

/// Receives a violation and its moment; makes the violation only if it is of use.
pub(super) type Keep<'k> = dyn FnMut(u64, &mut dyn FnMut() -> Violation) + 'k;

/// The operations on one key, in order of their calls.
#[derive(Default)]
pub(super) struct Part<'h> {
    pub(super) ops: Vec<KeyOp>,
    pub(super) initial: KeyState,
    /// Values of the states from [`FIRST_VALUE`] on.
    pub(super) values: Vec<&'h [u8]>,
    /// Content of the key at the start.
    pub(super) held: Option<&'h [u8]>,
}

/// The first state that stands for a value in an answer.
pub(super) const FIRST_VALUE: KeyState = 2;

/// A history by key, sorted.
pub(super) struct Table<'h> {
    history: &'h History,
    initial: BTreeMap<&'h [u8], &'h [u8]>,
    /// Keys with changes, in order.
    keys: Vec<&'h [u8]>,
    /// Their operations but scans, key by key: place of the key, place of the event.
    on_keys: Vec<(u32, u32)>,
    scans: Vec<Scan<'h>>,
    /// Per event: its client, counted from 0.
    clients: Vec<u32>,
    client_count: usize,
}

/// A scan with an answer.
struct Scan<'h> {
    event: u32,
    pairs: &'h [(Vec<u8>, Vec<u8>)],
    reverse: bool,
    /// The changed keys that it has looked at: places of the first, and behind the last.
    from: usize,
    to: usize,
}

impl<'h> Scan<'h> {
    /// The `index`-th pair in ascending order.
    fn pair(&self, index: usize) -> Option<&'h (Vec<u8>, Vec<u8>)> {
        let index = if self.reverse { self.pairs.len().checked_sub(index + 1)? } else { index };
        self.pairs.get(index)
    }
}

impl<'h> Table<'h> {
    /// Sorts the keys, and checks all that needs no search.
    pub(super) fn new(
        history: &'h History,
        checked: &mut Checked,
        keep: &mut Keep<'_>,
    ) -> Result<Self, Violation> {
        let mut initial = BTreeMap::new();
        for (key, value) in &history.initial {
            if initial.insert(&key[..], &value[..]).is_some() {
                let what = format!("the initial content has key {} twice", report::show(key));
                return Err(Violation::Malformed { event: None, what });
            }
        }
        let mut keys = Vec::new();
        for (index, event) in history.events.iter().enumerate() {
            well_formed(event).map_err(|what| Violation::Malformed { event: Some(index), what })?;
            if changes(event) {
                keys.extend(event.call.key());
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let places: HashMap<&[u8], u32> =
            keys.iter().enumerate().map(|(place, &key)| (key, place as u32)).collect();
        let mut table = Table {
            history,
            initial,
            keys,
            on_keys: Vec::new(),
            scans: Vec::new(),
            clients: Vec::with_capacity(history.events.len()),
            client_count: 0,
        };
        table.number_clients();
        let still: Vec<(&[u8], &[u8])> = table
            .initial
            .iter()
            .filter(|&(key, _)| !places.contains_key(key))
            .map(|(&key, &value)| (key, value))
            .collect();
        for (index, event) in history.events.iter().enumerate() {
            if matches!(event.answer, Some((_, Answer::Nothing))) {
                continue;
            }
            checked.operations += 1;
            checked.unknown += usize::from(event.answer.is_none());
            checked.scans += usize::from(matches!(event.call, Op::Scan { .. }));
            if let Some(key) = event.call.key() {
                if let Some(&place) = places.get(key) {
                    table.on_keys.push((place, index as u32));
                } else if let Some((to_ns, Answer::Value(told))) = &event.answer
                    && table.initial.get(key).copied() != told.as_deref()
                {
                    keep(*to_ns, &mut || table.still_violation(key, index));
                }
            } else if let (
                Op::Scan { from, to, reverse, limit },
                Some((to_ns, Answer::Pairs(pairs))),
            ) = (&event.call, &event.answer)
            {
                let bounds = Bounds { from, to, reverse: *reverse, limit: *limit };
                if let Some((fault, key)) = bounds.fault(pairs) {
                    let key = key.map(<[u8]>::to_vec);
                    let scan = ScanViolation::new(history, index, fault, key);
                    keep(*to_ns, &mut || Violation::Scan(Box::new(scan.clone())));
                    continue;
                }
                let (from, to) = bounds.covered(pairs, &still, |pair| pair.0);
                let mut returned = still_pairs(pairs, *reverse, &places);
                if let Some(key) = differing(&mut returned, &still[from..to]) {
                    keep(*to_ns, &mut || table.still_violation(key, index));
                }
                let (from, to) = bounds.covered(pairs, &table.keys, |key| key);
                let event = index as u32;
                table.scans.push(Scan { event, pairs, reverse: *reverse, from, to });
            }
        }
        table.on_keys.sort_unstable();
        table.scans.sort_by_key(|scan| scan.from);
        checked.keys = table.keys.len();
        Ok(table)
    }

    fn number_clients(&mut self) {
        let mut numbers = HashMap::new();
        for event in &self.history.events {
            let next = numbers.len() as u32;
            self.clients.push(*numbers.entry(event.client).or_insert(next));
        }
        self.client_count = numbers.len();
    }

    /// A violation of a key that nobody changes: an operation saw other content than its initial
    /// value.
    fn still_violation(&self, key: &[u8], event: usize) -> Violation {
        let held = self.initial.get(key).copied();
        Violation::Key(report::explain_still(self.history, key, held, event))
    }

    /// Calls `visit` with each changed key and its operations, in order of keys.
    pub(super) fn each_key(
        &self,
        checked: &mut Checked,
        visit: &mut dyn FnMut(&'h [u8], &Part<'h>, &mut Checked),
    ) {
        let mut part = Part::default();
        let mut numbers: HashMap<&'h [u8], KeyState> = HashMap::new();
        let mut events = Vec::new();
        // The scans that look at the key, each with its first pair that is not below it.
        let mut looking: Vec<(usize, usize)> = Vec::new();
        let mut next_scan = 0;
        let mut next_op = 0;
        // Per client: the key and the operation on it which it ended last.
        let mut ended = vec![(NONE, NONE); self.client_count];
        for (place, &key) in self.keys.iter().enumerate() {
            events.clear();
            while let Some(&(_, event)) =
                self.on_keys.get(next_op).filter(|&&(of, _)| of as usize == place)
            {
                events.push((event, None));
                next_op += 1;
            }
            while self.scans.get(next_scan).is_some_and(|scan| scan.from <= place) {
                looking.push((next_scan, 0));
                next_scan += 1;
            }
            looking.retain(|&(scan, _)| place < self.scans[scan].to);
            for (scan, cursor) in &mut looking {
                let scan = &self.scans[*scan];
                while scan.pair(*cursor).is_some_and(|pair| pair.0[..] < *key) {
                    *cursor += 1;
                }
                let pair = scan.pair(*cursor).filter(|pair| pair.0[..] == *key);
                events.push((scan.event, Some(pair.map(|pair| &pair.1[..]))));
                checked.looks += 1;
            }
            events.sort_by_key(|&(index, _)| {
                let event = &self.history.events[index as usize];
                let to_ns = event.answer.as_ref().map_or(u64::MAX, |answer| answer.0);
                (event.from_ns, to_ns, index)
            });
            part.fill(self.history, &events, self.initial.get(key).copied(), &mut numbers);
            for index in 0..part.ops.len() {
                let op = part.ops[index];
                let last = &mut ended[self.clients[op.event as usize] as usize];
                if last.0 == place as u32 {
                    let before = part.ops[last.1 as usize];
                    // Of two that begin together, the history's order tells which came first.
                    let is_before = before.from_ns < op.from_ns || before.event < op.event;
                    if before.to_ns == op.from_ns && is_before {
                        part.ops[index].after = last.1;
                    }
                }
                if op.is_known() {
                    *last = (place as u32, index as u32);
                }
            }
            visit(key, &part, checked);
        }
    }
}

impl<'h> Part<'h> {
    /// Puts the operations of `events` into numbers; those with a look are scans.
    fn fill(
        &mut self,
        history: &'h History,
        events: &[(u32, Option<Option<&'h [u8]>>)],
        held: Option<&'h [u8]>,
        numbers: &mut HashMap<&'h [u8], KeyState>,
    ) {
        numbers.clear();
        self.values.clear();
        self.ops.clear();
        let values = &mut self.values;
        let mut see = |value: Option<&'h [u8]>| -> KeyState {
            let Some(value) = value else { return ABSENT };
            *numbers.entry(value).or_insert_with(|| {
                values.push(value);
                FIRST_VALUE + values.len() as KeyState - 1
            })
        };
        for &(index, look) in events {
            if let Some(value) = look {
                see(value);
                continue;
            }
            let event = &history.events[index as usize];
            if let Op::CompareExchange { expected, .. } = &event.call {
                see(expected.as_deref());
            }
            if let Some((_, Answer::Value(value) | Answer::Exchanged { held: value, .. })) =
                &event.answer
            {
                see(value.as_deref());
            }
        }
        let state = |value: Option<&[u8]>| -> KeyState {
            value.map_or(ABSENT, |value| numbers.get(value).copied().unwrap_or(UNSEEN))
        };
        self.held = held;
        self.initial = state(held);
        for &(index, look) in events {
            let event = &history.events[index as usize];
            let mut answer = None;
            let mut held = ABSENT;
            match &event.answer {
                Some((_, Answer::Flag(flag))) => answer = Some(*flag),
                Some((_, Answer::Exchanged { done, held: told })) => {
                    answer = Some(*done);
                    held = state(told.as_deref());
                }
                Some((_, Answer::Value(told))) => {
                    answer = Some(true);
                    held = state(told.as_deref());
                }
                Some((_, Answer::Pairs(_) | Answer::Nothing)) | None => {}
            }
            let kind = match (&event.call, look) {
                (_, Some(value)) => {
                    answer = Some(true);
                    Kind::Get(state(value))
                }
                (Op::Get { .. } | Op::Scan { .. }, None) if answer.is_none() => continue,
                (Op::Get { .. } | Op::Scan { .. }, None) => Kind::Get(held),
                (Op::Insert { value, .. }, None) => Kind::Insert(state(Some(value))),
                (Op::Update { value, .. }, None) => Kind::Update(state(Some(value))),
                (Op::Upsert { value, .. }, None) => Kind::Upsert(state(Some(value))),
                (Op::Remove { .. }, None) => Kind::Remove,
                (Op::CompareExchange { expected, new, .. }, None) => Kind::Exchange {
                    expected: state(expected.as_deref()),
                    new: state(new.as_deref()),
                    held,
                },
            };
            let to_ns = event.answer.as_ref().map_or(u64::MAX, |answer| answer.0);
            let from_ns = event.from_ns;
            self.ops.push(KeyOp { kind, answer, from_ns, to_ns, event: index, after: NONE });
        }
    }
}

/// Range and limit of a scan.
struct Bounds<'h> {
    from: &'h Bound<Vec<u8>>,
    to: &'h Bound<Vec<u8>>,
    reverse: bool,
    limit: usize,
}

impl Bounds<'_> {
    /// Returns the fault of an answer for any content of the table, and the key that shows it.
    fn fault<'p>(&self, pairs: &'p [(Vec<u8>, Vec<u8>)]) -> Option<(ScanFault, Option<&'p [u8]>)> {
        if pairs.len() > self.limit {
            return Some((ScanFault::OverLimit, None));
        }
        for (at, (key, _)) in pairs.iter().enumerate() {
            let is_low = match self.from {
                Bound::Included(from) => key < from,
                Bound::Excluded(from) => key <= from,
                Bound::Unbounded => false,
            };
            let is_high = match self.to {
                Bound::Included(to) => key > to,
                Bound::Excluded(to) => key >= to,
                Bound::Unbounded => false,
            };
            if is_low || is_high {
                return Some((ScanFault::OutOfRange, Some(key)));
            }
            let Some((before, _)) = at.checked_sub(1).map(|before| &pairs[before]) else {
                continue;
            };
            if before == key {
                return Some((ScanFault::Twice, Some(key)));
            }
            if (before < key) == self.reverse {
                return Some((ScanFault::OutOfOrder, Some(key)));
            }
        }
        None
    }

    /// The part of the sorted `items` that the scan has looked at.
    fn covered<T>(
        &self,
        pairs: &[(Vec<u8>, Vec<u8>)],
        items: &[T],
        key: fn(&T) -> &[u8],
    ) -> (usize, usize) {
        let below = |end: &[u8]| items.partition_point(|item| key(item) < end);
        let up_to = |end: &[u8]| items.partition_point(|item| key(item) <= end);
        let mut from = match self.from {
            Bound::Included(end) => below(end),
            Bound::Excluded(end) => up_to(end),
            Bound::Unbounded => 0,
        };
        let mut to = match self.to {
            Bound::Included(end) => up_to(end),
            Bound::Excluded(end) => below(end),
            Bound::Unbounded => items.len(),
        };
        if pairs.len() == self.limit {
            match pairs.last() {
                None => to = from,
                Some((last, _)) if self.reverse => from = from.max(below(last)),
                Some((last, _)) => to = to.min(up_to(last)),
            }
        }
        (from, to.max(from))
    }
}

/// The pairs of keys that nobody changes, in ascending order.
fn still_pairs<'h>(
    pairs: &'h [(Vec<u8>, Vec<u8>)],
    reverse: bool,
    places: &HashMap<&[u8], u32>,
) -> impl Iterator<Item = (&'h [u8], &'h [u8])> {
    let count = pairs.len();
    (0..count)
        .map(move |at| if reverse { &pairs[count - 1 - at] } else { &pairs[at] })
        .map(|(key, value)| (&key[..], &value[..]))
        .filter(|(key, _)| !places.contains_key(key))
}

/// The first key in which the two differ.
fn differing<'h>(
    returned: &mut dyn Iterator<Item = (&'h [u8], &'h [u8])>,
    held: &[(&'h [u8], &'h [u8])],
) -> Option<&'h [u8]> {
    let mut held = held.iter().copied();
    loop {
        match (returned.next(), held.next()) {
            (None, None) => return None,
            (Some(pair), None) | (None, Some(pair)) => return Some(pair.0),
            (Some(left), Some(right)) if left != right => return Some(left.0.min(right.0)),
            _ => {}
        }
    }
}

fn changes(event: &Event) -> bool {
    !event.call.is_read() && !matches!(event.answer, Some((_, Answer::Nothing)))
}

/// Checks that an answer is of the kind that its call gets, and comes after it.
fn well_formed(event: &Event) -> Result<(), String> {
    let Some((to_ns, answer)) = &event.answer else { return Ok(()) };
    if *to_ns < event.from_ns {
        return Err(format!("answered at {to_ns} ns, before its call at {} ns", event.from_ns));
    }
    let fits = match answer {
        Answer::Nothing => true,
        Answer::Value(_) => matches!(event.call, Op::Get { .. }),
        Answer::Flag(_) => matches!(
            event.call,
            Op::Insert { .. } | Op::Update { .. } | Op::Upsert { .. } | Op::Remove { .. }
        ),
        Answer::Exchanged { .. } => matches!(event.call, Op::CompareExchange { .. }),
        Answer::Pairs(_) => matches!(event.call, Op::Scan { .. }),
    };
    if fits { Ok(()) } else { Err("its answer is of another kind of call".to_owned()) }
}
