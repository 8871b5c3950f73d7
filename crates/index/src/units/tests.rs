#![allow(clippy::unwrap_used)]

use super::*;

fn fault<T: FromStr<Err = UnitError> + fmt::Debug>(text: &str) -> UnitFault {
    text.parse::<T>().unwrap_err().fault
}

#[test]
fn counts_are_read_exactly() {
    for (text, count) in [
        ("0", 0),
        ("1000", 1_000),
        ("1_000", 1_000),
        ("1M", 1_000_000),
        ("100K", 100_000),
        ("100k", 100_000),
        ("2.5M", 2_500_000),
        ("2.3M", 2_300_000),
        (" 1 G ", 1_000_000_000),
        ("1.000000001G", 1_000_000_001),
        ("1.50K", 1_500),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(text.parse::<Count>().unwrap(), Count(count), "{text}");
    }
}

#[test]
fn bad_counts_say_what_is_wrong() {
    for text in ["", "K", "-1", "+1", ".5", "5.", "1__0", "_1", "1_", "1.2.3", "x1"] {
        assert_eq!(fault::<Count>(text), UnitFault::NoNumber, "{text:?}");
    }
    assert_eq!(fault::<Count>("1KiB"), UnitFault::UnknownUnit("KiB".into()));
    assert_eq!(fault::<Count>("1.50"), UnitFault::NotWhole);
    assert_eq!(fault::<Count>("1.0005K"), UnitFault::NotWhole);
    assert_eq!(fault::<Count>("18446744073709551616"), UnitFault::TooLarge);
    assert_eq!(fault::<Count>("99999999999999999999999999999999999999999"), UnitFault::TooLarge);
    assert_eq!(fault::<Count>("18446744073709551615K"), UnitFault::TooLarge);

    let message = "1X".parse::<Count>().unwrap_err().to_string();
    assert_eq!(
        message,
        "\"1X\" is not a count: the unit \"X\" is not known (accepted: 1000, 1_000, 100K, 2.5M, 1G)"
    );
}

#[test]
fn sizes_tell_binary_from_decimal() {
    for (text, bytes) in [
        ("4096", 4096),
        ("64B", 64),
        ("64KiB", 65_536),
        ("64kib", 65_536),
        ("1.5KiB", 1536),
        ("256MiB", 268_435_456),
        ("1GB", 1_000_000_000),
        ("1 GiB", 1 << 30),
        ("1KB", 1000),
    ] {
        assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
    }
    assert_eq!(fault::<Size>("64K"), UnitFault::Ambiguous("K".into()));
    assert!("64k".parse::<Size>().unwrap_err().to_string().contains("say KiB (1024) or KB (1000)"));
    assert_eq!(fault::<Size>("0.3B"), UnitFault::NotWhole);
    assert_eq!(fault::<Size>("20000000TiB"), UnitFault::TooLarge);
}

#[test]
fn shares_are_percentages_or_fractions() {
    assert_eq!("8%".parse::<Share>().unwrap().fraction(), 0.08);
    assert_eq!("0.08".parse::<Share>().unwrap().fraction(), 0.08);
    assert_eq!("100%".parse::<Share>().unwrap().of(u64::MAX), u64::MAX);
    assert_eq!("12.5 %".parse::<Share>().unwrap().of(1000), 125);
    assert!(matches!(fault::<Share>("101%"), UnitFault::OutOfRange(_)));
    assert!(matches!(fault::<Share>("2"), UnitFault::OutOfRange(_)));
    assert!(Share::from_percent(f64::NAN).is_err());
    assert_eq!(fault::<Share>("8KiB"), UnitFault::UnknownUnit("KiB".into()));
}

#[test]
fn a_cache_is_a_size_or_a_share() {
    assert_eq!("8%".parse::<SizeOrShare>().unwrap().bytes_of(200), 16);
    assert_eq!("64MiB".parse::<SizeOrShare>().unwrap().bytes_of(1), 64 << 20);
    assert_eq!(fault::<SizeOrShare>("0.08"), UnitFault::NotWhole);
    assert_eq!(fault::<SizeOrShare>(""), UnitFault::NoNumber);
}

#[test]
fn rates_and_times_are_read() {
    assert_eq!("250K".parse::<Rate>().unwrap().per_second(), 250_000);
    assert_eq!("1.5M/s".parse::<Rate>().unwrap().per_second(), 1_500_000);
    assert!(matches!(fault::<Rate>("0"), UnitFault::OutOfRange(_)));
    assert_eq!(fault::<Rate>("1M/h"), UnitFault::UnknownUnit("M/h".into()));

    assert_eq!("1.5s".parse::<TimeSpan>().unwrap().duration(), Duration::from_millis(1500));
    assert_eq!("250 ns".parse::<TimeSpan>().unwrap().nanos, 250);
    assert_eq!("2m".parse::<TimeSpan>().unwrap().nanos, 120_000_000_000);
    assert_eq!(fault::<TimeSpan>("10"), UnitFault::MissingUnit);
    assert_eq!(fault::<TimeSpan>("0.5ns"), UnitFault::NotWhole);
}

/// INV-UNIT-1, over round numbers and over any.
#[test]
fn what_is_printed_is_read_back() {
    assert_eq!(Count(2_500_000).to_string(), "2500K");
    assert_eq!(Count(0).to_string(), "0");
    assert_eq!(Count(7).to_string(), "7");
    assert_eq!(Size(65_536).to_string(), "64KiB");
    assert_eq!(Size(1_000_000).to_string(), "1MB");
    assert_eq!(Size(64).to_string(), "64");
    assert_eq!("8%".parse::<SizeOrShare>().unwrap().to_string(), "8%");
    assert_eq!(TimeSpan { nanos: 1_500_000 }.to_string(), "1500us");
    assert_eq!(TimeSpan::default().to_string(), "0s");

    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..2000 {
        let any = rng.u64(..) >> rng.u32(0..64);
        let round = [1, 1000, 1024, 1_000_000, 60_000_000_000][rng.usize(0..5)];
        let value = any.checked_mul(round).unwrap_or(any);
        assert_eq!(Count(value).to_string().parse(), Ok(Count(value)));
        assert_eq!(Size(value).to_string().parse(), Ok(Size(value)));
        let span = TimeSpan { nanos: value };
        assert_eq!(span.to_string().parse(), Ok(span));
        if let Some(rate) = Rate::new(value) {
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        let share = Share::from_percent(rng.u32(0..=10_000) as f64 / 100.0).unwrap();
        assert_eq!(share.to_string().parse(), Ok(share));
    }
}
