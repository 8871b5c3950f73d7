//! Frames: hold cached images as words that optimistic readers share, with their state.
//!
//! Frames are type-stable: they are made with the cache and go with it, so that a stale number of a
//! frame leads to a latch whose version has moved on, never to other memory.
//!
//! A frame is in one of four states. *Free*: in a list of free frames, latch dead. *Loading*: in the
//! hands of a task, latch dead. *Hot*: its parent's slot is swizzled to it. *Cooling*: see
//! `cooling_map`. The fields of a Hot frame change under the X latches named here:
//!
//! | field | changes under |
//! |---|---|
//! | image, version, dirty, oldest | its own latch (dirty also becomes false, and oldest changes, under its SX) |
//! | state, parent | X of the parent (or the parents, when it moves) |
//! | swizzled, child pointers | its own X |
//! | pins | nothing; see [`Frames::pin`] |

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use farleaf_fabric::{GlobalAddr, Words};
use farleaf_index::IndexError;
use farleaf_index::bnode::{Kind, Layout, Node, NodeMut, Word};
use farleaf_index::local::{Latch, Version};

/// The number that stands for the tree's top, above the root: it has a latch, and one child.
pub(crate) const TOP: u32 = u32::MAX;
/// Bit of a child pointer that leads to a frame. Never in remote memory (`INV-DEX-PTR`).
const SWIZZLED: u64 = 1 << 63;
/// Bits of the frame's incarnation in a swizzled pointer.
const INCARNATION_BITS: u32 = 31;

/// The use of a frame at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameState {
    Free,
    Loading,
    Hot,
    Cooling,
}

/// The control data of a frame, beside its latch.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Ctl {
    addr: AtomicU64,
    /// Version under which the image was last read or written.
    version: AtomicU64,
    /// Number of the oldest logged change in it that remote memory does not have; 0 if it has all.
    oldest: AtomicU64,
    parent: AtomicU32,
    pins: AtomicU32,
    swizzled: AtomicU32,
    incarnation: AtomicU32,
    state: AtomicU8,
    level: AtomicU8,
    /// The node crosses a bound of partitions, so that other compute servers may change it.
    shared: AtomicBool,
}

const _: () = assert!(size_of::<Ctl>() == 64, "one line a frame");

/// A frame's latch and control data.
///
/// Eight latches share a line of the processor's cache, and so do the marks of dirty frames. A hit touches
/// nothing but them and the images, so more of a large cache stays near the processor than with a line of
/// everything for each frame. The price: a writer disturbs the readers of seven other frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRef<'a> {
    pub(crate) latch: &'a Latch,
    dirty: &'a AtomicBool,
    ctl: &'a Ctl,
}

impl FrameRef<'_> {
    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Sets the mark, under X, or to `false` under SX. Most changes find their leaf dirty already, and
    /// leave the line to its readers. A clean frame has no logged change that remote memory lacks.
    #[inline]
    pub(crate) fn set_dirty(&self, dirty: bool) {
        if self.dirty.load(Ordering::Relaxed) != dirty {
            self.dirty.store(dirty, Ordering::Release);
        }
        if !dirty {
            self.set_oldest(0);
        }
    }
}

impl Deref for FrameRef<'_> {
    type Target = Ctl;

    #[inline]
    fn deref(&self) -> &Ctl {
        self.ctl
    }
}

impl Ctl {
    fn new() -> Self {
        let (parent, state) = (AtomicU32::new(TOP), AtomicU8::new(FrameState::Free as u8));
        Ctl { parent, state, ..Ctl::default() }
    }

    pub(crate) fn addr_word(&self) -> u64 {
        self.addr.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> FrameState {
        match self.state.load(Ordering::Acquire) {
            0 => FrameState::Free,
            1 => FrameState::Loading,
            2 => FrameState::Hot,
            _ => FrameState::Cooling,
        }
    }

    pub(crate) fn set_state(&self, state: FrameState) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(crate) fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_parent(&self, parent: u32) {
        self.parent.store(parent, Ordering::Relaxed);
    }

    pub(crate) fn level(&self) -> u8 {
        self.level.load(Ordering::Relaxed)
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub(crate) fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Relaxed);
    }

