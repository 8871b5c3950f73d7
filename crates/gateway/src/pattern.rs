//! Patterns: matches keys as `KEYS` and `SCAN ... MATCH` do, without recursion.
//!
//! Redis's rules: `*`, `?`, `[ab-z]`, `[^ab]`, and `\` before a byte that stands for itself. An open class ends with the
//! pattern. Only the last `*` is ever tried again, because an earlier one that took more could match nothing that a
//! later one cannot. So the time is that of pattern times key (CVE-2022-36021, CVE-2024-31228: recursion, endless work).

/// Longest pattern.
pub(crate) const PATTERN_BYTES_MAX: usize = 1 << 10;

/// Returns whether `pattern` matches all of `key`.
pub(crate) fn matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut at, mut byte) = (0, 0);
    // Behind the last star, and the first byte that it does not take.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            retry = Some((at, byte));
            continue;
        }
        let taken = match key.get(byte) {
            Some(found) => step(&pattern[at..], *found),
            None if at == pattern.len() => return true,
            // A star that takes more leaves less for the rest.
            None => return false,
        };
        match (taken, retry) {
            (Some(taken), _) => (at, byte) = (at + taken, byte + 1),
            (None, Some((behind, from))) => {
                (at, byte) = (behind, from + 1);
                retry = Some((behind, byte));
            }
            (None, None) => return false,
        }
    }
}

/// The bytes that each key that `pattern` matches begins with.
pub(crate) fn prefix(pattern: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    let mut rest = pattern;
    loop {
        match rest {
            [b'\\', byte, after @ ..] => {
                prefix.push(*byte);
                rest = after;
            }
            [] | [b'*' | b'?' | b'[', ..] => return prefix,
            [byte, after @ ..] => {
                prefix.push(*byte);
                rest = after;
            }
        }
    }
}

/// The bytes of the pattern's first element, which is no star, if that matches `byte`.
fn step(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (is_in, length) = in_class(class, byte);
            is_in.then_some(1 + length)
        }
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// Returns whether a class, behind its bracket, holds `byte`; and its length, with the end.
fn in_class(class: &[u8], byte: u8) -> (bool, usize) {
    let is_not = class.first() == Some(&b'^');
    let mut at = usize::from(is_not);
    let mut is_in = false;
    loop {
        match &class[at..] {
            [] => return (is_in != is_not, at),
            [b']', ..] => return (is_in != is_not, at + 1),
            [b'\\', escaped, ..] => {
                is_in |= *escaped == byte;
                at += 2;
            }
            [first, b'-', last, ..] => {
                is_in |= (*first.min(last)..=*first.max(last)).contains(&byte);
                at += 3;
            }
            [plain, ..] => {
                is_in |= *plain == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: each star is nothing, or takes a byte and stays.
    fn by_definition(pattern: &[u8], key: &[u8]) -> bool {
        match (pattern, key) {
            ([b'*', rest @ ..], _) => {
                by_definition(rest, key) || !key.is_empty() && by_definition(pattern, &key[1..])
            }
            ([], _) => key.is_empty(),
            (_, []) => false,
            (_, [byte, after @ ..]) => {
                step(pattern, *byte).is_some_and(|taken| by_definition(&pattern[taken..], after))
            }
        }
    }

    fn strings(of: &[u8], most: usize) -> Vec<Vec<u8>> {
        let (mut all, mut last) = (vec![Vec::new()], vec![Vec::new()]);
        for _ in 0..most {
            last = last
                .iter()
                .flat_map(|text: &Vec<u8>| of.iter().map(|byte| [&text[..], &[*byte]].concat()))
                .collect();
            all.extend_from_slice(&last);
        }
        all
    }

    #[test]
    fn matches_are_those_of_the_definition() {
        let keys = strings(b"ab-", 4);
        for pattern in strings(b"ab*?[^-]\\", 4) {
            for key in &keys {
                let expected = by_definition(&pattern, key);
                assert_eq!(matches(&pattern, key), expected, "{pattern:?} {key:?}");
                assert!(!expected || key.starts_with(&prefix(&pattern)), "{pattern:?} {key:?}");
            }
        }
    }

    /// Of Redis's own tests (`unit/keyspace`, `util.c`).
    #[test]
    fn classes_and_escapes_are_those_of_redis() {
        for (pattern, key, expected) in [
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hxllo", false),
            ("[\\]]", "]", true),
            ("a[b", "ab", true),
            ("a[^", "ab", true),
            ("*", "", true),
            ("", "", true),
            ("?", "", false),
            ("a\\", "a\\", true),
        ] {
            let found = matches(pattern.as_bytes(), key.as_bytes());
            assert_eq!(found, expected, "{pattern} {key}");
        }
    }

    #[test]
    fn many_stars_take_the_time_of_pattern_times_key() {
        let pattern = b"a*".repeat(PATTERN_BYTES_MAX / 2);
        let key = vec![b'a'; 1 << 10];
        assert!(matches(&pattern, &key));
        let pattern = [&b"*a".repeat(500)[..], b"b"].concat();
        assert!(!matches(&pattern, &key));
    }
}
