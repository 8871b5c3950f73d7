//! Handler tests: the handler's reply to each kind of request.

use std::sync::atomic::Ordering;

use farleaf_fabric::{Service, ServiceReply, Words};
use farleaf_index::bnode::{Head, Layout, LayoutOptions, LeafEntry, NodeMut, Value};
use farleaf_index::{KeyFormat, ValueFormat};

use super::handler::{OffloadService, SESSIONS_MAX};
use super::wire::{Gathered, OffloadReply, OffloadRequest, Operation, Status, Sweep};

const NODES: [u64; 3] = [1 << 12, 2 << 12, 3 << 12];

fn number(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn layout() -> Layout {
    let options = LayoutOptions {
        cap_leaf: Some(4),
        ..LayoutOptions::new(512, KeyFormat::Fixed(8), ValueFormat::Fixed(8))
    };
    Layout::new(options).expect("layout").for_tree(3)
}

/// An inner node of the range from 100 to 200, and leaves of 110, 120, 130, 140 and of 160.
fn memory() -> Words {
    let (memory, layout) = (Words::anonymous(4096).expect("memory"), layout());
    let mut words = vec![0; layout.node_words()];
    let fences = [100, 150, 200].map(number);
    for (at, keys) in [(0, &[110, 120, 130, 140][..]), (1, &[160])] {
        let keys: Vec<_> = keys.iter().map(|key| number(*key)).collect();
        let entries: Vec<_> =
            keys.iter().map(|key| LeafEntry { key, value: Value::Inline(key) }).collect();
        let (low, high) = (Some(&fences[at][..]), Some(&fences[at + 1][..]));
        let head = Head { addr: NODES[at + 1], version: 5, low, high, ..Head::default() };
        layout.encode_leaf(&mut words, &head, &entries).expect("a leaf");
        words[0] = 77;
        memory.store(NODES[at + 1] as usize / 8, &words);
    }
    let (low, high) = (Some(&fences[0][..]), Some(&fences[2][..]));
    let head = Head { addr: NODES[0], level: 1, version: 1, low, high, ..Head::default() };
    layout.encode_inner(&mut words, &head, &NODES[1..], &[&fences[1]]).expect("inner");
    memory.store(NODES[0] as usize / 8, &words);
    memory
}

fn ask<'a>(operation: Operation, key: &'a [u8], value: &'a [u8]) -> OffloadRequest<'a> {
    OffloadRequest {
        operation,
        level: 1,
        node: NODES[0],
        incarnation: 9,
        session: 0,
        sequence: u64::from(!operation.reads()),
        epoch: 0,
        channel: 0,
        layout: layout(),
        key,
        value,
        low: None,
        high: None,
    }
}

fn call(service: &OffloadService, memory: &Words, request: &[u8]) -> (OffloadReply, Vec<u8>) {
    let mut reply = [0xee; 64];
    let len = service.call(memory, request, &mut reply).len;
    let (answer, value) = OffloadReply::decode(&reply[..len]).expect("a reply");
    (answer, value.to_vec())
}

fn content(memory: &Words) -> Vec<u64> {
    let mut words = vec![0; 4096];
    memory.load(0, &mut words);
    words
}

#[test]
fn a_change_is_done_once_for_each_sequence_number() {
    let (service, memory) = (OffloadService::new(1, None), memory());
    let (key, value) = (number(120), number(7));
    let first = ask(Operation::Update, &key, &value);
    let before = content(&memory);
    let (answer, _) = call(&service, &memory, &first.encode());
    assert_eq!((answer.status, answer.sequence), (Status::NoSession, 1));
    assert_eq!(content(&memory), before);
    let session = answer.leaf;
    let first = OffloadRequest { session, ..first };
    let (answer, _) = call(&service, &memory, &first.encode());
    assert_eq!((answer.status, answer.leaf, answer.nodes), (Status::Ok, NODES[1], 2));
    let word = |at: usize| content(&memory)[NODES[1] as usize / 8 + at];
    assert_eq!((word(0), word(7)), (77, 6), "the lock word stays, the version goes up");
    let after = content(&memory);
    // The same number again with another request: the same reply and no change.
    let other = number(8);
    let again = OffloadRequest { value: &other, ..first.clone() };
    assert_eq!(call(&service, &memory, &again.encode()).0.leaf, NODES[1]);
    assert_eq!((content(&memory), service.stats().duplicates), (after.clone(), 1));
    // The next, and then the one before it.
    let next = OffloadRequest { sequence: 2, value: &other, ..first.clone() };
    assert_eq!(call(&service, &memory, &next.encode()).0.status, Status::Ok);
    assert_eq!(word(7), 7);
    assert_eq!(call(&service, &memory, &first.encode()).0.status, Status::Refused);
    // Other channels, lives of the sender and of the service have their own.
    let channel = OffloadRequest { channel: 1, ..first.clone() };
    assert_eq!(call(&service, &memory, &channel.encode()).0.status, Status::Ok);
    let stranger = OffloadRequest { incarnation: 10, ..first.clone() };
    assert_eq!(call(&service, &memory, &stranger.encode()).0.status, Status::NoSession);
    let anew = OffloadService::new(2, None);
    assert_eq!(call(&anew, &memory, &first.encode()).0.status, Status::NoSession);
    let get = ask(Operation::Get, &key, &[]);
    assert_eq!(call(&service, &memory, &get.encode()).1, value);
}

#[test]
fn every_outcome_has_its_status() {
    let (service, memory) = (OffloadService::new(1, None), memory());
    let [there, full, room] = [120, 125, 161].map(number);
    let value = number(1);
    let (granted, _) = call(&service, &memory, &ask(Operation::Remove, &there, &[]).encode());
    let mut sequence = 0;
    let mut try_one = |ask: OffloadRequest<'_>| {
        sequence += u64::from(ask.operation != Operation::Get);
        let session = granted.leaf;
        let number = if ask.operation == Operation::Get { 0 } else { sequence };
        let ask = OffloadRequest { session, sequence: number, ..ask };
        let answer = call(&service, &memory, &ask.encode()).0;
        (answer.status, answer.existed)
    };
    use Operation::{Get, Insert, Remove, Update, Upsert};
    assert_eq!(try_one(ask(Get, &full, &[])), (Status::Absent, false));
    assert_eq!(try_one(ask(Insert, &there, &value)), (Status::Exists, true));
    assert_eq!(try_one(ask(Insert, &full, &value)), (Status::NeedSmo, false));
    assert_eq!(try_one(ask(Upsert, &full, &value)), (Status::NeedSmo, false));
    assert_eq!(try_one(ask(Upsert, &there, &value)), (Status::Ok, true));
    assert_eq!(try_one(ask(Upsert, &room, &value)), (Status::Ok, false));
    assert_eq!(try_one(ask(Update, &full, &value)), (Status::Absent, false));
    assert_eq!(try_one(ask(Remove, &room, &[])), (Status::Ok, true));
    assert_eq!(try_one(ask(Remove, &room, &[])), (Status::Absent, false));
    // The node must be the sender's, and cover the key.
    let [low, high] = [100, 200].map(number);
    let own = OffloadRequest { low: Some(&low), high: Some(&high), ..ask(Get, &there, &[]) };
    assert_eq!(try_one(own.clone()).0, Status::Ok);
    let [above, below] = [101, 199].map(number);
    let others = OffloadRequest { low: Some(&above), ..own.clone() };
    assert_eq!(try_one(others).0, Status::WrongFence);
    let others = OffloadRequest { high: Some(&below), ..own.clone() };
    assert_eq!(try_one(others).0, Status::WrongFence);
    assert_eq!(try_one(ask(Get, &low, &[])).0, Status::WrongFence);
    // Another level, another tree, another place.
    for level in [0, 2, 255] {
        assert_eq!(try_one(OffloadRequest { level, ..own.clone() }).0, Status::WrongFence);
    }
    let tree = OffloadRequest { layout: layout().for_tree(4), ..own.clone() };
    assert_eq!(try_one(tree).0, Status::WrongFence);
    assert_eq!(
        try_one(OffloadRequest { node: NODES[0] + 64, ..own.clone() }).0,
        Status::WrongFence
    );
    for node in [0, 1 << 63 | NODES[0], NODES[0] + 4, 1 << 20, u64::MAX >> 1] {
        assert_eq!(try_one(OffloadRequest { node, ..own.clone() }).0, Status::Refused, "{node:#x}");
    }
    // A leaf's misses begin at the leaf.
    assert_eq!(try_one(OffloadRequest { level: 0, node: NODES[1], ..own }).0, Status::Ok);
}

