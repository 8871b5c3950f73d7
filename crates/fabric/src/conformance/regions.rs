//! Region cases: memory that compute servers expose (F11).

use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::calls::{ECHO, PARTY, learn_peer};
use super::ended::{Rounds, beside, end_marked};
use super::tools::{
    at, get, meet, ok, patterned, poll_once, put, put_word, same, wait_for_word, word, words,
};
use super::{CallSurvivor, Harness, REGION_BYTES, Role, Survivor, Task, task};
use crate::{
    Client, Cost, Counters, Endpoint, GlobalAddr, Incarnation, OpError, OpErrorKind, OpKind, Peer,
    ServerId, Service, ServiceId,
};

/// Longer than any operation takes that is not lost.
const SETTLE_NS: u64 = 200_000;
/// Longest wait for the news of a death.
const DEATH_NS: u64 = 20_000_000_000;

/// A harness whose cases use the regions of two compute servers in place of two memory servers.
pub struct OnRegions<H>(pub(super) H);

impl<H: Harness> Harness for OnRegions<H> {
    type Endpoint = H::Endpoint;

    const ONE: ServerId = ServerId::COMPUTE_FIRST;
    const OTHER: ServerId = ServerId(ServerId::COMPUTE_FIRST.0 + 1);

    fn run(&self, tasks: Vec<Task<H::Endpoint>>) {
        self.0.run(tasks);
    }

    fn scratch(&self) -> Range<u64> {
        self.0.scratch()
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.0.serve(id, service);
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.0.counters()
    }

    fn buffers_out(endpoint: &H::Endpoint) -> usize {
        H::buffers_out(endpoint)
    }

    fn seed(endpoint: &H::Endpoint, seed: u64) -> bool {
        H::seed(endpoint, seed)
    }

    fn rounds(&self, rounds: u64) -> u64 {
        self.0.rounds(rounds)
    }

    fn run_beside_victim(&self, addr: GlobalAddr, survivor: Survivor<H::Endpoint>) -> bool {
        self.0.run_beside_victim(addr, survivor)
    }

    fn connect_peers(&self) -> Vec<Peer> {
        self.0.connect_peers()
    }

    fn regions(&self) -> Vec<Peer> {
        self.0.regions()
    }

    fn run_beside_party(
        &self,
        role: Role,
        addr: GlobalAddr,
        survivor: CallSurvivor<H::Endpoint>,
    ) -> bool {
        self.0.run_beside_party(role, addr, survivor)
    }
}

/// The compute servers of tasks 0 and 1, with their regions; none if the fabric exposes nothing.
fn pair<H: Harness>(harness: &H) -> Option<(Peer, Peer)> {
    match harness.regions()[..] {
        [] => None,
        [one, other, ..] => Some((one, other)),
        [_] => panic!("a harness has two compute servers"),
    }
}

/// Byte `offset` of a peer's region.
fn of(peer: Peer, offset: u64) -> GlobalAddr {
    GlobalAddr::new(peer.server, offset)
}

fn is_gone<T>(result: &Result<T, OpError>, peer: Peer) -> bool {
    let wanted = OpErrorKind::Gone { who: peer.incarnation };
    matches!(result, Err(error) if error.kind == wanted && error.server == peer.server)
}

/// Waits until the process of `end` has been told that `who` is dead.
async fn wait_for_death<E: Endpoint>(end: &E, who: Incarnation) {
    let start_ns = end.now_ns();
    while !end.is_dead(who).await {
        assert!(end.now_ns() - start_ns < DEATH_NS, "{who} does not die");
        end.sleep(1_000_000).await;
    }
}

/// Runs `body` beside a compute server that exposes a region; it kills or stops that one.
fn beside_owner<H: Harness, F: Future<Output = ()> + 'static>(
    harness: &H,
    role: Role,
    body: impl FnOnce(H::Endpoint, Peer, super::Kill) -> F + Send + 'static,
) {
    if harness.regions().is_empty() {
        return;
    }
    let told = at(harness, H::ONE, 4096);
    let survivor: CallSurvivor<H::Endpoint> = Box::new(move |end, attach, kill| {
        Box::pin(async move {
            let owner = learn_peer(&end, told).await;
            put_word(&end, told, 0).await;
            attach(owner);
            assert_eq!(end.region_bytes(PARTY), REGION_BYTES);
            body(end, owner, kill).await;
        })
    });
    harness.run_beside_party(role, told, survivor);
}

