//! Member addresses: publish each member's network address and its region in its entry of the member table.
//!
//! Words 3 to 5 of an entry: 3 an address exists (bit 63), low bits of the generation of the life that
//! wrote it (32 to 62), it is of IPv6 (16), port (0 to 15); 4 and 5 the IP address in network order. Word 6:
//! the member exposes a region (bit 63), the same bits of its generation, pages of 4 KiB (0 to 31).
//!
//! INV-ADDR-1: a member writes word 3 last, and it names the life that the address belongs to. So
//! nobody takes an address for that of the entry's next member, and the CAS that clears it leaves that
//! one's alone. An address is still a hint, because the words are not of one moment. A caller asks the
//! process at the address for its identity. The same holds for word 6, which is whole by itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, Incarnation, Ops, Peer, ServerId};

use crate::geometry::MEMBER_BYTES;
use crate::member;
use crate::reliable::Reliable;
use crate::words::{MemberState, MemberWord};
use crate::{Geometry, PoolError, Session};

const IS_THERE: u64 = 1 << 63;
const IS_V6: u64 = 1 << 16;
/// The first of the three words.
pub(crate) const ADDRESS_AT: u64 = 24;
const IP_AT: u64 = 32;
/// The word of the region.
pub(crate) const REGION_AT: u64 = 48;
/// Bytes of an entry up to the end of what a member publishes: the address alone, and the region as well.
const PUBLISHED_BYTES: [usize; 2] = [32, 56];
const PAGE: u64 = 4096;

/// A member of the pool, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number in the member table.
    pub slot: u32,
    /// Tells the lives of one slot apart.
    pub generation: u32,
    /// The compute server's incarnation.
    pub incarnation: Incarnation,
    /// The address at which it answers others, if it does.
    pub address: Option<SocketAddr>,
    /// Bytes of memory that it exposes under its number; 0 for none.
    pub region_bytes: u64,
}

impl Member {
    /// The member as the fabric reaches it.
    pub fn peer(&self) -> Peer {
        let Member { slot, incarnation, address, region_bytes, .. } = *self;
        // A slot is less than `PoolOptions::members_max`.
        let server = ServerId(ServerId::COMPUTE_FIRST.0 + slot as u16);
        Peer { server, incarnation, address, region_bytes }
    }
}

/// What a member has published, to be cleared with its entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published {
    /// First word of its address, and the word of its region; 0 for none.
    pub(crate) address: u64,
    pub(crate) region: u64,
}

impl Published {
    /// Bytes of an entry to READ for what its member has published.
    pub(crate) fn bytes(client: Reliable<'_>) -> usize {
        PUBLISHED_BYTES[usize::from(client.endpoint().may_meet_regions())]
    }

    /// In the words of an entry, as many as [`Published::bytes`].
    pub(crate) fn of_entry(entry: &[u64]) -> Published {
        let region = entry.get(REGION_AT as usize / 8).copied().unwrap_or(0);
        Published { address: entry[ADDRESS_AT as usize / 8], region }
    }

    /// Clears what is there of the entry `at`, and leaves the next member's alone (INV-ADDR-1).
    pub(crate) fn clear(self, at: GlobalAddr, ops: &mut Ops) {
        for (word, offset) in [(self.address, ADDRESS_AT), (self.region, REGION_AT)] {
            if word != 0 {
                ops.cas(at.plus(offset), word, 0);
            }
        }
    }
}

fn life_of(generation: u32) -> u64 {
    u64::from(generation & 0x7fff_ffff) << 32
}

fn encode(address: SocketAddr, generation: u32) -> [u64; 3] {
    let (flag, ip) = match address.ip() {
        IpAddr::V4(ip) => (0, u32::from_le_bytes(ip.octets()).into()),
        IpAddr::V6(ip) => (IS_V6, u128::from_le_bytes(ip.octets())),
    };
    let head = IS_THERE | life_of(generation) | flag | u64::from(address.port());
    [head, ip as u64, (ip >> 64) as u64]
}

/// The word for a region; `None` for a size that it has no room for.
fn encode_region(bytes: u64, generation: u32) -> Option<u64> {
    let pages = u32::try_from(bytes / PAGE).ok().filter(|_| bytes.is_multiple_of(PAGE))?;
    Some(IS_THERE | life_of(generation) | u64::from(pages))
}

/// Bytes of the region that the life `generation` of an entry has published in this word.
fn decode_region(word: u64, generation: u32) -> u64 {
    let is_of_life = word & !0xffff_ffff == IS_THERE | life_of(generation);
    if is_of_life { (word & 0xffff_ffff) * PAGE } else { 0 }
}

/// The members of a table, those that have died and were not noticed among them. 1 READ.
pub(crate) async fn read_members(
    client: Reliable<'_>,
    geometry: &Geometry,
) -> Result<Vec<Member>, PoolError> {
    let bytes = geometry.options().members_max as usize * MEMBER_BYTES as usize;
    let table = client.read(geometry.member_addr(0), client.buf(bytes)).await?;
    let mut members = Vec::new();
    let entries = table.words().chunks_exact(MEMBER_BYTES as usize / 8);
    for (slot, entry) in (0..).zip(entries) {
        let word = MemberWord(entry[0]);
        if word.state()? == MemberState::Live && entry[1] != 0 {
            let address = decode(&entry[3..], word.generation());
            let region_bytes = decode_region(entry[REGION_AT as usize / 8], word.generation());
            let incarnation = Incarnation(entry[1]);
            let generation = word.generation();
            members.push(Member { slot, generation, incarnation, address, region_bytes });
        }
    }
    Ok(members)
}

