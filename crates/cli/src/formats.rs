//! Formats of tables, as people write them: `bytes`, `bytes:64`, `fixed:8`.

use farleaf::{Engine, KeyFormat, ValueFormat};
use farleaf_index::{VALUE_BYTES_MAX, suggest};

/// The longest key that any table takes, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 1024;

/// Reads an engine's name.
pub(crate) fn parse_engine(text: &str) -> Result<Engine, String> {
    let names = || Engine::ALL.iter().map(|engine| engine.name());
    text.trim().to_ascii_lowercase().parse().map_err(|_| {
        let known = names().collect::<Vec<_>>().join(", ");
        format!("no engine is named \"{text}\"{}; known: {known}", suggest::hint(text, names()))
    })
}

/// Reads the format of keys.
pub(crate) fn parse_key_format(text: &str) -> Result<KeyFormat, String> {
    match split(text) {
        Some(("bytes", None)) => Ok(KeyFormat::Bytes { max: KEY_BYTES_MAX }),
        Some(("bytes", Some(max))) => Ok(KeyFormat::Bytes { max: within(max, KEY_BYTES_MAX)? }),
        Some(("fixed", Some(bytes))) => Ok(KeyFormat::Fixed(within(bytes, KEY_BYTES_MAX)?)),
        _ => Err(unknown(text, "bytes, bytes:64, fixed:8")),
    }
}

/// Reads the format of values.
pub(crate) fn parse_value_format(text: &str) -> Result<ValueFormat, String> {
    match split(text) {
        Some(("bytes", None)) => Ok(ValueFormat::Bytes),
        Some(("fixed", Some(bytes))) => Ok(ValueFormat::Fixed(within(bytes, VALUE_BYTES_MAX)?)),
        _ => Err(unknown(text, "bytes, fixed:8")),
    }
}

/// The format of keys as [`parse_key_format`] reads it.
pub(crate) fn key_format(format: KeyFormat) -> String {
    match format {
        KeyFormat::Fixed(bytes) => format!("fixed:{bytes}"),
        KeyFormat::Bytes { max } => format!("bytes:{max}"),
    }
}

/// The format of values as [`parse_value_format`] reads it.
pub(crate) fn value_format(format: ValueFormat) -> String {
    match format {
        ValueFormat::Fixed(bytes) => format!("fixed:{bytes}"),
        ValueFormat::Bytes => "bytes".to_owned(),
    }
}

/// Says why a table of `format` takes no key of that many bytes.
pub(crate) fn check_key(format: KeyFormat, bytes: usize) -> Result<(), String> {
    match format {
        KeyFormat::Fixed(all) if bytes != all => {
            Err(format!("a key of {bytes} bytes; the table's are of {all}"))
        }
        KeyFormat::Bytes { max } if bytes > max => {
            Err(format!("a key of {bytes} bytes; the table's are of at most {max}"))
        }
        _ => Ok(()),
    }
}

/// Says why a table of `format` takes no value of that many bytes.
pub(crate) fn check_value(format: ValueFormat, bytes: usize) -> Result<(), String> {
    match format {
        ValueFormat::Fixed(all) if bytes != all => {
            Err(format!("a value of {bytes} bytes; the table's are of {all}"))
        }
        ValueFormat::Bytes if bytes > VALUE_BYTES_MAX => {
            Err(format!("a value of {bytes} bytes; a table's are of at most {VALUE_BYTES_MAX}"))
        }
        _ => Ok(()),
    }
}

/// The word and the number behind its colon; `None` if there is something else.
fn split(text: &str) -> Option<(&str, Option<usize>)> {
    match text.split_once(':') {
        None => Some((text, None)),
        Some((word, number)) => Some((word, Some(number.parse().ok()?))),
    }
}

fn within(bytes: usize, bytes_max: usize) -> Result<usize, String> {
    if (1..=bytes_max).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("{bytes} bytes: it takes 1 to {bytes_max}"))
    }
}

fn unknown(text: &str, accepted: &str) -> String {
    let word = text.split(':').next().unwrap_or_default();
    let near = suggest::nearest(word, ["bytes", "fixed"]).filter(|near| *near != word);
    let hint = match near {
        Some("fixed") => "; did you mean \"fixed:N\"?",
        Some(_) => "; did you mean \"bytes\"?",
        None => "",
    };
    format!("\"{text}\" is not a format{hint} (accepted: {accepted})")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn formats_are_read_and_printed() {
        for text in ["bytes:64", "fixed:8"] {
            assert_eq!(key_format(parse_key_format(text).unwrap()), text);
        }
        for text in ["bytes", "fixed:8"] {
            assert_eq!(value_format(parse_value_format(text).unwrap()), text);
        }
        assert_eq!(parse_key_format("bytes").unwrap(), KeyFormat::Bytes { max: 1024 });
    }

    #[test]
    fn wrong_formats_are_explained() {
        assert!(parse_key_format("fixd:8").unwrap_err().contains("did you mean \"fixed:N\"?"));
        assert!(parse_key_format("fixed").unwrap_err().contains("accepted: bytes, bytes:64"));
        assert!(parse_key_format("fixed:x").unwrap_err().contains("is not a format"));
        assert!(parse_key_format("fixed:0").unwrap_err().contains("1 to 1024"));
        assert!(parse_value_format("bytes:9").unwrap_err().contains("accepted: bytes, fixed:8"));
        assert!(parse_engine("btre").unwrap_err().contains("did you mean \"btree\"?"));
        assert_eq!(parse_engine("BTree"), Ok(Engine::BTree));
    }
}