/// F11.1.
pub(super) fn a_region_begins_zeroed<H: Harness>(harness: &H) {
    const STEP: u64 = 1 << 20;
    let Some((one, other)) = pair(harness) else { return };
    let end_of_scratch = harness.scratch().end;
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for peer in [one, other] {
            let bytes = end.region_bytes(peer.server);
            assert_eq!(bytes, peer.region_bytes);
            assert!(bytes >= end_of_scratch);
            for from in (0..bytes).step_by(STEP as usize) {
                let len = STEP.min(bytes - from) as usize;
                let found = ok(end.read(of(peer, from), end.buf(len)).await);
                assert!(found.bytes().iter().all(|byte| *byte == 0), "not zeroed");
            }
        }
    })]);
}

/// F11.2: from each compute server to each region.
pub(super) fn a_region_is_reached_by_all<H: Harness>(harness: &H) {
    const TASKS: u64 = 4;
    let Some((one, other)) = pair(harness) else { return };
    let barrier = at(harness, H::ONE, 64);
    let rounds = harness.rounds(200).max(10);
    let tasks = (0..TASKS).map(|me| {
        task(move |end: H::Endpoint| async move {
            for peer in [one, other] {
                let own = of(peer, 8192 + me * 512);
                put(&end, own, &patterned(me, 300)).await;
                same(&get(&end, own, 300).await, &patterned(me, 300), "a WRITE");
                for _ in 0..rounds {
                    ok(end.faa(of(peer, 4096), 1).await);
                }
            }
            meet(&end, barrier, TASKS, 1).await;
            for peer in [one, other] {
                assert_eq!(word(&end, of(peer, 4096)).await, TASKS * rounds);
                let next = (me + 1) % TASKS;
                let theirs = get(&end, of(peer, 8192 + next * 512), 300).await;
                same(&theirs, &patterned(next, 300), "another one's WRITE");
            }
        })
    });
    harness.run(tasks.collect());
}

/// F11.3: each kind of operation of the owner, and its words for plain loads.
pub(super) fn the_owner_reaches_its_own<H: Harness>(harness: &H) {
    let Some((one, _)) = pair(harness) else { return };
    harness.run(vec![task(move |end: H::Endpoint| async move {
        assert_eq!(end.incarnation(), one.incarnation, "task 0 is the first compute server's");
        let own = end.own_region().expect("it exposes a region").clone();
        assert_eq!((own.number, own.words.bytes()), (one.server, one.region_bytes));
        let base = of(one, 4096);
        put(&end, base.plus(64), &patterned(1, 100)).await;
        same(&get(&end, base.plus(64), 100).await, &patterned(1, 100), "an own WRITE");
        assert_eq!(end.cas(base, 0, 7).await, Ok(0));
        assert_eq!(end.cas(base, 0, 8).await, Ok(7), "it was taken");
        assert_eq!(end.faa(base.plus(8), 5).await, Ok(0));
        let mut chain = end.ops();
        chain.write_word(base.plus(16), 9);
        chain.read(base.plus(16), end.buf(8));
        let chain = ok(end.chain(chain).await);
        assert_eq!(chain.buf(1).words(), [9]);
        if end.capabilities().cpu_visible {
            let loaded = |word: usize| own.words.as_slice()[512 + word].load(Ordering::Acquire);
            assert_eq!([loaded(0), loaded(1), loaded(2)], [7, 5, 9]);
        }
    })]);
}

