//! Partition map: assigns each numbered partition of a table to a compute server, under a term.
//!
//! Layout, words: 0 tag, 1 epoch, 2 number of partitions (low half) and of members (high half), 3 checksum,
//! 4 the move under way (0 none, 1 by copy, 2 by build) and its epoch in the high half, 5 the incarnation of
//! its taker (0 nobody). Then for each member its incarnation, and its slot (low half), its weight (bits 32 to 47)
//! and its slice (48 to 63). Then for each partition a word: owner's place among the members (bits 0 to 15, `0xffff` nobody),
//! state (16 to 31: 0 open, 1 closed, 2 moving), term (32 to 63).
//!
//! - `INV-PART-MAP-1` Epochs ascend strictly, and a partition's term never falls.
//! - `INV-PART-MAP-2` A partition's owner changes only together with its term, to the epoch of a map in which
//!   it was closed.

use farleaf_fabric::{GlobalAddr, Incarnation};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ring::Ring;
use crate::compute::ownership::SlotPlace;

const TAG: u64 = u64::from_le_bytes(*b"FLpartm1");
const HEAD_WORDS: usize = 6;
const CHECK_AT: usize = 3;
/// The owner of a partition that nobody owns.
const NOBODY: u64 = 0xffff;
/// Most partitions of a table.
pub const NUMBERED_PARTITIONS_MAX: usize = 4096;
/// The last epoch: an acknowledgement has 31 bits for it.
pub(super) const EPOCH_MAX: u32 = (1 << 31) - 1;

/// A compute server that may own partitions of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapMember {
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its slot in the pool's member table.
    pub slot: u32,
    /// Its share of the ring: 0 for none, which it has while it leaves.
    pub weight: u16,
    /// The part of its region that holds lines of this table: others hold those of other tables.
    pub slice: u16,
}

/// The state of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionState {
    /// Operations may enter.
    Open,
    /// Its owner has changed; it opens once all members have acknowledged that.
    Closed,
    /// It is about to be the taker's of the move under way.
    Moving,
}

/// A partition's entry of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionEntry {
    /// The compute server whose memory holds its lines; `None` for memory servers.
    pub owner: Option<Incarnation>,
    /// Lines of another term are worthless.
    pub term: u32,
    /// Operations enter an open partition alone.
    pub state: PartitionState,
}

/// The way in which lines come to a new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveWay {
    /// The conductor copies them, lock words included.
    Copy,
    /// The new owner's clients build them when they need them.
    Build,
}

/// A move of partitions that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionMove {
    /// The compute server that gets the partitions; `None` for nobody.
    pub to: Option<Incarnation>,
    /// The way of their lines.
    pub way: MoveWay,
    /// The epoch that closed them: their term at the taker.
    pub epoch: u32,
}

/// A table's numbered partitions and their owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMap {
    /// The slot that holds it.
    pub(super) place: SlotPlace,
    /// Its number.
    pub epoch: u32,
    /// The compute servers that may own partitions.
    pub members: Vec<MapMember>,
    /// The partitions.
    pub entries: Vec<PartitionEntry>,
    /// The move under way.
    pub moving: Option<PartitionMove>,
}

impl PartitionMap {
    /// The first map of a table: `count` open partitions that nobody owns.
    pub(super) fn unowned(count: usize) -> Self {
        let entry = PartitionEntry { owner: None, term: 1, state: PartitionState::Open };
        PartitionMap {
            place: SlotPlace::NONE,
            epoch: 1,
            members: Vec::new(),
            entries: vec![entry; count],
            moving: None,
        }
    }

    /// Returns whether some partition is not open.
    pub fn is_closed(&self) -> bool {
        self.entries.iter().any(|entry| entry.state != PartitionState::Open)
    }

    /// Address and bytes of the object that holds it.
    pub fn object(&self) -> (GlobalAddr, usize) {
        (self.place.addr, self.place.bytes)
    }

    /// The member of that incarnation.
    pub fn member(&self, who: Incarnation) -> Option<&MapMember> {
        self.members.iter().find(|member| member.incarnation == who)
    }