#[test]
fn damaged_ways_and_garbage_are_refused_and_change_nothing() {
    let (service, layout) = (OffloadService::new(1, None), layout());
    let key = number(120);
    let get = ask(Operation::Get, &key, &[]).encode();
    // A child on another server, one in a frame, and one beyond the end.
    let elsewhere = 1 << 48 | NODES[1];
    let cases = [
        (elsewhere, Status::CrossServer),
        (1 << 63 | 5, Status::WrongFence),
        (1 << 30, Status::WrongFence),
        (NODES[2], Status::WrongFence),
    ];
    for (child, status) in cases {
        let memory = memory();
        let mut image = vec![0; layout.node_words()];
        let first = NODES[0] as usize / 8;
        memory.load(first, &mut image);
        let mut node = NodeMut::new(&layout, image.as_mut_slice());
        node.set_child(0, child).expect("its child");
        node.seal(2);
        memory.store(first, &image);
        assert_eq!(call(&service, &memory, &get).0.status, status, "{child:#x}");
    }
    // Each word of a node in turn is wrong, but its lock.
    let sound = memory();
    for at in [NODES[0], NODES[1]].map(|node| node as usize / 8) {
        for word in 1..layout.node_words() {
            sound.store(at + word, &[sound.as_slice()[at + word].load(Ordering::Relaxed) ^ 64]);
            let before = content(&sound);
            assert_eq!(call(&service, &sound, &get).0.status, Status::WrongFence, "word {word}");
            assert_eq!(content(&sound), before);
            sound.store(at + word, &[before[at + word] ^ 64]);
        }
    }
    assert_eq!(call(&service, &sound, &get).0.status, Status::Ok);
    for garbage in [&[][..], &[0; 88], b"FDO1", &get[1..]] {
        assert_eq!(call(&service, &sound, garbage).0.status, Status::Refused);
    }
    let none = ServiceReply { len: 0, cpu_ns: 0 };
    assert_eq!(service.call(&sound, &get, &mut [0; 31]), none, "no room for a reply");
    let mut short = [0; 39];
    assert_eq!(service.call(&sound, &get, &mut short).len, 32);
    let (answer, _) = OffloadReply::decode(&short[..32]).expect("a reply");
    assert_eq!(answer.status, Status::NeedSmo, "no room for the value");
}

