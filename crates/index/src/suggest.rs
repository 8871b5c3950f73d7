//! Suggestions: the known name that a mistyped one most likely stands for.

/// The name of `known` nearest to `word`, if a slip of the keyboard explains the difference.
///
/// Upper and lower case are the same. A third of the letters may be wrong, at least 1 and at most 4.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let edits_max = (word.chars().count() / 3).clamp(1, 4);
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(&word, &name.to_lowercase()), name))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

/// `; did you mean "x"?` for a suggestion, else nothing: the middle of an error message.
pub fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default()
}

/// [`did_you_mean`] with the name of `known` that is [`nearest`] to `word`.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    did_you_mean(nearest(word, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_corrected_and_strangers_are_not() {
        let names = ["read-only", "read-intensive", "scan-intensive"];
        assert_eq!(nearest("red-only", names), Some("read-only"));
        assert_eq!(nearest("Read-Olny", names), Some("read-only"));
        assert_eq!(nearest("scan-intense", names), Some("scan-intensive"));
        assert_eq!(nearest("banana", names), None);
        assert_eq!(nearest("", names), None);
        let tables = ["Users", "orders", "metrics"];
        assert_eq!(nearest("user", tables), Some("Users"));
        assert_eq!(nearest("odrers", tables), Some("orders"));
        assert_eq!(nearest("sessions", tables), None);
        assert_eq!(nearest("x", tables), None);
    }

    #[test]
    fn a_hint_is_empty_without_a_suggestion() {
        assert_eq!(hint("btre", ["btree"]), "; did you mean \"btree\"?");
        assert_eq!(hint("quux", ["btree"]), "");
        assert_eq!(did_you_mean(Some("a")), "; did you mean \"a\"?");
        assert_eq!(did_you_mean(None), "");
    }
}
