//! Stamps and hints that have become old: their cost, and what they lead to once memory is used again.

use farleaf_engines::Engine;
use farleaf_fabric::OpKind;
use farleaf_index::{Index, Settings};

use super::loaded;
use crate::common::{check, costs};
use crate::sherman::copies::{fill_and_empty, with_two};
use crate::sherman::{counters, number, since};

const LEAF: u64 = 1792;
const NODE: u64 = 1024;
const NEAR: u64 = 192;
const HEADER: u64 = 64;

/// A client of another compute server learns of a split by its stamp, at a key that has not moved by one chain more.
#[test]
fn a_split_costs_another_compute_server_a_chain_for_each_half() {
    with_two(1, async |first, second| {
        let index = loaded(&first, 2_000, &[("speculate", "false")]).await;
        let settings = Settings::default().with("speculate", "false");
        let other = farleaf_harness::open_table(&second, "t", 1 << 16, &settings).await;
        let other = other.expect("open");
        let mut value = Vec::new();
        for key in 0..2_000 {
            assert_eq!(other.get(&second, &number(2 * key), &mut value).await, Ok(true));
        }
        let mut key = 1;
        while counters(&index).get("splits") == 0 {
            assert_eq!(index.insert(&first, &number(key), &[1; 8]).await, Ok(true));
            key += 2;
        }
        // The left half: the stamp is out of date, and the leaf of the same address is learned anew for this get, but not
        // remembered, as the copy of the parent says that the leaf reaches further (INV-NEAR-2).
        let stale = ([3, 0, 0, 2], [2 * NEAR + HEADER, 0]);
        let headed = ([2, 0, 0, 1], [NEAR + HEADER, 0]);
        for expected in [stale, headed, headed] {
            let before = costs(&second);
            assert_eq!(other.get(&second, &number(0), &mut value).await, Ok(true));
            assert_eq!(since(&second, &before, OpKind::Get), expected);
        }
        // The right half: its key is above the leaf, which is READ whole and leads right; the parent's copy is dropped.
        let before = costs(&second);
        assert_eq!(other.get(&second, &number(98), &mut value).await, Ok(true));
        let led_right = ([8, 0, 0, 3], [NEAR + HEADER + 2 * (LEAF + 16), 0]);
        assert_eq!(since(&second, &before, OpKind::Get), led_right);
        // The parent is READ anew, and keeps the stamps of the leaves that were not split.
        let before = costs(&second);
        assert_eq!(other.get(&second, &number(98), &mut value).await, Ok(true));
        assert_eq!(since(&second, &before, OpKind::Get), ([3, 0, 0, 2], [NODE + NEAR + HEADER, 0]));
        for (key, expected) in
            [(98, ([1, 0, 0, 1], [NEAR, 0])), (0, headed), (400, ([1, 0, 0, 1], [NEAR, 0]))]
        {
            let before = costs(&second);
            assert_eq!(other.get(&second, &number(key), &mut value).await, Ok(true));
            assert_eq!(since(&second, &before, OpKind::Get), expected, "{key}");
        }
        assert_eq!(counters(&other).get("stamps_stale"), 1);
        let keys = 2_000 + u64::from(key as u32 / 2);
        assert_eq!(check(&first, &[&index]).await.keys, keys);
    });
}

/// One compute server fills and empties the table, so that leaves come and go and their memory is used again; another one
/// looks by stamps and hints of any age.
#[test]
fn old_stamps_and_hints_never_lead_to_what_took_the_place_of_their_leaves() {
    for seed in 0..6 {
        let counts = fill_and_empty(Engine::Chime, seed);
        let [merges, hops, tried] = ["merges", "hops", "hints_tried"].map(|name| counts.get(name));
        println!("seed {seed}: {merges} merges, {hops} hops, {tried} hints");
        assert!(merges > 10, "{counts:?}");
    }
}
