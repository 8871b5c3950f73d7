//! Buffer slab: recycles, per thread, buffers that a fabric can reach.

use std::alloc;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::Op;

/// Bytes of the smallest class, one cache line; each class doubles.
const LEAST_BYTES: usize = 64;
/// Classes: 64 B to 2 MiB.
const CLASSES: usize = 16;
/// Bytes asked of the system at a time.
const ARENA_BYTES: usize = 1 << 20;
/// Bytes of the first arena of a class; each next one is four times as large, up to [`ARENA_BYTES`].
const FIRST_ARENA_BYTES: usize = 32 << 10;

/// A thread's store of buffers: arenas of registered memory, cut into power-of-two classes.
///
/// - **INV-SLAB-1** A slot is in its class's free list, or it is the slot of exactly one [`Buf`].
/// - **INV-SLAB-2** A slot's `home` is set exactly while it is out, so that arenas live until the
///   slab's handles and all its buffers are gone.
///
/// A fabric that must register memory does so once per arena.
pub struct Slab {
    registrar: Option<Box<dyn Registrar>>,
    free: [RefCell<Vec<NonNull<SlabSlot>>>; CLASSES],
    arenas: RefCell<Vec<Arena>>,
    /// Arenas of each class.
    grown: [Cell<u8>; CLASSES],
    lists: RefCell<Vec<Vec<Op>>>,
    out: Cell<usize>,
}

/// Makes memory known to a card.
pub(super) trait Registrar {
    /// Registers memory for this side's own use; `None` if it cannot be had.
    ///
    /// # Safety
    /// The memory stays until the guard has been dropped.
    unsafe fn register(&self, memory: NonNull<u8>, bytes: usize) -> Option<Registered>;
}

/// Memory that a card knows by `key`, until the guard is dropped.
pub(super) struct Registered {
    pub(super) key: u32,
    #[expect(dead_code, reason = "held for its Drop, which deregisters")]
    pub(super) guard: Box<dyn Any>,
}

/// Memory of many buffers of one class, and their slots.
struct Arena {
    /// Keeps it registered.
    registered: Option<Registered>,
    memory: NonNull<u8>,
    layout: alloc::Layout,
    slots: NonNull<[SlabSlot]>,
}

/// Position, window and owner of one buffer. The [`Buf`] does not hold them, so that it moves through an
/// operation as one register.
#[derive(Debug)]
struct SlabSlot {
    start: NonNull<u64>,
    len: u32,
    at: u32,
    window: u32,
    /// Key by which a card knows the memory; 0 if it does not.
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "only cards ask"))]
    key: u32,
    class: u8,
    home: Option<SlabRef>,
}

/// A shared handle to a thread's slab.
#[derive(Clone, Debug)]
pub(crate) struct SlabRef(Rc<Slab>);

impl SlabRef {
    pub(crate) fn new() -> Self {
        Self::over(None)
    }

    /// Buffers of memory that is registered by `registrar`.
    #[cfg(feature = "verbs")]
    pub(super) fn registered(registrar: impl Registrar + 'static) -> Self {
        Self::over(Some(Box::new(registrar)))
    }

    fn over(registrar: Option<Box<dyn Registrar>>) -> Self {
        SlabRef(Rc::new(Slab {
            registrar,
            free: std::array::from_fn(|_| RefCell::default()),
            arenas: RefCell::default(),
            grown: std::array::from_fn(|_| Cell::new(0)),
            lists: RefCell::default(),
            out: Cell::new(0),
        }))
    }

    /// A buffer of `len` bytes with arbitrary content.
    ///
    /// # Panics
    /// Beyond 2 MiB: no operation of this program is larger.
    #[inline]
    pub(crate) fn buf(&self, len: usize) -> Buf {
        let class = class_of(len);
        assert!(class < CLASSES, "a buffer of {len} bytes: the largest has 2 MiB");
        let taken = self.0.free[class].borrow_mut().pop();
        let mut buf = Buf(taken.unwrap_or_else(|| self.0.grow(class)));
        self.0.out.set(self.0.out.get() + 1);
        let slot = buf.slot_mut();
        (slot.len, slot.at, slot.window) = (len as u32, 0, len as u32);
        slot.home = Some(self.clone());
        buf
    }

    /// Buffers that a caller or an operation holds.
    pub(crate) fn buffers_out(&self) -> usize {
        self.0.out.get()
    }

