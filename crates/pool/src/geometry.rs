//! Geometry: places every area of the regions, by the options and the regions' lengths alone.
//!
//! INV-GEO-1: the areas of a region follow one another without overlap, in the order superblock,
//! global words, member table, client table, root table, client areas, inboxes, block table, blocks.
//! INV-GEO-2: areas before the block table are at the same offsets on every server.

use std::fmt;

use farleaf_fabric::{GlobalAddr, ServerId};

use crate::PoolError;
use crate::class::{CLASS_COUNT, OBJECT_ALIGN, class_bytes, class_of};
use crate::pages::BlockShape;

/// Bytes of the superblock.
pub(crate) const SUPERBLOCK_BYTES: u64 = 4096;
/// The global epoch (server 0).
pub(crate) const EPOCH_AT: u64 = 4096;
/// Beside the global epoch, for one READ of both: times that clients were left, and how many of those are adopted
/// (server 0; `left`). Zeros in pools of before they had a meaning.
pub(crate) const LEFT_AT: u64 = EPOCH_AT + 8;
/// Words from [`EPOCH_AT`] on that a look at the members READs.
pub(crate) const EPOCH_WORDS: usize = 3;
/// The lock of the root table (server 0).
pub(crate) const ROOT_LOCK_AT: u64 = 4096 + 64;
/// The word that names the pool's recoverer (server 0). Zero in pools of before it had a meaning.
pub(crate) const RECOVERER_AT: u64 = 4096 + 128;
const MEMBERS_AT: u64 = 8192;
pub(crate) const MEMBER_BYTES: u64 = 64;
pub(crate) const CLIENT_BYTES: u64 = 64;
pub(crate) const ROOT_BYTES: u64 = 256;
/// Words of a retire page.
pub(crate) const RETIRE_WORDS: usize = 512;
pub(crate) const RETIRE_BYTES: u64 = RETIRE_WORDS as u64 * 8;
/// Words of a ring of an inbox.
pub(crate) const RING_WORDS: usize = 64;
pub(crate) const RING_BYTES: u64 = RING_WORDS as u64 * 8;
/// Members that have inboxes, and rings in those of others, are the first so many.
const INBOXES_MAX: u32 = 64;
/// Inboxes take at most this share of the smallest region: fewer members have one in a small pool.
const INBOXES_SHARE: u64 = 32;
const BLOCKS_MAX: u64 = 1 << 24;
const PAGE: u64 = 4096;

/// Layout of a pool. Formatting fixes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Bytes of a block: a power of two, 64 KiB to 1 GiB.
    pub block_bytes: u64,
    /// Most clients (sessions) at one time: 1 to 4096.
    pub clients_max: u32,
    /// Most members (compute servers) at one time: 1 to 16384: the numbers of compute servers.
    pub members_max: u32,
    /// Most tables: 1 to 65536.
    pub tables_max: u32,
    /// Bytes of each client's redo area on each server: a multiple of 64, at most 1 MiB.
    pub redo_bytes: u32,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            block_bytes: 16 << 20,
            clients_max: 1024,
            members_max: 64,
            tables_max: 256,
            redo_bytes: 16 << 10,
        }
    }
}

impl PoolOptions {
    /// Options that suit regions of that size: at most the default's, smaller blocks and fewer
    /// clients where these would leave little room for data, and no more members than a quarter of the
    /// clients, so that each can have one that operations leave free.
    pub fn fitting(region_bytes: u64) -> PoolOptions {
        let most = PoolOptions::default();
        let redo_bytes = if region_bytes < 4 << 20 { 4 << 10 } else { most.redo_bytes };
        let client_bytes = u64::from(redo_bytes) + RETIRE_BYTES;
        let block_bytes = (region_bytes / 64).max(1).ilog2();
        let clients_max =
            (region_bytes / 8 / client_bytes).clamp(2, most.clients_max.into()) as u32;
        PoolOptions {
            block_bytes: (1_u64 << block_bytes).clamp(64 << 10, most.block_bytes),
            clients_max,
            members_max: (clients_max / 4).clamp(4, most.members_max),
            tables_max: (region_bytes / 64 / ROOT_BYTES).clamp(4, most.tables_max.into()) as u32,
            redo_bytes,
        }
    }

