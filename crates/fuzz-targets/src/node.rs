//! Node target: reads images of nodes, and changes private copies of them.
//!
//! Input: layout, mode, words to change or an image as it is, keys to look for.

use std::sync::atomic::AtomicU64;

use farleaf_index::bnode::{
    Head, Layout, LayoutOptions, Node, NodeMut, RecordRef, Value, Word, verify_image,
};
use farleaf_index::{KeyFormat, ValueFormat};

use crate::bytes::Bytes;

const ADDR: u64 = 64;
/// Bytes of the longest key, and one more.
const KEY_BYTES: usize = 1025;

pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let Some(layout) = layout(bytes.u8()) else { return };
    let mode = bytes.u8();
    let keys: Vec<Vec<u8>> = (0..2).map(|_| key(&layout, &mut bytes)).collect();
    let mut image = match mode & 3 {
        0 => vec![0; layout.node_words()],
        1 => full(&layout, false),
        _ => full(&layout, true),
    };
    if mode & 3 == 0 {
        for (word, chunk) in image.iter_mut().zip(bytes.rest().chunks(8)) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(raw);
        }
    } else {
        for _ in 0..16 {
            if bytes.is_empty() {
                break;
            }
            let at = usize::from(bytes.u16()) % image.len();
            image[at] = bytes.change(image[at]);
        }
    }
    if mode & 4 != 0 {
        NodeMut::new(&layout, &mut image[..]).seal(7);
    }
    let is_node = verify_image(&layout, &image, image[1]).is_ok();
    read_all(&Node::new(&layout, &image), &keys, is_node);
    let frame: Vec<AtomicU64> = image.iter().map(|word| AtomicU64::new(*word)).collect();
    read_all(&Node::new(&layout, &frame), &keys, is_node);
    change_all(&layout, &image, &keys, usize::from(mode >> 4));
}

fn layout(selector: u8) -> Option<Layout> {
    use KeyFormat::{Bytes, Fixed};
    let (node_bytes, key, value, caps) = match selector % 10 {
        0 => (1024, Fixed(8), ValueFormat::Fixed(8), None),
        1 => (256, Fixed(8), ValueFormat::Fixed(8), Some(4)),
        2 => (512, Fixed(16), ValueFormat::Fixed(24), None),
        3 => (256, Fixed(5), ValueFormat::Fixed(3), None),
        4 => (256, Fixed(8), ValueFormat::Bytes, None),
        5 => (1024, Fixed(3), ValueFormat::Fixed(500), Some(4)),
        6 => (256, Bytes { max: 40 }, ValueFormat::Bytes, Some(4)),
        7 => (1024, Bytes { max: 311 }, ValueFormat::Fixed(8), None),
        8 => (4096, Bytes { max: 1024 }, ValueFormat::Bytes, None),
        _ => (256, Bytes { max: 12 }, ValueFormat::Bytes, None),
    };
    let options = LayoutOptions {
        cap_leaf: caps,
        cap_inner: caps,
        ..LayoutOptions::new(node_bytes, key, value)
    };
    Layout::new(options).ok()
}

fn key(layout: &Layout, bytes: &mut Bytes<'_>) -> Vec<u8> {
    match layout.options().key {
        KeyFormat::Fixed(len) => {
            let mut key = bytes.take(len).to_vec();
            key.resize(len, 0);
            key
        }
        KeyFormat::Bytes { .. } => {
            let repeats = usize::from(bytes.u8());
            let stem = bytes.take(8);
            let mut key = stem.repeat(1 + repeats % 160);
            key.truncate(KEY_BYTES.min(layout.key_max()));
            key
        }
    }
}

