//! Offload target: requests to a memory server to run operations of `dex` on its memory.
//!
//! Input: layout and whether changed nodes are sealed again; changes of words; requests: operation, key,
//! whether it is sent again, and changes of the request's bytes. With bit 7 of the first byte the rest is
//! a request as it comes. The region holds an inner node and two leaves.
//!
//! Beyond not panicking: a request that was not done, or reads, changes nothing, one that was changes no word but
//! those of a leaf behind its lock word, and a leaf that was sound is sound afterwards.

use std::sync::Arc;

use farleaf_engines::dex::offload::OffloadService;
use farleaf_fabric::{Service, Words};
use farleaf_index::bnode::{Head, Layout, LayoutOptions, LeafEntry, NodeMut, Value, verify_image};
use farleaf_index::{KeyFormat, ValueFormat};

use crate::bytes::Bytes;

const REGION_BYTES: usize = 16 << 10;
const CHANGES_MAX: u8 = 8;
const REQUESTS_MAX: u8 = 8;
/// Offsets of the inner node and the leaves.
const NODES: [u64; 3] = [2048, 4096, 8192];
const TREE: u64 = 0x7ee;
const REPLY_BYTES: usize = 32;
const OK: u8 = 1;
const SCAN: u8 = 6;
const NO_SESSION: u8 = 8;

fn options(selector: u8) -> LayoutOptions {
    let [key, value] = match selector % 4 {
        0 => return LayoutOptions::new(1024, KeyFormat::Fixed(8), ValueFormat::Fixed(8)),
        1 => {
            let dense = LayoutOptions::new(512, KeyFormat::Fixed(16), ValueFormat::Fixed(24));
            return LayoutOptions { cap_leaf: Some(4), cap_inner: Some(3), ..dense };
        }
        2 => [40, 0],
        _ => [5, 3],
    };
    match value {
        0 => LayoutOptions::new(512, KeyFormat::Bytes { max: key }, ValueFormat::Bytes),
        _ => LayoutOptions::new(512, KeyFormat::Fixed(key), ValueFormat::Fixed(value)),
    }
}

fn key(options: &LayoutOptions, number: u8) -> Vec<u8> {
    match options.key {
        KeyFormat::Fixed(len) => vec![number; len],
        KeyFormat::Bytes { max } => vec![number; usize::from(number) % (max + 1)],
    }
}

fn value(options: &LayoutOptions, number: u8) -> Vec<u8> {
    match options.value {
        ValueFormat::Fixed(len) => vec![number; len],
        ValueFormat::Bytes => vec![number; usize::from(number) * 2],
    }
}

/// Keys 2, 4 and 6 in one leaf, 8 and 10 in the other.
fn image(layout: &Layout) -> Vec<u64> {
    let mut words = vec![0; REGION_BYTES / 8];
    let options = layout.options();
    let bound = key(options, 7);
    for (at, numbers) in [(1, &[2_u8, 4, 6][..]), (2, &[8, 10])] {
        let pairs: Vec<_> =
            numbers.iter().map(|at| (key(options, *at), value(options, *at))).collect();
        let entries: Vec<_> = pairs
            .iter()
            .map(|(key, value)| LeafEntry { key, value: Value::Inline(value) })
            .collect();
        let (low, high) = if at == 1 { (None, Some(&bound[..])) } else { (Some(&bound[..]), None) };
        let right = if at == 1 { NODES[2] } else { 0 };
        let head = Head { addr: NODES[at], right, version: 1, low, high, ..Head::default() };
        let first = NODES[at] as usize / 8;
        let leaf = &mut words[first..first + layout.node_words()];
        layout.encode_leaf(leaf, &head, &entries).expect("a leaf");
    }
    let head = Head { addr: NODES[0], level: 1, version: 1, ..Head::default() };
    let first = NODES[0] as usize / 8;
    let inner = &mut words[first..first + layout.node_words()];
    layout.encode_inner(inner, &head, &NODES[1..], &[&bound]).expect("an inner node");
    words
}

/// The range of a scan: by the number's bits descending or not, with or without the key itself and a far end, or
/// from the end of the key space.
fn sweep(options: &LayoutOptions, number: u8) -> Vec<u8> {
    let flags = number >> 3;
    let far = if flags & 8 == 0 { Vec::new() } else { key(options, (number & 7) ^ 6) };
    [&[flags, 0, 0, 0, 1 + (number & 7), 0, 0, 0][..], &far].concat()
}

