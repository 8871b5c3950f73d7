//! Damage tests of the engine `smart`: nodes and leaves that were overwritten give `Corrupt` from every operation.

use crate::common::World;
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};
use farleaf_index::{
    Entries, Index, IndexError, KeyFormat, OpenOptions, ScanRange, Settings, Spec,
};
use farleaf_pool::{Audit, Session};

/// Place of the root word in the meta object.
const META_ROOT: u64 = 64;
const LEAF: u64 = 1 << 15;

/// What is overwritten.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// The words of the node above the leaves, from life on.
    Node,
    /// Its first word alone.
    Life,
    /// Its slots: they lead nowhere.
    Slots,
    /// The words of its leaves, with or without the lock at the end.
    Leaves,
    LeavesAndLocks,
}

async fn words(session: &Session, addr: GlobalAddr, count: usize) -> Vec<u64> {
    let endpoint = session.endpoint();
    endpoint.read(addr, endpoint.buf(8 * count)).await.expect("read").words().to_vec()
}

async fn fill(session: &Session, addr: GlobalAddr, count: usize, word: u64) {
    let endpoint = session.endpoint();
    let mut junk = endpoint.buf(8 * count);
    junk.words_mut().fill(word);
    endpoint.write(addr, junk).await.expect("write");
}

/// Address and slots of the node that a slot leads to.
fn child(slot: u64) -> GlobalAddr {
    let offset = (slot >> 24 & ((1 << 39) - 1)) * 64;
    GlobalAddr::new(ServerId((slot >> 16 & 0xff) as u16), offset)
}

/// Overwrites all nodes below the root, or their leaves, with `word`; returns how many objects.
async fn overwrite(session: &Session, damage: Damage, word: u64) -> usize {
    let meta = session.open_root("t").await.expect("root").addr;
    let root = words(session, meta.plus(META_ROOT), 1).await[0];
    let root = GlobalAddr::from_word(root).expect("an address");
    let mut hit = 0;
    for slot in words(session, root.plus(16), 257).await {
        if slot == 0 || slot & LEAF != 0 {
            continue;
        }
        let node = child(slot);
        // Six slots: the smallest node.
        for leaf in words(session, node.plus(16), 6).await {
            let is_leaf = leaf & LEAF != 0;
            match damage {
                Damage::Leaves if is_leaf => fill(session, child(leaf), 7, word).await,
                Damage::LeavesAndLocks if is_leaf => fill(session, child(leaf), 8, word).await,
                _ => continue,
            }
            hit += 1;
        }
        match damage {
            Damage::Node => fill(session, node, 8, word).await,
            Damage::Life => fill(session, node, 1, word).await,
            Damage::Slots => fill(session, node.plus(16), 6, word).await,
            Damage::Leaves | Damage::LeavesAndLocks => continue,
        }
        hit += 1;
    }
    hit
}

#[test]
fn overwritten_objects_are_told_by_every_operation() {
    // Key byte 2, and an address out of every region: of a node, and of a leaf.
    let far = u64::MAX >> 1 & !0xf0ff | 2;
    let of_slots = [far, far | LEAF];
    let of_others = [0, u64::MAX, 0x0102_0304_0506_0708];
    for damage in
        [Damage::Node, Damage::Life, Damage::Slots, Damage::Leaves, Damage::LeavesAndLocks]
    {
        let all = if matches!(damage, Damage::Slots) { &of_slots[..] } else { &of_others[..] };
        for word in all.iter().copied() {
            World::default().on_sim(move |session| async move {
                let format = TableFormat::new(Engine::Smart, Spec::ANY)
                    .with_keys(KeyFormat::Bytes { max: 100 });
                let root = AnyIndex::create(&session, "t", &format).await.expect("create");
                // Every operation goes through the nodes.
                let settings = Settings::default().with("cache", "0");
                let options = OpenOptions { settings, ..OpenOptions::default() };
                let table = AnyIndex::open(&session, &root, &options).await.expect("open");
                let keys: Vec<[u8; 2]> =
                    (0..10).flat_map(|a| (0..4).map(move |b| [a, b])).collect();
                for key in &keys {
                    assert_eq!(table.insert(&session, key, b"value").await, Ok(true));
                }
                assert!(overwrite(&session, damage, word).await >= 10);
                told(&session, &table, format!("{damage:?}, {word:#x}")).await;
            });
        }
    }
}

async fn told(session: &Session, table: &AnyIndex, what: String) {
    let corrupt = |result: Result<bool, IndexError>| {
        assert!(matches!(result, Err(IndexError::Corrupt(_))), "{what}: {result:?}");
    };
    let key = [7, 2];
    corrupt(table.get(session, &key, &mut Vec::new()).await);
    corrupt(table.upsert(session, &key, b"other").await);
    corrupt(table.remove(session, &key).await);
    let scan = table.scan(session, ScanRange::ALL, usize::MAX, &mut Entries::new()).await;
    corrupt(scan.map(|()| true));
    let mut audit = Audit::new(session).await.expect("audit");
    corrupt(table.verify(session, &mut audit).await.map(|_| true));
}