    /// The numbers of the partitions in a state.
    pub(super) fn in_state(&self, state: PartitionState) -> Vec<u32> {
        let numbered = (0..).zip(&self.entries);
        numbered.filter(|(_, entry)| entry.state == state).map(|(number, _)| number).collect()
    }

    /// The map without the dead, and without a move whose conductor is gone; `None` if nothing changes. The dead's
    /// partitions go to their successors on the ring, closed under a new term. Others that were moving open
    /// again where they were.
    pub(super) fn settled(&self, is_dead: impl Fn(&MapMember) -> bool) -> Option<PartitionMap> {
        let mut new = self.clone();
        new.members.retain(|member| !is_dead(member));
        new.moving = None;
        let ring = Ring::of(&new.members);
        let mut changes = self.moving.is_some() || new.members.len() < self.members.len();
        for (number, entry) in (0..).zip(&mut new.entries) {
            if entry.state == PartitionState::Moving {
                entry.state = PartitionState::Open;
                changes = true;
            }
            let is_orphan = |owner| !new.members.iter().any(|it| it.incarnation == owner);
            if entry.owner.is_some_and(is_orphan) {
                entry.owner = ring.owner(number);
                entry.term = self.epoch + 1;
                entry.state = PartitionState::Closed;
                changes = true;
            }
        }
        changes.then_some(new)
    }

    /// The map with these partitions on their way to `to`.
    pub(super) fn with_move(
        &self,
        numbers: &[u32],
        to: Option<Incarnation>,
        way: MoveWay,
    ) -> PartitionMap {
        let mut new = self.clone();
        for number in numbers {
            new.entries[*number as usize].state = PartitionState::Moving;
        }
        new.moving = Some(PartitionMove { to, way, epoch: self.epoch + 1 });
        new
    }

    /// The map after the move under way: what was moving is the taker's, and open.
    pub(super) fn moved(&self) -> Option<PartitionMap> {
        let PartitionMove { to, epoch, .. } = self.moving?;
        let mut new = PartitionMap { moving: None, ..self.clone() };
        for entry in &mut new.entries {
            if entry.state == PartitionState::Moving {
                *entry = PartitionEntry { owner: to, term: epoch, state: PartitionState::Open };
            }
        }
        Some(new)
    }

    /// The map with all that was closed open.
    pub(super) fn opened(&self) -> PartitionMap {
        let mut new = self.clone();
        for entry in &mut new.entries {
            if entry.state == PartitionState::Closed {
                entry.state = PartitionState::Open;
            }
        }
        new
    }

    /// The partitions that the ring gives to another than their owner, by that one.
    pub(super) fn misplaced(&self) -> Vec<(Option<Incarnation>, Vec<u32>)> {
        let ring = Ring::of(&self.members);
        let mut moves: Vec<(Option<Incarnation>, Vec<u32>)> = Vec::new();
        for (number, entry) in (0..).zip(&self.entries) {
            let to = ring.owner(number);
            if to == entry.owner {
                continue;
            }
            match moves.iter_mut().find(|(taker, _)| *taker == to) {
                Some((_, numbers)) => numbers.push(number),
                None => moves.push((to, vec![number])),
            }
        }
        moves
    }

    /// The first taker of misplaced partitions, with its partitions: those of the owner `from` alone if that is given.
    pub(super) fn next_misplaced(
        &self,
        from: Option<Incarnation>,
    ) -> Option<(Option<Incarnation>, Vec<u32>)> {
        let is_chosen =
            |number: &u32| from.is_none() || self.entries[*number as usize].owner == from;
        self.misplaced().into_iter().find_map(|(to, mut numbers)| {
            numbers.retain(is_chosen);
            (!numbers.is_empty()).then_some((to, numbers))
        })
    }

