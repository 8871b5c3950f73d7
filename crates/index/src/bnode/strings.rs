//! Byte strings: compute prefixes and separators.

/// Length in bytes of the longest common prefix.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let limit = a.len().min(b.len());
    let mut at = 0;
    while let (Some(x), Some(y)) = (a.get(at..at + 8), b.get(at..at + 8)) {
        if x != y {
            break;
        }
        at += 8;
    }
    while at < limit && a[at] == b[at] {
        at += 1;
    }
    at
}

/// Appends a shortest string `s` with `below <= s < above`; it is never longer than `below`.
///
/// Needs `below < above`; otherwise appends `below`.
pub fn shortest_separator(below: &[u8], above: &[u8], out: &mut Vec<u8>) {
    let common = common_prefix(below, above);
    let (Some(&first), Some(&limit)) = (below.get(common), above.get(common)) else {
        // `below` starts `above`: whatever is shorter than `below` is below it or beyond `above`.
        return out.extend_from_slice(below);
    };
    if below.len() <= common + 1 || first >= limit {
        return out.extend_from_slice(below);
    }
    // One byte behind the common prefix decides, if one can be had between the two.
    if first + 1 < limit || above.len() > common + 1 {
        out.extend_from_slice(&below[..common]);
        out.push(first + 1);
        return;
    }
    // `above` ends in the very next byte: stay below it by keeping `first`, and round up later.
    let tail = &below[common + 1..];
    match tail.iter().position(|&byte| byte != u8::MAX) {
        Some(at) if at + 1 < tail.len() => {
            out.extend_from_slice(&below[..common + 1 + at]);
            out.push(tail[at] + 1);
        }
        _ => out.extend_from_slice(below),
    }
}

/// The first four bytes as a big-endian number, short strings padded with zeros.
#[inline(always)]
pub(super) fn leading(bytes: &[u8]) -> u32 {
    if let Some(first) = bytes.first_chunk::<4>() {
        return u32::from_be_bytes(*first);
    }
    let mut padded = [0; 4];
    padded[..bytes.len()].copy_from_slice(bytes);
    u32::from_be_bytes(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(alphabet: &[u8], len_max: usize) -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new()];
        let mut from = 0;
        for _ in 0..len_max {
            let end = all.len();
            for index in from..end {
                for &byte in alphabet {
                    let mut longer = all[index].clone();
                    longer.push(byte);
                    all.push(longer);
                }
            }
            from = end;
        }
        all.sort();
        all
    }

    #[test]
    fn separators_are_shortest() {
        // Every pair over few bytes, against every candidate over those bytes and their neighbours.
        let keys = strings(&[0, 1, 0xFE, 0xFF], 3);
        let candidates = strings(&[0, 1, 2, 0xFE, 0xFF], 3);
        for (index, below) in keys.iter().enumerate() {
            for above in &keys[index + 1..] {
                let mut separator = Vec::new();
                shortest_separator(below, above, &mut separator);
                assert!(
                    below <= &separator && &separator < above,
                    "{below:?} {above:?} {separator:?}"
                );
                let from = candidates.partition_point(|c| c < below);
                let to = candidates.partition_point(|c| c < above);
                let least = candidates[from..to].iter().map(Vec::len).min();
                assert_eq!(Some(separator.len()), least, "{below:?} {above:?} {separator:?}");
            }
        }
    }

    #[test]
    fn separators_of_long_keys() {
        let mut below = vec![0xFF; 1024];
        let mut above = below.clone();
        below[1000] = 7;
        above[1000] = 8;
        let mut separator = Vec::new();
        shortest_separator(&below, &above, &mut separator);
        assert_eq!(separator, above[..1001]);
        above.truncate(1001);
        separator.clear();
        shortest_separator(&below, &above, &mut separator);
        assert_eq!(separator, below, "all 0xFF behind: nothing shorter is below `above`");
    }

    #[test]
    fn common_prefixes() {
        let long = [5; 40];
        for len in 0..40 {
            let mut other = long;
            other[len] = 6;
            assert_eq!(common_prefix(&long, &other), len);
            assert_eq!(common_prefix(&long, &long[..len]), len);
        }
    }
}