/// The address that the life `generation` of an entry has published in these words.
fn decode(words: &[u64], generation: u32) -> Option<SocketAddr> {
    let &[head, low, high, ..] = words else { return None };
    if head & !(IS_V6 | 0xffff) != IS_THERE | life_of(generation) {
        return None;
    }
    let ip = u128::from(high) << 64 | u128::from(low);
    let ip = match head & IS_V6 {
        0 => IpAddr::from((ip as u32).to_le_bytes()),
        _ => IpAddr::from(ip.to_le_bytes()),
    };
    Some(SocketAddr::new(ip, head as u16))
}

impl Session {
    /// Lets the other members know where this one can be asked, until it leaves or is recovered.
    ///
    /// Cost: 2 WRITEs.
    ///
    /// # Errors
    /// `Closed`, `Fabric`.
    pub async fn publish_address(&self, address: SocketAddr) -> Result<(), PoolError> {
        let pool = self.pool();
        pool.check_open()?;
        let at = pool.geometry().member_addr(pool.member);
        let words = encode(address, pool.generation);
        let maintenance = self.maintenance();
        let mut ip = maintenance.buf(16);
        ip.words_mut().copy_from_slice(&words[1..]);
        // Before it is there, so that whoever clears the entry knows of it.
        pool.address_word.store(words[0], Ordering::SeqCst);
        maintenance.write(at.plus(IP_AT), ip).await?;
        maintenance.write_word(at.plus(ADDRESS_AT), words[0]).await?;
        Ok(())
    }

    /// Lets the other members know that this one exposes `bytes` of memory under its number, until it leaves or
    /// is recovered: after [`farleaf_fabric::Fabric::expose`], and before it READs where others have memory.
    /// So a fence that comes later finds the region.
    ///
    /// Cost: 1 WRITE.
    ///
    /// # Errors
    /// `Invalid` for a size that is no multiple of 4,096 or 2^44 and more; `Closed`, `Fabric`.
    pub async fn publish_region(&self, bytes: u64) -> Result<(), PoolError> {
        let pool = self.pool();
        pool.check_open()?;
        let word = encode_region(bytes, pool.generation).ok_or_else(|| {
            PoolError::Invalid(format!(
                "a compute server's region of {bytes} bytes: the member table has room for multiples \
                 of {PAGE} below 2^44"
            ))
        })?;
        let at = pool.geometry().member_addr(pool.member);
        // Before it is there, so that whoever clears the entry knows of it.
        pool.region_word.store(word, Ordering::SeqCst);
        self.maintenance().write_word(at.plus(REGION_AT), word).await?;
        Ok(())
    }

    /// Cuts off a dead compute server from every memory server and from every member's memory and calls
    /// (INV-MEM-4).
    ///
    /// Cost: a fence per memory server and per attached compute server; 1 READ if compute servers may
    /// expose memory.
    ///
    /// # Errors
    /// `Corrupt`, `Fabric`: `Unavailable` if a member lives and its region cannot be reached. The fence may
    /// be repeated, by another member as well.
    pub async fn fence(&self, who: Incarnation) -> Result<(), PoolError> {
        member::fence(self.maintenance(), self.pool().geometry(), who).await
    }

    /// The members that take part now; those that have died and were not noticed are among them.
    ///
    /// Cost: 1 READ.
    ///
    /// # Errors
    /// `Corrupt`, `Fabric`.
    pub async fn members(&self) -> Result<Vec<Member>, PoolError> {
        read_members(self.maintenance(), self.pool().geometry()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_for_the_life_that_wrote_them() {
        for address in ["127.0.0.1:7000", "255.1.2.3:65535", "[::1]:1", "[fe80::1:2:3]:443"] {
            let address: SocketAddr = address.parse().unwrap();
            let words = encode(address, 7);
            assert_eq!(decode(&words, 7), Some(address));
            assert_eq!(decode(&words, 8), None, "the next one's entry");
            assert_eq!(decode(&[0, words[1], words[2]], 7), None);
        }
        assert_eq!(decode(&[u64::MAX, 1, 2], u32::MAX), None, "bits that nobody sets");
        assert_eq!(decode(&[], 0), None);
    }

    #[test]
    fn regions_come_back_for_the_life_that_wrote_them() {
        for bytes in [4096, 1 << 30, (1 << 44) - 4096] {
            let word = encode_region(bytes, 7).unwrap();
            assert_eq!(decode_region(word, 7), bytes);
            assert_eq!(decode_region(word, 8), 0, "the next one's entry");
        }
        for bytes in [1, 4097, 1 << 44, u64::MAX] {
            assert_eq!(encode_region(bytes, 7), None, "{bytes}");
        }
        assert_eq!(decode_region(u64::MAX, u32::MAX), 0xffff_ffff * 4096, "all bits are used");
        assert_eq!(decode_region(0, 0), 0);
    }
}
