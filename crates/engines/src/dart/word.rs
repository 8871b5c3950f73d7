//! Words: compound child pointers, as slots of nodes and the root slot hold them.
//!
//! | bits | field |
//! |---|---|
//! | 63..56 | partial key: the byte that leads to the child; 0 in an END slot |
//! | 55..52 | inner child: compressed bytes behind the partial key. Leaf: size code |
//! | 51..49 | type: 0 none, 1 to 6 N8 to N256, 7 leaf |
//! | 48 | SEAL: the node that contains the word is being replaced |
//! | 47..40 | memory server |
//! | 39..6 | offset / 64 |
//! | 5 | TOMB: the child was removed; the partial key stays |
//! | 4 | TERM: the END slot, where a key ends |
//! | 3..0 | 0, unless the word is a TOMB |
//!
//! A TOMB holds the address of what it replaced, and 11 bits of the remover's session in bits 55..49 and 3..0.

use std::fmt;

use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_index::IndexError;
use farleaf_pool::Session;

const SEAL: u64 = 1 << 48;
const TOMB: u64 = 1 << 5;
const TERM: u64 = 1 << 4;
const LOW: u64 = 0xf;
const ADDR: u64 = 0x0000_ffff_ffff_ffc0;
const OFFSET: u64 = 0x0000_00ff_ffff_ffc0;
const STEP: u64 = 0xff << 56 | TERM;

/// Servers that a word can name.
pub(super) const SERVERS_MAX: usize = 256;
/// Bytes of a region that a word can reach.
pub(super) const REGION_BYTES_MAX: u64 = 1 << 40;
/// Most compressed bytes of an edge.
pub(super) const LEN_MAX: usize = 15;
/// Sessions that TOMBs tell apart.
pub(super) const SESSION_MASK: u32 = 0x7ff;

/// Refuses a pool with more servers, or longer regions, than words can name.
///
/// # Errors
/// `Invalid`.
pub(super) fn check_reach(session: &Session) -> Result<(), IndexError> {
    use farleaf_fabric::Endpoint;
    let endpoint = session.endpoint();
    let servers = session.pool().geometry().servers();
    let bytes = (0..servers.min(ServerId::COMPUTE_FIRST.index()))
        .map(|server| endpoint.region_bytes(ServerId(server as u16)))
        .max();
    reach(servers, bytes.unwrap_or(0))
}

fn reach(servers: usize, bytes: u64) -> Result<(), IndexError> {
    if servers > SERVERS_MAX {
        return Err(IndexError::Invalid(format!(
            "engine dart works in pools of at most {SERVERS_MAX} memory servers, this one has {servers}: \
             choose another engine"
        )));
    }
    if bytes > REGION_BYTES_MAX {
        return Err(IndexError::Invalid(format!(
            "engine dart works with regions of at most 1 TiB, one of this pool has {bytes} bytes: choose \
             another engine"
        )));
    }
    Ok(())
}

/// The symbol by which a node dispatches: a byte of the key, or its end, which comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    End,
    Byte(u8),
}

impl Step {
    /// The one of the root slot, which has no byte.
    pub(super) const ROOT: Step = Step::Byte(0);

    /// That of `key` at position `plen`.
    #[inline]
    pub(super) fn at(key: &[u8], plen: usize) -> Step {
        key.get(plen).map_or(Step::End, |byte| Step::Byte(*byte))
    }

    #[inline]
    fn bits(self) -> u64 {
        match self {
            Step::End => TERM,
            Step::Byte(byte) => u64::from(byte) << 56,
        }
    }
}

/// Type of an inner node: 1 to 6, N8 to N256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DartNodeType(u8);

impl DartNodeType {
    pub(super) const N8: DartNodeType = DartNodeType(1);
    pub(super) const N256: DartNodeType = DartNodeType(6);

    /// All, the smallest first.
    pub(super) fn all() -> impl DoubleEndedIterator<Item = DartNodeType> {
        (1..=6).map(DartNodeType)
    }

    /// Type of that number.
    pub(super) fn of(number: u8) -> Option<DartNodeType> {
        (1..=6).contains(&number).then_some(DartNodeType(number))
    }

    #[inline]
    pub(super) fn number(self) -> u8 {
        self.0
    }

    /// Its name in reports.
    pub(super) fn name(self) -> &'static str {
        ["N8", "N16", "N32", "N64", "N128", "N256"][usize::from(self.0) - 1]
    }
}

/// A slot's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SlotWord(u64);

