//! Calls: F12.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::tools::{
    ONE, OTHER, at, ok, patterned, poll_once, put_word, same, wait_for_word, wait_until, word,
};
use super::{Harness, REGION_BYTES, Role, task};
use crate::{
    CALL_BYTES_MAX, CallError, Client, Cost, Endpoint, Fabric, GlobalAddr, Incarnation, Incoming,
    ListenConfig, OpKind, Peer, ServerId, ServiceId,
};

pub(super) const ECHO: ServiceId = ServiceId(11);
const HELD: ServiceId = ServiceId(12);
/// The number of a compute server that a case starts and kills.
pub(super) const PARTY: ServerId = ServerId(ServerId::COMPUTE_FIRST.0 + 60);
/// Longer than any message takes that is not lost.
const SETTLE_NS: u64 = 30_000_000;

/// Writes the address of a compute server, for another process.
async fn tell_peer<E: Endpoint>(end: &E, at: GlobalAddr, peer: Peer) {
    let port = peer.address.map_or(0, |address| u64::from(address.port()));
    put_word(end, at.plus(8), port).await;
    put_word(end, at.plus(16), u64::from(peer.server.0)).await;
    put_word(end, at.plus(24), peer.region_bytes).await;
    put_word(end, at, peer.incarnation.0).await;
}

/// Reads the address that [`tell_peer`] has written.
pub(super) async fn learn_peer<E: Endpoint>(end: &E, at: GlobalAddr) -> Peer {
    let incarnation = Incarnation(wait_for_word(end, at, |who| who != 0).await);
    let port = word(end, at.plus(8)).await as u16;
    let server = ServerId(word(end, at.plus(16)).await as u16);
    let region_bytes = word(end, at.plus(24)).await;
    let address = (port != 0).then(|| SocketAddr::from(([127, 0, 0, 1], port)));
    Peer { server, incarnation, address, region_bytes }
}

/// Work of a compute server that the harness kills in the middle of a call. It stops at the first error.
///
/// # Panics
/// If it cannot take part at all.
pub async fn party<F: Fabric>(
    fabric: F,
    end: F::Endpoint,
    role: Role,
    at: GlobalAddr,
    listen: ListenConfig,
) {
    match role {
        Role::Callee => {
            let exposed = fabric.expose(PARTY, 0, &listen).expect("exposed");
            let address = exposed.map(|exposed| exposed.address);
            let me =
                Peer { server: PARTY, incarnation: end.incarnation(), address, region_bytes: 0 };
            tell_peer(&end, at, me).await;
            let mut held = Vec::new();
            while let Some(mut incoming) = end.next_call(HELD).await {
                assert!(incoming.begin());
                held.push(incoming);
                ok(end.faa(at.plus(64), 1).await);
            }
        }
        Role::Owner | Role::StoppedOwner => {
            // A refused size or number leaves the right to expose a region.
            for (number, bytes) in [(PARTY, 100), (PARTY, 1 << 50), (ONE, REGION_BYTES)] {
                assert!(fabric.expose(number, bytes, &listen).is_err(), "{bytes} bytes");
            }
            let exposed = fabric.expose(PARTY, REGION_BYTES, &listen).expect("exposed");
            assert!(fabric.expose(PARTY, REGION_BYTES, &listen).is_err(), "twice");
            let own = end.own_region().expect("an own region");
            assert_eq!((own.number, own.words.bytes()), (PARTY, REGION_BYTES));
            let address = exposed.map(|exposed| exposed.address);
            let (server, incarnation) = (PARTY, end.incarnation());
            let me = Peer { server, incarnation, address, region_bytes: REGION_BYTES };
            tell_peer(&end, at, me).await;
            loop {
                end.sleep(1_000_000).await;
            }
        }
        Role::Caller => {
            let peer = learn_peer(&end, at).await;
            end.attach(peer).expect("attached");
            put_word(&end, at.plus(72), end.incarnation().0).await;
            // It does not live to see the reply.
            let _ = end.call(peer.server, HELD, vec![1]).await;
            let _ = end.call(peer.server, HELD, vec![2]).await;
        }
    }
}

