//! Output: writes results to standard output, notes to standard error, and styles both for terminals.
//!
//! - INV-OUTPUT-1: standard output carries results and nothing else; notes about the work go to
//!   standard error.
//! - INV-OUTPUT-2: a terminal shows keys and values in printable form: no byte of theirs can command
//!   it, unless the caller gives `--raw`.
//! - INV-OUTPUT-3: messages, cells of tables and JSON hold no control bytes but line ends, whatever names
//!   from the command line or from the pool they quote.

use std::borrow::Cow;
use std::env;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::time::Duration;

use comfy_table::{Attribute, Cell, Table, presets};
use farleaf_index::units::{TimeSpan, human_bytes, human_count};
use serde_json::{Map, Value};

use crate::args::{BytesArgs, GlobalArgs, When};
use crate::errors;

/// Destination of results and notes.
pub(crate) struct Console {
    pub(crate) args: GlobalArgs,
    /// Standard output is one.
    pub(crate) is_terminal: bool,
    color_out: bool,
    color_err: bool,
    out: BufWriter<StandardOutput>,
}

/// Standard output, whose errors say what cannot be written.
struct StandardOutput(Stdout);

impl StandardOutput {
    fn named(error: io::Error) -> io::Error {
        match error.kind() {
            // A reader that has gone is no failure.
            io::ErrorKind::BrokenPipe => error,
            kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
        }
    }
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(Self::named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(Self::named)
    }
}

/// Returns whether the terminal draws nothing and has no colours, as it says itself.
fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

impl Console {
    pub(crate) fn new(args: GlobalArgs) -> Self {
        let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let color = |is_terminal: bool| match args.color {
            When::Always => true,
            When::Never => false,
            When::Auto => is_terminal && !no_color && !is_dumb(),
        };
        let is_terminal = io::stdout().is_terminal();
        let (color_out, color_err) = (color(is_terminal), color(io::stderr().is_terminal()));
        Console {
            args,
            is_terminal,
            color_out,
            color_err,
            out: BufWriter::with_capacity(64 << 10, StandardOutput(io::stdout())),
        }
    }

    /// For what is to be said before the command line is understood.
    pub(crate) fn plain() -> Self {
        Console::new(GlobalArgs::default())
    }

    /// Time to wait for servers, or for others.
    pub(crate) fn wait(&self) -> Duration {
        self.args.wait.map(TimeSpan::duration).unwrap_or_default()
    }

    /// Standard output.
    pub(crate) fn out(&mut self) -> &mut impl Write {
        &mut self.out
    }

