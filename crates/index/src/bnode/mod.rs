//! B+-tree nodes: encode keys, values and children in a node's words, for all tree engines.
//!
//! Pure code over words: nothing here touches a fabric, waits or locks. The same code reads and changes
//! a private copy (`[u64]`) and a frame that optimistic readers share (`[AtomicU64]`, one writer). A
//! reader of a frame may meet torn content, so every index, offset and count that comes from words is
//! cut to the image before it is used: answers may be nonsense then, but there is no panic and no
//! endless loop, and the latch's version or the checksum exposes them.
//!
//! # Header
//!
//! Eight little-endian words in both layouts; a word's byte 0 is its lowest.
//!
//! | off | field |
//! |---|---|
//! | 0 | lock word: the engine's; set to 0 in a fresh image, else neither read nor written here |
//! | 8 | the node's own global address |
//! | 16, 24 | low and high fence: dense keys of one word, or where slotted fences are (see below) |
//! | 32 | address of the right sibling, 0 if none |
//! | 40 | kind, level, count (2), flags, format tag, incarnation (2) |
//! | 48 | checksum of bytes 8 to the end, without this word |
//! | 56 | version that the image was published as, larger than those before; of a leaf whose changes are logged at least the number of each that it holds |
//! | 64 | payload |
//!
//! An inner node's separator `i` is the inclusive upper bound of its child `i`; the last child is bounded
//! by the high fence. Fences may be infinite, so that the empty key, zero and `u64::MAX` are ordinary.
//!
//! # Dense layout
//!
//! For fixed keys and values in whole words. Leaf: sorted entries of key and value words. Inner: all
//! separators, then all children. A key's words are its bytes read as big-endian numbers. Keys of more
//! than one word have their fences in the image's last words. A node of 1 KiB with keys and values of
//! 8 bytes has 60 entries, or 59 separators and 60 children.
//!
//! # Slotted layout
//!
//! For everything else. Sorted slot words (the suffix's first four bytes, its offset and length) grow
//! up from the header, behind the last child's address and each followed by its child in an inner node;
//! the heap grows down from the end: low fence, high fence, cells. No key stores the common prefix of
//! both fences. Word 16 holds offset and length of the low fence, bytes of the heap and bytes of holes
//! in it (2 each); word 24 offset and length of the high fence, length of the prefix, zero. Values
//! longer than [`Layout::inline_value_max`] are references to records that the engine keeps.
//!
//! # Invariants
//!
//! - `INV-NODE-1`: low fence < every key <= high fence; low fence < every separator < high fence.
//! - `INV-NODE-2`: keys, and separators, ascend strictly.
//! - `INV-NODE-3`: a node with `n` separators has `n + 1` children, none of them null.
//! - `INV-NODE-4`: the tag is set and the sum is that of the content in every sealed image.
//! - `INV-NODE-5` (slotted): heap bytes = fences + cells + holes; cells do not overlap.
//! - `INV-NODE-6` (slotted): with `K = key_max`, two fences and one entry, `3K + 10 + max(inline_value_max,
//!   16)`, and two fences, one separator and two children, `3K + 24`, fit in the payload. Hence splitting
//!   always makes room. A node without room has an entry (a separator). A cut behind the first leaves two
//!   nodes that fit ([`NodeMut::split_for`] finds that one or a better one; the proof is beside it), and
//!   separators are never longer than a key. So each split leaves fewer entries with the newcomer, down to
//!   one in a leaf, from which it is then parted, or to no separator in an inner node; then it is alone,
//!   and fits.

mod builder;
mod cells;
mod dense;
mod edit;
mod encode;
mod guarded;
mod header;
mod layout;
mod shape;
mod slotted;
mod split;
mod strings;
mod verify;
mod view;
mod words;

#[cfg(test)]
mod tests;

/// The seeded bugs of guarded leaves.
pub mod canaries {
    pub use super::guarded::{
        BUILD_CLEARS_TORN, BUILD_KEEPS_TORN, CLEAR_BEFORE_COPY, DEAD_KEEPS_SLOTS, MISS_UNCHECKED,
        REWRITE_KEEPS_STAMP, UPDATE_ONE_OF_TWO,
    };
}

pub use edit::{ChangeError, NodeMut, Posted};
pub use encode::LeafEntry;
pub use guarded::{
    GuardedLayout, GuardedLayoutError, GuardedLeaf, GuardedLeafMut, Hop, Lookup, Mend, Mended,
    SlotEdit, SlotPair, SlotState, Stamp, note_moves,
};
pub use header::{Head, Kind, kind_of, level_of, version_of};
pub use layout::{Layout, LayoutError, LayoutOptions, NODE_BYTES_MAX, NODE_BYTES_MIN};
pub use shape::BnodeShape;
pub use split::Split;
pub use strings::{common_prefix, shortest_separator};
pub use verify::{NodeError, verify_image};
pub use view::{Cover, Node, RecordRef, StoredValue, Value};
pub use words::{Image, Word};
