//! Card selection: chooses the card, its port and its address.

use std::sync::Arc;
use std::{fmt, fs};

use super::VerbsError;
use crate::raw::verbs::{Device, Ends, Here, PortFacts, device_names};

/// Ports to look at if none is named.
const PORTS: u8 = 4;
/// Entries of a GID table to look at if none is named.
const GIDS: u32 = 64;
/// Most bytes of one operation; a card must carry them in one message.
const MESSAGE_BYTES: u32 = 2 << 20;

/// Choice of card, port and address; a missing one is chosen by [`CardConfig`]'s rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardConfig {
    /// Name of the device, as `ibv_devices` lists it. Else the first with an active port.
    pub device: Option<String>,
    /// Port, from 1. Else the first that is active.
    pub port: Option<u8>,
    /// Index into the port's GID table. Else, on Ethernet, the first RoCE v2 address that is an
    /// IPv4 address, else any RoCE v2 address but a link-local one, else any; on InfiniBand 0.
    pub gid_index: Option<u8>,
    /// Largest packet in bytes: 256, 512, 1024, 2048 or 4096. Else the port's. The smaller of both ends'
    /// counts.
    pub mtu: Option<u32>,
}

/// An open card, with the chosen port and address.
#[derive(Clone, Debug)]
pub(super) struct CardPort {
    pub(super) device: Arc<Device>,
    pub(super) port: u8,
    pub(super) facts: PortFacts,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    /// The MTU's number.
    pub(super) mtu: u8,
}

impl fmt::Display for CardPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, mtu) = (self.device.name(), 128 << self.mtu);
        write!(f, "{name} port {} GID index {} MTU {mtu}", self.port, self.gid_index)
    }
}

impl CardPort {
    /// Opens the card that `config` describes.
    pub(super) fn open(config: &CardConfig) -> Result<CardPort, VerbsError> {
        let mtu_max = match config.mtu {
            None => u8::MAX,
            Some(bytes) => mtu_number(bytes)?,
        };
        let names = match &config.device {
            Some(name) => vec![name.clone()],
            None => device_names()?,
        };
        let mut first_error = None;
        for name in names {
            let card_port =
                Device::open(&name).and_then(|device| Self::on(device, config, mtu_max));
            match card_port {
                Ok(card_port) => return Ok(card_port),
                Err(error) => _ = first_error.get_or_insert(error),
            }
        }
        Err(first_error.unwrap_or(VerbsError::NoDevice { wanted: None, found: Vec::new() }))
    }

    fn on(device: Arc<Device>, config: &CardConfig, mtu_max: u8) -> Result<CardPort, VerbsError> {
        let port = match config.port {
            Some(port) => port,
            None => (1..=PORTS)
                .find(|port| device.port(*port).is_ok_and(|facts| facts.is_active))
                .unwrap_or(1),
        };
        let facts = device.port(port)?;
        if !facts.is_active {
            let why = "has no link: see `rdma link`".to_owned();
            return Err(VerbsError::Port { device: device.name().to_owned(), port, why });
        }
        if !device.facts.has_atomics {
            return Err(device.unfit("it has no atomics, and every engine takes its locks by them"));
        }
        if facts.message_bytes_max < MESSAGE_BYTES {
            return Err(device.unfit("its messages are shorter than 2 MiB"));
        }
        let gid_index = match config.gid_index {
            Some(index) => index,
            None => best_gid(&device, port, &facts),
        };
        let gid = device.gid(port, gid_index.into());
        let gid = gid.filter(|_| u32::from(gid_index) < facts.gid_entries);
        let gid = gid.ok_or_else(|| VerbsError::Gid {
            device: device.name().to_owned(),
            port,
            index: gid_index.into(),
            entries: facts.gid_entries,
        })?;
        Ok(CardPort { mtu: facts.mtu.min(mtu_max), device, port, facts, gid_index, gid })
    }

    /// Facts about this end that the other needs.
    pub(super) fn ends(&self, queue: u32, first_packet: u32) -> Ends {
        Ends { queue, first_packet, gid: self.gid, lid: self.facts.lid }
    }

    /// Settings of this end. The card sends packets again up to 6 times: 7 means for ever on some cards.
    pub(super) fn here(&self, first_packet: u32, mtu: u8, answers: u8, flights: u8) -> Here {
        Here {
            port: self.port,
            gid_index: self.gid_index,
            is_global: self.facts.is_ethernet,
            first_packet,
            answers,
            flights,
            mtu,
            timeout: 14,
            retries: 6,
        }
    }
}

fn mtu_number(bytes: u32) -> Result<u8, VerbsError> {
    (1..=5).find(|number| 128 << *number == bytes).ok_or_else(|| {
        VerbsError::Config(format!("an MTU of {bytes} bytes: take 256, 512, 1024, 2048 or 4096"))
    })
}

/// Returns the entry of the GID table that other machines can most likely reach.
fn best_gid(device: &Device, port: u8, facts: &PortFacts) -> u8 {
    if !facts.is_ethernet {
        return 0;
    }
    let entries = facts.gid_entries.min(GIDS);
    let ranked = (0..entries).filter_map(|index| {
        let gid = device.gid(port, index)?;
        Some((rank(&gid, &gid_type(device.name(), port, index)), index))
    });
    // The first of the best.
    let best = ranked.max_by_key(|(rank, index)| (*rank, entries - index));
    best.map_or(0, |(_, index)| index as u8)
}

/// Returns the kernel's type of an entry, as in `RoCE v2`.
fn gid_type(device: &str, port: u8, index: u32) -> String {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    fs::read_to_string(path).unwrap_or_default()
}

fn rank(gid: &[u8; 16], gid_type: &str) -> u8 {
    let is_v2 = gid_type.trim() == "RoCE v2";
    let is_ipv4 = gid[..10] == [0; 10] && gid[10..12] == [0xff, 0xff];
    let is_link_local = gid[..2] == [0xfe, 0x80];
    match (is_v2, is_ipv4, is_link_local) {
        (true, true, _) => 3,
        (true, false, false) => 2,
        (true, false, true) => 1,
        (false, ..) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ip_version_4_is_best() {
        let mut ipv4 = [0; 16];
        ipv4[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 1]);
        let (mut local, mut global) = ([0; 16], [0; 16]);
        local[..2].copy_from_slice(&[0xfe, 0x80]);
        global[..2].copy_from_slice(&[0x20, 0x01]);
        let ranks = [
            rank(&ipv4, "RoCE v2\n"),
            rank(&global, "RoCE v2\n"),
            rank(&local, "RoCE v2\n"),
            rank(&ipv4, "IB/RoCE v1\n"),
        ];
        assert_eq!(ranks, [3, 2, 1, 0]);
    }

    #[test]
    fn only_mtus_that_there_are_have_a_number() {
        let numbers: Vec<u8> =
            [256, 512, 1024, 2048, 4096].iter().filter_map(|mtu| mtu_number(*mtu).ok()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        for bytes in [0, 128, 1500, 8192] {
            assert!(mtu_number(bytes).is_err());
        }
    }
}
