//! Node tests: levels of nodes against a sorted map, damaged images, capacities and formats.
#![allow(clippy::unwrap_used)]

mod bulk;
mod damage;
mod format;
mod inner_level;
mod leaf_level;
mod search;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
use crate::{KeyFormat, ValueFormat};

/// Small seeded generator.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn of(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

fn layout(node_bytes: usize, key: KeyFormat, value: ValueFormat) -> Layout {
    Layout::new(LayoutOptions::new(node_bytes, key, value)).unwrap()
}

fn capped(layout: Layout, leaf: u16, inner: u16) -> Layout {
    let options =
        LayoutOptions { cap_leaf: Some(leaf), cap_inner: Some(inner), ..*layout.options() };
    Layout::new(options).unwrap()
}

/// The layouts that every test runs over.
fn layouts() -> Vec<Layout> {
    use KeyFormat::{Bytes, Fixed};
    use ValueFormat as V;
    vec![
        layout(1024, Fixed(8), V::Fixed(8)),
        layout(256, Fixed(8), V::Fixed(8)),
        capped(layout(1024, Fixed(8), V::Fixed(8)), 2, 2),
        capped(layout(1024, Fixed(8), V::Fixed(8)), 4, 3),
        layout(512, Fixed(16), V::Fixed(8)),
        layout(512, Fixed(24), V::Fixed(8)),
        layout(256, Fixed(8), V::Fixed(16)),
        layout(256, Fixed(8), V::Fixed(0)),
        layout(1024, Fixed(64), V::Fixed(256)),
        layout(256, Fixed(5), V::Fixed(3)),
        layout(256, Fixed(8), V::Bytes),
        capped(layout(1024, Fixed(3), V::Fixed(500)), 4, 4),
        layout(256, Bytes { max: 55 }, V::Bytes),
        layout(256, Bytes { max: 12 }, V::Bytes),
        layout(1024, Bytes { max: 311 }, V::Fixed(8)),
        capped(layout(1024, Bytes { max: 40 }, V::Bytes), 3, 2),
        layout(4096, Bytes { max: 1024 }, V::Bytes),
        layout(65536, Bytes { max: 1024 }, V::Bytes),
    ]
}

/// A key of the layout from a small space of awkward shapes, so that keys repeat and are near.
fn random_key(layout: &Layout, rng: &mut Rng) -> Vec<u8> {
    let alphabet: &[u8] = rng.pick::<&[u8]>(&[&[0, 1], &[0xFE, 0xFF], &[0, 0xFF], b"abc"]);
    let max = layout.key_max();
    let stem = rng.pick(&[0, 0xFF, b'k']);
    let mut key = match rng.below(4) {
        // Few distinct bytes, short.
        0 => vec![],
        // One long run, then a few bytes.
        1 => vec![stem; rng.below(max + 1)],
        2 => vec![stem; max.saturating_sub(3)],
        _ => vec![stem; max / 2],
    };
    for _ in 0..rng.below(5) {
        key.push(rng.pick(alphabet));
    }
    key.truncate(max);
    if let KeyFormat::Fixed(len) = layout.options().key {
        let fill = rng.pick(&[0, 0, 0xFF]);
        key.resize(len, fill);
    }
    key
}

/// A string that is a possible separator.
fn random_separator(layout: &Layout, rng: &mut Rng) -> Vec<u8> {
    let mut key = random_key(layout, rng);
    if !layout.is_dense() && rng.below(2) == 0 {
        key.truncate(rng.below(key.len() + 1));
    }
    key
}

/// A value as the tests keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Owned {
    Inline(Vec<u8>),
    Record(RecordRef),
}

impl Owned {
    fn random(layout: &Layout, rng: &mut Rng) -> Self {
        let byte = rng.next() as u8;
        let inline_max = layout.inline_value_max();
        let record = |len: u64| Owned::Record(RecordRef { addr: len << 20 | u64::from(byte), len });
        match layout.options().value {
            ValueFormat::Fixed(len) if len <= inline_max => Owned::Inline(vec![byte; len]),
            ValueFormat::Fixed(len) => record(len as u64),
            ValueFormat::Bytes => match rng.below(8) {
                0 => record(1 + rng.next() % (1 << 20)),
                1 => Owned::Inline(vec![byte; inline_max]),
                2 => Owned::Inline(vec![]),
                3 => Owned::Inline(vec![byte; rng.below(inline_max + 1)]),
                _ => Owned::Inline(vec![byte; rng.below(inline_max.min(20) + 1)]),
            },
        }
    }

