//! Shape: the settings of a table that are fixed when it is made, and the words that keep them in its root.
//!
//! An engine states its shape once, in `shape!`. A table's root keeps four words of it: setting *i* takes half *i*, the
//! low half of a word first. Each default is 0. So a later setting goes behind the others, and a root that is older
//! than the setting reads as its default.

use std::fmt;

use crate::knobs::{KnobOf, Knobs};
use crate::{IndexError, Spec};

/// Most settings of a shape.
pub const SHAPE_SETTINGS_MAX: usize = 8;

/// The shape of an engine's tables: what follows from its settings.
pub trait Shape: KeptShape {
    /// Chooses what is left open, for a table of such keys and values. Completed again, it stays as it is.
    ///
    /// # Errors
    /// `Invalid` if there are no such tables.
    fn complete(self, _spec: &Spec) -> Result<Self, IndexError> {
        Ok(self)
    }

    /// Refuses a shape that this program was built without. A table that has it is whole all the same.
    ///
    /// # Errors
    /// `Invalid`.
    fn check_build(&self) -> Result<(), IndexError> {
        Ok(())
    }

    /// Returns the bytes of a usual node: the unit in which tests and the bench state the size of a cache.
    fn node_bytes(&self, _spec: &Spec) -> usize {
        1024
    }

    /// Returns the bytes that such a table needs of each redo area ([`farleaf_pool::Session::redo_addr`]). The kit's
    /// records lie at an area's front, the engine's own at its end.
    fn redo_bytes(&self, _spec: &Spec) -> usize {
        0
    }
}

/// A struct of settings that a table's root keeps; `shape!` implements it.
pub trait KeptShape: Knobs + Copy + fmt::Debug + PartialEq + Send + Sync {
    /// The words that keep it.
    fn to_words(&self) -> [u64; 4];

    /// The shape that `words` keep; `None` if they keep none: a setting that this program does not have, or a value that
    /// the setting does not take.
    fn of_words(words: [u64; 4]) -> Option<Self>;
}

/// A type of a shape's setting. Its default has the bits 0.
pub trait ShapeValue: Sized {
    /// The value as half a word.
    fn to_bits(&self) -> u32;

    /// The value of these bits; `None` if they stand for none.
    fn of_bits(bits: u32) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl ShapeValue for $number {
            fn to_bits(&self) -> u32 {
                u32::from(*self)
            }

            fn of_bits(bits: u32) -> Option<Self> {
                bits.try_into().ok()
            }
        }
    )+};
}

numbers!(u8, u16, u32);

impl ShapeValue for bool {
    fn to_bits(&self) -> u32 {
        u32::from(*self)
    }

    fn of_bits(bits: u32) -> Option<Self> {
        [false, true].get(bits as usize).copied()
    }
}

/// 0 for none, else the value and 1.
impl<T: ShapeValue> ShapeValue for Option<T> {
    fn to_bits(&self) -> u32 {
        // The largest number of 32 bits has no place, and no knob takes it.
        self.as_ref().map_or(0, |value| value.to_bits().saturating_add(1))
    }

    fn of_bits(bits: u32) -> Option<Self> {
        match bits.checked_sub(1) {
            None => Some(None),
            Some(bits) => T::of_bits(bits).map(Some),
        }
    }
}

/// Puts the bits of settings into words; for `shape!`.
#[doc(hidden)]
pub fn to_words(bits: &[u32]) -> [u64; 4] {
    let mut words = [0; 4];
    for (at, bits) in bits.iter().enumerate() {
        words[at / 2] |= u64::from(*bits) << (32 * (at % 2));
    }
    words
}

/// The bits of the settings that `words` keep; for `shape!`.
#[doc(hidden)]
pub fn of_words(words: [u64; 4]) -> [u32; SHAPE_SETTINGS_MAX] {
    std::array::from_fn(|at| (words[at / 2] >> (32 * (at % 2))) as u32)
}