    pub(crate) fn take_list(&self) -> Vec<Op> {
        self.0.lists.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn give_list(&self, mut list: Vec<Op>) {
        // Clearing drops buffers, which go back to this slab: no borrow may be held here.
        list.clear();
        self.0.lists.borrow_mut().push(list);
    }
}

impl Slab {
    /// Cuts a new arena for `class`; returns one slot of it.
    #[cold]
    fn grow(&self, class: usize) -> NonNull<SlabSlot> {
        let bytes = LEAST_BYTES << class;
        let grown = self.grown[class].get();
        self.grown[class].set(grown.saturating_add(1));
        let arena = (FIRST_ARENA_BYTES << (2 * u32::from(grown.min(8)))).min(ARENA_BYTES);
        let count = (arena / bytes).clamp(1, 1024);
        let layout = alloc::Layout::from_size_align(bytes * count, 4096)
            .expect("at most 2 MiB, aligned to a page: a legal layout");
        // SAFETY: the size is at least 64.
        let Some(memory) = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }) else {
            alloc::handle_alloc_error(layout)
        };
        // SAFETY: an arena's registration is dropped before its memory is given back.
        let register = |by: &dyn Registrar| unsafe { by.register(memory, bytes * count) };
        let registered = self.registrar.as_deref().and_then(register);
        let key = registered.as_ref().map_or(0, |registered| registered.key);
        let slots: Box<[SlabSlot]> = (0..count)
            .map(|index| SlabSlot {
                // SAFETY: `index * bytes` lies inside the arena of `count * bytes`.
                start: unsafe { memory.add(index * bytes) }.cast(),
                len: 0,
                at: 0,
                window: 0,
                key,
                class: class as u8,
                home: None,
            })
            .collect();
        let slots = NonNull::from(Box::leak(slots));
        self.arenas.borrow_mut().push(Arena { registered, memory, layout, slots });
        let mut free = self.free[class].borrow_mut();
        let first = slots.cast::<SlabSlot>();
        // SAFETY: each index is below the number of slots.
        free.extend((1..count).rev().map(|index| unsafe { first.add(index) }));
        first
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        debug_assert_eq!(self.out.get(), 0, "buffers hold the slab, so none can be out");
        for arena in self.arenas.get_mut().drain(..) {
            // SAFETY: leaked from a box in `grow`; every buffer holds the slab (INV-SLAB-2), so
            // nobody else has a slot, and the free lists are not used again.
            drop(unsafe { Box::from_raw(arena.slots.as_ptr()) });
            drop(arena.registered);
            // SAFETY: allocated in `grow` with this layout; no buffer is left, as above.
            unsafe { alloc::dealloc(arena.memory.as_ptr(), arena.layout) };
        }
    }
}

impl std::fmt::Debug for Slab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slab({} buffers out)", self.out.get())
    }
}

fn class_of(len: usize) -> usize {
    (len.max(1).div_ceil(LEAST_BYTES)).next_power_of_two().trailing_zeros() as usize
}

/// An owned buffer of registered memory, private to its holder.
///
/// Operations transfer its *window*, the whole of it unless set with [`Buf::window`]. Dropped, it goes back
/// to its thread's slab. Content is little-endian bytes, or the same memory as words.
pub struct Buf(NonNull<SlabSlot>);

impl Buf {
    #[inline]
    fn slot(&self) -> &SlabSlot {
        // SAFETY: this buffer is the slot's only holder (INV-SLAB-1), and the slot's `home` keeps
        // it alive (INV-SLAB-2). It is changed only through `slot_mut`.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn slot_mut(&mut self) -> &mut SlabSlot {
        // SAFETY: as in `slot`; `&mut self` makes this the only view.
        unsafe { self.0.as_mut() }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.slot().len as usize
    }