#[test]
fn the_session_that_was_used_longest_ago_is_forgotten() {
    let (service, memory) = (OffloadService::new(1, None), memory());
    let (key, value) = (number(120), number(1));
    let grant = |incarnation| {
        let ask = OffloadRequest { incarnation, ..ask(Operation::Update, &key, &value) };
        let (answer, _) = call(&service, &memory, &ask.encode());
        assert_eq!(answer.status, Status::NoSession);
        answer.leaf
    };
    let try_one = |incarnation, session, sequence| {
        let ask = ask(Operation::Update, &key, &value);
        let ask = OffloadRequest { incarnation, session, sequence, ..ask };
        call(&service, &memory, &ask.encode()).0.status
    };
    let sessions: Vec<u64> = (0..SESSIONS_MAX as u64).map(grant).collect();
    assert_eq!(try_one(0, sessions[0], 1), Status::Ok);
    grant(9_999);
    assert_eq!(try_one(0, sessions[0], 2), Status::Ok);
    assert_eq!(try_one(1, sessions[1], 1), Status::NoSession);
}

/// The reply to a scan: status, keys, leaves, and the fence that ends them.
fn gathered(
    memory: &Words,
    ask: &OffloadRequest<'_>,
    room: usize,
) -> (Status, Vec<u64>, u8, Option<u64>) {
    let mut reply = vec![0xee; 32 + room];
    let len = OffloadService::new(1, None).call(memory, &ask.encode(), &mut reply).len;
    let (answer, value) = OffloadReply::decode(&reply[..len]).expect("a reply");
    if answer.status != Status::Ok {
        assert!(value.is_empty());
        return (answer.status, Vec::new(), 0, None);
    }
    let layout = layout();
    let found = Gathered::decode(&layout, value).expect("findings");
    let number = |key: &[u8]| u64::from_be_bytes(key.try_into().expect("a key"));
    let keys = found.pairs(&layout).inspect(|(key, _, value)| assert_eq!(key, value));
    let keys: Vec<u64> = keys.map(|(key, ..)| number(key)).collect();
    assert_eq!(keys.len(), found.count as usize);
    (answer.status, keys, found.leaves, found.fence().map(number))
}