/// Defines the settings of a shape: a struct as by `knobs!`, and the words that keep it. [`Shape`] is left to the engine.
#[macro_export]
macro_rules! shape {
    (
        $(#[$meta:meta])*
        $visible:vis struct $type:ident {$(
            $(#[doc = $about:literal])+
            $name:literal => $field:ident: $of:ty = $default:expr, $kind:expr $(, paper $paper:literal)?;
        )+}
    ) => {
        $crate::knobs! {
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            $visible struct $type {$(
                $(#[doc = $about])+
                $name => $field: $of = $default, $kind $(, paper $paper)?;
            )+}
        }

        impl $crate::shape::KeptShape for $type {
            fn to_words(&self) -> [u64; 4] {
                const {
                    assert!(
                        [$($name),+].len() <= $crate::shape::SHAPE_SETTINGS_MAX,
                        "a root keeps at most eight settings of a shape"
                    );
                }
                $crate::shape::to_words(&[$($crate::shape::ShapeValue::to_bits(&self.$field)),+])
            }

            fn of_words(words: [u64; 4]) -> Option<Self> {
                let mut halves = $crate::shape::of_words(words).into_iter();
                let shape = $type {
                    $($field: $crate::shape::ShapeValue::of_bits(halves.next()?)?),+
                };
                // Refuses bits behind the last setting, and values that a setting does not take.
                let is_whole = $crate::shape::KeptShape::to_words(&shape) == words;
                let read = <$type as $crate::Knobs>::read(&$crate::Knobs::settings(&shape)).ok()?;
                (is_whole && read == shape).then_some(shape)
            }
        }
    };
}

/// The shape of an engine that leaves nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoShape;

impl Knobs for NoShape {
    fn list() -> &'static [KnobOf<Self>] {
        &[]
    }
}

impl Shape for NoShape {}

impl KeptShape for NoShape {
    fn to_words(&self) -> [u64; 4] {
        [0; 4]
    }

    fn of_words(words: [u64; 4]) -> Option<Self> {
        (words == [0; 4]).then_some(NoShape)
    }
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "words! makes public types")]
mod tests {
    use super::*;
    use crate::KnobKind;

    crate::words! {
        /// Words.
        #[derive(Default)]
        Word {
            /// The first.
            #[default]
            One = "one",
            /// The second.
            Two = "two",
        }
    }

    shape! {
        /// A shape of each kind of setting.
        struct Odd {
            /// Bytes.
            "bytes" => bytes: Option<u32> = None, KnobKind::Bytes { min: 32, max: 4096 };
            /// Entries.
            "entries" => entries: Option<u16> = None, KnobKind::Count { min: 0, max: 65_535, unit: "entries" };
            /// A word.
            "word" => word: Word = Word::One, KnobKind::Words { words: Word::WORDS, also: None };
            /// A flag.
            "flag" => flag: bool = false, KnobKind::Flag;
            /// Bits.
            "bits" => bits: u8 = 0, KnobKind::Count { min: 0, max: 255, unit: "bits" };
        }
    }

    #[test]
    fn shapes_come_back_from_their_words() {
        let default = Odd::default();
        assert_eq!(default.to_words(), [0; 4]);
        assert_eq!(Odd::of_words([0; 4]), Some(default));
        let all = [None, Some(32), Some(4096)];
        for (bytes, entries) in all.into_iter().zip([None, Some(0), Some(65_535)]) {
            for (word, flag, bits) in [(Word::One, true, 255), (Word::Two, false, 1)] {
                let shape = Odd { bytes, entries, word, flag, bits };
                assert_eq!(Odd::of_words(shape.to_words()), Some(shape));
            }
        }
        let shape = Odd { bytes: Some(32), entries: Some(7), word: Word::Two, flag: true, bits: 3 };
        assert_eq!(shape.to_words(), [33 | 8 << 32, 1 | 1 << 32, 3, 0]);
    }

    #[test]
    fn words_of_no_shape_are_refused() {
        for (word, bits, what) in [
            (0, 1, "bytes of 0"),
            (0, 32, "bytes below the least"),
            (0, 4098, "bytes above the most"),
            (0, 65_537 << 32, "more entries than a number of 16 bits"),
            (1, 2, "a third word"),
            (1, 2 << 32, "a flag of 2"),
            (2, 256, "bits of 256"),
            (2, 1 << 32, "a sixth setting"),
            (3, 1, "a seventh"),
            (3, 1 << 63, "an eighth"),
        ] {
            let mut words = [0; 4];
            words[word] = bits;
            assert_eq!(Odd::of_words(words), None, "{what}");
        }
        assert_eq!(NoShape::of_words([0, 1, 0, 0]), None);
        assert_eq!(NoShape::of_words(NoShape.to_words()), Some(NoShape));
    }
}
