//! Suggestions: find the known word that is nearest to an unknown one.

/// The word of `known` that `word` most likely stands for, if any is near.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let near_enough = 1 + word.chars().count() / 4;
    known
        .into_iter()
        .map(|known| (distance(&word, &known.to_ascii_lowercase()), known))
        .filter(|&(distance, _)| distance <= near_enough)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, known)| known)
}

/// `"; did you mean \"...\"?"` or nothing.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |known| format!("; did you mean \"{known}\"?"))
}

/// Characters to add, leave out, change or swap with a neighbour to get from `from` to `to`.
fn distance(from: &str, to: &str) -> usize {
    let (from, to) = (from.chars().collect::<Vec<_>>(), to.chars().collect::<Vec<_>>());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let mut least = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["users", "orders", "metrics"];
        assert_eq!(nearest("user", known), Some("users"));
        assert_eq!(nearest("Users", known), Some("users"));
        assert_eq!(nearest("odrers", known), Some("orders"));
        assert_eq!(nearest("sessions", known), None);
        assert_eq!(nearest("x", known), None);
        assert_eq!(hint("metric", known), "; did you mean \"metrics\"?");
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abcd", "abdc"), 1);
    }
}