/// F11.3: a lock in the owner's region, taken by the owner and by others, guards a counter there.
pub(super) fn a_lock_is_shared_by_owner_and_others<H: Harness>(harness: &H) {
    const TASKS: u64 = 4;
    let Some((one, _)) = pair(harness) else { return };
    let barrier = at(harness, H::ONE, 64);
    let rounds = harness.rounds(400).max(10);
    let (lock, counter, sum) = (of(one, 4096), of(one, 8192), of(one, 4096 + 64));
    let tasks = (1..=TASKS).map(|me| {
        task(move |end: H::Endpoint| async move {
            meet(&end, barrier, TASKS, 1).await;
            for _ in 0..rounds {
                ok(end.faa(sum, 1).await);
                while ok(end.cas(lock, 0, me).await) != 0 {
                    wait_for_word(&end, lock, |holder| holder == 0).await;
                }
                let now = word(&end, counter).await;
                put_word(&end, counter, now + 1).await;
                assert_eq!(end.cas(lock, me, 0).await, Ok(me), "somebody took my lock");
            }
            meet(&end, barrier, TASKS, 2).await;
            assert_eq!(word(&end, counter).await, TASKS * rounds, "the lock let two in");
            assert_eq!(word(&end, sum).await, TASKS * rounds, "an addition was lost");
        })
    });
    harness.run(tasks.collect());
}

/// F11.2: a batch mixes memory servers, the own region and another one's.
pub(super) fn a_batch_reaches_both_kinds<H: Harness>(harness: &H) {
    let Some((one, other)) = pair(harness) else { return };
    let memory = [at(harness, H::ONE, 4096), at(harness, H::OTHER, 4096)];
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let places = [memory[0], of(one, 4096), memory[1], of(other, 4096)];
        for round in 0..20_u64 {
            let mut ops = end.ops();
            for (number, place) in (0..).zip(places) {
                let mut buf = end.buf(64);
                buf.words_mut().fill(round << 8 | number);
                ops.write(place, buf);
                ops.faa(place.plus(64), number);
            }
            let ops = ok(end.post_many(ops).await);
            for number in 0..4 {
                let old = ops.old(2 * number + 1);
                assert_eq!(old, round * number as u64, "an FAA of round {round}");
            }
            let mut ops = end.ops();
            for place in places {
                ops.read(place, end.buf(64));
            }
            let ops = ok(end.post_many(ops).await);
            for number in 0..4 {
                let wanted = round << 8 | number as u64;
                assert!(ops.buf(number).words().iter().all(|word| *word == wanted));
            }
        }
    })]);
}

/// F3 on a region: in order, through a swap that fails.
pub(super) fn a_chain_stays_on_one_server<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let base = of(other, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for round in 1..=20_u64 {
            let mut ops = end.ops();
            ops.write_word(base, round);
            ops.cas(base, round, round + 100);
            ops.cas(base, round, u64::MAX);
            ops.faa(base, 1);
            ops.read(base, end.buf(8));
            let ops = ok(end.chain(ops).await);
            assert_eq!((ops.old(1), ops.old(2), ops.old(3)), (round, round + 100, round + 100));
            assert_eq!(ops.buf(4).words(), [round + 101]);
        }
    })]);
}

fn is_outside<T>(result: &Result<T, OpError>, server: ServerId, region: u64) -> bool {
    let fits = |kind| matches!(kind, OpErrorKind::OutOfBounds { region_bytes, .. } if region_bytes == region);
    matches!(result, Err(error) if error.server == server && fits(error.kind))
}

