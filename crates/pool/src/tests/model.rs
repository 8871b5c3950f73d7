//! Model test: random operations of several members and sessions, against a model of object holders.

use std::collections::BTreeMap;

use farleaf_fabric::{GlobalAddr, OpKind};

use super::{Mine, SMALL, endpoint, formatted, join, member, tick};
use crate::{Audit, PoolError};

/// A generator of its own, so that a seed means the same for ever.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

/// Objects that are in use, and that nothing is handed out over another's bytes.
#[derive(Default)]
struct Model {
    live: BTreeMap<GlobalAddr, usize>,
}

impl Model {
    fn add(&mut self, addr: GlobalAddr, bytes: usize) {
        if let Some((before, len)) = self.live.range(..=addr).next_back() {
            assert!(before.plus(*len as u64) <= addr, "{addr} lies in the object at {before}");
        }
        if let Some((after, _)) = self.live.range(addr..).next() {
            assert!(addr.plus(bytes as u64) <= *after, "{addr} reaches into {after}");
        }
        self.live.insert(addr, bytes);
    }

    fn take(&mut self, random: &mut Random) -> Option<(GlobalAddr, usize)> {
        let at = random.below(self.live.len().max(1));
        let addr = *self.live.keys().nth(at)?;
        self.live.remove_entry(&addr)
    }
}

/// Everything that can happen to objects, in random order; the accounts close whenever the pool is
/// quiet.
#[test]
fn no_object_is_in_two_hands_and_none_is_lost() {
    for seed in 0..12 {
        let fabric = formatted(2, 2 << 20, SMALL);
        let end = endpoint(&fabric);
        end.executor().block_on(run(seed, &end));
    }
}

async fn run(seed: u64, end: &farleaf_fabric::AnyEndpoint) {
    let mut random = Random(seed);
    let mut model = Model::default();
    let pool = join(end).await;
    let mut sessions: Vec<Mine> = vec![
        pool.session(end.clone()).await.unwrap(),
        pool.session(end.clone()).await.unwrap(),
        member(end).await,
        member(end).await,
    ];
    drop(pool);
    for step in 0..3000 {
        let at = random.below(sessions.len());
        let session = &sessions[at];
        match random.below(100) {
            0..=54 => {
                let most = [200, 2000, 9000][random.below(3)];
                let bytes = 1 + random.below(most);
                let pinned = session.begin(OpKind::Insert).await.unwrap();
                match session.alloc(session.place(), bytes).await {
                    Ok(addr) if random.below(10) == 0 => session.free_unpublished(addr, bytes),
                    Ok(addr) => model.add(addr, bytes),
                    Err(PoolError::Full { .. }) => {}
                    Err(error) => panic!("seed {seed} step {step}: {error}"),
                }
                drop(pinned);
            }
            55..=89 => {
                let pinned = session.begin(OpKind::Remove).await.unwrap();
                if let Some((addr, bytes)) = model.take(&mut random) {
                    match session.prepare_retire(addr).await {
                        Ok(retiring) if random.below(8) == 0 => {
                            session.cancel_retire(retiring);
                            model.add(addr, bytes);
                        }
                        Ok(retiring) => session.retire(retiring),
                        Err(error) => panic!("seed {seed} step {step}: {error}"),
                    }
                }
                drop(pinned);
            }
            90..=97 => tick(session, 1).await,
            98 if at < 2 => {
                let pool = session.pool().clone();
                match pool.session(end.clone()).await {
                    Ok(session) => sessions[at] = session,
                    // Clients of dropped sessions wait for ticks, and they are few.
                    Err(PoolError::NoSlot("client", _)) => {}
                    Err(error) => panic!("seed {seed} step {step}: {error}"),
                }
            }
            98 => {
                tick(session, 1).await;
                leave(&sessions, at).await;
                sessions[at] = member(end).await;
            }
            _ => check(&sessions, &model, seed, step).await,
        }
    }
    // Everybody but the first goes.
    for at in (1..sessions.len()).rev() {
        if at == 1 {
            sessions.remove(1);
            tick(&sessions[0], 8).await;
        } else {
            leave(&sessions, at).await;
            sessions.remove(at);
        }
    }
    check(&sessions, &model, seed, usize::MAX).await;
    for (addr, _) in std::mem::take(&mut model.live) {
        let pinned = sessions[0].begin(OpKind::Remove).await.unwrap();
        let retiring = sessions[0].prepare_retire(addr).await.unwrap();
        sessions[0].retire(retiring);
        drop(pinned);
        tick(&sessions[0], 1).await;
    }
    tick(&sessions[0], 8).await;
    leave(&sessions, 0).await;
    let last = member(end).await;
    let report = super::audit_of(&last, &[]).await;
    assert!(report.closes(), "seed {seed}: {report:?}");
    let in_use: u64 = report.classes.iter().map(|class| class.handed_out - class.free).sum();
    assert_eq!(in_use, 0, "seed {seed}: {report:?}");
}

/// Leaves once the others let its retired objects go.
async fn leave(sessions: &[Mine], at: usize) {
    for _ in 0..4 {
        for session in sessions {
            tick(session, 2).await;
        }
    }
    sessions[at].leave().await.unwrap();
}

/// Every member's own accounts and the pool's agree with the model.
async fn check(sessions: &[Mine], model: &Model, seed: u64, step: usize) {
    let mut audit = Audit::new(&sessions[0]).await.unwrap();
    for (addr, bytes) in &model.live {
        audit.mark(*addr, *bytes).unwrap();
    }
    let report = audit.report(&sessions[0]).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new(), "seed {seed} step {step}");
    for class in &report.classes {
        let known = class.live + class.free + class.retired + class.held;
        assert_eq!((class.leaked, known), (0, class.handed_out), "seed {seed} step {step}");
    }
    let live: u64 = report.classes.iter().map(|class| class.live).sum();
    assert_eq!(live, model.live.len() as u64, "seed {seed} step {step}");
    if sessions.len() == 1 {
        assert!(report.closes(), "seed {seed} step {step}: {report:?}");
    }
}
