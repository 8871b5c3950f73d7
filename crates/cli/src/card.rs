//! RDMA options: choose TCP or RDMA for memory servers, and the RDMA card.

use std::process;

use clap::{Args, ValueEnum};
use farleaf::CardConfig;

use crate::errors::Failure;
use crate::one_of::OneOf;

/// Access that memory servers offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// TCP alone
    #[default]
    Tcp,
    /// RDMA, and TCP
    Verbs,
}

/// Network options of memory servers that a command starts.
#[derive(Clone, Debug, Args)]
pub(crate) struct NetworkArgs {
    /// Access to its memory: tcp, or verbs (RDMA; by tcp too, but not both at a time)
    #[arg(long, value_name = "FABRIC", default_value = "tcp",
        value_parser = OneOf::<Network>::names())]
    pub(crate) fabric: Network,
    #[command(flatten)]
    pub(crate) card: CardArgs,
}

/// The card; parts that are left out are chosen.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "RDMA card (with --fabric verbs)")]
pub(crate) struct CardArgs {
    /// The device, by a name that `rdma link` lists [default: the first that has an active port]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Its port, from 1 [default: the first that is active]
    #[arg(long, value_name = "NUMBER")]
    device_port: Option<u8>,
    /// Index into the port's GID table [default: of its first RoCE v2 address, best one of IPv4]
    #[arg(long, value_name = "NUMBER")]
    gid_index: Option<u8>,
    /// Bytes of the largest packets: 256, 512, 1024, 2048 or 4096 [default: what both ends can]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
}

impl NetworkArgs {
    /// The card, if one is to be used.
    ///
    /// # Errors
    /// A usage error for a card that is not to be used.
    pub(crate) fn card(&self) -> Result<Option<CardConfig>, Failure> {
        match self.fabric {
            Network::Verbs => Ok(Some(self.card.config())),
            Network::Tcp => self.card.refuse("--fabric verbs").map(|()| None),
        }
    }
}

impl CardArgs {
    /// The access that they ask for.
    pub(crate) fn config(&self) -> CardConfig {
        CardConfig {
            device: self.device.clone(),
            port: self.device_port,
            gid_index: self.gid_index,
            mtu: self.mtu,
        }
    }

    /// Refuses all that is asked for, for want of `needed`.
    pub(crate) fn refuse(&self, needed: &str) -> Result<(), Failure> {
        if self.config() == CardConfig::default() {
            return Ok(());
        }
        Err(Failure::usage(format!("--device, --device-port, --gid-index and --mtu need {needed}")))
    }
}

/// Tells a memory server that is to be started to offer `card`.
pub(crate) fn tell(card: &CardConfig, process: &mut process::Command) {
    process.args(["--fabric", "verbs"]);
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    for (option, value) in [
        ("--device", card.device.clone()),
        ("--device-port", number(card.port.map(u32::from))),
        ("--gid-index", number(card.gid_index.map(u32::from))),
        ("--mtu", number(card.mtu)),
    ] {
        if let Some(value) = value {
            process.args([option, &value]);
        }
    }
}