    /// Most members: their slots are the numbers of compute servers ([`ServerId::COMPUTE_FIRST`]).
    pub const MEMBERS_MAX: u32 = (ServerId::MAX.0 - ServerId::COMPUTE_FIRST.0) as u32 + 1;

    fn check(&self) -> Result<(), PoolError> {
        let wrong = |what: String| Err(PoolError::Invalid(what));
        let block = self.block_bytes;
        if !block.is_power_of_two() || !(64 << 10..=1 << 30).contains(&block) {
            return wrong(format!("blocks of {block} bytes: a power of two, 64 KiB to 1 GiB"));
        }
        for (what, value, most) in [
            ("clients", self.clients_max, 4096),
            ("members", self.members_max, Self::MEMBERS_MAX),
            ("tables", self.tables_max, 65536),
        ] {
            if !(1..=most).contains(&value) {
                return wrong(format!("{value} {what}: a pool has room for 1 to {most}"));
            }
        }
        if !self.redo_bytes.is_multiple_of(64) || !(64..=1 << 20).contains(&self.redo_bytes) {
            return wrong(format!(
                "redo areas of {} bytes: a multiple of 64, at most 1 MiB",
                self.redo_bytes
            ));
        }
        Ok(())
    }
}

/// A block of a memory server's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockId {
    pub(crate) server: ServerId,
    pub(crate) number: u32,
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} of memory server {}", self.number, self.server)
    }
}

/// The place of an object in the pool's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of its block among those of all servers, server 0's first.
    pub block: u64,
    /// Its index among the objects of its block.
    pub index: u32,
}

/// One server's part of the geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerGeometry {
    pub(crate) region_bytes: u64,
    pub(crate) blocks_at: u64,
    pub(crate) block_count: u32,
}

/// The places of all areas in a pool's regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    options: PoolOptions,
    servers: Vec<ServerGeometry>,
    pub(crate) clients_at: u64,
    pub(crate) roots_at: u64,
    pub(crate) areas_at: u64,
    inboxes_at: u64,
    inboxes: u32,
    pub(crate) block_table_at: u64,
    shape: BlockShape,
}

impl Geometry {
    /// The geometry for regions of these lengths.
    ///
    /// # Errors
    /// `Invalid` if an option makes no sense or a region is too small for it.
    pub(crate) fn new(options: PoolOptions, region_bytes: &[u64]) -> Result<Self, PoolError> {
        options.check()?;
        // The options' limits keep every product far below 2^48.
        let clients = u64::from(options.clients_max);
        let clients_at = MEMBERS_AT + u64::from(options.members_max) * MEMBER_BYTES;
        let roots_at = clients_at + clients * CLIENT_BYTES;
        let areas_at =
            (roots_at + u64::from(options.tables_max) * ROOT_BYTES).next_multiple_of(PAGE);
        let area_bytes = u64::from(options.redo_bytes) + RETIRE_BYTES;
        let inboxes_at = areas_at + clients * area_bytes;
        let inboxes = inboxes(options.members_max, region_bytes);
        let block_table_at = inboxes_at + inboxes_bytes(inboxes, region_bytes.len());
        let mut servers = Vec::with_capacity(region_bytes.len());
        for (server, &bytes) in region_bytes.iter().enumerate() {
            if bytes > GlobalAddr::OFFSET_MAX {
                return Err(PoolError::Invalid(format!(
                    "a region of {bytes} bytes (server {server}): addresses reach 2^48"
                )));
            }
            let room = bytes.saturating_sub(block_table_at);
            let mut count = room / (options.block_bytes + 8);
            let blocks_at = |count: u64| (block_table_at + count * 8).next_multiple_of(PAGE);
            while count > 0 && blocks_at(count) + count * options.block_bytes > bytes {
                count -= 1;
            }
            if count == 0 {
                return Err(PoolError::Invalid(format!(
                    "a region of {bytes} bytes (server {server}) has no room for a block of {}: \
                     its tables alone take {block_table_at}",
                    options.block_bytes
                )));
            }
            if count > BLOCKS_MAX {
                return Err(PoolError::Invalid(format!(
                    "a region of {bytes} bytes (server {server}) has {count} blocks of {}: \
                     take larger ones",
                    options.block_bytes
                )));
            }
            servers.push(ServerGeometry {
                region_bytes: bytes,
                blocks_at: blocks_at(count),
                block_count: count as u32,
            });
        }
        Ok(Geometry {
            options,
            servers,
            clients_at,
            roots_at,
            areas_at,
            inboxes_at,
            inboxes,
            block_table_at,
            shape: BlockShape::new(options.block_bytes),
        })
    }

