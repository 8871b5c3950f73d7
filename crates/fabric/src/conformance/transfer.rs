//! Transfer cases: READ and WRITE of bytes.

use std::sync::Arc;

use super::tools::{at, filled, get, meet, ok, patterned, put, same};
use super::{Harness, task};
use crate::{Endpoint, Words};

/// Any length from 0 to 3 KiB at any alignment, in memory and in the buffer; nothing beside the
/// range changes.
pub(super) fn every_length_and_alignment_arrives<H: Harness>(harness: &H) {
    const AREA: usize = 4096;
    let base = at(harness, H::ONE, 8192);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let mut shadow = patterned(0, AREA);
        put(&end, base, &shadow).await;
        let short = 0..=72;
        let long = (73..=3072).step_by(61).chain([512, 1023, 1024, 1025, 3072]);
        for (number, len) in (1..).zip(short.chain(long)) {
            for (offset, window) in [(0, 0), (1, 0), (3, 5), (8, 16), (63, 63), (512, 7), (1021, 8)]
            {
                let data = patterned(number, len);
                let mut buf = end.buf(len + window + 9);
                buf.bytes_mut().fill(0xa5);
                buf.bytes_mut()[window..window + len].copy_from_slice(&data);
                ok(end.write(base.plus(offset), buf.window(window..window + len)).await);
                let offset = offset as usize;
                shadow[offset..offset + len].copy_from_slice(&data);
                let what = format!("WRITE of {len} bytes at {offset} from {window}");
                same(&get(&end, base, AREA).await, &shadow, &what);

                let mut buf = end.buf(len + window + 9);
                buf.bytes_mut().fill(0x5a);
                let into = buf.window(window..window + len);
                let buf = ok(end.read(base.plus(offset as u64), into).await);
                let what = format!("READ of {len} bytes at {offset} into {window}");
                same(&buf.bytes()[window..window + len], &data, &what);
                let (before, behind) = (&buf.bytes()[..window], &buf.bytes()[window + len..]);
                assert!(before.iter().chain(behind).all(|byte| *byte == 0x5a), "{what}: beside");
            }
        }
    })]);
}

/// 1 MiB at once, aligned and not.
pub(super) fn a_megabyte_arrives<H: Harness>(harness: &H) {
    const LEN: usize = 1 << 20;
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for (number, offset) in [(1, 8), (2, 64), (3, 4093)] {
            put(&end, base, &[0x11; 8192]).await;
            put(&end, base.plus(LEN as u64), &[0x22; 8192]).await;
            let data = patterned(number, LEN);
            put(&end, base.plus(offset), &data).await;
            same(&get(&end, base.plus(offset), LEN).await, &data, "1 MiB");
            let before = get(&end, base, offset as usize).await;
            assert!(before.iter().all(|byte| *byte == 0x11), "before 1 MiB at {offset}");
            let behind = get(&end, base.plus(offset + LEN as u64), 4096).await;
            assert!(behind.iter().all(|byte| *byte == 0x22), "behind 1 MiB at {offset}");
        }
    })]);
}

/// An operation moves the window, and the buffer that comes back has the window that it had.
pub(super) fn an_operation_moves_its_window<H: Harness>(harness: &H) {
    let base = at(harness, H::ONE, 0);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put(&end, base, &[0; 128]).await;
        let buf = filled(&end, 1, 64);
        let buf = ok(end.write(base, buf.window(16..40)).await);
        assert_eq!((buf.len(), buf.window_start(), buf.window_len()), (64, 16, 24));
        same(buf.bytes(), &patterned(1, 64), "a written buffer");
        same(&get(&end, base, 24).await, &patterned(1, 64)[16..40], "the window");
        assert!(get(&end, base.plus(24), 104).await.iter().all(|byte| *byte == 0));
        // The same buffer, with other windows: to its end, of one byte, of none.
        let buf = ok(end.write(base.plus(64), buf.window(60..)).await);
        same(&get(&end, base.plus(64), 4).await, &patterned(1, 64)[60..], "to the end");
        let buf = ok(end.write(base.plus(80), buf.window(..=0)).await);
        let buf = ok(end.write(base.plus(81), buf.window(7..7)).await);
        assert_eq!(get(&end, base.plus(80), 2).await, [patterned(1, 1)[0], 0]);
        let buf = ok(end.read(base, buf.window(32..36)).await);
        let mut wanted = patterned(1, 64);
        wanted.copy_within(16..20, 32);
        same(buf.bytes(), &wanted, "a READ into a window");
    })]);
}

/// `read_frame` fills the words asked for and no others.
pub(super) fn frames_are_filled_where_asked<H: Harness>(harness: &H) {
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let data = patterned(1, 2048);
        put(&end, base, &data).await;
        let frame = Arc::new(Words::anonymous(256).expect("2 KiB of memory"));
        for (skip, first, words) in [(0, 0, 128), (8, 5, 1), (1024, 128, 128), (16, 200, 0)] {
            frame.store(0, &[u64::MAX; 256]);
            ok(end.read_frame(base.plus(skip), &frame, first, words).await);
            let mut found = [0; 2048];
            frame.load_bytes(0, &mut found);
            let (start, len, skip) = (first * 8, words * 8, skip as usize);
            same(&found[start..start + len], &data[skip..skip + len], "a frame");
            let beside = found[..start].iter().chain(&found[start + len..]);
            assert!(beside.copied().all(|byte| byte == 0xff), "beside {words} words at {first}");
        }
    })]);
}

/// Two writers of different bytes of the same words never undo each other.
pub(super) fn neighbours_keep_their_bytes<H: Harness>(harness: &H) {
    let (base, barrier) = (at(harness, H::ONE, 4096), at(harness, H::ONE, 64));
    let rounds = harness.rounds(2_000);
    // Bytes 0..5, 5..14 and 14..24 of three words: both borders lie inside a word.
    let tasks = [(0, 5), (5, 9), (14, 10)].map(|(offset, len)| {
        task(move |end: H::Endpoint| async move {
            meet(&end, barrier, 3, 1).await;
            for number in 0..rounds {
                let data = patterned(number, len);
                put(&end, base.plus(offset), &data).await;
                same(&get(&end, base.plus(offset), len).await, &data, "my own bytes");
            }
        })
    });
    harness.run(tasks.into());
}