/// The bounds of a region are its own, not those of a memory server.
pub(super) fn nothing_outside_a_region_is_touched<H: Harness>(harness: &H) {
    beside_owner(harness, Role::Owner, |end: H::Endpoint, owner, kill| async move {
        let last = of(owner, REGION_BYTES - 8);
        put_word(&end, last, 5).await;
        assert_eq!(word(&end, last).await, 5);
        for offset in [REGION_BYTES - 7, REGION_BYTES, REGION_BYTES * 2, GlobalAddr::OFFSET_MAX - 7]
        {
            let to = of(owner, offset);
            let outside = |result| is_outside(&result, PARTY, REGION_BYTES);
            assert!(outside(end.read(to, end.buf(8)).await.map(drop)), "READ at {to}");
            assert!(outside(end.write(to, end.buf(8)).await.map(drop)), "WRITE at {to}");
        }
        assert_eq!(word(&end, last).await, 5);
        let misaligned = end.cas(of(owner, 4), 0, 1).await.map_err(|error| error.kind);
        assert_eq!(misaligned, Err(OpErrorKind::Misaligned { addr: of(owner, 4) }));
        let unserved = end.rpc(PARTY, ServiceId(1), end.buf(8), end.buf(8)).await;
        let unserved = unserved.map(drop).map_err(|error| error.kind);
        assert_eq!(unserved, Err(OpErrorKind::NoService { service: 1 }));
        assert_eq!(word(&end, last).await, 5, "it works on");
        kill();
    });
}

/// F11.5: a number that stands for nobody has no memory; attached again, it has.
pub(super) fn an_unattached_number_is_out_of_bounds<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let memory = at(harness, H::ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put_word(&end, of(other, 4096), 3).await;
        end.detach(other.server);
        for server in [other.server, ServerId(ServerId::COMPUTE_FIRST.0 + 999)] {
            assert_eq!(end.region_bytes(server), 0);
            let there = GlobalAddr::new(server, 4096);
            assert!(is_outside(&end.read(there, end.buf(8)).await, server, 0));
            assert!(is_outside(&end.write(there, end.buf(8)).await, server, 0));
            assert!(is_outside(&end.cas(there, 0, 1).await, server, 0));
            let mut ops = end.ops();
            ops.read(memory, end.buf(8));
            ops.faa(there, 1);
            assert!(is_outside(&end.post_many(ops).await, server, 0));
        }
        // Its memory is not for those that were told of calls alone.
        end.attach(Peer { region_bytes: 0, ..other }).expect("attached");
        assert!(is_outside(&end.faa(of(other, 4096), 1).await, other.server, 0));
        end.attach(other).expect("attached");
        assert_eq!(word(&end, of(other, 4096)).await, 3);
    })]);
}

/// F11.6: after the news of its owner's death a region is `Gone`, to each kind of operation.
pub(super) fn a_dead_owners_region_is_gone<H: Harness>(harness: &H) {
    beside_owner(harness, Role::Owner, |end: H::Endpoint, owner, kill| async move {
        let there = of(owner, 4096);
        put_word(&end, there, 1).await;
        kill();
        wait_for_death(&end, owner.incarnation).await;
        for _ in 0..3 {
            assert!(is_gone(&end.read(there, end.buf(8)).await, owner));
            assert!(is_gone(&end.write(there, end.buf(8)).await, owner));
            assert!(is_gone(&end.cas(there, 0, 1).await, owner));
            assert!(is_gone(&end.faa(there, 1).await, owner));
            let mut chain = end.ops();
            chain.write_word(there, 1);
            chain.read(there, end.buf(8));
            assert!(is_gone(&end.chain(chain).await, owner));
            end.sleep(1_000_000).await;
        }
        assert!(!end.is_dead(end.incarnation()).await);
    });
}

/// F11.6, F11.7: what was posted before the death ends, with any result before the news and `Gone` after it.
pub(super) fn what_was_in_flight_to_the_dead_fails<H: Harness>(harness: &H) {
    beside_owner(harness, Role::Owner, |end: H::Endpoint, owner, kill| async move {
        let there = of(owner, 4096);
        ok(end.faa(there, 1).await);
        let mut kill = Some(kill);
        let mut first = pin!(end.faa(there, 1));
        let mut second = pin!(end.read(there, end.buf(4096)));
        let early = (poll_once(first.as_mut()).await, poll_once(second.as_mut()).await);
        if let Some(kill) = kill.take() {
            kill();
        }
        let result = match early.0 {
            Poll::Ready(result) => result,
            Poll::Pending => first.await,
        };
        let read = match early.1 {
            Poll::Ready(result) => result,
            Poll::Pending => second.await,
        };
        for error in [result.err(), read.err()].into_iter().flatten() {
            let is_open = matches!(error.kind, OpErrorKind::Timeout | OpErrorKind::Unavailable);
            assert!(is_open || is_gone(&Err::<(), _>(error), owner), "{error}");
        }
        let mut late = pin!(end.faa(there, 1));
        let early = poll_once(late.as_mut()).await;
        wait_for_death(&end, owner.incarnation).await;
        if early.is_pending() {
            let error = late.await.expect_err("nobody is there");
            assert!(!matches!(error.kind, OpErrorKind::Fenced), "{error}");
        }
        assert!(is_gone(&end.faa(there, 1).await, owner));
    });
}