    /// Returns the options with which the pool was formatted.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// Number of memory servers.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Bytes of all regions.
    pub fn pool_bytes(&self) -> u64 {
        self.servers.iter().map(|server| server.region_bytes).sum()
    }

    /// Number of blocks of `server`; 0 if there is no such server.
    pub fn block_count(&self, server: ServerId) -> u32 {
        self.servers.get(server.index()).map_or(0, |server| server.block_count)
    }

    /// The blocks of `server`, in their order.
    pub(crate) fn blocks(&self, server: ServerId) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.block_count(server)).map(move |number| BlockId { server, number })
    }

    /// Bytes of the largest object that the pool can hold.
    pub fn object_bytes_max(&self) -> usize {
        let largest = (0..CLASS_COUNT).rfind(|class| self.shape.run_pages(*class) > 0);
        largest.map_or(0, |class| class_bytes(class) as usize)
    }

    pub(crate) fn server_ids(&self) -> impl Iterator<Item = ServerId> + Clone + use<> {
        (0..self.servers.len() as u16).map(ServerId)
    }

    pub(crate) fn server(&self, server: ServerId) -> &ServerGeometry {
        &self.servers[server.index()]
    }

    /// Division of each block.
    pub(crate) fn shape(&self) -> &BlockShape {
        &self.shape
    }

    pub(crate) fn epoch_addr(&self) -> GlobalAddr {
        GlobalAddr::new(ServerId(0), EPOCH_AT)
    }

    /// How many times clients were left; in the next word, how many of these are adopted.
    pub(crate) fn left_addr(&self) -> GlobalAddr {
        GlobalAddr::new(ServerId(0), LEFT_AT)
    }

    /// The word that names the recoverer.
    pub(crate) fn recoverer_addr(&self) -> GlobalAddr {
        GlobalAddr::new(ServerId(0), RECOVERER_AT)
    }

    pub(crate) fn member_addr(&self, slot: u32) -> GlobalAddr {
        GlobalAddr::new(ServerId(0), MEMBERS_AT + u64::from(slot) * MEMBER_BYTES)
    }

    pub(crate) fn client_addr(&self, client: u32) -> GlobalAddr {
        GlobalAddr::new(ServerId(0), self.clients_at + u64::from(client) * CLIENT_BYTES)
    }

    pub(crate) fn root_addr(&self, slot: usize) -> GlobalAddr {
        GlobalAddr::new(ServerId(0), self.roots_at + slot as u64 * ROOT_BYTES)
    }

    pub(crate) fn root_lock_addr(&self) -> GlobalAddr {
        GlobalAddr::new(ServerId(0), ROOT_LOCK_AT)
    }

    pub(crate) fn redo_addr(&self, server: ServerId, client: u32) -> GlobalAddr {
        let area_bytes = u64::from(self.options.redo_bytes) + RETIRE_BYTES;
        GlobalAddr::new(server, self.areas_at + u64::from(client) * area_bytes)
    }

    pub(crate) fn retire_addr(&self, server: ServerId, client: u32, word: usize) -> GlobalAddr {
        self.redo_addr(server, client).plus(u64::from(self.options.redo_bytes) + word as u64 * 8)
    }

    /// Number of inboxes, and of rings in each.
    pub(crate) fn inboxes(&self) -> u32 {
        self.inboxes
    }

    /// Bytes of an inbox: heads, then rings.
    pub(crate) fn inbox_bytes(&self) -> u64 {
        inbox_bytes(self.inboxes().into())
    }

    /// The inbox of a member; they are spread over the servers. It begins with the heads.
    pub(crate) fn inbox_addr(&self, member: u32) -> GlobalAddr {
        let servers = self.servers.len() as u32;
        let at = self.inboxes_at + u64::from(member / servers) * self.inbox_bytes();
        GlobalAddr::new(ServerId((member % servers) as u16), at)
    }

    /// The ring of `sender` in a member's inbox.
    pub(crate) fn ring_addr(&self, member: u32, sender: u32) -> GlobalAddr {
        let heads = heads_bytes(self.inboxes().into());
        self.inbox_addr(member).plus(heads + u64::from(sender) * RING_BYTES)
    }

    pub(crate) fn block_word_addr(&self, block: BlockId) -> GlobalAddr {
        GlobalAddr::new(block.server, self.block_table_at + u64::from(block.number) * 8)
    }

    pub(crate) fn block_addr(&self, block: BlockId) -> GlobalAddr {
        let blocks_at = self.server(block.server).blocks_at;
        GlobalAddr::new(
            block.server,
            blocks_at + u64::from(block.number) * self.options.block_bytes,
        )
    }

    /// The place of the object of `bytes` that lies at `addr`, among all that its block has room for. Distinct
    /// objects of one class in one block have distinct indices, because they begin at least an object apart; all are below
    /// the block's bytes / the object's, rounded up. `None` if no object can begin there. No remote operation.
    pub fn place_of(&self, addr: GlobalAddr, bytes: usize) -> Option<Place> {
        let (block, offset) = self.block_of(addr)?;
        let bytes = class_bytes(class_of(bytes)?);
        if !offset.is_multiple_of(OBJECT_ALIGN) {
            return None;
        }
        let index = u32::try_from(offset / bytes).ok()?;
        let before = &self.servers[..block.server.index()];
        let block = before.iter().map(|server| u64::from(server.block_count)).sum::<u64>()
            + u64::from(block.number);
        Some(Place { block, index })
    }

    /// Number of blocks of all servers.
    pub fn blocks_in_pool(&self) -> u64 {
        self.servers.iter().map(|server| u64::from(server.block_count)).sum()
    }

    /// The block that holds `addr`, and the offset in it; `None` outside of all blocks.
    pub(crate) fn block_of(&self, addr: GlobalAddr) -> Option<(BlockId, u64)> {
        let server = self.servers.get(addr.server().index())?;
        let from_first = addr.offset().checked_sub(server.blocks_at)?;
        let number = from_first / self.options.block_bytes;
        let block = BlockId { server: addr.server(), number: number as u32 };
        (number < u64::from(server.block_count))
            .then_some((block, from_first % self.options.block_bytes))
    }
}

