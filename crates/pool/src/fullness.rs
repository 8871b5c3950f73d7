//! Fullness: tells what holds the memory of a pool in which no object of a size has room.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use farleaf_fabric::{Endpoint, ServerId};

use crate::block::{check_front, pairs_in};
use crate::owned_blocks::Bytes;
use crate::reliable::Reliable;
use crate::words::BlockState;
use crate::{Pool, PoolError};

/// Time for which a report is told again, so that a caller that goes on trying does not read all of it each time.
const FRESH_NS: u64 = 1_000_000_000;
/// Blocks whose fronts are read together.
const FRONTS: usize = 16;
/// Compute servers that a message names.
const NAMED: usize = 3;

/// The use of a full pool's blocks, as far as this member can see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fullness {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Number of blocks of the servers that were searched.
    pub blocks: u64,
    /// Those that nobody has taken.
    pub free_blocks: u64,
    /// Bytes of all blocks of this member, and of their free memory.
    pub own: (u64, u64),
    /// By member, ascending, the blocks of others and the bytes of them that show as free: that are in no run of
    /// objects, or stand in a bitmap. What an owner alone knows to be free counts as used.
    pub others: Vec<(u32, u64, u64)>,
    /// The same of blocks without an owner.
    pub nobody: (u64, u64),
}

/// A member's latest report.
#[derive(Debug, Default)]
pub(crate) struct LastFullness(Mutex<Option<(u64, Option<ServerId>, Fullness)>>);

impl Fullness {
    /// Bytes that show as free in blocks of others.
    fn free_at_others(&self) -> u64 {
        self.others.iter().map(|(.., free)| free).sum()
    }
}

impl fmt::Display for Fullness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = self.blocks - self.free_blocks;
        let of = Size(self.block_bytes);
        write!(f, "{taken} of {} blocks of {of} are taken: ", self.blocks)?;
        let (own, free) = self.own;
        let used = Size(own.saturating_sub(free));
        write!(
            f,
            "this compute server has {} ({used} used, {} free)",
            own / self.block_bytes.max(1),
            Size(free)
        )?;
        let mut others = self.others.clone();
        others.sort_by_key(|(member, _, free)| (std::cmp::Reverse(*free), *member));
        for (member, blocks, free) in others.iter().take(NAMED) {
            write!(f, ", member {member} has {blocks} ({} free)", Size(*free))?;
        }
        if let Some(rest) = others.get(NAMED..).filter(|rest| !rest.is_empty()) {
            let sum = |of: fn(&(u32, u64, u64)) -> u64| rest.iter().map(of).sum::<u64>();
            let (blocks, free) = (sum(|other| other.1), Size(sum(|other| other.2)));
            write!(f, ", {} others have {blocks} ({free} free)", rest.len())?;
        }
        let (blocks, free) = self.nobody;
        if blocks > 0 {
            write!(f, ", {blocks} left by ended ones ({} free)", Size(free))?;
        }
        match self.free_at_others() >= self.block_bytes {
            true => write!(
                f,
                "; delete data, close compute servers that have much free, or make a larger pool"
            ),
            false => write!(f, "; delete data or make a larger pool"),
        }
    }
}

/// Bytes as a message shows them.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 10 << 10 => write!(f, "{bytes} B"),
            bytes if bytes < 1 << 20 => write!(f, "{} KiB", bytes >> 10),
            bytes if bytes < 10 << 30 => tenths(f, (bytes * 10) >> 20, "MiB"),
            bytes => tenths(f, (bytes / 1024 * 10) >> 20, "GiB"),
        }
    }
}

fn tenths(f: &mut fmt::Formatter<'_>, tenths: u64, unit: &str) -> fmt::Result {
    match tenths % 10 {
        0 => write!(f, "{} {unit}", tenths / 10),
        tenth => write!(f, "{}.{tenth} {unit}", tenths / 10),
    }
}