/// The compute servers of tasks 0 and 1; none if the fabric carries no calls.
fn pair<H: Harness>(harness: &H) -> Option<(Peer, Peer)> {
    match harness.connect_peers()[..] {
        [] => None,
        [one, other, ..] => Some((one, other)),
        [_] => panic!("a harness has two compute servers"),
    }
}

async fn next<E: Endpoint>(end: &E, service: ServiceId) -> Incoming {
    end.next_call(service).await.expect("nobody has left")
}

async fn next_begun<E: Endpoint>(end: &E, service: ServiceId) -> Incoming {
    let mut incoming = next(end, service).await;
    assert!(incoming.begin(), "its sender waits");
    incoming
}

/// Requests and replies of all lengths, between two compute servers, with the sender's life.
pub(super) fn a_call_comes_back_whole<H: Harness>(harness: &H) {
    const LENGTHS: [usize; 8] = [0, 1, 7, 64, 4_097, 300_001, 3 << 20, CALL_BYTES_MAX];
    let Some((one, other)) = pair(harness) else { return };
    let client = task(move |end: H::Endpoint| async move {
        assert_eq!(end.incarnation(), one.incarnation, "task 0 is the first compute server's");
        assert!(end.peers().contains(&other));
        for (number, len) in (0..).zip(LENGTHS) {
            let reply = end.call(other.server, ECHO, patterned(number, len)).await;
            let mut wanted = patterned(number, len);
            wanted.reverse();
            same(&reply.expect("done"), &wanted, "a reply");
        }
    });
    let server = task(move |end: H::Endpoint| async move {
        for (number, len) in (0..).zip(LENGTHS) {
            let mut incoming = next(&end, ECHO).await;
            assert_eq!(incoming.from, one.incarnation);
            same(&incoming.request, &patterned(number, len), "a request");
            assert!(incoming.begin());
            let mut reply = std::mem::take(&mut incoming.request);
            reply.reverse();
            incoming.reply(reply).expect("the sender waits");
        }
    });
    harness.run(vec![client, server]);
}

/// F12.5: the second request's reply comes first.
pub(super) fn calls_overtake_each_other<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let client = task(move |end: H::Endpoint| async move {
        let mut first = pin!(end.call(other.server, ECHO, vec![1]));
        let mut second = pin!(end.call(other.server, HELD, vec![2]));
        assert!(poll_once(first.as_mut()).await.is_pending());
        assert_eq!(second.as_mut().await, Ok(vec![2, 2]));
        assert!(poll_once(first.as_mut()).await.is_pending(), "held until the third");
        assert_eq!(end.call(other.server, HELD, vec![3]).await, Ok(vec![3, 3]));
        assert_eq!(first.await, Ok(vec![1, 1]));
    });
    let server = task(move |end: H::Endpoint| async move {
        let twice = |incoming: Incoming| {
            let reply = incoming.request.repeat(2);
            incoming.reply(reply).expect("the sender waits");
        };
        let first = next_begun(&end, ECHO).await;
        twice(next_begun(&end, HELD).await);
        twice(next_begun(&end, HELD).await);
        twice(first);
    });
    harness.run(vec![client, server]);
}

/// A request that is too long is not sent.
pub(super) fn a_long_call_is_refused<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let long = end.call(other.server, ECHO, vec![0; CALL_BYTES_MAX + 1]).await;
        assert_eq!(long, Err(CallError::TooLong));
    })]);
}

/// F12.3: for a number without a compute server, and for a memory server's.
pub(super) fn a_call_to_nobody_is_not_begun<H: Harness>(harness: &H) {
    if pair(harness).is_none() {
        return;
    }
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for nobody in [ServerId(ServerId::COMPUTE_FIRST.0 + 999), ServerId::MAX] {
            assert_eq!(end.call(nobody, ECHO, vec![1]).await, Err(CallError::NotBegun));
        }
    })]);
}