/// A node with as many entries as fit.
fn full(layout: &Layout, inner: bool) -> Vec<u64> {
    let mut image = vec![0; layout.node_words()];
    let mut node = NodeMut::new(layout, &mut image[..]);
    let of = |number: u16| -> Vec<u8> {
        match layout.options().key {
            KeyFormat::Fixed(len) => {
                let number = number.to_be_bytes();
                [&vec![0; len - 2][..], &number].concat()
            }
            KeyFormat::Bytes { .. } => format!("k{number:04}").into_bytes(),
        }
    };
    let (low, high) = (of(0), of(2000));
    let head = Head { addr: ADDR, low: Some(&low), high: Some(&high), ..Head::default() };
    if inner {
        if node.init_inner(&Head { level: 1, ..head }, 9 * 64).is_err() {
            return image;
        }
        for number in 1..500 {
            if node.insert_separator(&of(number * 3), u64::from(number) * 64).is_err() {
                break;
            }
        }
    } else {
        if node.init_leaf(&head).is_err() {
            return image;
        }
        let record = Value::Record(RecordRef { addr: 1 << 20, len: 5000 });
        let short = vec![7; layout.inline_value_max().min(20)];
        for number in 1..500 {
            let value = match layout.options().value {
                ValueFormat::Fixed(len) if len > layout.inline_value_max() => {
                    Value::Record(RecordRef { addr: 1 << 20, len: len as u64 })
                }
                ValueFormat::Bytes if number % 3 == 0 => record,
                ValueFormat::Fixed(len) => Value::Inline(&short[..len.min(short.len())]),
                ValueFormat::Bytes => Value::Inline(&short),
            };
            if node.insert(&of(number * 3), value).is_err() {
                break;
            }
        }
    }
    node.seal(3);
    image
}

/// Calls everything that reads. What has been accepted as a node is consistent, too.
fn read_all<W: Word>(node: &Node<'_, W>, keys: &[Vec<u8>], is_node: bool) {
    let mut out = Vec::new();
    let _ = (node.kind(), node.level(), node.used_bytes(), node.capacity_bytes(), node.sum_ok());
    let _ = (node.incarnation(), node.right(), node.version());
    let _ = (node.low_fence(&mut out), node.high_fence(&mut out));
    for key in keys {
        let _ = (node.covers(key), node.covers_after(key));
        let _ = (node.child_for(key), node.child_after(key));
        let _ = (node.lower_bound(key), node.upper_bound(key));
        let (Ok(index) | Err(index)) = node.find(key);
        assert!(index <= node.words().len(), "a place outside of the node");
    }
    let mut last: Option<Vec<u8>> = None;
    for index in 0..node.count().min(node.words().len()) {
        if node.key(index, &mut out) && is_node && node.level() == 0 {
            assert!(last.as_ref().is_none_or(|last| *last < out), "keys out of order");
            last = Some(out.clone());
        }
        let _ = (node.separator(index, &mut out), node.value(index, &mut out), node.record(index));
        let _ = (node.child(index), node.find_child(index as u64 * 64));
    }
    for index in [usize::from(u16::MAX), usize::MAX - 1, usize::MAX] {
        let _ = (node.key(index, &mut out), node.separator(index, &mut out));
        let _ = (node.value(index, &mut out), node.record(index), node.child(index));
    }
    let _ = node.can_merge(node, 100);
}

/// Calls everything that changes, on copies.
fn change_all(layout: &Layout, image: &[u64], keys: &[Vec<u8>], index: usize) {
    let value = match layout.options().value {
        ValueFormat::Fixed(len) => vec![1; len],
        ValueFormat::Bytes => vec![1; 9],
    };
    let value = if value.len() <= layout.inline_value_max() {
        Value::Inline(&value)
    } else {
        Value::Record(RecordRef { addr: 1 << 20, len: value.len() as u64 })
    };
    for key in keys {
        let mut copy = image.to_vec();
        let frame: Vec<AtomicU64> = image.iter().map(|word| AtomicU64::new(*word)).collect();
        let mut right = vec![0; image.len()];
        let mut node = NodeMut::new(layout, &mut copy[..]);
        let mut other = NodeMut::new(layout, &frame[..]);
        let mut right = NodeMut::new(layout, &mut right[..]);
        let _ = (node.insert(key, value), other.replace(index, value));
        let _ = (node.insert_separator(key, 4 * 64), other.insert_separator(key, 4 * 64));
        let _ = (node.remove(index), other.remove_child(64));
        let _ = (node.remove_separator(index), other.set_child(index, 3 * 64));
        let _ = node.merge_right(&other.as_node());
        let _ =
            (node.split_for(key, &mut right, 4 * 64, 0), other.split_for(key, &mut right, 64, 0));
        node.mark_dead();
        node.set_right(64);
        node.seal(9);
        assert_eq!(copy[0], image[0], "damage never reaches the lock word");
    }
}
