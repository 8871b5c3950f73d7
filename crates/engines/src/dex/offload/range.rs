//! Offloaded scan: reads leaf by leaf through a subtree in the memory server's own memory.
//!
//! The reply holds whole leaves, as far as their pairs are in the range: the scan goes on behind the
//! fence of the last one as if it had read it. The memory server checks each node on the way as for any
//! operation (`INV-DEX-OFF-1`), and that it covers the place of the scan, so that the reply has no gap.
//! A node that fails ends the way there. If that is before the first leaf, the sender fetches.

use farleaf_fabric::{GlobalAddr, Words};
use farleaf_index::Seek;
use farleaf_index::bnode::{Cover, Node};

use super::handler::{arrive, child_there, is_within};
use super::wire::{
    FOUND_BYTES, Gathered, OffloadReply, OffloadRequest, Status, Sweep, key_bytes_max,
};

/// Leaves of one request.
pub(super) const LEAVES_MAX: u8 = 64;

/// The place at which a scan goes on.
struct ScanPlace {
    key: Option<Vec<u8>>,
    excluded: bool,
    reverse: bool,
}

impl ScanPlace {
    fn seek(&self) -> Seek<'_> {
        match &self.key {
            None if self.reverse => Seek::Last,
            None => Seek::First,
            // The leaf that ends with a key has the places below the key as well.
            Some(key) if self.excluded && !self.reverse => Seek::After(key),
            Some(key) => Seek::At(key),
        }
    }
}

/// Goes through the leaves from the place on, and puts the pairs into `value`.
pub(super) fn gather(
    ask: &OffloadRequest<'_>,
    memory: &Words,
    value: &mut Vec<u8>,
    room: usize,
) -> OffloadReply {
    let (Some(sweep), Some(top)) = (Sweep::decode(ask.value), GlobalAddr::from_word(ask.node))
    else {
        return OffloadReply::bare(Status::Refused);
    };
    let mut nodes = 0;
    let mut found = Gathered::default();
    let ended = leaves(ask, &sweep, memory, top, room, (&mut found, &mut nodes));
    match ended {
        Err(status) if found.leaves == 0 => OffloadReply { nodes, ..OffloadReply::bare(status) },
        Ok(()) | Err(_) => {
            *value = found.encode();
            OffloadReply { nodes, ..OffloadReply::bare(Status::Ok) }
        }
    }
}

/// Goes on until something ends it: `Ok` if it may.
fn leaves(
    ask: &OffloadRequest<'_>,
    sweep: &Sweep<'_>,
    memory: &Words,
    top: GlobalAddr,
    room: usize,
    (found, nodes): (&mut Gathered, &mut u16),
) -> Result<(), Status> {
    let layout = &ask.layout;
    let mut place = ScanPlace {
        key: (!sweep.from_end).then(|| ask.key.to_vec()),
        excluded: sweep.excluded,
        reverse: sweep.reverse,
    };
    // From the top down to the last leaf.
    let mut way: Vec<Vec<u64>> = Vec::new();
    let mut step = |way: &mut Vec<Vec<u64>>, at, place: &ScanPlace| {
        let mut image = vec![0; layout.node_words()];
        let level = ask.level - way.len() as u8;
        *nodes += 1;
        arrive(ask, memory, at, level, &mut image)?;
        let node = Node::new(layout, &image[..]);
        let mut fence = Vec::new();
        let begins = !matches!(place.seek(), Seek::First) || !node.low_fence(&mut fence);
        if !begins || node.covers_place(place.seek()) != Cover::Inside {
            return Err(Status::WrongFence);
        }
        way.push(image);
        Ok(())
    };
    step(&mut way, top, &place)?;
    if !is_within(&Node::new(layout, &way[0][..]), ask) {
        return Err(Status::WrongFence);
    }
    while found.leaves < LEAVES_MAX {
        let covers = |image: &Vec<u64>| {
            Node::new(layout, &image[..]).covers_place(place.seek()) == Cover::Inside
        };
        while way.last().is_some_and(|image| !covers(image)) {
            way.pop();
        }
        while let Some(image) = way.last()
            && way.len() <= usize::from(ask.level)
        {
            let (_, child) = Node::new(layout, &image[..]).child_at_place(place.seek());
            let child = child_there(child, top.server())?;
            step(&mut way, child, &place).map_err(|status| match status {
                Status::Refused => Status::WrongFence,
                status => status,
            })?;
        }
        // All of the subtree is done.
        let Some(image) = way.last() else { return Ok(()) };
        let leaf = Node::new(layout, &image[..]);
        if !take(sweep, &leaf, &place, room, found) {
            return Err(Status::NeedSmo);
        }
        found.leaves += 1;
        let mut fence = Vec::new();
        let more =
            if sweep.reverse { leaf.low_fence(&mut fence) } else { leaf.high_fence(&mut fence) };
        found.fence = more.then_some(fence);
        let is_past = |fence: &[u8]| match sweep.far {
            None => false,
            Some((far, false)) if sweep.reverse => fence < far,
            Some((far, true)) if sweep.reverse => fence <= far,
            Some((far, _)) => fence >= far,
        };
        match &found.fence {
            Some(fence) if found.count < sweep.wanted && !is_past(fence) => {
                place = ScanPlace {
                    key: Some(fence.clone()),
                    excluded: !sweep.reverse,
                    reverse: sweep.reverse,
                };
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Takes a leaf's pairs in the range, and not more than are wanted; `false` if there is no room for them.
fn take(
    sweep: &Sweep<'_>,
    leaf: &Node<'_, u64>,
    place: &ScanPlace,
    room: usize,
    found: &mut Gathered,
) -> bool {
    let layout = leaf.layout();
    let bound = |key: &[u8], above| {
        if above { leaf.upper_bound(key) } else { leaf.lower_bound(key) }
    };
    let near = place.key.as_deref().map(|key| bound(key, place.excluded != sweep.reverse));
    let far = sweep.far.map(|(key, excluded)| bound(key, excluded == sweep.reverse));
    let (first, last) = if sweep.reverse { (far, near) } else { (near, far) };
    let (first, last) = (first.unwrap_or(0), last.unwrap_or(leaf.count()));
    let before = (found.count, found.pairs.len());
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for step in 0..last.saturating_sub(first) {
        if found.count == sweep.wanted {
            break;
        }
        let index = if sweep.reverse { last - 1 - step } else { first + step };
        leaf.key(index, &mut key);
        let pushed = leaf
            .value(index, &mut value)
            .is_some_and(|stored| found.push(layout, &key, stored, &value));
        if !pushed || FOUND_BYTES + key_bytes_max(layout) + found.pairs.len() > room {
            found.count = before.0;
            found.pairs.truncate(before.1);
            return false;
        }
    }
    true
}