/// The state of a slot, by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotContent {
    /// Nothing was ever there.
    Empty,
    /// The child was removed.
    Tomb,
    /// A leaf with its size code.
    Leaf(u8),
    /// An inner node, with the compressed bytes in front of it.
    Node(DartNodeType, usize),
}

impl SlotWord {
    pub(super) const EMPTY: SlotWord = SlotWord(0);

    #[inline]
    pub(super) fn from_raw(word: u64) -> SlotWord {
        SlotWord(word)
    }

    #[inline]
    pub(super) fn raw(self) -> u64 {
        self.0
    }

    /// A pointer to an inner node.
    pub(super) fn node(step: Step, len: usize, node: DartNodeType, addr: GlobalAddr) -> SlotWord {
        debug_assert!(len <= LEN_MAX);
        SlotWord(step.bits() | (len as u64) << 52 | u64::from(node.0) << 49 | place(addr))
    }

    /// A pointer to a leaf.
    pub(super) fn leaf(step: Step, code: u8, addr: GlobalAddr) -> SlotWord {
        debug_assert!(code < 16);
        SlotWord(step.bits() | u64::from(code) << 52 | 7 << 49 | place(addr))
    }

    /// The word that `session` leaves in place of a child at `addr`.
    pub(super) fn tomb(step: Step, addr: GlobalAddr, session: u32) -> SlotWord {
        let session = u64::from(session & SESSION_MASK);
        SlotWord(step.bits() | (session >> 4) << 49 | session & LOW | TOMB | place(addr))
    }

    /// The word by which `session` claims an unlinked node at `node`: it stands in a dead slot of that node.
    pub(super) fn claim(step: Step, node: GlobalAddr, session: u32) -> SlotWord {
        SlotWord::tomb(step, node, session).sealed()
    }

    /// Returns whether it claims the node at `node`. No other TOMB in a node names that node.
    pub(super) fn is_claim_of(self, node: GlobalAddr) -> bool {
        self.is_tomb() && self.is_sealed() && self.addr() == node
    }

    /// The same child behind another byte, with `len` compressed bytes if it is an inner node. Not sealed.
    pub(super) fn moved(self, step: Step, len: usize) -> SlotWord {
        let word = SlotWord(self.plain().0 & !STEP | step.bits());
        match word.child() {
            SlotContent::Node(..) => SlotWord(word.0 & !(0xf << 52) | (len as u64) << 52),
            _ => word,
        }
    }

    #[inline]
    pub(super) fn child(self) -> SlotContent {
        if self.plain().0 == 0 {
            return SlotContent::Empty;
        }
        if self.is_tomb() {
            return SlotContent::Tomb;
        }
        match (self.0 >> 49 & 7) as u8 {
            7 => SlotContent::Leaf((self.0 >> 52 & 0xf) as u8),
            number => SlotContent::Node(DartNodeType(number), (self.0 >> 52 & 0xf) as usize),
        }
    }

    /// Returns whether it leads to a leaf or an inner node.
    #[inline]
    pub(super) fn is_live(self) -> bool {
        self.plain().0 != 0 && !self.is_tomb()
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.plain().0 == 0
    }

    #[inline]
    pub(super) fn is_tomb(self) -> bool {
        self.0 & TOMB != 0
    }

    #[inline]
    pub(super) fn is_sealed(self) -> bool {
        self.0 & SEAL != 0
    }

    #[inline]
    pub(super) fn sealed(self) -> SlotWord {
        SlotWord(self.0 | SEAL)
    }

    #[inline]
    pub(super) fn plain(self) -> SlotWord {
        SlotWord(self.0 & !SEAL)
    }

    /// Its symbol; `None` if it is empty.
    #[inline]
    pub(super) fn step(self) -> Option<Step> {
        match self.plain().0 {
            0 => None,
            word if word & TERM != 0 => Some(Step::End),
            word => Some(Step::Byte((word >> 56) as u8)),
        }
    }

    /// The address of its child; of a TOMB, of what was removed.
    #[inline]
    pub(super) fn addr(self) -> GlobalAddr {
        GlobalAddr::new(ServerId((self.0 >> 40 & 0xff) as u16), self.0 & OFFSET)
    }

    /// The remover of a TOMB.
    pub(super) fn session(self) -> u32 {
        ((self.0 >> 49 & 0x7f) << 4 | self.0 & LOW) as u32
    }

