//! Properties: read Java's `.properties` syntax, as YCSB's files use it.

use super::YcsbError;

/// One property and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) key: String,
    pub(super) value: String,
    /// The line on which it begins, counting from 1.
    pub(super) line_number: usize,
}

/// Reads the properties in `bytes`, in their order; the same key may come more than once.
///
/// As Java reads it: every byte is one Latin-1 character; `#` and `!` begin a comment line; an odd
/// number of backslashes at a line's end joins the next line, without its leading blanks; the key
/// ends at the first `=`, `:` or blank that has no backslash before it; `\t`, `\n`, `\r`, `\f` and
/// `\uXXXX` stand for one character, and a backslash before anything else for nothing. Unlike
/// Java, blanks at a value's end do not belong to it.
///
/// # Errors
/// The line and a word on the fault, for a `\u` without four hexadecimal digits.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Property>, (usize, &'static str)> {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let mut lines = text.replace("\r\n", "\n").replace('\r', "\n");
    lines.push('\n');

    let mut properties = Vec::new();
    let mut logical: Option<(usize, String)> = None;
    for (index, line) in lines.lines().enumerate() {
        let line = line.trim_start_matches(is_blank);
        if logical.is_none() && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let (_, joined) = logical.get_or_insert_with(|| (index + 1, String::new()));
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            joined.push_str(&line[..line.len() - 1]);
            continue;
        }
        joined.push_str(line);
        if let Some((line_number, line)) = logical.take() {
            properties.extend(property(&line, line_number)?);
        }
    }
    // The file ended with a backslash: what there is of the line counts.
    if let Some((line_number, line)) = logical {
        properties.extend(property(&line, line_number)?);
    }
    Ok(properties)
}

/// Splits `key=value` as given on a command line; no escapes.
pub(super) fn split_override(text: &str) -> Result<(String, String), YcsbError> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(YcsbError::Override { read: text.to_owned() }),
    }
}

fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\x0c')
}

/// The property on a joined line; `None` if there is nothing on it.
fn property(line: &str, line_number: usize) -> Result<Option<Property>, (usize, &'static str)> {
    let mut escaped = false;
    let end = line
        .find(|letter| {
            let ends = !escaped && (is_blank(letter) || letter == '=' || letter == ':');
            escaped = letter == '\\' && !escaped;
            ends
        })
        .unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    let unescape = |text| unescape(text).map_err(|fault| (line_number, fault));
    let key = unescape(key)?;
    let value = unescape(rest.trim_start_matches(is_blank))?.trim_end().to_owned();
    Ok((!key.is_empty() || !value.is_empty()).then_some(Property { key, value, line_number }))
}

fn unescape(text: &str) -> Result<String, &'static str> {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\x0c'),
            Some('u') => {
                let digits: String = letters.by_ref().take(4).collect();
                let is_hex =
                    digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let code = is_hex.then(|| u32::from_str_radix(&digits, 16).ok()).flatten();
                let code = code.ok_or("\\u needs four hexadecimal digits")?;
                // Half of a surrogate pair has no meaning in any property that is read here.
                plain.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn read(text: &str) -> Vec<(String, String, usize)> {
        let properties = parse(text.as_bytes()).unwrap();
        properties.into_iter().map(|found| (found.key, found.value, found.line_number)).collect()
    }

    fn one(text: &str) -> (String, String) {
        let mut found = read(text);
        assert_eq!(found.len(), 1, "{text:?}");
        let (key, value, _) = found.remove(0);
        (key, value)
    }

    #[test]
    fn separators_are_the_first_of_their_kind() {
        for text in ["a=b", "a:b", "a b", "a = b", "a : b", "a\tb", "  a=b", "a=   b  ", "a  \t= b"]
        {
            assert_eq!(one(text), ("a".into(), "b".into()), "{text:?}");
        }
        assert_eq!(one("a==b"), ("a".into(), "=b".into()));
        assert_eq!(one("a b=c"), ("a".into(), "b=c".into()));
        assert_eq!(one("a"), ("a".into(), "".into()));
        assert_eq!(one("=b"), ("".into(), "b".into()));
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        let text = "# one\n  ! two=3\n\n \t\na=1 # not a comment\r\nb=2\rc=3";
        let expected = [("a", "1 # not a comment", 5), ("b", "2", 6), ("c", "3", 7)]
            .map(|(key, value, line)| (key.to_owned(), value.to_owned(), line));
        assert_eq!(read(text), expected);
    }

    #[test]
    fn lines_are_joined_at_odd_backslashes() {
        assert_eq!(
            one("fruits=apple, \\\n    pear, \\\r\n\tfig"),
            ("fruits".into(), "apple, pear, fig".into())
        );
        assert_eq!(one("a=b\\"), ("a".into(), "b".into()));
        let found = read("# comment \\\nk=1\\\n# 2\npath=c:\\\\\nlast=3");
        assert_eq!(found.iter().map(|found| found.2).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!(found[0].1, "1# 2");
        assert_eq!(found[1].1, "c:\\");
    }

    #[test]
    fn escapes_stand_for_letters() {
        assert_eq!(one("a\\ b\\=c\\:d=e"), ("a b=c:d".into(), "e".into()));
        assert_eq!(one("k=\\u0041\\tx\\n\\q"), ("k".into(), "A\tx\nq".into()));
        assert_eq!(one("k=\\ud800"), ("k".into(), "\u{fffd}".into()));
        for text in ["\n\nk=\\u12", "\n\nk=\\uzzzz", "\n\nk=\\u+123"] {
            assert_eq!(parse(text.as_bytes()), Err((3, "\\u needs four hexadecimal digits")));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..5000 {
            let bytes: Vec<u8> = (0..rng.usize(0..40))
                .map(|_| {
                    let common = b"\\\n\r =:#!ua1";
                    if rng.bool() { rng.u8(..) } else { common[rng.usize(0..common.len())] }
                })
                .collect();
            let _ = parse(&bytes);
        }
        assert_eq!(one("k=\u{0}"), ("k".into(), "\u{0}".into()));
        let latin = parse(b"k=\xe9").unwrap();
        assert_eq!(latin[0].value, "\u{e9}");
    }

    #[test]
    fn overrides_need_a_key() {
        assert_eq!(split_override("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert_eq!(split_override(" a = ").unwrap(), ("a".to_owned(), String::new()));
        for text in ["", "a", "=b"] {
            let message = split_override(text).unwrap_err().to_string();
            assert!(message.contains("property=value"), "{message}");
        }
    }
}
