//! Run tests: all size classes share blocks, and a death at any remote operation loses and doubles nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_fabric::sim::{CrashPlan, CrashWay, Landing, Sim, SimConfig, Verb};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, GlobalAddr, OpKind, ServerId, ToAny};

use super::{Mine, SMALL, audit_of, endpoint, formatted, member, tick};
use crate::class::{CLASS_COUNT, class_bytes, class_of};
use crate::{Audit, PoolError, PoolOptions, format};

const ONE: ServerId = ServerId(0);
const POOL_BYTES: u64 = 512 << 20;

/// A generator of its own, so that a seed means the same for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A size between these, log-uniform: the same number of objects in each doubling.
    fn bytes(&mut self, least: u64, most: u64) -> usize {
        let doublings = f64::from((most / least) as u32).log2();
        let part = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (least as f64 * (part * doublings).exp2()) as usize
    }
}

fn rounded(bytes: usize) -> u64 {
    class_bytes(class_of(bytes).unwrap())
}

/// The part of a pool of 512 MiB that is live when the first of `members` is refused memory, in percent. With
/// `churn`, three objects of ten are retired again, by any member.
fn filled_at_refusal(
    members: usize,
    servers: usize,
    most_bytes: u64,
    churn: bool,
) -> (u64, String) {
    let options = PoolOptions::fitting(POOL_BYTES / servers as u64);
    let fabric = formatted(servers, POOL_BYTES / servers as u64, options);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let mut sessions = Vec::new();
        for _ in 0..members {
            sessions.push(member(&end).await);
        }
        let (mut random, mut live) = (Random(0x9e37_79b9_7f4a_7c15), Vec::new());
        let mut live_bytes = 0;
        for number in 0.. {
            let session = &sessions[number % members];
            let pinned = session.begin(OpKind::Insert).await.unwrap();
            let bytes = random.bytes(64, most_bytes);
            match session.alloc(session.place(), bytes).await {
                Ok(addr) => live.push((addr, bytes)),
                Err(full @ PoolError::Full { .. }) => {
                    let pool_bytes =
                        servers as u64 * session.pool().geometry().server(ONE).region_bytes;
                    return (live_bytes * 100 / pool_bytes, full.to_string());
                }
                Err(error) => panic!("{error}"),
            }
            live_bytes += rounded(bytes);
            if churn && random.next() % 10 < 3 {
                let (addr, bytes) = live.swap_remove(random.next() as usize % live.len());
                let retiring = session.prepare_retire(addr).await.unwrap();
                session.retire(retiring);
                live_bytes -= rounded(bytes);
            }
            drop(pinned);
            if number / members % 16 == 15 {
                tick(session, 1).await;
            }
        }
        unreachable!("a pool is full at some time")
    })
}

/// Four and eight members that load values of 64 B to 1 MB at once were refused with 0.2 to 0.9 % of the pool in use,
/// because each kept a block for each class.
#[test]
fn members_at_once_with_objects_of_all_classes_fill_the_pool() {
    for (members, servers, most_bytes, churn) in [
        (4, 1, 1 << 20, false),
        (16, 1, 1 << 20, false),
        (16, 1, 1 << 20, true),
        (16, 2, 1 << 20, true),
        (16, 1, 70_000, false),
        (16, 1, 70_000, true),
    ] {
        let (part, full) = filled_at_refusal(members, servers, most_bytes, churn);
        let of = format!("{members} members, {servers} servers, churn {churn}: {part} %: {full}");
        println!("{of}");
        // With churn, what is free lies in others' blocks in the end.
        assert!(part >= if churn { 55 } else { 60 }, "{of}");
        assert!(full.contains(", member ") && full.contains("delete data"), "{of}");
    }
}

