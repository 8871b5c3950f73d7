//! Card parameters: parse the card in an address such as `verbs://host:7000?device=mlx5_0&port=1`.
//!
//! A full address also names GID and MTU: `verbs://host:7000?device=mlx5_0&port=1&gid=3&mtu=4096`.

use std::str::FromStr;

use farleaf_fabric::verbs::CardConfig;

use farleaf_index::suggest;

/// Every setting.
const KNOWN: [&str; 4] = ["device", "port", "gid", "mtu"];

/// The card that a query asks for, or what is wrong with the query, as in `; there is no ...`.
pub(crate) fn parse(query: &str) -> Result<CardConfig, String> {
    let mut card = CardConfig::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "device" if !value.is_empty() => card.device = Some(value.to_owned()),
            "device" => return Err("; device is a name, as in \"device=mlx5_0\"".to_owned()),
            "port" => card.port = Some(number(name, value, "a port of the card, from 1")?),
            "gid" => card.gid_index = Some(number(name, value, "an index into the GID table")?),
            "mtu" => card.mtu = Some(number(name, value, "256, 512, 1024, 2048 or 4096")?),
            _ => {
                let known = KNOWN.join(", ");
                let meant = suggest::hint(name, KNOWN);
                return Err(match meant.is_empty() {
                    true => format!("; it has no setting \"{name}\", but {known}"),
                    false => format!("; it has no setting \"{name}\"{meant}"),
                });
            }
        }
    }
    Ok(card)
}

fn number<N: FromStr>(name: &str, value: &str, what: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("; {name} takes {what}, not \"{value}\""))
}

/// The same, as an address says it: empty if nothing is asked for.
pub(crate) fn query(card: &CardConfig) -> String {
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    let said = [
        card.device.clone(),
        number(card.port.map(u32::from)),
        number(card.gid_index.map(u32::from)),
        number(card.mtu),
    ];
    let pairs = KNOWN.iter().zip(said).filter_map(|(name, said)| Some(format!("{name}={}", said?)));
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_said_and_understood() {
        assert_eq!(parse(""), Ok(CardConfig::default()));
        assert_eq!(query(&CardConfig::default()), "");
        let card = parse("device=mlx5_0&port=2&gid=3&mtu=1024").expect("all four");
        assert_eq!(card.device.as_deref(), Some("mlx5_0"));
        assert_eq!((card.port, card.gid_index, card.mtu), (Some(2), Some(3), Some(1024)));
        assert_eq!(query(&card), "?device=mlx5_0&port=2&gid=3&mtu=1024");
        let some = parse("gid=0").expect("one");
        assert_eq!(query(&some), "?gid=0");
    }

    #[test]
    fn nonsense_says_what_would_be_right() {
        for (query, hint) in [
            ("device=", "as in \"device=mlx5_0\""),
            ("port=one", "a port of the card"),
            ("port=300", "not \"300\""),
            ("gid", "an index into the GID table"),
            ("mtu=big", "256, 512"),
            ("devise=x", "did you mean \"device\"?"),
            ("colour=red", "but device, port, gid, mtu"),
        ] {
            let error = parse(query).expect_err(query);
            assert!(error.contains(hint), "{query}: {error}");
        }
    }
}
