//! Async tests: the async API.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::common::{block_on, eventually, key, small, small_with};
use farleaf::{CompareExchange, ErrorKind, Farleaf, TableOptions};

#[test]
fn every_operation_works_as_a_future() {
    let table = small().create_table("t", TableOptions::default()).unwrap().to_async();
    block_on(async {
        assert!(table.insert("a", "1").await.unwrap());
        assert!(!table.insert("a", "2").await.unwrap());
        assert!(!table.insert_new("a", "3").await.unwrap());
        assert!(table.update("a", "4").await.unwrap());
        assert_eq!(table.get("a").await.unwrap(), Some(b"4".to_vec()));
        assert!(table.contains_key("a").await.unwrap());
        let done = table.compare_exchange("a", Some(b"4"), Some(b"5")).await.unwrap();
        assert_eq!(done, CompareExchange::Exchanged);
        let found = table.compare_exchange("a", None, None).await.unwrap();
        assert_eq!(found, CompareExchange::Found(Some(b"5".to_vec())));
        assert!(table.remove("a").await.unwrap());
        let pairs: Vec<_> = (0..300).map(|number| (key(number), key(number))).collect();
        assert_eq!(table.insert_many(pairs.clone()).await.unwrap(), 300);
        assert_eq!(table.scan(key(10).., 20).await.unwrap(), pairs[10..30]);
        assert_eq!(table.scan(key(20)..key(10), 20).await.unwrap(), []);
        let values = table.get_many([key(5), b"none".to_vec()]).await.unwrap();
        assert_eq!(values, [Some(key(5)), None]);
        assert_eq!(table.remove_many((0..300).map(key)).await.unwrap(), 300);
        assert_eq!(table.scan(.., 1).await.unwrap(), []);
        let error = table.insert(vec![1; 1025], "v").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
}

/// The bounds that a runtime with work stealing asks for.
#[test]
fn futures_may_move_to_another_thread() {
    fn spawn<F: Future<Output: Send> + Send + 'static>(future: F) -> thread::JoinHandle<F::Output> {
        thread::spawn(|| block_on(future))
    }
    let db = small_with(Farleaf::builder().async_workers(2));
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let futures: Vec<_> = (0..8_u32)
        .map(|task| {
            let table = table.to_async();
            spawn(async move {
                let name = format!("task {task}");
                for number in 0..100 {
                    assert!(table.insert(key(task * 100 + number), &name).await.unwrap());
                }
                table.scan(key(task * 100)..key(task * 100 + 100), 1000).await.unwrap().len()
            })
        })
        .collect();
    for future in futures {
        assert_eq!(future.join().unwrap(), 100);
    }
    assert_eq!(table.range(..).count(), 800);
}

#[test]
fn a_future_does_nothing_before_its_first_poll_and_is_not_needed_after() {
    let table = small().create_table("t", TableOptions::default()).unwrap();
    drop(table.to_async().insert("never", "v"));
    {
        let mut begun = pin!(table.to_async().insert("begun", "v"));
        let poll = begun.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll, Poll::Pending | Poll::Ready(Ok(true))));
    }
    eventually(Duration::from_secs(5), "what was begun ends", || {
        table.contains_key("begun").unwrap()
    });
    assert!(!table.contains_key("never").unwrap());
}

/// Many more requests than fit into the queue, all waiting at once, and a close in between.
#[test]
fn a_close_ends_every_future() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap().to_async();
    let threads: Vec<_> = (0..4_u32)
        .map(|thread| {
            let table = table.clone();
            thread::spawn(move || {
                for number in 0..100_000 {
                    match block_on(table.insert(key(thread << 20 | number), "v")) {
                        Ok(is_new) => assert!(is_new),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                            return true;
                        }
                    }
                }
                false
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(50));
    db.close().unwrap();
    for thread in threads {
        assert!(thread.join().unwrap(), "the store was closed before the end");
    }
}