/// One member with an object of each class has one block, and every class has its run there.
#[test]
fn a_block_holds_objects_of_every_class() {
    let options = PoolOptions { block_bytes: 16 << 20, ..SMALL };
    let fabric = formatted(1, 80 << 20, options);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let verbs = || session.endpoint().counters().snapshot().total().verbs();
        let (mut live, before) = (Vec::new(), verbs());
        for class in 0..CLASS_COUNT {
            let bytes = class_bytes(class) as usize;
            live.push((session.alloc(ONE, bytes).await.unwrap(), bytes));
        }
        // A WRITE for each run but the first, and for the block its table, a CAS, and a chain of 2.
        assert!(verbs() - before <= CLASS_COUNT as u64 + 3, "{} operations", verbs() - before);
        let report = audit_of(&session, &live).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!((report.classes.len(), report.blocks_owned), (CLASS_COUNT, 1), "{report:?}");
        session.leave().await.unwrap();
        let next = member(&end).await;
        let report = audit_of(&next, &live).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!(report.blocks_orphan, 1);
        // The next member takes objects of every class from the orphan.
        for class in 0..CLASS_COUNT - 8 {
            let bytes = class_bytes(class) as usize;
            live.push((next.alloc(ONE, bytes).await.unwrap(), bytes));
        }
        let report = audit_of(&next, &live).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!((report.blocks_owned, report.blocks_free), (1, 3), "{report:?}");
    });
}

/// Memory of one class serves any other once its objects are gone, within a block with other objects in use.
#[test]
fn pages_of_one_class_serve_another() {
    let fabric = formatted(1, 1 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let mut live = Vec::new();
        let mut small = Vec::new();
        // An object of 1,024 bytes in each block, and the rest of 64.
        loop {
            let bytes = if small.len() % 800 == 0 { 1024 } else { 64 };
            match session.alloc(ONE, bytes).await {
                Ok(addr) if bytes == 64 => small.push(addr),
                Ok(addr) => {
                    live.push((addr, bytes));
                    small.extend(session.alloc(ONE, 64).await);
                }
                Err(_) => break,
            }
        }
        let count = small.len();
        small.drain(..).for_each(|addr| session.free_unpublished(addr, 64));
        while let Ok(addr) = session.alloc(ONE, 8192).await {
            live.push((addr, 8192));
        }
        let large = live.iter().filter(|(_, bytes)| *bytes == 8192).count();
        assert!(large * 8192 * 10 > count * 64 * 6, "{large} objects for {count}");
        let report = audit_of(&session, &live).await;
        assert!(report.closes(), "{report:?}");
    });
}

const SLOTS: usize = 160;
const OPTIONS: PoolOptions = PoolOptions { block_bytes: 64 << 10, members_max: 4, ..SMALL };

/// A table of slots that each hold the address of an object, or 0; the object's first word is its length.
#[derive(Clone, Copy)]
struct Slots(GlobalAddr);

impl Slots {
    fn slot(self, at: usize) -> GlobalAddr {
        self.0.plus(at as u64 * 8)
    }

    async fn link(self, session: &Mine, at: usize, bytes: usize) -> Result<(), PoolError> {
        let _pinned = session.begin(OpKind::Insert).await?;
        let client = session.client();
        let addr = session.alloc(ONE, bytes).await?;
        let mut content = client.buf(bytes);
        content.words_mut().fill(at as u64);
        content.words_mut()[0] = bytes as u64;
        client.write(addr, content).await?;
        client.cas(self.slot(at), 0, addr.word()).await?;
        Ok(())
    }

    async fn unlink(self, session: &Mine, at: usize) -> Result<(), PoolError> {
        let _pinned = session.begin(OpKind::Remove).await?;
        let client = session.client();
        let word = client.read(self.slot(at), client.buf(8)).await?.words()[0];
        let Some(addr) = GlobalAddr::from_word(word).filter(|addr| !addr.is_null()) else {
            return Ok(());
        };
        let retiring = session.prepare_retire(addr).await?;
        client.cas(self.slot(at), word, 0).await?;
        session.retire(retiring);
        Ok(())
    }

    /// The objects that are linked, whole.
    async fn live(self, session: &Mine) -> BTreeMap<GlobalAddr, usize> {
        let client = session.client();
        let slots = client.read(self.0, client.buf(SLOTS * 8)).await.unwrap();
        let mut live = BTreeMap::from([(self.0, SLOTS * 8)]);
        for (at, word) in slots.words().iter().enumerate().filter(|(_, word)| **word != 0) {
            let addr = GlobalAddr::from_word(*word).unwrap();
            let head = client.read(addr, client.buf(8)).await.unwrap().words()[0] as usize;
            assert!((64..=30_000).contains(&head), "slot {at}: an object of {head} bytes");
            let content = client.read(addr, client.buf(head)).await.unwrap();
            assert!(content.words()[1..].iter().all(|word| *word == at as u64), "slot {at}");
            assert_eq!(live.insert(addr, head), None, "slot {at}");
        }
        live
    }
}