    fn value(&self) -> Value<'_> {
        match self {
            Owned::Inline(bytes) => Value::Inline(bytes),
            Owned::Record(record) => Value::Record(*record),
        }
    }

    fn read<W: Word>(node: &Node<'_, W>, index: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        Some(match node.value(index, &mut bytes)? {
            StoredValue::Inline => Owned::Inline(bytes),
            StoredValue::Record(record) => Owned::Record(record),
        })
    }
}

/// One node twice: a private image and a frame, which every change must leave the same.
struct Twin {
    private: Vec<u64>,
    shared: Vec<AtomicU64>,
}

impl Twin {
    fn new(layout: &Layout) -> Self {
        let count = layout.node_words();
        Self { private: vec![0; count], shared: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    fn node<'a>(&'a self, layout: &'a Layout) -> Node<'a, u64> {
        Node::new(layout, &self.private)
    }

    fn frame<'a>(&'a self, layout: &'a Layout) -> Node<'a, AtomicU64> {
        Node::new(layout, &self.shared)
    }

    fn assert_same(&self) {
        for (index, (private, shared)) in self.private.iter().zip(&self.shared).enumerate() {
            assert_eq!(*private, shared.load(Relaxed), "word {index}");
        }
    }

    /// Seals both, and checks the image, in which the lock word must still be `lock`.
    fn seal(&mut self, layout: &Layout, lock: u64) {
        let version = self.node(layout).version() + 1;
        NodeMut::new(layout, &mut self.private[..]).seal(version);
        NodeMut::new(layout, &self.shared[..]).seal(version);
        self.assert_same();
        assert_eq!(self.private[0], lock, "the lock word is not the node code's");
        assert_eq!(self.node(layout).version(), version);
        assert!(self.frame(layout).sum_ok());
        let addr = self.node(layout).self_addr();
        verify_image(layout, &self.private, addr).unwrap();
    }
}

/// Does the same to both images of a twin, with the same result.
macro_rules! both {
    ($layout:expr, $twin:expr, |$node:ident| $change:expr) => {{
        let first = {
            #[allow(unused_mut)]
            let mut $node = NodeMut::new($layout, &mut $twin.private[..]);
            $change
        };
        let second = {
            #[allow(unused_mut)]
            let mut $node = NodeMut::new($layout, &$twin.shared[..]);
            $change
        };
        assert_eq!(first, second);
        first
    }};
}
pub(crate) use both;

/// Splits a twin for `key`; the right half is a twin, too.
fn split(layout: &Layout, left: &mut Twin, key: &[u8], addr: u64) -> (Twin, Split) {
    let mut right = Twin::new(layout);
    let first = NodeMut::new(layout, &mut left.private[..])
        .split_for(key, &mut NodeMut::new(layout, &mut right.private[..]), addr, 9)
        .unwrap();
    let second = NodeMut::new(layout, &left.shared[..])
        .split_for(key, &mut NodeMut::new(layout, &right.shared[..]), addr, 9)
        .unwrap();
    assert_eq!(first, second);
    let node = right.node(layout);
    assert_eq!((node.self_addr(), node.incarnation()), (addr, 9));
    assert_eq!(left.node(layout).right(), addr);
    (right, first)
}

/// Checks that a refusal for want of room was right: at capacity, or fewer bytes left than are needed.
fn assert_full(layout: &Layout, twin: &Twin, key_len: usize, rest: usize, cap: usize) {
    let node = twin.node(layout);
    if layout.is_dense() || node.count() == cap {
        return assert_eq!(node.count(), cap);
    }
    let suffix = key_len - node.heap().prefix();
    assert!(node.used_bytes() + suffix + rest > node.capacity_bytes(), "there was room");
}