/// F12.3: a later call is not begun, and a task that waits for requests learns that there are no more.
pub(super) fn a_call_that_waits_is_not_begun_when_the_receiver_leaves<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let left = at(harness, ONE, 4096);
    let client = task(move |end: H::Endpoint| async move {
        let waits = end.call(other.server, HELD, vec![1]).await;
        assert_eq!(waits, Err(CallError::NotBegun));
        wait_for_word(&end, left, |left| left == 1).await;
        let late = end.call(other.server, HELD, vec![2]).await;
        assert_eq!(late, Err(CallError::NotBegun));
        put_word(&end, left, 2).await;
    });
    let server = task(move |end: H::Endpoint| async move {
        end.sleep(SETTLE_NS).await;
        end.leave().await;
        assert!(end.next_call(HELD).await.is_none());
        put_word(&end, left, 1).await;
        wait_for_word(&end, left, |left| left == 2).await;
    });
    harness.run(vec![client, server]);
}

/// F12.2: once the receiver is dead, a begun call is `Unknown`.
pub(super) fn a_begun_call_is_unknown_when_the_receiver_dies<H: Harness>(harness: &H) {
    let place = at(harness, OTHER, 4096);
    harness.run_beside_party(
        Role::Callee,
        place,
        Box::new(move |end: H::Endpoint, attach, kill| {
            Box::pin(async move {
                let peer = learn_peer(&end, place).await;
                attach(peer);
                let outcome = Rc::new(RefCell::new(None));
                let (calling, told) = (end.clone(), Rc::clone(&outcome));
                end.spawn(async move {
                    let called = calling.call(peer.server, HELD, vec![1]).await;
                    *told.borrow_mut() = Some(called);
                });
                wait_for_word(&end, place.plus(64), |begun| begun == 1).await;
                kill();
                let mut is_dead = false;
                let start_ns = end.now_ns();
                while !is_dead {
                    assert!(end.now_ns() - start_ns < 30_000_000_000, "it is dead");
                    end.sleep(1_000_000).await;
                    is_dead = end.is_dead(peer.incarnation).await;
                }
                let later = end.call(peer.server, HELD, vec![2]).await;
                assert!(
                    matches!(later, Err(CallError::NotBegun | CallError::Unknown(_))),
                    "{later:?}"
                );
                wait_until(&end, "the call is told", || outcome.borrow().is_some()).await;
                let outcome = outcome.take();
                assert!(matches!(outcome, Some(Err(CallError::Unknown(_)))), "{outcome:?}");
            })
        }),
    );
}

/// F12.9.
pub(super) fn a_dropped_incoming_says_how_far_it_was<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let client = task(move |end: H::Endpoint| async move {
        assert_eq!(end.call(other.server, ECHO, vec![1]).await, Err(CallError::NotBegun));
        let begun = end.call(other.server, ECHO, vec![2]).await;
        assert!(matches!(begun, Err(CallError::Unknown(_))), "{begun:?}");
        // A caller that drops its future harms nobody.
        {
            let mut gone = pin!(end.call(other.server, ECHO, vec![3]));
            assert!(poll_once(gone.as_mut()).await.is_pending());
        }
        assert_eq!(end.call(other.server, HELD, vec![4]).await, Ok(vec![4]));
    });
    let server = task(move |end: H::Endpoint| async move {
        drop(next(&end, ECHO).await);
        drop(next_begun(&end, ECHO).await);
        next_begun(&end, HELD).await.reply(vec![4]).expect("the sender waits");
        end.leave().await;
    });
    harness.run(vec![client, server]);
}