/// F11.1: a life under the number of a dead one exposes zeroed memory, and answers for itself.
pub(super) fn a_new_life_begins_empty<H: Harness>(harness: &H) {
    for round in 1..=2_u64 {
        beside_owner(harness, Role::Owner, move |end: H::Endpoint, owner, kill| async move {
            let found = get(&end, of(owner, 0), REGION_BYTES as usize).await;
            assert!(found.iter().all(|byte| *byte == 0), "round {round}: not zeroed");
            put(&end, of(owner, 0), &patterned(round, REGION_BYTES as usize)).await;
            kill();
            wait_for_death(&end, owner.incarnation).await;
            assert!(is_gone(&end.faa(of(owner, 0), 1).await, owner));
        });
    }
}

/// F11.5: what was posted to the life before never lands in the next one's memory.
pub(super) fn old_operations_miss_the_new_life<H: Harness>(harness: &H) {
    beside_owner(harness, Role::Owner, |end: H::Endpoint, owner, kill| async move {
        let mut kill = Some(kill);
        for number in 0..8 {
            let mut buf = end.buf(512);
            buf.words_mut().fill(u64::MAX);
            let mut write = pin!(end.write(of(owner, 4096 + number * 512), buf));
            let _ = poll_once(write.as_mut()).await;
            // Most are dropped in flight.
        }
        if let Some(kill) = kill.take() {
            kill();
        }
    });
    beside_owner(harness, Role::Owner, |end: H::Endpoint, owner, kill| async move {
        end.sleep(SETTLE_NS).await;
        assert!(words(&end, of(owner, 4096), 512).await.iter().all(|word| *word == 0));
        kill();
    });
}

/// F6 and F11.8: a fence at a region silences there, as at a memory server.
pub(super) fn a_fence_reaches_regions<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let base = of(other, 4096);
    let survivor: Survivor<H::Endpoint> = Box::new(move |end: H::Endpoint, kill| {
        Box::pin(async move {
            let who = Incarnation(wait_for_word(&end, base, |who| who != 0).await);
            wait_for_word(&end, base.plus(8), |count| count > 10).await;
            let client = Client::new(end.clone());
            kill();
            // First the memory servers, then the regions.
            ok(client.fence_memory(who).await);
            ok(client.fence_peers(who).await);
            let seen = words(&end, base, 600).await;
            for _ in 0..10 {
                end.sleep(500_000).await;
                assert!(words(&end, base, 600).await == seen, "something landed behind the fence");
            }
            ok(end.fence(other.server, who).await);
        })
    });
    harness.run_beside_victim(base, survivor);
}

/// F11.8, on fabrics that fence the living: a life that is cut off from memory server 0 reads no member table
/// any more. A region that it learned of before refuses it once the second step has been there.
pub(super) fn a_fenced_life_finds_no_region_later<H: Harness>(harness: &H) {
    let Some((one, other)) = pair(harness) else { return };
    let gate = of(other, 64);
    let table = at(harness, ServerId(0), 4096);
    let first = task(move |end: H::Endpoint| async move {
        let fenced = end.fence(ServerId(0), other.incarnation).await;
        if fenced.is_err() {
            put_word(&end, gate, 2).await;
            return;
        }
        ok(end.fence(one.server, other.incarnation).await);
        put_word(&end, gate, 1).await;
        wait_for_word(&end, gate, |step| step == 3).await;
        assert_eq!(word(&end, of(one, 4096)).await, 0, "an operation of the fenced");
    });
    let second = task(move |end: H::Endpoint| async move {
        if wait_for_word(&end, gate, |step| step != 0).await == 1 {
            let read = end.read(table, end.buf(8)).await.map(drop).map_err(|error| error.kind);
            assert_eq!(read, Err(OpErrorKind::Fenced));
            // It attaches anew what it knew.
            end.detach(one.server);
            end.attach(one).expect("attached");
            let landed = end.faa(of(one, 4096), 1).await.map_err(|error| error.kind);
            assert_eq!(landed, Err(OpErrorKind::Fenced));
            put_word(&end, gate, 3).await;
        }
    });
    harness.run(vec![first, second]);
}