impl Pool {
    /// Finds out who has the memory: of one server or of all. At most once a second; in between the caller gets
    /// the report of before.
    ///
    /// Cost: per server 1 READ for each 64 KiB of its block table, and 1 READ for each block of others.
    pub(crate) async fn fullness(
        &self,
        client: Reliable<'_>,
        only: Option<ServerId>,
    ) -> Result<Fullness, PoolError> {
        let now_ns = client.endpoint().now_ns();
        let last = || self.last_fullness.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at_ns, of, report)) = &*last()
            && *of == only
            && now_ns.saturating_sub(*at_ns) < FRESH_NS
        {
            return Ok(report.clone());
        }
        let Bytes { owned, free, .. } = self.alloc().bytes();
        let mut report = Fullness {
            block_bytes: self.geometry().options().block_bytes,
            own: (owned, free),
            ..Fullness::default()
        };
        let mut others: BTreeMap<Option<u32>, (u64, u64)> = BTreeMap::new();
        for server in self.geometry().server_ids().filter(|at| only.is_none_or(|only| only == *at))
        {
            let table = self.read_block_words(client, server).await?;
            report.blocks += table.len() as u64;
            let mut carved = Vec::new();
            for (block, word) in table {
                let state = word.state()?;
                report.free_blocks += u64::from(state == BlockState::Free);
                let owner = (state != BlockState::Orphan).then(|| word.owner());
                if state.is_carved() && owner != Some(self.member) {
                    carved.push((block, owner));
                }
            }
            for some in carved.chunks(FRONTS) {
                let mut ops = client.client().ops();
                for (block, _) in some {
                    let front = client.buf(self.geometry().shape().front_bytes() as usize);
                    ops.read(self.geometry().block_addr(*block), front);
                }
                let fronts = client.post_many(ops).await?;
                for (index, (_, owner)) in some.iter().enumerate() {
                    let of_owner = others.entry(*owner).or_default();
                    of_owner.0 += 1;
                    of_owner.1 += self.free_in(fronts.buf(index).words());
                }
            }
        }
        report.nobody = others.remove(&None).unwrap_or_default();
        let of_member = |(owner, (blocks, free)): (Option<u32>, _)| Some((owner?, blocks, free));
        report.others = others.into_iter().filter_map(of_member).collect();
        *last() = Some((now_ns, only, report.clone()));
        Ok(report)
    }

    /// Bytes that a block's front shows as free; 0 if it is damaged.
    fn free_in(&self, front: &[u64]) -> u64 {
        let shape = self.geometry().shape();
        let Ok(runs) = check_front(shape, front) else { return 0 };
        let in_runs: u64 = runs.iter().map(|run| u64::from(run.pages) * shape.page_bytes).sum();
        let free = runs.iter().map(|run| {
            let pairs = pairs_in(shape, front, run).chunks_exact(2).enumerate();
            let bits = pairs.map(|(at, pair)| (pair[0] ^ pair[1]) & run.valid_bits(at));
            bits.map(|bits| u64::from(bits.count_ones())).sum::<u64>() * run.object_bytes()
        });
        shape.usable_bytes() - in_runs + free.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_owners_with_most_free_first() {
        let report = Fullness {
            block_bytes: 8 << 20,
            blocks: 57,
            free_blocks: 0,
            own: (24 << 20, 5 << 20),
            others: vec![(1, 4, 100), (2, 8, 40 << 20), (4, 2, 9 << 20), (5, 9, 0), (6, 30, 2048)],
            nobody: (1, 1 << 20),
        };
        assert_eq!(
            report.to_string(),
            "57 of 57 blocks of 8 MiB are taken: this compute server has 3 (19 MiB used, 5 MiB free), \
             member 2 has 8 (40 MiB free), member 4 has 2 (9 MiB free), member 6 has 30 (2048 B free), \
             2 others have 13 (100 B free), 1 left by ended ones (1 MiB free); delete data, close \
             compute servers that have much free, or make a larger pool"
        );
    }
}