/// The victim's life. It carves runs, drops them and carves others over their pages, adopts what another left, and
/// leaves.
async fn live_and_leave(
    end: AnyEndpoint,
    slots: Slots,
    step: Rc<Cell<usize>>,
) -> Result<(), PoolError> {
    let session = member(&end).await;
    // Runs of 64, 960 and 2,560 bytes, and part of what an earlier member left.
    for at in 0..24 {
        slots.link(&session, 40 + at, [64, 960, 2560][at % 3]).await?;
    }
    step.set(1);
    for at in (0..24).filter(|at| at % 3 != 0) {
        slots.unlink(&session, 40 + at).await?;
    }
    // Of what another owns, or has left.
    for at in 0..6 {
        slots.unlink(&session, at * 3).await?;
    }
    for _ in 0..6 {
        session.tick().await?;
    }
    step.set(2);
    // Over the pages of runs that are wholly free now.
    for at in 0..12 {
        slots.link(&session, 80 + at, [14_000, 7_000, 448][at % 3]).await?;
    }
    for at in 0..4 {
        slots.unlink(&session, 80 + at).await?;
    }
    for _ in 0..6 {
        session.tick().await?;
    }
    for at in 0..10 {
        slots.link(&session, 100 + at, 1_200).await?;
    }
    step.set(3);
    session.leave().await?;
    step.set(4);
    Ok(())
}

/// Runs the victim's life with a death; what became of it. `None` records its operations.
fn with_death(plan: Option<CrashPlan>) -> (Vec<farleaf_fabric::sim::CountedOp>, usize) {
    let config = SimConfig { compute_servers: 3, region_bytes: 2 << 20, ..SimConfig::seeded(5) };
    let sim = Sim::new(config).unwrap();
    let first = sim.fabric(0).any_endpoint().unwrap();
    let (keeper, slots) = sim
        .block_on(async {
            format(&Client::new(first.clone()), &OPTIONS).await.unwrap();
            let keeper = member(&first).await;
            let addr = keeper.alloc(ONE, SLOTS * 8).await.unwrap();
            let mut zero = keeper.client().buf(SLOTS * 8);
            zero.words_mut().fill(0);
            keeper.client().write(addr, zero).await.unwrap();
            let slots = Slots(addr);
            // An earlier member leaves an orphan with runs of three classes.
            let other = member(&sim.fabric(2).any_endpoint().unwrap()).await;
            for at in 0..24 {
                slots.link(&other, at, [64, 960, 2560][at % 3]).await.unwrap();
            }
            for at in 12..24 {
                slots.unlink(&other, at).await.unwrap();
            }
            for _ in 0..4 {
                tick(&keeper, 1).await;
                tick(&other, 1).await;
            }
            other.leave().await.unwrap();
            for at in 0..10 {
                slots.link(&keeper, 130 + at, 448).await.unwrap();
            }
            (Rc::new(keeper), slots)
        })
        .unwrap();
    let step = Rc::new(Cell::new(0));
    let victim = sim.fabric(1);
    match plan {
        Some(plan) => victim.plan(plan),
        None => victim.record_ops(),
    }
    let stop = Rc::new(Cell::new(false));
    let end = victim.any_endpoint().unwrap();
    let (of_victim, failed) = (Rc::clone(&step), Rc::new(RefCell::new(None)));
    let told = Rc::clone(&failed);
    sim.spawn(1, async move {
        let lived = live_and_leave(end, slots, of_victim).await;
        *told.borrow_mut() = lived.err();
    });
    // So that the victim's objects become free while it lives; it removes some of the victim's as well.
    let (ticking, stopped) = (Rc::clone(&keeper), Rc::clone(&stop));
    let seen = Rc::clone(&step);
    sim.spawn(0, async move {
        let mut removed = 0;
        while !stopped.get() {
            if seen.get() >= 1 && removed < 4 {
                slots.unlink(&ticking, 40 + removed * 3).await.unwrap();
                removed += 1;
            }
            tick(&ticking, 1).await;
            ticking.endpoint().sleep(3_000).await;
        }
    });
    for _ in 0..4_000 {
        sim.run_until(sim.now_ns() + 10_000).unwrap();
        if step.get() == 4 || victim.has_fired() {
            break;
        }
    }
    stop.set(true);
    sim.run_until(sim.now_ns() + 50_000).unwrap();
    assert_eq!(*failed.borrow(), None);
    let at_death = step.get();
    sim.block_on(async {
        if let Some(recovery) = keeper.recover_begin().await.unwrap() {
            let mut audit = recovery.audit();
            for (addr, bytes) in slots.live(&keeper).await {
                audit.mark(addr, bytes).unwrap();
            }
            let done = keeper.recover_finish(recovery, &audit).await.unwrap();
            assert!(done.complete && done.problems.is_empty(), "{done:?}");
        }
        tick(&keeper, 8).await;
        check_all(&keeper, slots).await;
    })
    .unwrap();
    (victim.recorded_ops(), at_death)
}

