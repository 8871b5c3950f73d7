//! Node header: the 64 bytes that both layouts share.

use super::layout::Layout;
use super::words::{Image, Word, word};

pub(super) const SELF_WORD: usize = 1;
pub(super) const LOW_WORD: usize = 2;
pub(super) const HIGH_WORD: usize = 3;
pub(super) const RIGHT_WORD: usize = 4;
pub(super) const META_WORD: usize = 5;
pub(super) const VERSION_WORD: usize = 7;

/// Marks the header as one of this format; neither zeroed memory nor text has it.
pub(super) const TAG: u8 = 0xF7;

const KIND_LEAF: u8 = 1;
const KIND_INNER: u8 = 2;
const KIND_DEAD: u8 = 0xDD;

pub(super) const FLAG_LOW_INFINITE: u8 = 1;
pub(super) const FLAG_HIGH_INFINITE: u8 = 2;
pub(super) const FLAG_SLOTTED: u8 = 4;
pub(super) const FLAGS_ALL: u8 = 7;

/// The kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Holds keys and values.
    Leaf,
    /// Holds separators and children.
    Inner,
    /// Was merged away or replaced; its memory is to be reclaimed.
    Dead,
    /// No node of this format: zeroed, foreign or torn.
    Invalid,
}

/// The header of a fresh node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head<'a> {
    /// Global address of the node itself.
    pub addr: u64,
    /// Address of the next node on the level, 0 if there is none.
    pub right: u64,
    /// Level above the leaves: 0 for leaves, at least 1 for inner nodes.
    pub level: u8,
    /// Number of earlier uses of the node's memory, as far as the engine counts that.
    pub incarnation: u16,
    /// Version that the image is published as.
    pub version: u64,
    /// Low fence, exclusive; `None` is below every key.
    pub low: Option<&'a [u8]>,
    /// High fence, inclusive; `None` is above every key.
    pub high: Option<&'a [u8]>,
}

/// The header's word of small fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) kind: u8,
    pub(super) level: u8,
    pub(super) count: u16,
    pub(super) flags: u8,
    pub(super) tag: u8,
    pub(super) incarnation: u16,
}

impl Meta {
    pub(super) fn new(layout: &Layout, kind: Kind, head: &Head<'_>) -> Self {
        let mut flags = if layout.dense { 0 } else { FLAG_SLOTTED };
        flags |= if head.low.is_none() { FLAG_LOW_INFINITE } else { 0 };
        flags |= if head.high.is_none() { FLAG_HIGH_INFINITE } else { 0 };
        Self {
            kind: match kind {
                Kind::Leaf => KIND_LEAF,
                Kind::Inner => KIND_INNER,
                Kind::Dead => KIND_DEAD,
                Kind::Invalid => 0,
            },
            level: head.level,
            count: 0,
            flags,
            tag: TAG,
            incarnation: head.incarnation,
        }
    }

    #[inline(always)]
    pub(super) fn unpack(word: u64) -> Self {
        Self {
            kind: word as u8,
            level: (word >> 8) as u8,
            count: (word >> 16) as u16,
            flags: (word >> 32) as u8,
            tag: (word >> 40) as u8,
            incarnation: (word >> 48) as u16,
        }
    }

    #[inline(always)]
    pub(super) fn pack(self) -> u64 {
        u64::from(self.kind)
            | u64::from(self.level) << 8
            | u64::from(self.count) << 16
            | u64::from(self.flags) << 32
            | u64::from(self.tag) << 40
            | u64::from(self.incarnation) << 48
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        match (self.tag, self.kind) {
            (TAG, KIND_LEAF) => Kind::Leaf,
            (TAG, KIND_INNER) => Kind::Inner,
            (TAG, KIND_DEAD) => Kind::Dead,
            _ => Kind::Invalid,
        }
    }

    pub(super) fn set_dead(&mut self) {
        self.kind = KIND_DEAD;
    }

    /// A dead node keeps its level, which says what it was.
    pub(super) fn set_alive(&mut self) {
        self.kind = if self.level == 0 { KIND_LEAF } else { KIND_INNER };
    }

    #[inline(always)]
    pub(super) fn low_infinite(self) -> bool {
        self.flags & FLAG_LOW_INFINITE != 0
    }

    #[inline(always)]
    pub(super) fn high_infinite(self) -> bool {
        self.flags & FLAG_HIGH_INFINITE != 0
    }
}

/// The meta word of an image.
#[inline(always)]
pub(super) fn meta<W: Word>(words: &[W]) -> Meta {
    Meta::unpack(word(words, META_WORD))
}

/// Stores another count.
pub(super) fn set_count<I: Image>(image: &mut I, count: usize) {
    let mut meta = meta(image.words());
    meta.count = count as u16;
    image.set(META_WORD, meta.pack());
}

/// Writes all of the header but the fences; the lock word becomes 0.
pub(super) fn write_head(words: &mut [u64], layout: &Layout, kind: Kind, head: &Head<'_>) {
    let mut image = words;
    image.set(0, 0);
    image.set(SELF_WORD, head.addr);
    image.set(RIGHT_WORD, head.right);
    image.set(META_WORD, Meta::new(layout, kind, head).pack());
    image.set(VERSION_WORD, head.version);
}

/// The kind of a node whose image `words` are, as far as its header says so.
pub fn kind_of(words: &[u64]) -> Kind {
    meta(words).kind()
}

/// The level that the header of `words` says.
pub fn level_of(words: &[u64]) -> u8 {
    meta(words).level
}

/// The version, or stamp, that the header of `words` says.
pub fn version_of(words: &[u64]) -> u64 {
    word(words, VERSION_WORD)
}