    /// Prints what is left.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns whether to draw progress: on a terminal that can, unless told to be quiet.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.args.quiet && io::stderr().is_terminal() && !is_dumb()
    }

    /// A size for people on a terminal, in bytes for programs.
    pub(crate) fn size(&self, bytes: u64) -> String {
        if self.is_terminal { human_bytes(bytes) } else { bytes.to_string() }
    }

    /// A count for people on a terminal, in full for programs.
    pub(crate) fn count(&self, count: u64) -> String {
        if self.is_terminal { human_count(count) } else { count.to_string() }
    }

    /// Returns the form in which keys and values are printed.
    pub(crate) fn look(&self, bytes: BytesArgs) -> Look {
        match bytes {
            BytesArgs { hex: true, .. } => Look::Hex,
            BytesArgs { raw: false, .. } if self.is_terminal => Look::Escaped,
            _ => Look::AsIs,
        }
    }

    /// Prints one JSON value on a line of its own.
    pub(crate) fn json_line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.out, "{}", printable_json(&value.to_string()))
    }

    /// Prints names and values: a table on a terminal, tab-separated lines elsewhere.
    pub(crate) fn fields(&mut self, rows: &[(&str, String)]) -> io::Result<()> {
        self.table(&[], rows.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]))
    }

    /// Prints rows: a table with `header` on a terminal, tab-separated lines without it elsewhere.
    pub(crate) fn table(
        &mut self,
        header: &[&str],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> io::Result<()> {
        let rows = rows
            .into_iter()
            .map(|row| row.iter().map(|cell| printable(cell).into_owned()).collect::<Vec<_>>());
        if !self.is_terminal {
            for row in rows {
                writeln!(self.out, "{}", row.join("\t"))?;
            }
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if self.color_out {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        if !header.is_empty() {
            let bold = |name: &&str| Cell::new(name).add_attribute(Attribute::Bold);
            table.set_header(header.iter().map(bold));
        }
        for row in rows {
            table.add_row(row);
        }
        if let Some(column) = table.column_mut(0) {
            column.set_padding((0, 1));
        }
        writeln!(self.out, "{}", table.trim_fmt())
    }

    /// Prints an empty line between two tables on a terminal.
    pub(crate) fn gap(&mut self) -> io::Result<()> {
        if self.is_terminal { writeln!(self.out) } else { Ok(()) }
    }

    /// Says something about the work, unless told to be quiet.
    pub(crate) fn note(&self, message: impl Display) {
        if !self.args.quiet {
            say(&format!("farleaf: {}", printable(&message.to_string())));
        }
    }

    /// Says something about the work that only `--verbose` asks for.
    pub(crate) fn detail(&self, message: impl Display) {
        if self.args.verbose {
            say(&format!("farleaf: {}", printable(&message.to_string())));
        }
    }

    /// Warns, unless told to be quiet.
    pub(crate) fn warn(&self, message: impl Display) {
        if !self.args.quiet {
            let message = message.to_string();
            say(&format!("{} {}", self.label("warning:", "\x1b[1;33m"), printable(&message)));
        }
    }

    /// Tells an error, with what caused it.
    pub(crate) fn error(&self, error: &anyhow::Error) {
        let told = errors::told(error);
        say(&format!("{} {}", self.label("error:", "\x1b[1;31m"), printable(&told)));
    }

    fn label(&self, label: &str, color: &str) -> String {
        if self.color_err { format!("{color}{label}\x1b[0m") } else { label.to_owned() }
    }
}

/// `count` and what it counts: `1 record`, `2 records`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Writes a line to standard error; that nobody reads it is no reason to fail.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Form in which keys and values are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Printable, on one line: [`escaped`].
    Escaped,
    /// Byte by byte.
    AsIs,
    /// Two digits for every byte.
    Hex,
}

impl Look {
    /// Prints `bytes`.
    pub(crate) fn write(self, bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
        match self {
            Look::Escaped => out.write_all(escaped(bytes).as_bytes()),
            Look::AsIs => out.write_all(bytes),
            Look::Hex => out.write_all(hex(bytes).as_bytes()),
        }
    }

    /// Puts `bytes` into a JSON object: as text under `name`, or else as `<name>_hex`.
    pub(crate) fn put(self, name: &str, bytes: &[u8], object: &mut Map<String, Value>) {
        match std::str::from_utf8(bytes) {
            Ok(text) if self != Look::Hex => object.insert(name.to_owned(), text.into()),
            _ => object.insert(format!("{name}_hex"), hex(bytes).into()),
        };
    }
}

/// `bytes` as printable text on one line: control characters, what is no UTF-8 and the backslash
/// as `\n`, `\t`, `\r`, `\\` or `\xNN` for each byte, everything else as it is.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                _ if letter.is_control() || is_format(letter) => {
                    escape_bytes(letter.encode_utf8(&mut [0; 4]).as_bytes(), &mut text);
                }
                _ => text.push(letter),
            }
        }
        escape_bytes(chunk.invalid(), &mut text);
    }
    text
}

/// `text` with control characters, but line ends, as `\xNN` for each byte: what it quotes cannot command a
/// terminal (INV-OUTPUT-3). A text that was [`escaped`] stays as it is.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_unprintable(letter) {
            escape_bytes(letter.encode_utf8(&mut [0; 4]).as_bytes(), &mut shown);
        } else {
            shown.push(letter);
        }
    }
    shown.into()
}

/// JSON with such characters as JSON escapes them; it reads back as the same value.
fn printable_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_unprintable) {
        return json.into();
    }
    // All of them are below 2^16, and stand in strings only.
    let escape = |letter: char| match letter {
        letter if is_unprintable(letter) => format!("\\u{:04x}", letter as u32),
        letter => letter.to_string(),
    };
    json.chars().map(escape).collect()
}