#[test]
fn a_scan_is_given_whole_leaves_of_its_range() {
    let memory = memory();
    let sweep = Sweep { reverse: false, excluded: false, from_end: false, wanted: 9, far: None };
    let back = Sweep { reverse: true, ..sweep };
    let [far, edge] = [130, 160].map(number);
    let cases = [
        (120, sweep, vec![120, 130, 140, 160], 2, 200),
        (120, Sweep { excluded: true, ..sweep }, vec![130, 140, 160], 2, 200),
        (150, sweep, vec![160], 2, 200),
        (150, Sweep { excluded: true, ..sweep }, vec![160], 1, 200),
        (101, Sweep { far: Some((&far, false)), ..sweep }, vec![110, 120, 130], 1, 150),
        (101, Sweep { far: Some((&far, true)), ..sweep }, vec![110, 120], 1, 150),
        (101, Sweep { far: Some((&edge, true)), ..sweep }, vec![110, 120, 130, 140], 2, 200),
        (120, Sweep { wanted: 2, ..sweep }, vec![120, 130], 1, 150),
        (160, back, vec![160, 140, 130, 120, 110], 2, 100),
        (160, Sweep { excluded: true, ..back }, vec![140, 130, 120, 110], 2, 100),
        (200, Sweep { far: Some((&far, false)), ..back }, vec![160, 140, 130], 2, 100),
        (200, Sweep { far: Some((&far, true)), ..back }, vec![160, 140], 2, 100),
        (150, Sweep { wanted: 1, ..back }, vec![140], 1, 100),
    ];
    for (place, sweep, keys, leaves, fence) in cases {
        let (place, value) = (number(place), sweep.encode());
        let ask = ask(Operation::Scan, &place, &value);
        let expected = (Status::Ok, keys, leaves, Some(fence));
        assert_eq!(gathered(&memory, &ask, 1_000), expected, "{sweep:?}");
    }
    // No more than there is room for, in whole leaves: 16 bytes for count and fence, 16 for a pair.
    let (place, value) = (number(101), sweep.encode());
    let ask = ask(Operation::Scan, &place, &value);
    let first = (Status::Ok, vec![110, 120, 130, 140], 1, Some(150));
    assert_eq!(gathered(&memory, &ask, 16 + 5 * 16 - 1), first);
    assert_eq!(gathered(&memory, &ask, 16 + 5 * 16).2, 2);
    assert_eq!(gathered(&memory, &ask, 16 + 4 * 16 - 1).0, Status::NeedSmo);
    // The leaf behind the first is not in order: the reply has the pairs before it.
    let at = NODES[2] as usize / 8 + 9;
    memory.store(at, &[memory.as_slice()[at].load(Ordering::Relaxed) ^ 1]);
    assert_eq!(gathered(&memory, &ask, 1_000), first);
    let place = number(170);
    let there = OffloadRequest { key: &place, ..ask };
    assert_eq!(gathered(&memory, &there, 1_000).0, Status::WrongFence);
}

#[test]
fn a_scan_of_what_is_not_the_senders_is_refused() {
    let memory = memory();
    let sweep = Sweep { reverse: false, excluded: false, from_end: false, wanted: 9, far: None };
    let status = |ask: &OffloadRequest<'_>| gathered(&memory, ask, 1_000).0;
    let (place, value) = (number(120), sweep.encode());
    let own = ask(Operation::Scan, &place, &value);
    assert_eq!(status(&own), Status::Ok);
    let above = number(101);
    assert_eq!(status(&OffloadRequest { low: Some(&above), ..own.clone() }), Status::WrongFence);
    assert_eq!(status(&OffloadRequest { level: 2, ..own.clone() }), Status::WrongFence);
    assert_eq!(status(&OffloadRequest { node: NODES[0] + 64, ..own.clone() }), Status::WrongFence);
    for node in [0, 1 << 63 | NODES[0], NODES[0] + 4, 1 << 20] {
        assert_eq!(status(&OffloadRequest { node, ..own.clone() }), Status::Refused, "{node:#x}");
    }
    // Neither end of the key space is here, nor what lies outside of the node.
    for (reverse, key) in [(false, 100), (false, 201), (true, 100), (true, 201)] {
        let value = Sweep { reverse, ..sweep }.encode();
        let place = number(key);
        let ask = OffloadRequest { key: &place, value: &value, ..own.clone() };
        assert_eq!(status(&ask), Status::WrongFence, "{reverse} {key}");
        let value = Sweep { reverse, from_end: true, ..sweep }.encode();
        let end = status(&OffloadRequest { key: &[], value: &value, ..own.clone() });
        // The node has no right neighbour, so it may be the last.
        assert_eq!(end, if reverse { Status::Ok } else { Status::WrongFence });
    }
}