    pub(crate) fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Acquire)
    }

    /// Under SX, as [`FrameRef::set_dirty`].
    pub(crate) fn set_oldest(&self, number: u64) {
        self.oldest.store(number, Ordering::Release);
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    pub(crate) fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Ordering::Relaxed);
    }

    pub(crate) fn swizzled(&self) -> u32 {
        self.swizzled.load(Ordering::Relaxed)
    }

    pub(crate) fn set_swizzled(&self, count: u32) {
        self.swizzled.store(count, Ordering::Relaxed);
    }

    pub(crate) fn pins(&self) -> u32 {
        self.pins.load(Ordering::SeqCst)
    }
}

/// The largest count of uses. Eviction looks at each frame once in a while and takes one away, so a node
/// that is used more often than that has some left.
const USES_MAX: u8 = 7;

/// All frames of a cache. See the [module page](self).
#[derive(Debug)]
pub(crate) struct Frames {
    words: Words,
    node_words: usize,
    latches: Box<[Latch]>,
    dirty: Box<[AtomicBool]>,
    uses: Box<[AtomicU8]>,
    ctl: Box<[Ctl]>,
    top_latch: Latch,
    /// Never set.
    top_dirty: AtomicBool,
    top: Ctl,
    /// The root: a swizzled pointer, 0 while it is not cached.
    root: AtomicU64,
}

impl Frames {
    /// Makes `count` free frames for nodes of `layout`.
    pub(crate) fn new(layout: &Layout, count: usize) -> Result<Self, IndexError> {
        let node_words = layout.node_words();
        let words = Words::anonymous(count * node_words).ok_or_else(|| {
            IndexError::Full(format!(
                "no memory for a cache of {count} nodes of {} bytes",
                layout.node_bytes()
            ))
        })?;
        Ok(Frames {
            words,
            node_words,
            latches: (0..count).map(|_| Latch::new_dead()).collect(),
            dirty: (0..count).map(|_| AtomicBool::new(false)).collect(),
            uses: (0..count).map(|_| AtomicU8::new(0)).collect(),
            ctl: (0..count).map(|_| Ctl::new()).collect(),
            top_latch: Latch::new(),
            top_dirty: AtomicBool::new(false),
            top: Ctl::new(),
            root: AtomicU64::new(0),
        })
    }

    /// Number of frames.
    pub(crate) fn count(&self) -> usize {
        self.ctl.len()
    }

