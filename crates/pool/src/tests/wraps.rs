//! Wrap tests: counters start just before they wrap.

use farleaf_fabric::{Client, GlobalAddr, ServerId};

use super::{SMALL, audit_of, endpoint, formatted, member, tick, word};
use crate::geometry::Geometry;

const ONE: ServerId = ServerId(0);

async fn set(client: &Client, at: GlobalAddr, value: u64) {
    let mut buf = client.buf(8);
    buf.words_mut()[0] = value;
    client.write(at, buf).await.unwrap();
}

/// Versions of blocks, sequences of announcements and generations of members wrap, and nothing is
/// lost or handed out twice.
#[test]
fn words_wrap_under_use() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let client = Client::new(end.clone());
        let first = member(&end).await;
        let geometry: Geometry = first.pool().geometry().clone();
        first.leave().await.unwrap();
        crate::age(&client).await.unwrap();
        for life in 0..4 {
            let session = member(&end).await;
            for round in 0..20 {
                let mut live = Vec::new();
                for _ in 0..40 {
                    live.push((
                        session.alloc(ONE, 1000 + 500 * round).await.unwrap(),
                        1000 + 500 * round,
                    ));
                }
                let mut addrs: Vec<_> = live.iter().map(|object| object.0).collect();
                addrs.sort_unstable();
                addrs.dedup();
                assert_eq!(addrs.len(), 40, "an object was handed out twice");
                assert!(audit_of(&session, &live).await.closes(), "life {life}, round {round}");
                for (addr, _) in live {
                    let pin = session.begin(farleaf_fabric::OpKind::Other).await.unwrap();
                    let retiring = session.prepare_retire(addr).await.unwrap();
                    session.retire(retiring);
                    drop(pin);
                }
                tick(&session, 12).await;
            }
            assert!(audit_of(&session, &[]).await.closes());
            let generation =
                word(&session, geometry.member_addr(session.pool().member)).await >> 32;
            assert_eq!(generation as u32, u32::MAX.wrapping_add(life));
            session.leave().await.unwrap();
        }
        let mut wrapped = 0;
        for block in geometry.blocks(ONE) {
            let at = geometry.block_word_addr(block);
            let found = client.read(at, client.buf(8)).await.unwrap().words()[0];
            wrapped += usize::from(found >> 27 < 1000);
        }
        assert!(wrapped > 0, "no block's version has wrapped");
        let announced = client.read(geometry.member_addr(0).plus(16), client.buf(8)).await.unwrap();
        assert!(announced.words()[0] >> 48 & 0x7fff < 0x7ff0, "the sequence has not wrapped");
    });
}

/// A client whose token numbers are used up is left out; another takes its place.
#[test]
fn tokens_end_and_are_never_used_again() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let client = Client::new(end.clone());
        let first = member(&end).await;
        let geometry: Geometry = first.pool().geometry().clone();
        let id = first.id();
        first.leave().await.unwrap();
        set(&client, geometry.client_addr(id).plus(8), (1 << 36) - 10).await;
        let session = member(&end).await;
        assert_ne!(session.id(), id);
        let token = session.lock_token();
        assert!(crate::LockToken::from_word(token).is_some());
    });
}
