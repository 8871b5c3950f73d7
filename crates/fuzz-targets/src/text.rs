//! Text target: addresses, units, names and mixes, as people write them on a command line.

use std::fmt::Display;
use std::str::FromStr;

use farleaf::{Engine, Farleaf};
use farleaf_bench::units::{Count, Rate, Share, Size, SizeOrShare, TimeSpan};
use farleaf_bench::{
    CapabilityKind, FabricKind, KeySpec, LoadKind, Mix, RequestDistribution, ScanLength, Workload,
};
use farleaf_cli::input::ColumnSpec;

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    round::<Count>(text);
    round::<Size>(text);
    round::<Share>(text);
    round::<SizeOrShare>(text);
    round::<Rate>(text);
    round::<TimeSpan>(text);
    parse::<Mix>(text);
    parse::<ScanLength>(text);
    parse::<Workload>(text);
    parse::<KeySpec>(text);
    parse::<RequestDistribution>(text);
    parse::<FabricKind>(text);
    parse::<LoadKind>(text);
    parse::<CapabilityKind>(text);
    parse::<Engine>(text);
    parse::<ColumnSpec>(text);
    // An address that is right would make a pool, or open one of this machine's.
    let names_a_pool = text == "mem:" || text.starts_with("shm:");
    if !names_a_pool || text == "shm:" || text.starts_with("shm://") && !text.starts_with("shm:///")
    {
        let refused = Farleaf::open(text).map(drop).expect_err("no address");
        assert_eq!(refused.kind(), farleaf::ErrorKind::Invalid);
    }
}

fn parse<T: FromStr<Err: Display>>(text: &str) -> Option<T> {
    match text.parse() {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// A printed value is read as the same again, to the digits that it is printed with.
fn round<T: FromStr<Err: Display> + Display>(text: &str) {
    let Some(value) = parse::<T>(text) else { return };
    let printed = value.to_string();
    let again = parse::<T>(&printed).map(|value| value.to_string());
    assert_eq!(again.as_deref(), Some(&*printed), "{text:?} is printed as {printed:?}");
}
