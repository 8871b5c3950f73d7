//! Output: writes results to standard output, notes to standard error, and styles both for terminals.
//!
//! - INV-OUTPUT-1: standard output carries results and nothing else; notes about the work go to
//!   standard error.
//! - INV-OUTPUT-2: a terminal shows keys and values in printable form: no byte of theirs can command
//!   it, unless the caller gives `--raw`.

use std::env;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::time::Duration;

use comfy_table::{Attribute, Cell, Table, presets};
use farleaf_bench::units::{TimeSpan, human_bytes, human_count};
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
    out: BufWriter<Stdout>,
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
            out: BufWriter::with_capacity(64 << 10, io::stdout()),
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
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
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
            say(&format!("farleaf: {message}"));
        }
    }

    /// Says something about the work that only `--verbose` asks for.
    pub(crate) fn detail(&self, message: impl Display) {
        if self.args.verbose {
            say(&format!("farleaf: {message}"));
        }
    }

    /// Warns, unless told to be quiet.
    pub(crate) fn warn(&self, message: impl Display) {
        if !self.args.quiet {
            say(&format!("{} {message}", self.label("warning:", "\x1b[1;33m")));
        }
    }

    /// Tells an error, with what caused it.
    pub(crate) fn error(&self, error: &anyhow::Error) {
        say(&format!("{} {}", self.label("error:", "\x1b[1;31m"), errors::told(error)));
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
        None => Err(format!("\"{}\" is no hexadecimal digit", escaped(&[*byte]))),
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