    /// Returns whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes later operations transfer only `range` of it.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[inline]
    #[must_use]
    pub fn window(mut self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len(),
        };
        assert!(start <= end && end <= self.len(), "window {start}..{end} of {self:?}");
        let slot = self.slot_mut();
        (slot.at, slot.window) = (start as u32, (end - start) as u32);
        self
    }

    /// First byte of the window.
    #[inline]
    pub fn window_start(&self) -> usize {
        self.slot().at as usize
    }

    /// Bytes of the window: the bytes that an operation transfers.
    #[inline]
    pub fn window_len(&self) -> usize {
        self.slot().window as usize
    }

    /// The bytes of the window.
    #[inline]
    pub fn window_bytes(&self) -> &[u8] {
        &self.bytes()[self.window_start()..self.window_start() + self.window_len()]
    }

    /// Address and length of the window, and the key by which a card knows it.
    #[cfg(feature = "verbs")]
    pub(super) fn place(&self) -> (u64, u32, u32) {
        let slot = self.slot();
        let start = slot.start.expose_provenance().get() as u64;
        (start + u64::from(slot.at), slot.window, slot.key)
    }

    /// Returns whether a card knows its memory.
    #[cfg(feature = "verbs")]
    pub(crate) fn is_registered(&self) -> bool {
        self.slot().key != 0
    }

    /// All bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the slot's memory is this buffer's alone (INV-SLAB-1), at least `len` bytes long,
        // initialised (zeroed at first, written since only through these slices) and alive
        // (INV-SLAB-2). Alignment of u8 is 1.
        unsafe { std::slice::from_raw_parts(self.slot().start.as_ptr().cast::<u8>(), self.len()) }
    }

    /// All bytes, to write.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, len) = (self.slot().start.as_ptr().cast::<u8>(), self.len());
        // SAFETY: as in `bytes`; `&mut self` makes this the only view.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// All whole words, in the machine's order; the bytes are little-endian.
    #[inline]
    pub fn words(&self) -> &[u64] {
        // SAFETY: as in `bytes`; buffers start at multiples of 64 bytes.
        unsafe { std::slice::from_raw_parts(self.slot().start.as_ptr(), self.len() / 8) }
    }

    /// All whole words, to write.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u64] {
        let (start, len) = (self.slot().start.as_ptr(), self.len() / 8);
        // SAFETY: as in `words`; `&mut self` makes this the only view.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        let slot = self.slot_mut();
        let class = usize::from(slot.class);
        // The slot may be gone once its home has been dropped at the end of this block.
        if let Some(home) = slot.home.take() {
            home.0.free[class].borrow_mut().push(self.0);
            home.0.out.set(home.0.out.get() - 1);
        }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes, window {}+{})", self.len(), self.window_start(), self.window_len())
    }
}

const _: () = assert!(size_of::<Option<Buf>>() == 8, "a buffer moves as one register");
const _: () = assert!(cfg!(target_endian = "little"), "words are little-endian in the pool");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_promise() {
        for len in [0, 1, 63, 64, 65, 1024, 1025, 2 << 20] {
            let class = class_of(len);
            assert!(LEAST_BYTES << class >= len);
            assert!(class == 0 || LEAST_BYTES << (class - 1) < len);
        }
        assert_eq!(class_of(2 << 20), CLASSES - 1);
    }

    #[test]
    fn a_dropped_buffer_is_handed_out_again_and_never_twice() {
        let slab = SlabRef::new();
        let mut one = slab.buf(100);
        let mut two = slab.buf(100);
        one.bytes_mut().fill(1);
        two.bytes_mut().fill(2);
        assert!(one.bytes().iter().all(|b| *b == 1));
        let place = one.bytes().as_ptr();
        drop(one);
        assert_eq!(slab.buffers_out(), 1);
        let three = slab.buf(128);
        assert_eq!(three.bytes().as_ptr(), place);
        assert_ne!(three.bytes().as_ptr(), two.bytes().as_ptr());
    }

    #[test]
    fn buffers_that_are_out_never_overlap() {
        let slab = SlabRef::new();
        // More than an arena of the smallest class, and some of larger ones.
        let lens = (0..1100).map(|_| 64).chain([100, 100, 3000, 3000, 1 << 20, 1 << 20]);
        let mut bufs: Vec<Buf> = lens.map(|len| slab.buf(len)).collect();
        for (number, buf) in bufs.iter_mut().enumerate() {
            let len = buf.len();
            let bytes = buf.bytes_mut();
            (bytes[0], bytes[len - 1]) = (number as u8, number as u8);
        }
        for (number, buf) in bufs.iter().enumerate() {
            let number = number as u8;
            assert_eq!((buf.bytes()[0], buf.bytes()[buf.len() - 1]), (number, number));
        }
        assert_eq!(slab.buffers_out(), bufs.len());
        drop(slab);
        // Without handles, the last buffer takes the slab with it.
        bufs.drain(1..);
        assert_eq!(bufs[0].bytes()[63], 0);
    }

    #[test]
    fn a_buffer_outlives_its_maker() {
        let mut buf = { SlabRef::new().buf(1 << 20) };
        buf.words_mut()[0] = 0x0102;
        assert_eq!(buf.bytes()[..2], [2, 1]);
        let buf = buf.window(8..24);
        assert_eq!((buf.window_start(), buf.window_len()), (8, 16));
    }

    #[test]
    #[should_panic(expected = "window 60..65")]
    fn a_window_stays_inside() {
        let _ = SlabRef::new().buf(64).window(60..65);
    }
}