    pub(super) fn encode(&self) -> Vec<u64> {
        let halves = |low: u64, high: u32| low | u64::from(high) << 32;
        let mut words = vec![TAG, u64::from(self.epoch)];
        words.push(halves(self.entries.len() as u64, self.members.len() as u32));
        words.push(0);
        let way = |way| if way == MoveWay::Copy { 1 } else { 2 };
        words.push(self.moving.map_or(0, |moving| halves(way(moving.way), moving.epoch)));
        words.push(self.moving.and_then(|moving| moving.to).map_or(0, |to| to.0));
        for member in &self.members {
            words.push(member.incarnation.0);
            let high = u32::from(member.weight) | u32::from(member.slice) << 16;
            words.push(halves(u64::from(member.slot), high));
        }
        let place = |who| self.members.iter().position(|member| member.incarnation == who);
        for entry in &self.entries {
            let owner = entry.owner.and_then(place).map_or(NOBODY, |place| place as u64);
            let state = match entry.state {
                PartitionState::Open => 0,
                PartitionState::Closed => 1,
                PartitionState::Moving => 2,
            };
            words.push(halves(owner | state << 16, entry.term));
        }
        words[CHECK_AT] = check(&words);
        words
    }

    /// The map that these words hold, with anything behind it; `None` if they hold none.
    pub(super) fn decode(place: SlotPlace, words: &[u64]) -> Option<Self> {
        if words.len() < HEAD_WORDS || words[0] != TAG {
            return None;
        }
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        let (partitions, count) = (low(words[2]) as usize, high(words[2]) as usize);
        if partitions > NUMBERED_PARTITIONS_MAX || count >= NOBODY as usize {
            return None;
        }
        let words = words.get(..HEAD_WORDS + 2 * count + partitions)?;
        if words[CHECK_AT] != check(words) {
            return None;
        }
        let epoch = u32::try_from(words[1]).ok().filter(|epoch| *epoch <= EPOCH_MAX)?;
        let way = match low(words[4]) {
            0 => None,
            1 => Some(MoveWay::Copy),
            2 => Some(MoveWay::Build),
            _ => return None,
        };
        let to = Some(Incarnation(words[5])).filter(|to| to.0 != 0);
        let moving = way.map(|way| PartitionMove { to, way, epoch: high(words[4]) });
        let (members, entries) = words[HEAD_WORDS..].split_at(2 * count);
        let members: Vec<MapMember> = members
            .chunks_exact(2)
            .map(|member| MapMember {
                incarnation: Incarnation(member[0]),
                slot: low(member[1]),
                weight: high(member[1]) as u16,
                slice: (high(member[1]) >> 16) as u16,
            })
            .collect();
        let entry = |word: &u64| {
            let owner = match *word & NOBODY {
                NOBODY => None,
                place => Some(members.get(place as usize)?.incarnation),
            };
            let state = match *word >> 16 & 0xffff {
                0 => PartitionState::Open,
                1 => PartitionState::Closed,
                2 if moving.is_some() => PartitionState::Moving,
                _ => return None,
            };
            Some(PartitionEntry { owner, term: high(*word), state })
        };
        let entries: Option<Vec<PartitionEntry>> = entries.iter().map(entry).collect();
        Some(PartitionMap { place, epoch, entries: entries?, members, moving })
    }
}