/// Nothing is lost, nothing is in two hands, and all memory can be had for one class.
async fn check_all(keeper: &Mine, slots: Slots) {
    // The victim may have died while it gave back what was the keeper's; a sweep finds what it lost.
    let live = slots.live(keeper).await;
    let mut audit = Audit::new(keeper).await.unwrap();
    for (addr, bytes) in &live {
        audit.mark(*addr, *bytes).unwrap();
    }
    let report = audit.report(keeper).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let leaked: u64 = report.classes.iter().map(|class| class.leaked).sum();
    assert!(leaked <= 8, "{report:?}");
    assert!(report.blocks_owned <= 1, "{report:?}");
    let mut new = Vec::new();
    while let Ok(addr) = keeper.alloc(ONE, 1024).await {
        let before = live.range(..=addr).next_back();
        assert!(before.is_none_or(|(before, bytes)| before.plus(*bytes as u64) <= addr), "{addr}");
        let after = live.range(addr..).next();
        assert!(after.is_none_or(|(after, _)| addr.plus(1024) <= *after), "{addr}");
        let mut content = keeper.client().buf(1024);
        content.words_mut().fill(u64::MAX);
        keeper.client().write(addr, content).await.unwrap();
        new.push(addr);
    }
    assert_eq!(slots.live(keeper).await, live, "what lives is as it was");
    let mut distinct = new.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), new.len());
    // All that is left is in use: pages of 1 KiB, but for those of live objects and of what was lost to the keeper.
    let geometry = keeper.pool().geometry();
    let pages = geometry.block_count(ONE) as usize * geometry.shape().usable_pages() as usize;
    let in_use: usize = live.values().map(|bytes| 2 + bytes / 1024).sum();
    assert!(
        new.len() + in_use + 60 >= pages,
        "{} objects and {in_use} pages of {pages}",
        new.len()
    );
    for addr in new {
        keeper.free_unpublished(addr, 1024);
    }
}

/// Each operation of a life, and each way to die there: before, after, and in the midst of WRITEs.
#[test]
fn a_death_at_any_operation_loses_nothing_and_doubles_nothing() {
    let (ops, lived) = with_death(None);
    assert_eq!(lived, 4, "a life without a death");
    let (mut points, mut steps) = (0, [0; 5]);
    for (op, counted) in (0..).zip(&ops) {
        let mut ways = vec![CrashWay::Before, CrashWay::After];
        if counted.kind == Verb::Write && counted.words > 1 {
            // The words of a run's pages, or of a whole page map.
            let prefixes = [1, counted.words / 2, counted.words - 1];
            ways.extend(prefixes.map(|words| CrashWay::Within(Landing::Prefix(words))));
            ways.extend((0..2).map(|seed| CrashWay::Within(Landing::Subset(seed))));
        }
        if counted.words > 256 {
            ways.truncate(3);
        }
        for way in ways {
            let (_, step) = with_death(Some(CrashPlan { op, way }));
            points += 1;
            steps[step] += 1;
        }
    }
    println!("{points} deaths, by step {steps:?}");
    assert!(steps[..4].iter().all(|count| *count > 20), "{steps:?}");
}
