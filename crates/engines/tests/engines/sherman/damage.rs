//! Damage and bad input: each is named, and nothing is lost.

use farleaf_engines::{AnyIndex, Engine, StoredTable, TableFormat};
use farleaf_fabric::GlobalAddr;
use farleaf_index::{Index, IndexError, OpenOptions, Settings, Spec};
use farleaf_pool::Session;

use super::{loaded, number};
use crate::common::World;

#[test]
fn shapes_that_do_not_fit_say_what_would() {
    let complete = |spec, list: &[(&str, &str)]| {
        let shape =
            list.iter().fold(Settings::default(), |all, (name, value)| all.with(name, value));
        let format =
            TableFormat::new(Engine::Sherman, spec).shaped(&shape).expect("known settings");
        format.complete().map(drop).expect_err("no such table").to_string()
    };
    for (spec, list, what) in [
        (Spec::FIXED8, &[("lock_words", "1000")][..], "a power of two is expected, such as 1024"),
        (Spec::FIXED8, &[("leaf_bytes", "1000")], "not a multiple of 64"),
        (Spec::FIXED8, &[("leaf_bytes", "1024"), ("cap_leaf", "41")], "the 40 slots that fit"),
        (Spec::ANY, &[("leaf_bytes", "1024")], "are node_bytes, here 4096"),
        (Spec::FIXED8, &[("node_bytes", "1000")], "not a power of two"),
    ] {
        let told = complete(spec, list);
        assert!(told.contains(what), "{told}");
    }
}

#[test]
fn leaves_grow_to_hold_their_pairs() {
    let wide = Spec {
        key: farleaf_index::KeyFormat::Fixed(64),
        value: farleaf_index::ValueFormat::Fixed(256),
    };
    for (spec, shape, leaf_bytes) in [
        (Spec::FIXED8, Settings::default(), 1024),
        (Spec::FIXED8, Settings::default().with("node_bytes", "256"), 256),
        (wide, Settings::default().with("cap_leaf", "4"), 1536),
        (Spec::ANY, Settings::default(), 4096),
    ] {
        let format = TableFormat::new(Engine::Sherman, spec).shaped(&shape).expect("a shape");
        let whole = format.complete().expect("a table").shape();
        let text = whole.get("leaf_bytes").expect("it is complete").to_string();
        let bytes = text.parse::<farleaf_index::units::Size>().expect("bytes");
        assert_eq!(bytes.0, leaf_bytes, "{spec:?}");
    }
}

async fn open_again(session: &Session) -> Result<AnyIndex, IndexError> {
    let root = session.open_root("t").await?;
    AnyIndex::open(session, &root, &OpenOptions::default()).await
}

/// The words of the meta object, and of the object that a word of it names.
async fn damage(session: &Session, at: GlobalAddr, to: u64) -> u64 {
    let reliable = session.reliable();
    let was = reliable.word(at).await.expect("a word");
    let mut word = session.client().buf(8);
    word.words_mut()[0] = to;
    reliable.write(at, word).await.expect("written");
    was
}

#[test]
fn a_damaged_directory_is_named() {
    World::default().on_mapped(async |session: Session| {
        let index = loaded(&session, 100, &[]).await;
        let root = session.open_root("t").await.expect("a root");
        let meta = StoredTable::of(&root).expect("a table").meta();
        let directory_word = meta.plus(8 * 28);
        let named = session.reliable().word(directory_word).await.expect("a word");
        let directory = GlobalAddr::from_word(named).expect("an address");
        for (at, to) in [
            (directory_word, 0),
            (directory_word, meta.word()),
            (meta, 1),
            (directory, 1),
            (directory.plus(8), 1),
            (directory.plus(16), 3),
            (directory.plus(32), 3),
            (directory.plus(64), 64),
        ] {
            let was = damage(&session, at, to).await;
            let error = open_again(&session).await.expect_err("it is damaged");
            assert!(matches!(error, IndexError::Corrupt(_)), "{error}");
            damage(&session, at, was).await;
        }
        let again = open_again(&session).await.expect("it is whole again");
        let mut value = Vec::new();
        assert_eq!(again.get(&session, &number(8), &mut value).await, Ok(true));
        drop(index);
    });
}

/// A leaf whose header does not fit, and that nobody writes, is corrupt; a slot that does not fit is a dead writer's.
#[test]
fn a_damaged_leaf_is_named_and_a_torn_slot_is_mended() {
    let world = World::default();
    world.on_sim_with(world.sim_config(), async |session: Session| {
        let index = loaded(&session, 20, &[]).await;
        let root = session.open_root("t").await.expect("a root");
        let meta = StoredTable::of(&root).expect("a table").meta();
        let root_word = session.reliable().word(meta.plus(64)).await.expect("a word");
        let leaf = GlobalAddr::from_word(root_word).expect("an address");
        let mut value = Vec::new();
        // The value of the first slot: a torn update, of which the stored word is as good as the old one.
        let slot = leaf.plus(64 + 8);
        let was = session.reliable().word(slot).await.expect("a word");
        damage(&session, slot, was ^ 1).await;
        assert_eq!(index.get(&session, &number(0), &mut value).await, Ok(true));
        assert_eq!(value, 1_u64.to_le_bytes(), "the word that is there");
        assert_eq!(super::counters(&index).get("slots_mended"), 1);
        assert_eq!(crate::common::check(&session, &[&index]).await.keys, 20);
        // Its key: an insert that was cut short.
        damage(&session, leaf.plus(64), 7).await;
        assert_eq!(index.insert(&session, &number(0), &[5; 8]).await, Ok(true));
        assert_eq!(crate::common::check(&session, &[&index]).await.keys, 20);
        // The right sibling, which the header's checksum covers.
        damage(&session, leaf.plus(32), 64).await;
        for error in [
            index.get(&session, &number(0), &mut value).await.expect_err("damaged"),
            index.insert(&session, &number(1), &[5; 8]).await.expect_err("damaged"),
        ] {
            assert!(matches!(error, IndexError::Corrupt(_)), "{error}");
        }
    });
}
