//! Lengths: the list of prefix lengths of a skip table.

use std::fmt;
use std::str::FromStr;

use super::tables::LENGTHS_MAX;

/// Ascending lengths of prefixes, as text `1+2+4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    list: [u16; LENGTHS_MAX],
    count: u8,
}

impl Lengths {
    /// A list of at most 16 lengths, each above the one before, up to 1,024; `None` for any other.
    pub fn new(lengths: &[u16]) -> Option<Lengths> {
        let rises = lengths.windows(2).all(|pair| pair[0] < pair[1]);
        let fits = lengths.len() <= LENGTHS_MAX && lengths.first().is_some_and(|first| *first > 0);
        if !rises || !fits || lengths.last().is_some_and(|last| *last > 1_024) {
            return None;
        }
        let mut list = [0; LENGTHS_MAX];
        list[..lengths.len()].copy_from_slice(lengths);
        Some(Lengths { list, count: lengths.len() as u8 })
    }

    /// The lengths.
    pub fn as_slice(&self) -> &[u16] {
        &self.list[..usize::from(self.count)]
    }
}

impl Default for Lengths {
    /// Powers of two up to 32.
    fn default() -> Self {
        let mut list = [0; LENGTHS_MAX];
        list[..6].copy_from_slice(&[1, 2, 4, 8, 16, 32]);
        Lengths { list, count: 6 }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.as_slice().iter().map(u16::to_string).collect();
        f.write_str(&words.join("+"))
    }
}

/// The lengths of the tables that a compute server makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefixes {
    /// A bulk load chooses them by its tree. A table that fills by inserts begins with powers of two.
    #[default]
    Auto,
    /// These.
    List(Lengths),
}

impl fmt::Display for Prefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefixes::Auto => f.write_str("auto"),
            Prefixes::List(lengths) => lengths.fmt(f),
        }
    }
}

impl FromStr for Prefixes {
    type Err = NoLengths;

    fn from_str(text: &str) -> Result<Self, NoLengths> {
        if text == "auto" { Ok(Prefixes::Auto) } else { text.parse().map(Prefixes::List) }
    }
}

/// The text is no list of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLengths;

impl FromStr for Lengths {
    type Err = NoLengths;

    fn from_str(text: &str) -> Result<Self, NoLengths> {
        let lengths: Result<Vec<u16>, _> =
            text.split('+').map(|word| word.trim().parse()).collect();
        lengths.ok().and_then(|lengths| Lengths::new(&lengths)).ok_or(NoLengths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_printed() {
        assert_eq!(Lengths::default().to_string(), "1+2+4+8+16+32");
        assert_eq!("1+2+4+8+16+32".parse(), Ok(Lengths::default()));
        assert_eq!("3".parse::<Lengths>().expect("a list").as_slice(), [3]);
        for wrong in
            ["", "0", "2+2", "3+1", "1025", "a", "1+2+3+4+5+6+7+8+9+10+11+12+13+14+15+16+17"]
        {
            assert_eq!(wrong.parse::<Lengths>(), Err(NoLengths), "{wrong}");
            assert_eq!(wrong.parse::<Prefixes>(), Err(NoLengths), "{wrong}");
        }
        for text in ["auto", "3", "1+2+4"] {
            assert_eq!(
                text.parse().map(|prefixes: Prefixes| prefixes.to_string()),
                Ok(text.into())
            );
        }
    }
}
