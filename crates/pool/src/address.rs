//! Member addresses: publish each member's network address in its entry of the member table.
//!
//! Words 3 to 5 of an entry: 3 an address exists (bit 63), low bits of the generation of the life that
//! wrote it (32 to 62), it is of IPv6 (16), port (0 to 15); 4 and 5 the IP address in network order.
//!
//! INV-ADDR-1: a member writes word 3 last, and it names the life that the address belongs to. So
//! nobody takes an address for that of the entry's next member, and the CAS that clears it leaves that
//! one's alone. An address is still a hint, because the words are not of one moment. A caller asks the
//! process at the address for its identity.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use farleaf_fabric::Incarnation;

use crate::geometry::MEMBER_BYTES;
use crate::words::{MemberState, MemberWord};
use crate::{PoolError, Session};

const IS_THERE: u64 = 1 << 63;
const IS_V6: u64 = 1 << 16;
/// The first of the three words.
pub(crate) const ADDRESS_AT: u64 = 24;
const IP_AT: u64 = 32;

/// A member of the pool, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number in the member table.
    pub slot: u32,
    /// The compute server's incarnation.
    pub incarnation: Incarnation,
    /// The address at which it answers others, if it does.
    pub address: Option<SocketAddr>,
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
        let upkeep = self.maintenance();
        let mut ip = upkeep.buf(16);
        ip.words_mut().copy_from_slice(&words[1..]);
        // Before it is there, so that whoever clears the entry knows of it.
        pool.address_word.store(words[0], Ordering::SeqCst);
        upkeep.write(at.plus(IP_AT), ip).await?;
        upkeep.write_word(at.plus(ADDRESS_AT), words[0]).await?;
        Ok(())
    }

    /// The members that take part now; those that have died and were not noticed are among them.
    ///
    /// Cost: 1 READ.
    ///
    /// # Errors
    /// `Corrupt`, `Fabric`.
    pub async fn members(&self) -> Result<Vec<Member>, PoolError> {
        let geometry = self.pool().geometry();
        let bytes = geometry.options().members_max as usize * MEMBER_BYTES as usize;
        let upkeep = self.maintenance();
        let table = upkeep.read(geometry.member_addr(0), upkeep.buf(bytes)).await?;
        let mut members = Vec::new();
        let entries = table.words().chunks_exact(MEMBER_BYTES as usize / 8);
        for (slot, entry) in (0..).zip(entries) {
            let word = MemberWord(entry[0]);
            if word.state()? == MemberState::Live && entry[1] != 0 {
                let address = decode(&entry[3..], word.generation());
                members.push(Member { slot, incarnation: Incarnation(entry[1]), address });
            }
        }
        Ok(members)
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
}
