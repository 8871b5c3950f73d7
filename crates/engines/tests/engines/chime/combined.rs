//! Changes of one key by clients of one compute server that are under way at one time.

use std::cell::RefCell;
use std::rc::Rc;

use farleaf_engines::AnyIndex;
use farleaf_fabric::{Endpoint, OpKind};
use farleaf_index::{Index, IndexError};
use farleaf_pool::Session;

use super::loaded;
use crate::common::{check, costs};
use crate::sherman::costs::{change_of, on_both};
use crate::sherman::{counters, number, since};

const KEYS: u64 = 1_000;
const SLOT: u64 = 24;

/// A change of the hot key.
#[derive(Clone, Copy)]
enum Step {
    Update(u8),
    Insert(u8),
    Remove,
}

/// Begins the changes of `key` in their order, before any of them ends; gives their outcomes.
async fn at_once(
    session: &Session,
    index: &AnyIndex,
    key: u64,
    steps: &[Step],
) -> Vec<Result<bool, IndexError>> {
    let outcomes = Rc::new(RefCell::new(vec![None; steps.len()]));
    for (at, &step) in steps.iter().enumerate() {
        let (client, index, outcomes) = (session.clone(), index.clone(), Rc::clone(&outcomes));
        session.endpoint().spawn(async move {
            let key = number(key);
            let done = match step {
                Step::Update(byte) => index.update(&client, &key, &[byte; 8]).await,
                Step::Insert(byte) => index.insert(&client, &key, &[byte; 8]).await,
                Step::Remove => index.remove(&client, &key).await,
            };
            outcomes.borrow_mut()[at] = Some(done);
        });
    }
    while outcomes.borrow().iter().any(Option::is_none) {
        session.endpoint().sleep(1_000).await;
    }
    outcomes.take().into_iter().flatten().collect()
}

async fn value_of(session: &Session, index: &AnyIndex, key: u64) -> Option<u8> {
    let mut value = Vec::new();
    let is_there = index.get(session, &number(key), &mut value).await.expect("get");
    is_there.then(|| value[0])
}

/// The first change leads, and those that come while it waits for its lock are written with it, 8 at most; the ninth leads
/// after it.
#[test]
fn changes_that_wait_share_a_lock_and_a_write() {
    on_both(async |session| {
        let index = loaded(&session, KEYS, &[]).await;
        let steps: Vec<Step> = (1..=9).map(Step::Update).collect();
        let before = costs(&session);
        assert_eq!(at_once(&session, &index, 80, &steps).await, vec![Ok(true); 9]);
        let one = change_of(&session, [1, 2], SLOT, 16);
        let (verbs, bytes) = since(&session, &before, OpKind::Update);
        assert_eq!((verbs, bytes), (one.0.map(|it| 2 * it), one.1.map(|it| 2 * it)));
        assert_eq!(counters(&index).get("changes_joined"), 7);
        assert_eq!(value_of(&session, &index, 80).await, Some(9));
        assert_eq!(check(&session, &[&index]).await.keys, KEYS);
    });
}

/// Each change sees what those before it have left, although one WRITE stores what the last one leaves.
#[test]
fn each_change_of_a_batch_sees_the_ones_before() {
    use Step::{Insert, Remove, Update};
    on_both(async |session| {
        let index = loaded(&session, KEYS, &[]).await;
        for (key, steps, outcomes, left) in [
            (
                80,
                &[Update(1), Remove, Update(2), Insert(3), Insert(4)][..],
                [true, true, false, true, false].map(Ok).to_vec(),
                Some(3),
            ),
            (
                82,
                &[Remove, Insert(5), Update(6), Remove, Remove],
                [true, true, true, true, false].map(Ok).to_vec(),
                None,
            ),
            // Nothing to change for the first one: the others follow it, each by itself or with those behind it.
            (81, &[Remove, Insert(7), Update(8)], [false, true, true].map(Ok).to_vec(), Some(8)),
        ] {
            assert_eq!(at_once(&session, &index, key, steps).await, outcomes, "key {key}");
            assert_eq!(value_of(&session, &index, key).await, left, "key {key}");
        }
        assert_eq!(check(&session, &[&index]).await.keys, KEYS);
    });
}

/// Without `delegate` each change takes the lock itself.
#[test]
fn without_delegation_each_change_writes() {
    on_both(async |session| {
        let index = loaded(&session, KEYS, &[("delegate", "false"), ("hand_over", "0")]).await;
        let before = costs(&session);
        let steps: Vec<Step> = (1..=4).map(Step::Update).collect();
        assert_eq!(at_once(&session, &index, 80, &steps).await, vec![Ok(true); 4]);
        let ([_, writes, cas, _], _) = since(&session, &before, OpKind::Update);
        assert!(writes + cas >= 12, "{writes} WRITEs, {cas} CASs");
        assert_eq!(counters(&index).get("changes_joined"), 0);
        assert_eq!(value_of(&session, &index, 80).await, Some(4));
    });
}
