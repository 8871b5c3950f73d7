//! Edit tests: ranges kept as entries of a tree are divided by two entries of one leaf, and stay whole.

use std::collections::BTreeMap;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{Client, OpKind, ToAny};
use farleaf_index::blink::{BlinkTree, LeafPairs};
use farleaf_index::bnode::{Layout, LayoutOptions, LeafEntry, Node, Value};
use farleaf_index::{
    BlinkOptions, IndexError, KeyFormat, Seek, SortedPairs, TableReport, ValueFormat,
};
use farleaf_pool::{Pool, Session, format};

use super::tests::OPTIONS;

/// Bytes of a key and of a value of which one pair takes more than half of a leaf of 512 bytes, beside its fences.
const LONG: usize = 100;

/// Ranges by their largest keys.
type Ranges = BTreeMap<Vec<u8>, u64>;

fn layouts() -> [(Layout, usize); 2] {
    let value = ValueFormat::Fixed(16);
    let dense = LayoutOptions::new(256, KeyFormat::Fixed(8), value);
    // Two of the longest keys do not fit into one leaf.
    let slotted = LayoutOptions::new(512, KeyFormat::Bytes { max: 120 }, value);
    [(dense, 8), (slotted, 120)].map(|(options, largest)| {
        (Layout::new(options).expect("layout").for_tree(7).with_exact_cuts(), largest)
    })
}

fn value(number: u64) -> Vec<u8> {
    [number.to_le_bytes(), (!number).to_le_bytes()].concat()
}

fn on_mapped(test: impl AsyncFn(Session, Layout, Vec<u8>)) {
    for (layout, largest) in layouts() {
        let fabric = Mapped::anonymous(1, 8 << 20).expect("memory");
        let endpoint = fabric.any_endpoint().expect("endpoint");
        endpoint.executor().clone().block_on(async {
            format(&Client::new(endpoint.clone()), &OPTIONS).await.expect("format");
            let pool = Pool::join(&Client::new(endpoint.clone())).await.expect("join");
            let session = pool.session(endpoint).await.expect("session");
            test(session, layout, vec![0xff; largest]).await;
        });
    }
}

/// Every image tells all of its ranges: each ends at an entry, and the last one where the leaf does.
async fn assert_ranges(session: &Session, tree: &std::sync::Arc<BlinkTree>, ranges: &Ranges) {
    let _pin = session.begin(OpKind::Other).await.expect("pin");
    let (mut found, mut low) = (Ranges::new(), None::<Vec<u8>>);
    loop {
        let seek = low.as_deref().map_or(Seek::First, Seek::After);
        let (_, image) = tree.leaf_image(session, seek).await.expect("leaf");
        let node = Node::new(tree.layout(), image.words());
        let (mut key, mut held, mut fence) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..node.count() {
            assert!(node.key(index, &mut key) && node.value(index, &mut held).is_some());
            found.insert(key.clone(), u64::from_le_bytes(held[..8].try_into().expect("a word")));
        }
        if !node.high_fence(&mut fence) {
            break;
        }
        assert_eq!(key, fence, "the leaf is cut between entries");
        low = Some(fence);
    }
    assert_eq!(found, *ranges);
    let mut report = TableReport::default();
    let mut seen = farleaf_index::Collector::new(None);
    tree.walk(session, &mut seen, &mut report).await.expect("walk");
    assert_eq!((report.problems, report.keys), (Vec::new(), ranges.len() as u64));
}

#[test]
fn ranges_divided_by_edits_stay_whole() {
    on_mapped(async |session, layout, largest| {
        let first = value(0);
        let entries = [LeafEntry { key: &largest, value: Value::Inline(&first) }];
        let meta = BlinkTree::create_with(&session, &layout, &entries).await.expect("create");
        let tree = BlinkTree::open(meta, layout, BlinkOptions::default());
        let mut ranges = Ranges::from([(largest.clone(), 0)]);
        let mut rng = fastrand::Rng::with_seed(40);
        for number in 1..200_u64 {
            let mut cut = vec![rng.u8(..); largest.len()];
            cut[..2].copy_from_slice(&rng.u16(..).to_be_bytes());
            let (high, old) =
                ranges.range(cut.clone()..).next().map(|(k, v)| (k.clone(), *v)).unwrap();
            if high == cut {
                continue;
            }
            let change = |pairs: &mut LeafPairs| {
                let index =
                    pairs.iter().position(|(key, _)| *key == high).expect("the range's end");
                pairs[index].1 = value(number);
                pairs.insert(index, (cut.clone(), value(old)));
                true
            };
            let _pin = session.begin(OpKind::Other).await.expect("pin");
            let edit =
                tree.begin_edit(&session, &high, change).await.expect("edit").expect("changes");
            if number % 5 == 0 {
                edit.give_up().await.expect("unlock");
                continue;
            }
            edit.publish(&tree, &session).await.expect("publish");
            ranges.insert(cut, old);
            ranges.insert(high, number);
        }
        assert!(ranges.len() > 100);
        assert_ranges(&session, &tree, &ranges).await;
        let _pin = session.begin(OpKind::Other).await.expect("pin");
        let none = tree.begin_edit(&session, &largest, |_| false).await.expect("no edit");
        assert!(none.is_none(), "a change that declines leaves the leaf alone, and its lock free");
    });
}