fn is_unprintable(letter: char) -> bool {
    letter != '\n' && letter.is_control() || is_format(letter)
}

/// Characters that reorder or hide the text around them.
fn is_format(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn escape_bytes(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        text.push_str(&format!("\\x{byte:02x}"));
    }
}

/// `bytes` in hexadecimal, two digits each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads hexadecimal, two digits a byte, with blanks between bytes.
pub(crate) fn from_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let digit = |byte: &u8| match char::from(*byte).to_digit(16) {
        // A digit is below 16.
        Some(digit) => Ok(digit as u8),
        None => Err(format!("\"{}\" is not a hexadecimal digit", escaped(&[*byte]))),
    };
    let digits = text.iter().filter(|byte| !byte.is_ascii_whitespace()).map(digit);
    let digits: Vec<u8> = digits.collect::<Result<_, String>>()?;
    match digits.as_chunks() {
        (pairs, []) => Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect()),
        _ => Err("an odd number of hexadecimal digits".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        assert_eq!(escaped(b"plain text 1"), "plain text 1");
        assert_eq!(escaped("h\u{f6}he".as_bytes()), "h\u{f6}he");
        assert_eq!(escaped(b"a\tb\r\nc\\d"), "a\\tb\\r\\nc\\\\d");
        assert_eq!(escaped(b"\x1b[31m\0\x7f"), "\\x1b[31m\\x00\\x7f");
        assert_eq!(escaped(b"ok\xff\xfeok\xc3"), "ok\\xff\\xfeok\\xc3");
        assert_eq!(escaped("\u{9b}31m".as_bytes()), "\\xc2\\x9b31m");
        assert_eq!(escaped("\u{202e}".as_bytes()), "\\xe2\\x80\\xae");
    }

    #[test]
    fn messages_hold_no_control_bytes() {
        assert_eq!(printable("table \"a\\b\u{f6}\"\nand"), "table \"a\\b\u{f6}\"\nand");
        assert_eq!(printable("\x1b[2J\r\u{9b}x"), "\\x1b[2J\\x0d\\xc2\\x9bx");
        let shown = escaped(b"\x1b\t");
        assert_eq!(printable(&shown), shown);
        let value = serde_json::json!({ "a": "\u{9b}\u{202e}\x1b" });
        let told = printable_json(&value.to_string()).into_owned();
        assert_eq!(told, r#"{"a":"\u009b\u202e\u001b"}"#);
        assert_eq!(serde_json::from_str::<Value>(&told).ok(), Some(value));
    }

    #[test]
    fn hexadecimal_goes_both_ways() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(hex(&all).as_bytes()), Ok(all));
        assert_eq!(from_hex(b"0A ff\n"), Ok(vec![10, 255]));
        assert_eq!(from_hex(b""), Ok(Vec::new()));
        assert!(from_hex(b"abc").is_err_and(|error| error.contains("odd number")));
        assert!(from_hex(b"0g").is_err_and(|error| error.contains("\"g\"")));
    }

    #[test]
    fn json_holds_text_or_hexadecimal() {
        let mut object = Map::new();
        Look::AsIs.put("key", b"text", &mut object);
        Look::Escaped.put("value", b"\xff", &mut object);
        Look::Hex.put("other", b"hi", &mut object);
        let told = Value::Object(object).to_string();
        assert_eq!(told, r#"{"key":"text","value_hex":"ff","other_hex":"6869"}"#);
    }

    #[test]
    fn looks_differ() {
        let shown = |look: Look| {
            let mut out = Vec::new();
            look.write(b"a\n\xff", &mut out).map(|()| out)
        };
        assert_eq!(shown(Look::Escaped).ok(), Some(b"a\\n\\xff".to_vec()));
        assert_eq!(shown(Look::AsIs).ok(), Some(b"a\n\xff".to_vec()));
        assert_eq!(shown(Look::Hex).ok(), Some(b"610aff".to_vec()));
    }
}