/// F12.8: a reply to a request of a given-up connection belongs to nobody.
pub(super) fn a_reply_does_not_answer_another_request<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let taken = at(harness, ONE, 4096);
    let client = task(move |end: H::Endpoint| async move {
        let mut old = pin!(end.call(other.server, ECHO, vec![1]));
        assert!(poll_once(old.as_mut()).await.is_pending());
        wait_for_word(&end, taken, |taken| taken == 1).await;
        ok(end.reconnect(other.server).await);
        let told = old.await;
        assert!(matches!(told, Err(CallError::Unknown(_))), "it was begun: {told:?}");
        let new = end.call(other.server, ECHO, vec![2]).await;
        assert_eq!(new, Ok(vec![2]), "the reply to another request");
    });
    let server = task(move |end: H::Endpoint| async move {
        let old = next_begun(&end, ECHO).await;
        assert_eq!(old.request, [1]);
        put_word(&end, taken, 1).await;
        let new = next_begun(&end, ECHO).await;
        // Nobody waits for the reply, whether the receiver knows that or not.
        let _ = old.reply(vec![1]);
        end.sleep(SETTLE_NS).await;
        new.reply(vec![2]).expect("the sender waits");
    });
    harness.run(vec![client, server]);
}

/// F12.4: a request that waited unbegun when the sender reconnected is not begun any more.
pub(super) fn nothing_older_is_begun_after_a_reconnect<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let state = at(harness, ONE, 4096);
    let client = task(move |end: H::Endpoint| async move {
        let mut old = pin!(end.call(other.server, ECHO, vec![1]));
        assert!(poll_once(old.as_mut()).await.is_pending());
        wait_for_word(&end, state, |state| state == 1).await;
        ok(end.reconnect(other.server).await);
        put_word(&end, state, 2).await;
        let told = old.await;
        let is_told = matches!(told, Err(CallError::NotBegun | CallError::Unknown(_)));
        assert!(is_told, "{told:?}");
        assert_eq!(end.call(other.server, ECHO, vec![2]).await, Ok(vec![2]));
    });
    let server = task(move |end: H::Endpoint| async move {
        let mut old = next(&end, ECHO).await;
        assert_eq!(old.request, [1]);
        put_word(&end, state, 1).await;
        wait_for_word(&end, state, |state| state == 2).await;
        assert!(!old.begin(), "begun after the sender's reconnect");
        drop(old);
        let new = next_begun(&end, ECHO).await;
        assert_eq!(new.request, [2]);
        new.reply(vec![2]).expect("the sender waits");
    });
    harness.run(vec![client, server]);
}

/// F12.6: no request of a life is begun once a fence at this compute server has returned.
pub(super) fn a_fenced_life_is_not_served<H: Harness>(harness: &H) {
    let Some((me, _)) = pair(harness) else { return };
    let place = at(harness, OTHER, 4096);
    harness.run_beside_party(
        Role::Caller,
        place,
        Box::new(move |end: H::Endpoint, attach, kill| {
            Box::pin(async move {
                attach(me);
                tell_peer(&end, place, me).await;
                let who = Incarnation(wait_for_word(&end, place.plus(72), |who| who != 0).await);
                let mut incoming = next(&end, HELD).await;
                assert_eq!(incoming.from, who);
                kill();
                let start_ns = end.now_ns();
                while let Err(error) = end.fence(me.server, who).await {
                    assert!(end.now_ns() - start_ns < 30_000_000_000, "it is dead: {error}");
                    end.sleep(1_000_000).await;
                }
                assert!(!incoming.begin(), "a request of a fenced life");
            })
        }),
    );
}