struct Pairs(std::collections::btree_map::IntoIter<Vec<u8>, u64>, Vec<u8>, Vec<u8>);

impl SortedPairs for Pairs {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        let (key, number) = self.0.next()?;
        (self.1, self.2) = (key, value(number));
        Some((&self.1, &self.2))
    }
}

#[test]
fn a_load_replaces_a_leaf_that_gives_way() {
    on_mapped(async |session, layout, largest| {
        let first = value(3);
        let entries = [LeafEntry { key: &largest, value: Value::Inline(&first) }];
        let meta = BlinkTree::create_with(&session, &layout, &entries).await.expect("create");
        let tree = BlinkTree::open(meta, layout, BlinkOptions::default());
        let loaded: Ranges = (0..150_u64)
            .map(|number| {
                let mut key = vec![0; largest.len()];
                key[..8].copy_from_slice(&(number << 40).to_be_bytes());
                (key, number)
            })
            .chain([(largest.clone(), 150)])
            .collect();
        let pairs = || Pairs(loaded.clone().into_iter(), Vec::new(), Vec::new());
        let before = Ranges::from([(largest.clone(), 3)]);
        let pin = session.begin(OpKind::BulkLoad).await.expect("pin");
        let refused = tree.replace_by(&session, &mut pairs(), |node| node.count() == 0).await;
        assert!(matches!(refused, Err(IndexError::Invalid(_))), "{refused:?}");
        drop(pin);
        assert_ranges(&session, &tree, &before).await;
        let pin = session.begin(OpKind::BulkLoad).await.expect("pin");
        let count = tree.replace_by(&session, &mut pairs(), |node| node.count() == 1).await;
        assert_eq!(count, Ok(151));
        drop(pin);
        assert_ranges(&session, &tree, &loaded).await;
    });
}

/// Two entries of a leaf grow, and a third comes between them: each takes a leaf of its own. The leaf is split by itself
/// first; that was told as damage.
#[test]
fn an_edit_that_needs_three_leaves_splits_the_leaf_first() {
    let fabric = Mapped::anonymous(1, 8 << 20).expect("memory");
    let endpoint = fabric.any_endpoint().expect("endpoint");
    endpoint.executor().clone().block_on(async {
        format(&Client::new(endpoint.clone()), &OPTIONS).await.expect("format");
        let pool = Pool::join(&Client::new(endpoint.clone())).await.expect("join");
        let session = pool.session(endpoint).await.expect("session");
        let options = LayoutOptions::new(512, KeyFormat::Bytes { max: LONG }, ValueFormat::Bytes);
        let layout = Layout::new(options).expect("layout").for_tree(7).with_exact_cuts();
        let [b, c, d] = [[b'b'; LONG], [b'c'; LONG], [b'd'; LONG]];
        let entries = [&b, &d].map(|key| LeafEntry { key, value: Value::Inline(b"small") });
        let meta = BlinkTree::create_with(&session, &layout, &entries).await.expect("create");
        let tree = BlinkTree::open(meta, layout, BlinkOptions::default());
        let large = vec![7; LONG];
        let change = |pairs: &mut LeafPairs| {
            pairs.iter_mut().for_each(|(_, value)| value.clone_from(&large));
            let at = pairs.partition_point(|(key, _)| key.as_slice() < &c);
            pairs.insert(at, (c.to_vec(), large.clone()));
            true
        };
        let _pin = session.begin(OpKind::Other).await.expect("pin");
        let edit = tree.begin_edit(&session, &d, change).await.expect("edit").expect("changes");
        edit.publish(&tree, &session).await.expect("publish");
        let mut found = Vec::new();
        for key in [&b, &c, &d] {
            let (_, image) = tree.leaf_image(&session, Seek::At(key)).await.expect("leaf");
            let node = Node::new(tree.layout(), image.words());
            let (mut held, mut value) = (Vec::new(), Vec::new());
            let index = (0..node.count()).find(|index| node.key(*index, &mut held) && held == key);
            node.value(index.expect("it is there"), &mut value).expect("a value");
            found.push(value.len());
        }
        assert_eq!(found, [5, LONG, LONG], "the first key lies in a leaf that was not edited");
    });
}
