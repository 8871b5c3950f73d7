//! Suggestions: find the name that a mistyped one probably means.

/// The candidate nearest to `read`, if one is near enough to be a slip of the keyboard.
pub(crate) fn nearest<'a>(
    read: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let read = read.to_ascii_lowercase();
    // A third of the letters may be wrong, at least one.
    let edits_max = (read.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&read, candidate), candidate))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// `; did you mean "x"?`, or nothing: the middle of an error message.
pub(crate) fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let names = ["read-only", "read-intensive", "scan-intensive"];
        assert_eq!(nearest("red-only", names), Some("read-only"));
        assert_eq!(nearest("Read-Olny", names), Some("read-only"));
        assert_eq!(nearest("scan-intense", names), Some("scan-intensive"));
        assert_eq!(nearest("banana", names), None);
        assert_eq!(nearest("", names), None);
    }

    #[test]
    fn message_part_is_empty_without_a_suggestion() {
        assert_eq!(did_you_mean(None), "");
        assert_eq!(did_you_mean(Some("a")), "; did you mean \"a\"?");
    }
}