/// F11.10, on fabrics that fence the living: a fenced owner still reaches its own region, so that alone it
/// does not know that it is fenced. If others hold it for dead, its lease says so.
pub(super) fn a_fenced_owner_does_not_vouch<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let (gate, memory) = (of(other, 64), at(harness, ServerId(0), 4096));
    let first = task(move |end: H::Endpoint| async move {
        let is_fenced = end.fence(ServerId(0), other.incarnation).await.is_ok();
        let is_dead = end.is_dead(other.incarnation).await;
        if !is_dead {
            // The owner itself is never cut off from what is its own.
            let _ = end.fence(other.server, other.incarnation).await;
            put_word(&end, gate, if is_fenced { 1 } else { 2 }).await;
        }
    });
    let second = task(move |end: H::Endpoint| async move {
        let step = wait_for_word(&end, gate, |step| step != 0).await;
        assert_eq!(end.faa(of(other, 4096), 1).await, Ok(0));
        if step == 1 {
            let outside = end.faa(memory, 1).await.map_err(|error| error.kind);
            assert_eq!(outside, Err(OpErrorKind::Fenced));
        } else {
            assert!(end.holds_lease());
        }
    });
    harness.run(vec![first, second]);
}

/// F11.4: the owner's loads see each word whole while others write.
pub(super) fn own_loads_see_whole_words<H: Harness>(harness: &H) {
    const WORDS: usize = 64;
    let Some((one, _)) = pair(harness) else { return };
    let (barrier, done) = (at(harness, H::ONE, 64), at(harness, H::ONE, 128));
    let rounds = harness.rounds(2_000).max(20);
    let owner = task(move |end: H::Endpoint| async move {
        let own = end.own_region().expect("it exposes a region").clone();
        let is_judged = end.capabilities().word_atomic;
        meet(&end, barrier, 2, 1).await;
        while word(&end, done).await == 0 {
            for word in &own.words.as_slice()[512..512 + WORDS] {
                let seen = word.load(Ordering::Relaxed);
                assert!(!is_judged || seen >> 32 == seen & 0xffff_ffff, "torn: {seen:#x}");
            }
            end.yield_now().await;
        }
    });
    let writer = task(move |end: H::Endpoint| async move {
        meet(&end, barrier, 2, 1).await;
        for round in 1..=rounds {
            let mut buf = end.buf(WORDS * 8);
            buf.words_mut().fill(round << 32 | round);
            ok(end.write(of(one, 4096), buf).await);
        }
        put_word(&end, done, 1).await;
    });
    harness.run(vec![owner, writer]);
}

/// F11.4: where the fabric claims `cpu_visible`, a completed WRITE is there for the owner's loads.
pub(super) fn own_loads_see_completed_writes_if_claimed<H: Harness>(harness: &H) {
    let Some((one, _)) = pair(harness) else { return };
    let (step, answer) = (at(harness, H::ONE, 64), at(harness, H::ONE, 128));
    let rounds = harness.rounds(400).max(20);
    let owner = task(move |end: H::Endpoint| async move {
        let own = end.own_region().expect("it exposes a region").clone();
        for round in 1..=rounds {
            wait_for_word(&end, step, |now| now == round).await;
            let seen = own.words.as_slice()[512].load(Ordering::Acquire);
            assert!(!end.capabilities().cpu_visible || seen == round, "{seen} of {round}");
            put_word(&end, answer, round).await;
        }
    });
    let writer = task(move |end: H::Endpoint| async move {
        for round in 1..=rounds {
            put_word(&end, of(one, 4096), round).await;
            put_word(&end, step, round).await;
            wait_for_word(&end, answer, |now| now == round).await;
        }
    });
    harness.run(vec![owner, writer]);
}