/// A request as the design's page has it.
fn request(layout: &Layout, operation: u8, number: u8, session: u64, sequence: u64) -> Vec<u8> {
    let options = layout.options();
    let (mut key, mut value) = (key(options, number), value(options, number | 1));
    if operation == SCAN {
        value = sweep(options, number);
        key = if value[0] & 4 == 0 { self::key(options, number & 7) } else { Vec::new() };
    } else if !(2..5).contains(&operation) {
        value.clear();
    }
    let (key_len, any_key) = match options.key {
        KeyFormat::Fixed(len) => (len, 0),
        KeyFormat::Bytes { max } => (max, 4),
    };
    let (value_len, any_value) = match options.value {
        ValueFormat::Fixed(len) => (len, 0),
        ValueFormat::Bytes => (0, 8),
    };
    let reads = matches!(operation, 1 | SCAN);
    let words =
        [NODES[0], TREE, 5, if reads { 0 } else { session }, if reads { 0 } else { sequence }, 0];
    let mut bytes = b"FDO1".to_vec();
    bytes.extend([operation, 1, any_key | any_value, 0]);
    bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
    let caps = [0, options.cap_leaf.unwrap_or(0), options.cap_inner.unwrap_or(0), key_len as u16];
    bytes.extend(caps.into_iter().flat_map(u16::to_le_bytes));
    let long = [layout.node_bytes() as u32, value_len as u32];
    bytes.extend(long.into_iter().flat_map(u32::to_le_bytes));
    bytes.extend([key.len() as u16, 0, 0, 0].into_iter().flat_map(u16::to_le_bytes));
    bytes.extend([value.len() as u32, 0].into_iter().flat_map(u32::to_le_bytes));
    bytes.extend(key);
    bytes.extend(value);
    bytes
}

pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mode = bytes.u8();
    let options = options(mode);
    let layout = Layout::new(options).expect("a layout").for_tree(TREE);
    let mut words = image(&layout);
    for _ in 0..bytes.u8() % CHANGES_MAX {
        let at = usize::from(bytes.u8());
        let node = NODES[at % 3] as usize / 8;
        let word = node + (at / 3 + usize::from(bytes.u8()) * 32) % layout.node_words();
        words[word] = bytes.change(words[word]);
        if mode & 0x10 != 0 {
            let image = &mut words[node..node + layout.node_words()];
            let version = image[7];
            NodeMut::new(&layout, image).seal(version);
        }
    }
    let region = Arc::new(Words::anonymous(REGION_BYTES / 8).expect("memory"));
    region.store(0, &words);
    let service = OffloadService::new(1, None);
    if mode & 0x80 != 0 {
        call(&service, &region, &layout, bytes.rest());
        return;
    }
    let mut session = 0;
    for sequence in 1..=u64::from(bytes.u8() % REQUESTS_MAX) {
        let (operation, number, again) = (bytes.u8(), bytes.u8(), bytes.u8() & 1);
        let mut request =
            request(&layout, operation % 8, number, session, sequence - u64::from(again));
        for _ in 0..bytes.u8() % CHANGES_MAX {
            let at = usize::from(bytes.u8()) % request.len();
            request[at] = bytes.change(request[at].into()) as u8;
        }
        let reply = call(&service, &region, &layout, &request);
        if reply.get(4) == Some(&NO_SESSION) {
            session = u64::from_le_bytes(reply[8..16].try_into().expect("eight bytes"));
        }
    }
}

/// One request, and what it may have changed.
fn call(service: &OffloadService, region: &Words, layout: &Layout, request: &[u8]) -> Vec<u8> {
    let load = || {
        let mut words = vec![0; REGION_BYTES / 8];
        region.load(0, &mut words);
        words
    };
    let before = load();
    let mut reply = vec![0xee; 1024];
    let len = service.call(region, request, &mut reply).len;
    reply.truncate(len);
    assert!(len == 0 || len >= REPLY_BYTES, "a reply of {len} bytes");
    let after = load();
    let is_done = reply.get(4) == Some(&OK) && !matches!(request.get(4), Some(&(1 | SCAN)));
    for (at, (old, new)) in before.iter().zip(&after).enumerate() {
        assert!(old == new || is_done, "word {at} was changed by what was not done: {reply:?}");
    }
    for node in NODES.map(|node| node as usize / 8) {
        let [old, new] = [&before, &after].map(|words| &words[node..node + layout.node_words()]);
        assert_eq!(old[0], new[0], "a lock word");
        let addr = node as u64 * 8;
        if old != new && verify_image(layout, old, addr).is_ok() {
            // A request may have told it other capacities than the tree's.
            let usual = self::request(layout, 1, 0, 0, 0);
            let is_ours =
                request.get(58..72) == usual.get(58..72) && request.get(6) == usual.get(6);
            let is_sound = verify_image(layout, new, addr);
            assert!(is_sound.is_ok() || !is_ours, "{is_sound:?}");
        }
    }
    reply
}