/// The checksum of a map's words but its own.
fn check(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != CHECK_AT)
        .flat_map(|(_, word)| word.to_le_bytes())
        .collect();
    xxh3_64_with_seed(&bytes, TAG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u64) -> MapMember {
        let (incarnation, slot) = (Incarnation(number), number as u32);
        MapMember { incarnation, slot, weight: 1, slice: (number as u16) << 8 }
    }

    fn map() -> PartitionMap {
        let mut map = PartitionMap::unowned(64);
        map.epoch = 9;
        map.members = vec![member(7), member(8), MapMember { weight: 0, ..member(9) }];
        let ring = Ring::of(&map.members);
        for (number, entry) in (0..).zip(&mut map.entries) {
            *entry = PartitionEntry { owner: ring.owner(number), term: 3, ..*entry };
        }
        map.entries[5].owner = None;
        map
    }

    #[test]
    fn maps_come_back_and_damage_is_found() {
        let plain = map();
        let moving = plain.with_move(&[1, 2], Some(Incarnation(8)), MoveWay::Build);
        let dead = moving.settled(|it| it.incarnation.0 == 7).expect("a change");
        for map in [plain, moving, dead, PartitionMap::unowned(NUMBERED_PARTITIONS_MAX)] {
            let mut words = map.encode();
            let used = words.len();
            words.resize(used + 3, 77);
            assert_eq!(PartitionMap::decode(map.place, &words), Some(map.clone()));
            for at in (0..used).step_by(used.div_ceil(200)) {
                let mut torn = words.clone();
                torn[at] ^= 1 << (at % 64);
                assert_eq!(PartitionMap::decode(map.place, &torn), None, "word {at}");
            }
            assert_eq!(PartitionMap::decode(map.place, &words[..used - 1]), None);
        }
    }

    /// Words that somebody else has written, with a checksum that fits.
    #[test]
    fn a_map_that_makes_no_sense_is_refused() {
        let good = map().encode();
        let at = HEAD_WORDS + 2 * 3;
        for (word, value) in [
            (1, 1 << 31),
            (2, good[2] | 1 << 30),
            (2, good[2] + (1 << 32)),
            (4, 3),
            (at, good[at] & !NOBODY | 3),
            (at, good[at] | 2 << 16),
            (at, good[at] | 3 << 16),
        ] {
            let mut words = good.clone();
            words[word] = value;
            words[CHECK_AT] = check(&words);
            assert_eq!(PartitionMap::decode(SlotPlace::NONE, &words), None, "{word}: {value:#x}");
        }
    }

    #[test]
    fn a_move_ends_with_the_taker_under_the_epoch_that_closed_it() {
        let old = map();
        let moving = PartitionMap { epoch: 10, ..old.with_move(&[1, 5], None, MoveWay::Copy) };
        assert_eq!(moving.in_state(PartitionState::Moving), [1, 5]);
        assert_eq!(moving.entries[1].term, 3, "a move that is called off changes no term");
        let called_off = moving.settled(|_| false).expect("a change");
        assert_eq!(PartitionMap { epoch: 9, ..called_off }, old);
        let moved = moving.moved().expect("a move");
        let entry = PartitionEntry { owner: None, term: 10, state: PartitionState::Open };
        assert_eq!((moved.entries[1], moved.entries[5]), (entry, entry));
        assert_eq!((moved.moving, moved.is_closed()), (None, false));
        assert_eq!(old.settled(|_| false), None);
        assert_eq!(old.moved(), None);
    }

    #[test]
    fn partitions_of_the_dead_go_to_their_successors_and_are_closed() {
        let old = map();
        let moving = old.with_move(&[1, 2, 3, 4], Some(Incarnation(8)), MoveWay::Copy);
        let new = moving.settled(|it| it.incarnation.0 == 8).expect("a change");
        assert_eq!(new.members, [member(7), MapMember { weight: 0, ..member(9) }]);
        for (before, after) in old.entries.iter().zip(&new.entries) {
            if before.owner != Some(Incarnation(8)) {
                assert_eq!(after, before);
                continue;
            }
            let owner = Some(Incarnation(7));
            assert_eq!(*after, PartitionEntry { owner, term: 10, state: PartitionState::Closed });
        }
        assert!(new.is_closed() && !new.opened().is_closed());
        let none = new.settled(|_| true).expect("a change");
        assert!(none.entries.iter().all(|entry| entry.owner.is_none()));
        assert_eq!(none.entries[5], old.entries[5], "it was nobody's before");
    }

    #[test]
    fn only_what_the_ring_gives_to_another_is_misplaced() {
        let mut map = map();
        let home = Ring::of(&map.members).owner(5);
        assert_eq!(map.misplaced(), [(home, vec![5])]);
        map.members.clear();
        let all: Vec<u32> = (0..64).filter(|number| *number != 5).collect();
        assert_eq!(map.misplaced(), [(None, all)]);
    }
}