/// Number of inboxes of a pool.
fn inboxes(members_max: u32, region_bytes: &[u64]) -> u32 {
    let room = region_bytes.iter().min().map_or(0, |bytes| bytes / INBOXES_SHARE);
    let mut inboxes = members_max.min(INBOXES_MAX);
    while inboxes > 0 && inboxes_bytes(inboxes, region_bytes.len()) > room {
        inboxes -= 1;
    }
    inboxes
}

/// Bytes of the inboxes on each server.
fn inboxes_bytes(inboxes: u32, servers: usize) -> u64 {
    let inboxes = u64::from(inboxes);
    inboxes.div_ceil(servers.max(1) as u64) * inbox_bytes(inboxes)
}

fn heads_bytes(inboxes: u64) -> u64 {
    (inboxes * 8).next_multiple_of(64)
}

fn inbox_bytes(inboxes: u64) -> u64 {
    heads_bytes(inboxes) + inboxes * RING_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap() {
        for region_bytes in [1 << 20, 8 << 20, 64 << 20, 1 << 30, 1 << 40_u64] {
            let options = PoolOptions::fitting(region_bytes);
            let geometry = Geometry::new(options, &[region_bytes, region_bytes]).expect("fits");
            let one = ServerId(1);
            let block = |number| BlockId { server: one, number };
            let clients = options.clients_max;
            let last_page = geometry.retire_addr(one, clients - 1, RETIRE_WORDS);
            assert_eq!(last_page, geometry.inbox_addr(1));
            let inboxes = geometry.inboxes();
            assert!(
                u64::from(inboxes) * geometry.inbox_bytes() <= 2 * region_bytes / INBOXES_SHARE
            );
            if let Some(last) = inboxes.checked_sub(1) {
                let end = geometry.ring_addr(last, inboxes);
                assert_eq!(end, geometry.inbox_addr(last).plus(geometry.inbox_bytes()));
                assert!(end.offset() <= geometry.block_word_addr(block(0)).offset());
            }
            let count = geometry.block_count(one);
            let table_end = geometry.block_word_addr(block(count));
            assert!(table_end <= geometry.block_addr(block(0)));
            let end = geometry.block_addr(block(count - 1)).offset() + options.block_bytes;
            assert!(end <= region_bytes);
            assert!(region_bytes - end < region_bytes / 3, "{region_bytes} wastes too much");
            assert_eq!(
                geometry.block_of(geometry.block_addr(block(1)).plus(7)),
                Some((block(1), 7))
            );
            assert_eq!(geometry.block_of(table_end), None);
            assert_eq!(geometry.block_of(GlobalAddr::new(ServerId(2), end)), None);
        }
    }

    #[test]
    fn objects_have_places_of_their_own() {
        let options = PoolOptions::fitting(8 << 20);
        let geometry = Geometry::new(options, &[8 << 20, 8 << 20]).expect("fits");
        let mut seen = std::collections::BTreeSet::new();
        for server in [0, 1].map(ServerId) {
            for block in geometry.blocks(server) {
                // Runs begin anywhere.
                for from in [0, 4096, 5 * 4096 + 64] {
                    seen.retain(|place: &Place| place.block == u64::MAX);
                    for index in 0..options.block_bytes / 1664 - 16 {
                        let addr = geometry.block_addr(block).plus(from + index * 1664);
                        let place = geometry.place_of(addr, 1600).expect("an object's place");
                        assert!(place.block < geometry.blocks_in_pool());
                        assert!(u64::from(place.index) < options.block_bytes.div_ceil(1664));
                        assert!(seen.insert(place), "{place:?} twice");
                        assert_eq!(geometry.place_of(addr.plus(8), 1600), None);
                    }
                }
            }
        }
        assert_eq!(geometry.place_of(GlobalAddr::new(ServerId(0), 4096), 1664), None);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = PoolOptions::default();
        let refused =
            |options| matches!(Geometry::new(options, &[1 << 30]), Err(PoolError::Invalid(_)));
        assert!(!refused(good));
        assert!(refused(PoolOptions { block_bytes: 3 << 20, ..good }));
        assert!(refused(PoolOptions { block_bytes: u64::MAX, ..good }));
        assert!(refused(PoolOptions { block_bytes: 1 << 30, ..good }));
        assert!(refused(PoolOptions { clients_max: 4097, ..good }));
        assert!(refused(PoolOptions { members_max: 0, ..good }));
        assert!(refused(PoolOptions { members_max: 16385, ..good }));
        assert!(refused(PoolOptions { tables_max: u32::MAX, ..good }));
        assert!(refused(PoolOptions { redo_bytes: 100, ..good }));
        assert!(matches!(Geometry::new(good, &[1 << 20]), Err(PoolError::Invalid(_))));
        assert!(matches!(Geometry::new(good, &[u64::MAX]), Err(PoolError::Invalid(_))));
    }
}
