//! Fencing: F6.

use super::tools::{at, get, ok, put, put_word, wait_for_word, word};
use super::{Harness, task};
use crate::{Endpoint, GlobalAddr, Incarnation, OpErrorKind, ServerId};

/// Bytes that the victim writes at a time.
const BLOCK: usize = 4096;

/// Work of a victim: writes its incarnation to the word at `at`. Until it is killed or fenced, it counts up
/// in the next word and, over and over, in the block behind that.
pub async fn victim<E: Endpoint>(end: E, at: GlobalAddr) {
    put_word(&end, at, end.incarnation().0).await;
    for round in 1.. {
        let block = round_block(round);
        let mut buf = end.buf(BLOCK);
        buf.bytes_mut().copy_from_slice(&block);
        // An error means that the fence has come; a fence must withstand further attempts.
        let _ = end.write(at.plus(64), buf).await;
        let _ = end.faa(at.plus(8), 1).await;
        end.yield_now().await;
    }
}

fn round_block(round: u64) -> Vec<u8> {
    round.to_le_bytes().repeat(BLOCK / 8)
}

/// A working life is not known to be dead, to itself or to others.
pub(super) fn the_living_are_not_dead<H: Harness>(harness: &H) {
    let places = [at(harness, H::ONE, 4096), at(harness, H::ONE, 4096 + 8)];
    let tasks = (0..2).map(|me| {
        task(move |end: H::Endpoint| async move {
            put_word(&end, places[me], end.incarnation().0).await;
            let other = wait_for_word(&end, places[1 - me], |who| who != 0).await;
            assert!(!end.is_dead(end.incarnation()).await, "I am not dead");
            assert!(!end.is_dead(Incarnation(other)).await, "the other is not dead");
            // Stays alive until the other has looked.
            ok(end.faa(places[me].plus(64), 1).await);
            wait_for_word(&end, places[1 - me].plus(64), |looked| looked == 1).await;
        })
    });
    harness.run(tasks.collect());
}

/// F6: once a fence has returned, nothing of that life arrives any more at any server that took the fence. If
/// a fabric can fence only the dead, it first refuses to fence the living.
pub(super) fn a_fenced_victim_writes_no_more<H: Harness>(harness: &H) {
    let at = at(harness, H::OTHER, 4096);
    let shown = harness.run_beside_victim(
        at,
        Box::new(move |end: H::Endpoint, kill| {
            Box::pin(async move {
                let who = Incarnation(wait_for_word(&end, at, |who| who != 0).await);
                assert_ne!(who, end.incarnation());
                let counted = word(&end, at.plus(8)).await;
                wait_for_word(&end, at.plus(8), |count| count > counted + 10).await;
                match end.fence(H::OTHER, who).await {
                    // This fabric can fence the living, and that alone must silence them.
                    Ok(()) => assert_silent(&end, at).await,
                    Err(error) => assert_eq!(error.kind, OpErrorKind::StillAlive),
                }
                kill();
                for server in 0..end.server_count() {
                    ok(end.fence(ServerId(server as u16), who).await);
                }
                for server in [H::ONE, H::OTHER] {
                    ok(end.fence(server, who).await);
                }
                assert_silent(&end, at).await;
                // Again is fine, and others work on.
                ok(end.fence(H::OTHER, who).await);
                put(&end, at.plus(64), &round_block(0)).await;
                assert!(get(&end, at.plus(64), BLOCK).await.iter().all(|byte| *byte == 0));
            })
        }),
    );
    if !shown {
        // Nobody can die alone here; the asking life is alive.
        harness.run(vec![task(move |end: H::Endpoint| async move {
            assert!(!end.is_dead(end.incarnation()).await);
        })]);
    }
}

/// The words that the victim changes stay as they are for 10 ms.
async fn assert_silent<E: Endpoint>(end: &E, at: GlobalAddr) {
    let (count, block) = (word(end, at.plus(8)).await, get(end, at.plus(64), BLOCK).await);
    for _ in 0..20 {
        end.sleep(500_000).await;
        assert_eq!(word(end, at.plus(8)).await, count, "an FAA behind the fence");
        assert!(get(end, at.plus(64), BLOCK).await == block, "a WRITE behind the fence");
    }
}
