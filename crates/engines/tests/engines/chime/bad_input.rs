//! Bad input and damage: each is named, and nothing is lost.

use farleaf_engines::{Engine, StoredTable, TableFormat};
use farleaf_fabric::GlobalAddr;
use farleaf_index::{Index, IndexError, KeyFormat, Settings, Spec, ValueFormat};
use farleaf_pool::Session;

use super::loaded;
use crate::common::{World, check};
use crate::sherman::{counters, number};

fn complete(spec: Spec, list: &[(&str, &str)]) -> Result<Settings, String> {
    let shape = list.iter().fold(Settings::default(), |all, (name, value)| all.with(name, value));
    let format = TableFormat::new(Engine::Chime, spec).shaped(&shape);
    let format = format.map_err(|error| error.to_string())?;
    format.complete().map(|it| it.shape()).map_err(|error| error.to_string())
}

#[test]
fn shapes_that_do_not_fit_say_what_would() {
    for (spec, list, what) in [
        (
            Spec::FIXED8,
            &[("leaf_bytes", "256"), ("cap_leaf", "6")][..],
            "a neighbourhood of 8 slots is not from 2 to 6",
        ),
        (Spec::FIXED8, &[("neighbourhood", "17")], "neighbourhood"),
        (Spec::FIXED8, &[("neighbourhood", "1")], "neighbourhood"),
        (Spec::FIXED8, &[("lock_words", "1000")], "a power of two is expected, such as 1024"),
        (Spec::FIXED8, &[("leaf_bytes", "1000")], "not a multiple of 64"),
        (Spec::FIXED8, &[("leaf_bytes", "1792"), ("cap_leaf", "73")], "the 72 slots that fit"),
        (Spec::ANY, &[("leaf_bytes", "1024")], "are node_bytes, here 4096"),
        (
            Spec { key: KeyFormat::Fixed(64), value: ValueFormat::Fixed(256) },
            &[("leaf_bytes", "512")],
            "two pairs of 328 bytes do not fit in a leaf of 512 bytes",
        ),
    ] {
        let told = complete(spec, list).expect_err("no such table");
        assert!(told.contains(what), "{told}");
    }
}

#[test]
fn leaves_have_72_slots_or_as_many_as_fit_in_7_kib() {
    let fixed = |key, value| Spec { key: KeyFormat::Fixed(key), value: ValueFormat::Fixed(value) };
    for (spec, leaf_bytes) in [
        (Spec::FIXED8, 1792),
        (fixed(24, 8), 3072),
        (fixed(8, 64), 5888),
        (fixed(64, 256), 7168),
        (Spec::ANY, 4096),
    ] {
        let whole = complete(spec, &[]).expect("a table");
        let text = whole.get("leaf_bytes").expect("it is complete").to_string();
        let bytes = text.parse::<farleaf_index::units::Size>().expect("bytes");
        assert_eq!(bytes.0, leaf_bytes, "{spec:?}");
        assert_eq!(whole.get("neighbourhood").map(|it| it.to_string()), Some("8".into()));
    }
}

#[test]
fn keys_and_values_of_another_length_are_refused() {
    World::default().on_mapped(async |session: Session| {
        let index = loaded(&session, 100, &[]).await;
        let mut value = Vec::new();
        let refused = [
            index.get(&session, &[1; 7], &mut value).await.err(),
            index.insert(&session, &[1; 9], &[1; 8]).await.err(),
            index.insert(&session, &[1; 8], &[1; 9]).await.err(),
        ];
        for error in refused {
            assert!(matches!(error, Some(IndexError::Invalid(_))), "{error:?}");
        }
        assert_eq!(check(&session, &[&index]).await.keys, 100);
    });
}

async fn write_word(session: &Session, at: GlobalAddr, to: u64) -> u64 {
    let reliable = session.reliable();
    let was = reliable.word(at).await.expect("a word");
    let mut word = session.client().buf(8);
    word.words_mut()[0] = to;
    reliable.write(at, word).await.expect("written");
    was
}

/// A leaf of a table of three levels: the first child of the first child of the root.
async fn first_leaf(session: &Session) -> GlobalAddr {
    let root = session.open_root("t").await.expect("a root");
    let meta = StoredTable::of(&root).expect("a table").meta();
    let mut word = session.reliable().word(meta.plus(64)).await.expect("a word");
    let levels = word & 63;
    for _ in 0..levels {
        let node = GlobalAddr::from_word(word & !63).expect("an address");
        let reliable = session.reliable();
        let image = reliable.read(node, reliable.buf(1024)).await.expect("a node");
        // 59 separators, then the children.
        word = image.words()[8 + 59];
    }
    GlobalAddr::from_word(word & !63).expect("an address")
}

/// A slot that does not fit is a dead writer's, and is mended by the next client that meets it. A header that does not fit,
/// and that nobody writes, is corrupt.
#[test]
fn a_torn_slot_is_mended_and_a_damaged_leaf_is_named() {
    let world = World { region_bytes: 32 << 20, ..World::default() };
    world.on_sim_with(world.sim_config(), async |session: Session| {
        let list = [("speculate", "false")];
        let index = loaded(&session, 2_000, &list).await;
        let leaf = first_leaf(&session).await;
        let mut value = Vec::new();
        // The first slot that holds a pair: its key is that which is not found once the slot does not fit.
        let slot = leaf.plus(64);
        write_word(&session, slot, 7).await;
        for key in 0..2_000 {
            let is_there = index.get(&session, &number(2 * key), &mut value).await;
            assert!(is_there.is_ok(), "{is_there:?}");
        }
        let mended = counters(&index).get("slots_mended");
        let keys = check(&session, &[&index]).await.keys;
        assert!(mended <= 1 && keys + 1 >= 2_000, "{mended} mended, {keys} keys");
        // The right sibling, which the header's checksum covers; no stamp is remembered after a split.
        write_word(&session, leaf.plus(32), 64).await;
        let lists = [("point_read", "leaf"), ("insert_read", "leaf")];
        let settings =
            lists.iter().fold(Settings::default(), |all, (name, value)| all.with(name, value));
        let other = farleaf_harness::open_table(&session, "t", 1 << 16, &settings).await;
        let other = other.expect("open");
        for error in [
            other.get(&session, &number(0), &mut value).await.expect_err("damaged"),
            other.insert(&session, &number(1), &[5; 8]).await.expect_err("damaged"),
        ] {
            assert!(matches!(error, IndexError::Corrupt(_)), "{error}");
        }
    });
}
