//! History files: reads, writes and merges files of histories.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};

use serde_json::{Map, Value, json};

use super::parse::{self, HistoryLine, VERSION};
use super::{Answer, Event, History, HistoryError, LineFault, Op, encode};

/// The longest line, its end included. A scan's answer takes 4/3 of its bytes and 8 more per pair.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// Names an operation under way in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationNumber(u64);

/// Appends to a history, so that all returned calls are in it after the process was killed.
///
/// Each call makes one `write` of one line and holds nothing back, so `out` should be a file
/// itself, without a buffer in front. A killed process leaves at most half a line at the end, which
/// readers leave out. The system's death may take more. A process that starts again begins another
/// file; [`merge`] brings them together.
#[derive(Debug)]
pub struct HistoryWriter<W: Write> {
    pub(super) out: W,
    next: u64,
    line: Vec<u8>,
    is_broken: bool,
}

impl<W: Write> HistoryWriter<W> {
    /// Begins a history at the start of an empty file.
    ///
    /// # Errors
    /// `Io`.
    pub fn new(out: W) -> Result<Self, HistoryError> {
        let mut writer = HistoryWriter { out, next: 0, line: Vec::new(), is_broken: false };
        writer.put(encode::object(json!({ "op": "history", "version": VERSION })))?;
        Ok(writer)
    }

    /// Notes that the table holds `value` for `key` at the start.
    ///
    /// # Errors
    /// `Io`, `Broken`, `TooLong`.
    pub fn initial(&mut self, key: &[u8], value: &[u8]) -> Result<(), HistoryError> {
        self.put(encode::initial(key, value))
    }

    /// Records that `client` is about to ask for `call`. To be called before the operation starts,
    /// with a time before it. An operation that is never ended counts as one without an answer.
    ///
    /// # Errors
    /// `Io`, `Broken`, `TooLong`; then do not start the operation, or the history would lack it.
    pub fn begin(
        &mut self,
        client: u32,
        call: &Op,
        from_ns: u64,
    ) -> Result<OperationNumber, HistoryError> {
        let number = self.next;
        let mut line = encode::object(json!({ "begin": number }));
        line.extend(encode::call(client, call, from_ns));
        self.put(line)?;
        self.next += 1;
        Ok(OperationNumber(number))
    }

    /// Records the answer of an operation, and its time. Not to be called for an unknown outcome.
    ///
    /// # Errors
    /// `Io`, `Broken`, `TooLong`; the operation then counts as one without an answer.
    pub fn end(
        &mut self,
        number: OperationNumber,
        to_ns: u64,
        answer: &Answer,
    ) -> Result<(), HistoryError> {
        let mut line = encode::object(json!({ "end": number.0 }));
        encode::answer(&mut line, Some((to_ns, answer)));
        self.put(line)
    }

    /// Records an operation that is over, in one line.
    ///
    /// # Errors
    /// `Io`, `Broken`, `TooLong`.
    pub fn event(&mut self, event: &Event) -> Result<(), HistoryError> {
        let mut line = encode::call(event.client, &event.call, event.from_ns);
        let answer = event.answer.as_ref().map(|(to_ns, answer)| (*to_ns, answer));
        encode::answer(&mut line, answer);
        self.put(line)
    }

    /// Returns the output.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn put(&mut self, line: Map<String, Value>) -> Result<(), HistoryError> {
        if self.is_broken {
            return Err(HistoryError::Broken);
        }
        self.line.clear();
        serde_json::to_writer(&mut self.line, &line).map_err(std::io::Error::from)?;
        self.line.push(b'\n');
        if self.line.len() > LINE_BYTES_MAX {
            return Err(HistoryError::TooLong { bytes: self.line.len() });
        }
        self.is_broken = true;
        self.out.write_all(&self.line)?;
        self.is_broken = false;
        Ok(())
    }
}

/// Writes a whole history. Best into a buffer.
///
/// # Errors
/// `Io`; `TooLong` if an operation has no room in a line.
pub fn write_jsonl(writer: impl Write, history: &History) -> Result<(), HistoryError> {
    let mut writer = HistoryWriter::new(writer)?;
    for (key, value) in &history.initial {
        writer.initial(key, value)?;
    }
    for event in &history.events {
        writer.event(event)?;
    }
    Ok(writer.into_inner().flush()?)
}

/// Reads a history. Events stand in the order in which their operations began to be written, the
/// initial content in order of keys.
///
/// A last line without an end that breaks off is left out: its writer was killed. Operations that
/// began and did not end have no answer.
///
/// # Errors
/// `Io`, and `Line` for the first line that is not of the format. Takes at most
/// [`LINE_BYTES_MAX`] of memory per line, and some times as much to parse it.
pub fn read_jsonl(reader: impl Read) -> Result<History, HistoryError> {
    let mut reader = BufReader::new(reader);
    let mut initial: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut events: Vec<Event> = Vec::new();
    // Operations under way, by number: their events.
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    let mut last_number = None;
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        reader.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes)?;
        let fail = |fault| HistoryError::Line { line: number, fault };
        if bytes.is_empty() {
            break;
        }
        if bytes.len() > LINE_BYTES_MAX {
            return Err(fail(LineFault::TooLong));
        }
        let is_last = bytes.last() != Some(&b'\n');
        let value = match serde_json::from_slice(&bytes) {
            Err(error) if is_last && error.is_eof() => break,
            value => value.map_err(|error| fail(LineFault::Json(error.to_string())))?,
        };
        match (parse::line(value).map_err(fail)?, number) {
            (HistoryLine::Header, 1) => {}
            (_, 1) => return Err(fail(LineFault::Header)),
            (HistoryLine::Header, _) => {
                return Err(fail(LineFault::UnknownOp("history".to_owned())));
            }
            (HistoryLine::Initial { key, value }, _) => {
                if initial.insert(key, value).is_some() {
                    return Err(fail(LineFault::InitialTwice));
                }
            }
            (HistoryLine::Whole { client, call, from_ns, answer }, _) => {
                events.push(Event { client, call, from_ns, answer });
            }
            (HistoryLine::Begin { number, client, call, from_ns }, _) => {
                if last_number.is_some_and(|last| number <= last) {
                    return Err(fail(LineFault::BegunTwice(number)));
                }
                last_number = Some(number);
                open.insert(number, events.len());
                events.push(Event { client, call, from_ns, answer: None });
            }
            (HistoryLine::End { number, to_ns, result }, _) => {
                let at = open.remove(&number).ok_or(fail(LineFault::NotBegun(number)))?;
                let event = &mut events[at];
                let answer = parse::answer(&event.call, event.from_ns, to_ns, &result);
                event.answer = Some((to_ns, answer.map_err(fail)?));
            }
        }
    }
    Ok(History { initial: initial.into_iter().collect(), events })
}

/// Brings histories of several processes together, in order of the calls' times.
///
/// The times must come from one clock (on one machine `CLOCK_MONOTONIC`), and no two processes may
/// use the same client's number. The initial content is that of all together.
///
/// # Errors
/// `InitialConflict` if two say that a key held different values.
pub fn merge(histories: impl IntoIterator<Item = History>) -> Result<History, HistoryError> {
    let mut initial: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut events = Vec::new();
    for history in histories {
        for (key, value) in history.initial {
            if initial.get(&key).is_some_and(|held| *held != value) {
                return Err(HistoryError::InitialConflict { key });
            }
            initial.insert(key, value);
        }
        events.extend(history.events);
    }
    events.sort_by_key(|event| event.from_ns);
    Ok(History { initial: initial.into_iter().collect(), events })
}
