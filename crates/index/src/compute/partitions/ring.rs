//! Ring: gives each partition to a compute server by consistent hashing.
//!
//! Each member has 128 points for each unit of weight. A partition belongs to the member of the first point at
//! or above its own. So a member that comes takes partitions from all others alike, and those of one that goes
//! are spread over all. Only the member that changes a map computes the ring: the map holds the result.
//!
//! Source: Karger et al., STOC 1997.

use farleaf_fabric::Incarnation;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::map::MapMember;

/// Points for each unit of weight.
const POINTS: u32 = 128;
/// The largest weight that counts.
pub const WEIGHT_MAX: u16 = 64;
const PARTITION_SEED: u64 = u64::from_le_bytes(*b"FLpartno");

/// The points of a table's members.
#[derive(Debug)]
pub(super) struct Ring(Vec<(u64, Incarnation)>);

impl Ring {
    /// The ring of these members.
    pub(super) fn of(members: &[MapMember]) -> Self {
        let mut points = Vec::new();
        for member in members {
            let count = u32::from(member.weight.min(WEIGHT_MAX)) * POINTS;
            points.extend((0..count).map(|point| {
                let hash = xxh3_64_with_seed(&point.to_le_bytes(), member.incarnation.0);
                (hash, member.incarnation)
            }));
        }
        points.sort_unstable_by_key(|(hash, who)| (*hash, who.0));
        Ring(points)
    }

    /// The member that the partition belongs to; `None` if no member has weight.
    pub(super) fn owner(&self, partition: u32) -> Option<Incarnation> {
        let at = xxh3_64_with_seed(&partition.to_le_bytes(), PARTITION_SEED);
        let next = self.0.partition_point(|(hash, _)| *hash < at);
        self.0.get(next).or(self.0.first()).map(|(_, who)| *who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITIONS: u32 = 4096;

    fn owners(weights: &[(u64, u16)]) -> Vec<Option<u64>> {
        let member = |(number, weight): &(u64, u16)| MapMember {
            incarnation: Incarnation(*number),
            slot: 0,
            weight: *weight,
            slice: 0,
        };
        let members: Vec<MapMember> = weights.iter().map(member).collect();
        let ring = Ring::of(&members);
        (0..PARTITIONS).map(|number| ring.owner(number).map(|who| who.0)).collect()
    }

    fn count(owners: &[Option<u64>], of: u64) -> usize {
        owners.iter().filter(|owner| **owner == Some(of)).count()
    }

    #[test]
    fn shares_follow_weights() {
        let even = owners(&[(11, 1), (12, 1), (13, 1), (14, 1)]);
        for who in 11..15 {
            let share = count(&even, who);
            assert!((700..1400).contains(&share), "{who} has {share}");
        }
        let uneven = owners(&[(11, 1), (12, 3), (13, 0)]);
        assert!((700..1400).contains(&count(&uneven, 11)), "{}", count(&uneven, 11));
        assert_eq!(count(&uneven, 13), 0);
        assert!(owners(&[]).iter().chain(&owners(&[(11, 0)])).all(Option::is_none));
    }

    #[test]
    fn only_partitions_of_the_one_that_comes_or_goes_change_owners() {
        let three = owners(&[(11, 1), (12, 1), (13, 1)]);
        let four = owners(&[(11, 1), (12, 1), (13, 1), (14, 1)]);
        let mut sources = [0; 3];
        for (before, after) in three.iter().zip(&four).filter(|(before, after)| before != after) {
            assert_eq!(*after, Some(14));
            sources[before.expect("an owner") as usize - 11] += 1;
        }
        assert!(sources.iter().all(|count| *count > 150), "{sources:?}");
    }

    #[test]
    fn the_order_of_members_does_not_matter() {
        assert_eq!(owners(&[(11, 1), (12, 2)]), owners(&[(12, 2), (11, 1)]));
    }
}
