//! Placement: chooses the memory server of a new object.
//!
//! Servers get objects in proportion to the blocks that were free on them when this member last looked for
//! one. A server that is full is passed over: its objects go to the server with the most free blocks.
//!
//! INV-PLACE-1: `Full` means that no memory server has room for the object, unless the caller insists on
//! one ([`Session::alloc_on`]).
//! INV-PLACE-2: until a member has taken a 16th of a block of a class, it takes another block of that class
//! only if none of its own and no orphan has a free object, on any server. So members that write little
//! leave few part-filled blocks behind.

use std::sync::atomic::Ordering;

use farleaf_fabric::ServerId;

use crate::{Pool, Session};

/// The golden ratio's fraction: multiples of it, modulo 2^64, spread evenly, however many are taken in turn
/// for objects of one kind.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Preferred memory server of a new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    server: ServerId,
    is_any: bool,
}

impl Place {
    /// The server to ask first.
    pub fn server(self) -> ServerId {
        self.server
    }

    /// Tells whether any other server is as good.
    pub(crate) fn is_any(self) -> bool {
        self.is_any
    }
}

/// Near that server: on it, if it has room.
impl From<ServerId> for Place {
    fn from(server: ServerId) -> Self {
        Place { server, is_any: false }
    }
}

impl Session {
    /// Chooses a server for the next object: each in proportion to its free blocks, evenly mixed. No remote
    /// operation.
    #[inline]
    pub fn place(&self) -> Place {
        let turn = self.inner.place.get().wrapping_add(GOLDEN);
        self.inner.place.set(turn);
        Place { server: self.pool().server_at(turn), is_any: true }
    }
}

impl Pool {
    /// The server at `turn` of 2^64 of a circle that all share by their free blocks.
    fn server_at(&self, turn: u64) -> ServerId {
        // At least 1, so that what becomes free on a full server is found some time.
        let weight =
            |room: &std::sync::atomic::AtomicU32| u64::from(room.load(Ordering::Relaxed).max(1));
        let total: u64 = self.free_blocks.iter().map(weight).sum();
        let mut at = ((u128::from(turn) * u128::from(total)) >> 64) as u64;
        for (server, room) in (0..).zip(&self.free_blocks) {
            match at.checked_sub(weight(room)) {
                Some(rest) => at = rest,
                None => return ServerId(server),
            }
        }
        ServerId(0)
    }

    /// All servers in the order in which an object may go to them: the preferred one, then those with the
    /// most free blocks.
    pub(crate) fn servers_near(&self, server: ServerId) -> Vec<ServerId> {
        let room = |server: &ServerId| self.free_blocks[server.index()].load(Ordering::Relaxed);
        let mut all: Vec<ServerId> =
            self.geometry().server_ids().filter(|other| *other != server).collect();
        all.sort_by_key(|server| std::cmp::Reverse(room(server)));
        all.insert(0, server);
        all
    }
}