/// F10 at a region: nothing older lands behind a reconnect, and what is posted after it does.
pub(super) fn a_reconnect_settles_a_region<H: Harness>(harness: &H) {
    const TRIES: u64 = 30;
    let Some((_, other)) = pair(harness) else { return };
    let base = of(other, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for round in 1..=TRIES {
            put_word(&end, base, 0).await;
            {
                let mut add = pin!(end.faa(base, 1));
                let _ = poll_once(add.as_mut()).await;
                end.sleep(round * 50).await;
            }
            let mut settling = pin!(end.reconnect(other.server));
            let mut behind = pin!(end.faa(base.plus(8), 1));
            let settled = poll_once(settling.as_mut()).await;
            let added = poll_once(behind.as_mut()).await;
            match settled {
                Poll::Ready(settled) => ok(settled),
                Poll::Pending => ok(settling.await),
            }
            let old = match added {
                Poll::Ready(old) => ok(old),
                Poll::Pending => ok(behind.await),
            };
            assert_eq!(old, round - 1, "an operation behind the reconnect");
            let seen = word(&end, base).await;
            assert!(seen <= 1);
            end.sleep(SETTLE_NS).await;
            assert_eq!(word(&end, base).await, seen, "it landed after the reconnect");
        }
    })]);
}

/// F13 at a region: a thread whose connection was ended while it was idle works on at its next operation.
pub(super) fn a_thread_works_on_after_its_connection_was_ended<H: Harness>(harness: &H) {
    const TRIES: u64 = 20;
    let Some((_, other)) = pair(harness) else { return };
    let base = of(other, 4096);
    let rounds = Rounds::default();
    let own = rounds.clone();
    let worker = task(move |end: H::Endpoint| async move {
        for round in 0..TRIES {
            assert_eq!(end.faa(base, 1).await, Ok(round));
            own.give(&end, other.server).await;
        }
        assert_eq!(end.faa(base, 1).await, Ok(TRIES));
    });
    let ender = task(move |end: H::Endpoint| async move {
        for round in 1..=TRIES {
            let mark = rounds.take(&end, round).await;
            end_marked(&end, mark).await;
            rounds.answer();
        }
    });
    harness.run(beside(worker, ender));
}

/// F11.11: three kinds of counts, batches of several kinds, and posts that nobody waits for.
pub(super) fn operations_are_counted_by_kind<H: Harness>(harness: &H) {
    let Some((one, other)) = pair(harness) else { return };
    let memory = at(harness, H::ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let client = Client::new(end.clone());
        let (own, there) = (of(one, 4096), of(other, 4096));
        let before = end.counters().snapshot();
        client.begin(OpKind::Update);
        ok(client.read(memory, client.buf(32)).await);
        ok(client.cas(own, 0, 0).await);
        ok(client.read(there, client.buf(16)).await);
        ok(client.write(there, client.buf(24)).await);
        let mut batch = client.ops();
        batch.faa(there, 0);
        batch.faa(own, 0);
        batch.read(memory, client.buf(8));
        ok(client.post_many(batch).await);
        let mut chain = client.ops();
        chain.write_word(own, 0);
        chain.cas(own, 0, 0);
        ok(client.chain(chain).await);
        ok(client.unawaited().write(there, client.buf(8)).await);
        ok(client.unawaited().faa(own, 0).await);
        ok(client.unawaited().read(memory, client.buf(8)).await);
        ok(client.reconnect(other.server).await);
        let counts = end.counters().snapshot().since(&before);
        let none = Cost::default();
        let on_memory = Cost { reads: 3, round_trips: 1, bytes_read: 32 + 8 + 8, ..none };
        let on_own = Cost {
            writes: 1,
            cas: 2,
            faa: 2,
            chains: 1,
            round_trips: 2,
            bytes_written: 5 * 8,
            ..none
        };
        let on_other = Cost {
            reads: 1,
            writes: 2,
            faa: 1,
            round_trips: 4,
            bytes_read: 16,
            bytes_written: 24 + 8 + 8,
            ..none
        };
        assert_eq!(counts.memory(), on_memory);
        assert_eq!(counts.own(), on_own);
        assert_eq!(counts.compute(), on_other);
        assert_eq!((counts.server(other.server), counts.server(one.server)), (on_other, none));
        let mut all = on_memory;
        all += on_own;
        all += on_other;
        assert_eq!((counts.total(), counts.kind(OpKind::Update)), (all, all));
    })]);
}