    /// Returns the latch and control data of `frame`, which may be [`TOP`].
    #[inline]
    pub(crate) fn ctl(&self, frame: u32) -> FrameRef<'_> {
        if frame == TOP {
            return FrameRef { latch: &self.top_latch, dirty: &self.top_dirty, ctl: &self.top };
        }
        let at = frame as usize;
        FrameRef { latch: &self.latches[at], dirty: &self.dirty[at], ctl: &self.ctl[at] }
    }

    /// Returns the latch of a frame, which may be [`TOP`].
    #[inline]
    pub(crate) fn latch(&self, frame: u32) -> &Latch {
        if frame == TOP { &self.top_latch } else { &self.latches[frame as usize] }
    }

    /// Notes a use of the node in a frame: an operation found a leaf there, or missed a child below an
    /// inner node. Counts to [`USES_MAX`]. It is a hint: a use that is lost or counted for another node
    /// does no harm. Most operations find the count full, and leave the line to its readers.
    #[inline]
    pub(crate) fn note_use(&self, frame: u32) {
        let uses = &self.uses[frame as usize];
        let count = uses.load(Ordering::Relaxed);
        if count < USES_MAX {
            uses.store(count + 1, Ordering::Relaxed);
        }
    }

    /// Returns the number of uses, and takes one away.
    pub(crate) fn take_use(&self, frame: u32) -> u8 {
        let uses = &self.uses[frame as usize];
        let count = uses.load(Ordering::Relaxed);
        if let Some(less) = count.checked_sub(1) {
            uses.store(less, Ordering::Relaxed);
        }
        count
    }

    /// Returns the words of a frame.
    #[inline]
    pub(crate) fn image(&self, frame: u32) -> &[AtomicU64] {
        let first = frame as usize * self.node_words;
        &self.words.as_slice()[first..first + self.node_words]
    }

    /// Makes the processor fetch the lines that a search of the node in a frame is likely to touch: the
    /// header and most of a leaf's entries, or an inner node's separators; and the end of a leaf that has its fences
    /// there. A search goes from line to line, and would wait for each.
    #[inline]
    pub(crate) fn prefetch(&self, layout: &Layout, frame: u32, is_leaf: bool) {
        let first = frame as usize * self.node_words;
        self.words.prefetch(first, self.node_words * if is_leaf { 6 } else { 4 });
        if is_leaf && !layout.is_dense() {
            self.words.prefetch(first + self.node_words - 1, 8);
        }
    }

    /// Returns the node in a frame for reading; its content counts once the latch is validated.
    #[inline]
    pub(crate) fn node<'a>(&'a self, layout: &'a Layout, frame: u32) -> Node<'a, AtomicU64> {
        Node::new(layout, self.image(frame))
    }

    /// Returns the node in a frame for a change under X.
    pub(crate) fn node_mut<'a>(
        &'a self,
        layout: &'a Layout,
        frame: u32,
    ) -> NodeMut<'a, &'a [AtomicU64]> {
        NodeMut::new(layout, self.image(frame))
    }

    /// Stores an image, under X or while the latch is dead.
    pub(crate) fn store(&self, frame: u32, words: &[u64]) {
        for (to, from) in self.image(frame).iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Copies a frame's words, which hold swizzled pointers.
    pub(crate) fn copy(&self, frame: u32, into: &mut [u64]) {
        for (to, from) in into.iter_mut().zip(self.image(frame)) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Returns the swizzled pointer to the root; 0 if it is not cached.
    #[inline]
    pub(crate) fn root(&self) -> u64 {
        self.root.load(Ordering::Relaxed)
    }

    /// Sets the root, under X of [`TOP`].
    pub(crate) fn set_root(&self, pointer: u64) {
        self.root.store(pointer, Ordering::Relaxed);
    }

    /// Returns the swizzled pointer to `frame`.
    pub(crate) fn swizzle(&self, frame: u32) -> u64 {
        let life = self.ctl(frame).incarnation.load(Ordering::Relaxed);
        let life = u64::from(life & ((1 << INCARNATION_BITS) - 1));
        SWIZZLED | life << 32 | u64::from(frame)
    }

    /// Returns the frame that a pointer leads to, if it is swizzled. The number is limited to the frames
    /// that there are, because an optimistic reader may have read half of two pointers.
    #[inline]
    pub(crate) fn unswizzle(&self, pointer: u64) -> Option<u32> {
        (pointer & SWIZZLED != 0).then(|| (pointer as u32).min(self.ctl.len() as u32 - 1))
    }

    /// Returns the frames of the swizzled children of a node, with their indices; none of a leaf.
    pub(crate) fn children<'a, W: Word>(
        &'a self,
        node: Node<'a, W>,
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        let count = if node.kind() == Kind::Inner { node.count() + 1 } else { 0 };
        (0..count).filter_map(move |index| Some((index, self.unswizzle(node.child(index)?)?)))
    }

    /// Returns the remote address that a child pointer stands for, under the parent's X or SX.
    pub(crate) fn addr_of(&self, pointer: u64) -> u64 {
        match self.unswizzle(pointer) {
            Some(frame) => {
                debug_assert_eq!(self.swizzle(frame), pointer, "the frame is of another life");
                self.ctl(frame).addr_word()
            }
            None => pointer,
        }
    }

    /// Returns the remote address of the node in a frame.
    pub(crate) fn addr(&self, frame: u32) -> GlobalAddr {
        GlobalAddr::from_word(self.ctl(frame).addr_word()).unwrap_or(GlobalAddr::NULL)
    }

    /// Fills a frame that the caller owns. It stays unreadable until its latch is revived.
    pub(crate) fn fill(&self, frame: u32, words: &[u64], addr: u64, level: u8, version: u64) {
        let ctl = self.ctl(frame);
        debug_assert!(
            matches!(ctl.state(), FrameState::Free | FrameState::Loading),
            "in somebody's hands"
        );
        ctl.latch.begin_filling();
        ctl.set_state(FrameState::Loading);
        self.store(frame, words);
        ctl.addr.store(addr, Ordering::Relaxed);
        ctl.level.store(level, Ordering::Relaxed);
        ctl.incarnation.fetch_add(1, Ordering::Relaxed);
        ctl.set_version(version);
        ctl.set_dirty(false);
        ctl.set_shared(false);
        ctl.set_swizzled(0);
        ctl.set_parent(TOP);
        self.uses[frame as usize].store(0, Ordering::Relaxed);
    }

    /// Pins a frame that was Hot at `version`: until it is unpinned, nobody cools it, and no change of the
    /// tree's shape takes its children (`INV-DEX-PIN`). Fails if somebody holds its latch or it has
    /// changed.
    pub(crate) fn pin(&self, frame: u32, version: Version) -> bool {
        let ctl = self.ctl(frame);
        ctl.pins.fetch_add(1, Ordering::SeqCst);
        // A task that makes such a change takes the latch first and looks for pins after: one of the two
        // sees the other.
        let pinned = ctl.latch.is_quiet_at(version);
        if !pinned {
            ctl.pins.fetch_sub(1, Ordering::SeqCst);
        }
        pinned
    }

    /// Gives back a pin.
    pub(crate) fn unpin(&self, frame: u32) {
        let before = self.ctl(frame).pins.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "it was pinned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_index::bnode::{Head, LayoutOptions};
    use farleaf_index::{KeyFormat, ValueFormat};

    /// An empty leaf at 640, of version 5.
    fn leaf() -> (Layout, Vec<u64>) {
        let options = LayoutOptions::new(256, KeyFormat::Fixed(8), ValueFormat::Fixed(8));
        let layout = Layout::new(options).expect("layout");
        let mut words = vec![0; layout.node_words()];
        let head = Head { addr: 640, version: 5, ..Head::default() };
        layout.encode_leaf(&mut words, &head, &[]).expect("encode");
        (layout, words)
    }

    #[test]
    fn a_frame_is_filled_found_and_recycled() {
        let (layout, words) = leaf();
        let frames = Frames::new(&layout, 4).expect("memory");
        assert_eq!(frames.ctl(2).state(), FrameState::Free);
        assert!(frames.ctl(2).latch.sample().is_none());
        frames.fill(2, &words, 640, 0, 5);
        let pointer = frames.swizzle(2);
        assert_eq!((frames.unswizzle(pointer), frames.addr_of(pointer)), (Some(2), 640));
        assert_eq!((frames.unswizzle(640), frames.addr_of(640)), (None, 640));
        frames.ctl(2).latch.revive();
        let version = frames.ctl(2).latch.sample().expect("alive");
        assert_eq!(frames.node(&layout, 2).self_addr(), 640);
        let mut copy = vec![0; layout.node_words()];
        frames.copy(2, &mut copy);
        assert_eq!(copy, words);
        assert!(frames.pin(2, version));
        assert_eq!(frames.ctl(2).pins(), 1);
        frames.unpin(2);
        assert!(frames.ctl(2).latch.try_sx(version));
        assert!(!frames.pin(2, version), "somebody intends to change it");
        assert_eq!(frames.ctl(2).pins(), 0);
        frames.ctl(2).latch.sx_to_x();
        frames.ctl(2).latch.x_to_dead();
        frames.ctl(2).set_state(FrameState::Free);
        frames.fill(2, &words, 640, 0, 5);
        assert_ne!(frames.swizzle(2), pointer, "a pointer of the life before is another");
    }

    #[test]
    fn uses_are_counted_to_the_most_and_forgotten_one_by_one() {
        let (layout, words) = leaf();
        let frames = Frames::new(&layout, 2).expect("memory");
        frames.fill(1, &words, 640, 0, 5);
        let taken = |looks: usize| (0..looks).map(|_| frames.take_use(1)).collect::<Vec<_>>();
        (0..3).for_each(|_| frames.note_use(1));
        assert_eq!(taken(5), [3, 2, 1, 0, 0]);
        (0..u32::from(USES_MAX) * 3).for_each(|_| frames.note_use(1));
        assert_eq!(taken(2), [USES_MAX, USES_MAX - 1]);
        assert_eq!(frames.take_use(0), 0, "another's");
        frames.fill(1, &words, 640, 0, 5);
        assert_eq!(taken(1), [0], "who comes has no uses yet");
    }
}