    /// Returns whether it can have been written by this engine.
    #[inline]
    pub(super) fn is_legal(self) -> bool {
        let word = self.plain().0;
        let (is_end, kind) = (word & TERM != 0, word >> 49 & 7);
        let is_child = word & LOW == 0 && kind != 0 && (!is_end || kind == 7);
        let is_placed = word & ADDR != 0 && (!is_end || word >> 56 == 0);
        word == 0 || is_placed && (word & TOMB != 0 || is_child)
    }
}

impl fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seal = if self.is_sealed() { " sealed" } else { "" };
        match self.child() {
            SlotContent::Empty => write!(f, "empty{seal}"),
            child => write!(f, "{child:?} {:?} at {}{seal}", self.step(), self.addr()),
        }
    }
}

#[inline]
fn place(addr: GlobalAddr) -> u64 {
    debug_assert!(addr.server().index() < SERVERS_MAX && addr.offset() & !OFFSET == 0, "{addr}");
    u64::from(addr.server().0) << 40 | addr.offset()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(server: u16, offset: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId(server), offset)
    }

    #[test]
    fn fields_come_back_out() {
        for (server, offset) in [(0, 64), (1, 1 << 20), (255, REGION_BYTES_MAX - 64)] {
            let at = addr(server, offset);
            for step in [Step::End, Step::Byte(0), Step::Byte(1), Step::Byte(255)] {
                for code in 0..16 {
                    let leaf = SlotWord::leaf(step, code, at);
                    assert_eq!((leaf.step(), leaf.addr()), (Some(step), at));
                    assert_eq!(leaf.child(), SlotContent::Leaf(code));
                    assert!(leaf.is_live() && leaf.is_legal() && !leaf.is_sealed());
                    assert_eq!(leaf.sealed().plain(), leaf);
                    assert_eq!(leaf.sealed().child(), leaf.child());
                    assert_eq!(leaf.moved(Step::Byte(9), 0).child(), leaf.child());
                }
                for session in [0, 1, 15, 16, 1_023, SESSION_MASK] {
                    let tomb = SlotWord::tomb(step, at, session);
                    assert_eq!(
                        (tomb.step(), tomb.addr(), tomb.session()),
                        (Some(step), at, session)
                    );
                    assert!(
                        tomb.is_tomb() && !tomb.is_live() && tomb.is_legal() && !tomb.is_empty()
                    );
                }
            }
            for node in DartNodeType::all() {
                for len in 0..=LEN_MAX {
                    let word = SlotWord::node(Step::Byte(7), len, node, at);
                    assert_eq!(word.child(), SlotContent::Node(node, len));
                    let moved = word.sealed().moved(Step::Byte(200), 15 - len);
                    assert_eq!(moved, SlotWord::node(Step::Byte(200), 15 - len, node, at));
                }
            }
        }
    }

    #[test]
    fn what_this_engine_does_not_write_is_told() {
        assert!(
            SlotWord::EMPTY.is_legal()
                && SlotWord::EMPTY.is_empty()
                && SlotWord::EMPTY.sealed().is_empty()
        );
        assert_eq!(SlotWord::EMPTY.sealed().step(), None);
        let leaf = SlotWord::leaf(Step::Byte(1), 3, addr(1, 640));
        assert!(!SlotWord::from_raw(leaf.raw() | 1).is_legal(), "poison");
        assert!(!SlotWord::from_raw(0x0102_0304_0506_0708).is_legal());
        assert!(!SlotWord::from_raw(1 << 56).is_legal(), "a byte without a child");
        assert!(!SlotWord::from_raw(u64::MAX).is_legal(), "an end has no byte");
        assert!(!SlotWord::from_raw(TOMB).is_legal(), "a TOMB of nothing");
        let end = SlotWord::leaf(Step::End, 3, addr(1, 640));
        assert!(end.is_legal());
        let inner = SlotWord::node(Step::End, 0, DartNodeType::N8, addr(1, 640));
        assert!(!inner.is_legal(), "nothing goes on behind the end of a key");
    }

    #[test]
    fn pools_out_of_reach_are_refused() {
        assert_eq!(reach(256, 1 << 40), Ok(()));
        assert!(matches!(reach(257, 1 << 30), Err(IndexError::Invalid(_))));
        assert!(matches!(reach(1, (1 << 40) + 1), Err(IndexError::Invalid(_))));
    }

    #[test]
    fn ends_come_before_bytes() {
        assert!(Step::End < Step::Byte(0) && Step::Byte(0) < Step::Byte(255));
        assert_eq!(Step::at(b"ab", 1), Step::Byte(b'b'));
        assert_eq!(Step::at(b"ab", 2), Step::End);
    }
}
