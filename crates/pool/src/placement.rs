//! Placement: chooses the memory server of a new object.
//!
//! INV-PLACE-1: `Full` means that no memory server has room for the object, unless the caller insists on
//! one ([`Session::alloc_on`]).
//! INV-PLACE-2: until a member has taken a 16th of a block of a class, it takes any free object of its own
//! blocks. Before a member carves a block, it adopts an orphan of the class with a free object, on any server,
//! and uses that orphan up. So members that write little leave few part-filled blocks behind.
//! INV-PLACE-3: otherwise the next object of a class goes to the server on which this member has taken the
//! fewest objects of the class for each usable block. Servers without an object of the class are passed over
//! while others have one. A member begins at a server of its own for each class.
//! INV-PLACE-4: objects that are best beside others do not fill one server before the rest: of a class, a member takes at
//! most [`BESIDE_AHEAD`] objects more there than its share.

use farleaf_fabric::ServerId;

use crate::Session;
use crate::class::class_bytes;
use crate::owned_blocks::Allocator;

/// A member that has taken less than this part of a block of a class takes little (INV-PLACE-2).
const LITTLE_PART: u64 = 16;
/// Objects of a class by which a server may be ahead of the one with the fewest (INV-PLACE-4).
const BESIDE_AHEAD: u64 = 32;

/// Preferred memory server of a new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Any server: all in proportion to their usable blocks.
    Spread,
    /// That server, or others if it is full.
    Near(ServerId),
    /// That server, unless this member has taken more than its share of the size there (INV-PLACE-4), or takes little and
    /// has no free object there; else any.
    Beside(ServerId),
}

/// The orphan that a member adopts of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UseUp {
    /// The one with the fewest free objects, so that the others may become empty; on any server.
    FullestOfAll,
    /// The same, on the preferred server if there is one.
    Fullest,
    /// The one with the most, which lasts longest.
    Emptiest,
}

impl From<ServerId> for Placement {
    fn from(server: ServerId) -> Self {
        Placement::Near(server)
    }
}

impl Session {
    /// Spreads the next object: it goes to the server whose turn it is for objects of its size.
    #[inline]
    pub fn place(&self) -> Placement {
        Placement::Spread
    }

    /// Chooses the server of the next group of objects that stay together: all servers in proportion to their
    /// usable blocks. No remote operation.
    pub fn next_server(&self) -> ServerId {
        self.pool().alloc().next_server()
    }
}

impl Allocator {
    /// The place of the next object of the class that is best beside others on `server` (INV-PLACE-4).
    pub(crate) fn beside(&self, class: usize, server: ServerId) -> Placement {
        let least = self.least_taken(class, self.geometry.server_ids()).unwrap_or(server);
        let blocks = |at: ServerId| u64::from(self.geometry.block_count(at)).max(1);
        let taken = self.taken_count(server, class).saturating_mul(blocks(least));
        let share = (self.taken_count(least, class) + BESIDE_AHEAD).saturating_mul(blocks(server));
        // A member that takes little carves no block for that (INV-PLACE-2).
        let is_at_hand = !self.takes_little(class) || self.has_free(server, class);
        if is_at_hand && taken < share { Placement::Near(server) } else { Placement::Spread }
    }

    /// The server for a new object of the class, wherever it may lie (INV-PLACE-2, INV-PLACE-3).
    #[inline]
    pub(crate) fn choose(&self, class: usize, now_ns: impl Fn() -> u64) -> ServerId {
        if self.geometry.servers() == 1 {
            return ServerId(0);
        }
        let all = self.geometry.server_ids();
        let adopted =
            all.clone().find(|at| self.of_class(*at, class).turns > 0 && self.has_free(*at, class));
        if let Some(server) = adopted {
            return server;
        }
        let is_little = self.takes_little(class);
        let with_free = all.clone().filter(|at| is_little && self.has_free(*at, class));
        if let Some(server) = self.least_taken(class, with_free) {
            return server;
        }
        // The time is asked for only if a server was found empty before.
        let is_open = |at: &ServerId| !self.is_passed_over(*at, class, &now_ns);
        self.least_taken(class, all.clone().filter(is_open))
            .or_else(|| self.least_taken(class, all))
            .unwrap_or(ServerId(0))
    }