/// While the owner of a region is stopped, operations on all other memory go on. Those on its region end:
/// with results, or with `Timeout` or `Gone`.
pub(super) fn a_stopped_owner_blocks_nobody_elsewhere<H: Harness>(harness: &H) {
    let Some((one, _)) = pair(harness) else { return };
    let memory = at(harness, H::OTHER, 4096);
    beside_owner(harness, Role::StoppedOwner, move |end: H::Endpoint, owner, stop| async move {
        ok(end.faa(of(owner, 4096), 1).await);
        stop();
        let mut blocked = pin!(end.faa(of(owner, 4096), 1));
        let mut result = poll_once(blocked.as_mut()).await;
        for round in 0..100 {
            assert_eq!(end.faa(memory, 1).await, Ok(round));
            assert_eq!(end.faa(of(one, 4096), 1).await, Ok(round), "another region");
        }
        let start_ns = end.now_ns();
        while result.is_pending() {
            // The news of its death, where a stopped one is dead after its lease, ends the wait.
            let _ = end.is_dead(owner.incarnation).await;
            end.sleep(1_000_000).await;
            result = poll_once(blocked.as_mut()).await;
            assert!(end.now_ns() - start_ns < DEATH_NS, "an operation on a stopped one's region");
        }
        if let Poll::Ready(Err(error)) = result {
            let is_open = matches!(error.kind, OpErrorKind::Timeout | OpErrorKind::Unavailable);
            assert!(is_open || is_gone(&Err::<(), _>(error), owner), "{error}");
        }
        assert_eq!(end.faa(memory, 1).await, Ok(100));
    });
}

/// One life takes calls and serves its memory, at the same time.
pub(super) fn an_exposed_region_takes_calls_as_well<H: Harness>(harness: &H) {
    const CALLS: u64 = 40;
    let Some((_, other)) = pair(harness) else { return };
    let client = task(move |end: H::Endpoint| async move {
        for number in 0..CALLS {
            let request = patterned(number, 100);
            let mut call = pin!(end.call(other.server, ECHO, request.clone()));
            let early = poll_once(call.as_mut()).await;
            assert_eq!(end.faa(of(other, 4096), 1).await, Ok(2 * number));
            let reply = match early {
                Poll::Ready(reply) => reply,
                Poll::Pending => call.await,
            };
            assert_eq!(reply, Ok(request));
            assert_eq!(end.faa(of(other, 4096), 1).await, Ok(2 * number + 1));
        }
    });
    let server = task(move |end: H::Endpoint| async move {
        for _ in 0..CALLS {
            let mut incoming = end.next_call(ECHO).await.expect("nobody has left");
            assert!(incoming.begin());
            let reply = std::mem::take(&mut incoming.request);
            incoming.reply(reply).expect("the sender waits");
        }
    });
    harness.run(vec![client, server]);
}

/// A life exposes one region. [`super::party`] tries a second one, and sizes that no region has.
pub(super) fn expose_refuses_a_second_region<H: Harness>(harness: &H) {
    beside_owner(harness, Role::Owner, |end: H::Endpoint, owner, kill| async move {
        assert_eq!(end.region_bytes(owner.server), REGION_BYTES);
        assert_eq!(end.faa(of(owner, REGION_BYTES - 8), 1).await, Ok(0));
        kill();
    });
}