/// F12.10: further calls wait at the sender, and all are done in the end.
pub(super) fn calls_are_bounded<H: Harness>(harness: &H) {
    const CALLS: usize = 1_100;
    const MOST: usize = 1_024;
    let Some((_, other)) = pair(harness) else { return };
    let client = task(move |end: H::Endpoint| async move {
        let done = Rc::new(Cell::new(0));
        for number in 0..CALLS as u64 {
            let (calling, done) = (end.clone(), Rc::clone(&done));
            end.spawn(async move {
                let request = number.to_le_bytes().to_vec();
                assert_eq!(calling.call(other.server, HELD, request.clone()).await, Ok(request));
                done.set(done.get() + 1);
            });
        }
        wait_until(&end, "all calls are done", || done.get() == CALLS).await;
    });
    let server = task(move |end: H::Endpoint| async move {
        let held = Rc::new(RefCell::new(Vec::new()));
        let (taking, taken) = (end.clone(), Rc::clone(&held));
        end.spawn(async move {
            while let Some(incoming) = taking.next_call(HELD).await {
                taken.borrow_mut().push(incoming);
            }
        });
        wait_until(&end, "as many as may be come", || held.borrow().len() >= MOST).await;
        end.sleep(SETTLE_NS).await;
        assert_eq!(held.borrow().len(), MOST, "under way at once");
        let mut replied = 0;
        while replied < CALLS {
            let ready = std::mem::take(&mut *held.borrow_mut());
            replied += ready.len();
            for mut incoming in ready {
                assert!(incoming.begin());
                let reply = incoming.request.clone();
                incoming.reply(reply).expect("the sender waits");
            }
            end.sleep(1_000).await;
        }
        end.leave().await;
    });
    harness.run(vec![client, server]);
}

/// F12.11.
pub(super) fn calls_are_counted<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let client = task(move |end: H::Endpoint| async move {
        let client = Client::new(end.clone());
        let before = end.counters().snapshot();
        client.begin(OpKind::Update);
        assert_eq!(client.call(other.server, ECHO, vec![1; 10]).await, Ok(vec![2; 7]));
        let refused = client.call(other.server, ECHO, vec![1; 5]).await;
        assert_eq!(refused, Err(CallError::NotBegun));
        let counts = end.counters().snapshot().since(&before);
        let wanted =
            Cost { calls: 2, round_trips: 2, bytes_written: 15, bytes_read: 7, ..Cost::default() };
        assert_eq!(counts.server(other.server), wanted);
        assert_eq!((counts.compute(), counts.kind(OpKind::Update)), (wanted, wanted));
        assert_eq!(counts.memory(), Cost::default());
        assert_eq!(counts.total().verbs(), 2);
    });
    let server = task(move |end: H::Endpoint| async move {
        next_begun(&end, ECHO).await.reply(vec![2; 7]).expect("the sender waits");
        drop(next(&end, ECHO).await);
    });
    harness.run(vec![client, server]);
}

/// A request goes to one of the tasks that wait for its service.
pub(super) fn a_request_is_taken_once<H: Harness>(harness: &H) {
    let Some((_, other)) = pair(harness) else { return };
    let rounds = harness.rounds(2_000).clamp(100, 2_000);
    let client = task(move |end: H::Endpoint| async move {
        for number in 0..rounds {
            let reply = end.call(other.server, ECHO, number.to_le_bytes().to_vec()).await;
            assert_eq!(reply, Ok(number.to_le_bytes().to_vec()));
        }
        assert_eq!(end.call(other.server, HELD, Vec::new()).await, Ok(Vec::new()));
    });
    let server = task(move |end: H::Endpoint| async move {
        let taken = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (serving, taken) = (end.clone(), Rc::clone(&taken));
            end.spawn(async move {
                while let Some(mut incoming) = serving.next_call(ECHO).await {
                    assert!(incoming.begin());
                    taken.set(taken.get() + 1);
                    serving.yield_now().await;
                    let reply = incoming.request.clone();
                    incoming.reply(reply).expect("the sender waits");
                }
            });
        }
        // A wait that is given up takes no request with it.
        {
            let mut given_up = pin!(end.next_call(HELD));
            assert!(matches!(poll_once(given_up.as_mut()).await, Poll::Pending));
        }
        next_begun(&end, HELD).await.reply(Vec::new()).expect("the sender waits");
        assert_eq!(taken.get(), rounds);
        end.leave().await;
    });
    harness.run(vec![client, server]);
}