    /// Tells whether the server has no object of the class, and had none a short time ago.
    pub(crate) fn is_passed_over(
        &self,
        server: ServerId,
        class: usize,
        now_ns: impl Fn() -> u64,
    ) -> bool {
        !self.has_free(server, class)
            && self.of_class(server, class).empty_until_ns > 0
            && self.is_empty(server, class, now_ns())
    }

    /// All servers in the order in which a new block of the class may come from them: `server`, then those
    /// with the fewest objects of this member's. For a member that takes little, and may choose, those with the
    /// most free blocks of all their blocks come first.
    pub(crate) fn servers_from(
        &self,
        class: usize,
        server: ServerId,
        may_choose: bool,
    ) -> Vec<ServerId> {
        let mut rest: Vec<ServerId> =
            self.geometry.server_ids().filter(|at| *at != server).collect();
        let mut all = vec![server];
        while let Some(next) = self.least_taken(class, rest.iter().copied()) {
            rest.retain(|at| *at != next);
            all.push(next);
        }
        if may_choose && self.takes_little(class) {
            // Stable: of equals the one that is to come anyway.
            all.sort_by_key(|at| {
                let of = u64::from(self.geometry.block_count(*at)).max(1);
                std::cmp::Reverse((u64::from(self.servers[at.index()].free_blocks) << 32) / of)
            });
        }
        all
    }

    /// Tells whether this member has taken less than a 16th of a block of the class.
    pub(crate) fn takes_little(&self, class: usize) -> bool {
        self.bytes_taken(class) < self.geometry.options().block_bytes / LITTLE_PART
    }

    /// The orphan that this member adopts: one that takes more than a block adopts for long.
    pub(crate) fn use_up(&self, class: usize) -> UseUp {
        if self.takes_little(class) {
            UseUp::FullestOfAll
        } else if self.bytes_taken(class) < self.geometry.options().block_bytes {
            UseUp::Fullest
        } else {
            UseUp::Emptiest
        }
    }

    fn bytes_taken(&self, class: usize) -> u64 {
        let taken: u64 = self.geometry.server_ids().map(|at| self.taken_count(at, class)).sum();
        taken.saturating_mul(class_bytes(class))
    }

    /// The server of these on which this member has taken the fewest objects of the class for each block.
    fn least_taken(&self, class: usize, among: impl Iterator<Item = ServerId>) -> Option<ServerId> {
        self.least(class, among, |server| self.taken_count(server, class))
    }

    fn next_server(&mut self) -> ServerId {
        let groups = |server: ServerId| self.servers[server.index()].groups;
        let server = self.least(0, self.geometry.server_ids(), groups).unwrap_or(ServerId(0));
        self.servers[server.index()].groups += 1;
        server
    }

    /// The server of these with the least `count` for each block; of equals the first in turn from this
    /// member's first, which is another one for each class.
    fn least(
        &self,
        class: usize,
        among: impl Iterator<Item = ServerId>,
        count: impl Fn(ServerId) -> u64,
    ) -> Option<ServerId> {
        let servers = self.geometry.servers();
        let first = (self.first_server + class) % servers;
        let mut best: Option<(ServerId, u64, u64, usize)> = None;
        for server in among {
            let (count, blocks) = (count(server), u64::from(self.geometry.block_count(server)));
            let turn = (server.index() + servers - first) % servers;
            let is_better = best.is_none_or(|(_, least, of, other_turn)| {
                let (this, other) = (count.saturating_mul(of), least.saturating_mul(blocks));
                (this, turn) < (other, other_turn)
            });
            if is_better {
                best = Some((server, count, blocks, turn));
            }
        }
        best.map(|(server, ..)| server)
    }
}
