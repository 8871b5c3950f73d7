//! Local tests: operations on a thread's own executor, beside another descriptor.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::common::{small, small_with};
use farleaf::{ErrorKind, Farleaf, Local, Operation, TableOptions};

const LONG: Option<Duration> = Some(Duration::from_secs(20));

/// Turns until the tasks have ended.
fn finish(local: &Local) {
    while local.has_tasks() {
        if local.turn() != Some(Duration::ZERO) && local.has_tasks() {
            local.wait(LONG);
        }
    }
}

#[test]
fn operations_of_many_tasks_run_on_this_thread() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let local = db.local().unwrap();
    let own = local.table(&table).unwrap();
    let done = Rc::new(Cell::new(0));
    // More than there are sessions for.
    for number in 0..300_u32 {
        let (own, done) = (own.clone(), Rc::clone(&done));
        local.spawn(async move {
            let key = number.to_be_bytes();
            assert!(own.insert(key, key).await.unwrap());
            assert_eq!(own.get(key).await.unwrap(), Some(key.to_vec()));
            let mut value = Vec::new();
            assert!(own.get_into(key, &mut value).await.unwrap() && value == key);
            own.update_with(key, |_| Some(b"new".to_vec())).await.unwrap();
            done.set(done.get() + 1);
        });
    }
    finish(&local);
    assert_eq!(done.get(), 300);
    let (ended, batch) = (Rc::new(RefCell::new(None)), local.table(&table).unwrap());
    let result = Rc::clone(&ended);
    local.spawn(async move {
        let keys: Vec<_> = (0..64_u32).map(u32::to_be_bytes).collect();
        let many = batch.get_many(&keys).await.unwrap();
        let operations = [Operation::Remove(keys[0]), Operation::Get(keys[0])];
        let answers = batch.run_batch(&operations).await.unwrap();
        let pairs = batch.scan(.., 5, true).await.unwrap();
        assert_eq!(batch.higher(keys[1]).await.unwrap().unwrap().0, keys[2]);
        assert_eq!(batch.floor([&keys[3][..], b"x"].concat()).await.unwrap().unwrap().0, keys[3]);
        assert_eq!(batch.lower(keys[1]).await.unwrap(), None);
        assert_eq!(batch.ceiling(keys[0]).await.unwrap().unwrap().0, keys[1]);
        let prefix = batch.longest_prefix([&keys[3][..], b"x"].concat()).await.unwrap();
        assert_eq!(prefix.unwrap().0, keys[3]);
        assert_eq!(batch.longest_run(&keys[1..]).await.unwrap(), 63);
        assert!(!batch.contains_key(keys[0]).await.unwrap());
        assert_eq!(batch.insert_many(&[(keys[0], b"again")]).await.unwrap(), 1);
        assert_eq!(batch.remove_many(&keys[..1]).await.unwrap(), 1);
        let last = 290_u32.to_be_bytes().to_vec();
        assert_eq!(batch.remove_range(last..).await.unwrap(), 10);
        assert_eq!(batch.count(..).await.unwrap(), 289);
        *result.borrow_mut() = Some((many, answers.len(), pairs.len()));
    });
    finish(&local);
    assert_eq!(ended.take(), Some((vec![Some(b"new".to_vec()); 64], 2, 5)));
    assert_eq!(table.count(..).unwrap(), 289);
}

/// A wait ends when a watched descriptor can be read, when a task can go on, and in time.
#[test]
fn a_wait_ends_with_what_it_waits_for() {
    let db = small();
    let local = db.local().unwrap();
    let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    local.watch(&event).unwrap();
    let start = Instant::now();
    local.wait(Some(Duration::from_millis(20)));
    assert!(start.elapsed() >= Duration::from_millis(10), "nothing came");
    let writes = event.try_clone().unwrap();
    let writer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        rustix::io::write(&writes, &1_u64.to_ne_bytes()).unwrap();
    });
    // It may end earlier; what counts is that the event is there long before the time is over.
    let mut count = [0; 8];
    while rustix::io::read(&event, &mut count).is_err() {
        local.wait(LONG);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    writer.join().unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    // A waker of another thread.
    let (sender, receiver) = async_channel::bounded(1);
    let told = Rc::new(Cell::new(false));
    let seen = Rc::clone(&told);
    local.spawn(async move {
        receiver.recv().await.unwrap();
        seen.set(true);
    });
    local.turn();
    let waker = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        sender.try_send(()).unwrap();
    });
    while !told.get() {
        local.wait(LONG);
        local.turn();
        assert!(start.elapsed() < Duration::from_secs(15));
    }
    waker.join().unwrap();
    // A timer of a task.
    let sleep = local.sleep(Duration::from_millis(15));
    local.spawn(sleep);
    let before = Instant::now();
    assert!(local.turn().is_some_and(|next| next <= Duration::from_millis(15)));
    finish(&local);
    assert!(before.elapsed() >= Duration::from_millis(14) && !local.has_tasks());
}

#[test]
fn a_store_is_not_closed_under_its_own_operations() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let other = small_with(Farleaf::builder());
    let foreign = other.create_table("t", TableOptions::default()).unwrap();
    let local = db.local().unwrap();
    let error = local.table(&foreign).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let own = local.table(&table).unwrap();
    let late = own.clone();
    // An operation under way cannot wait for itself.
    let (inside, seen) = (db.clone(), Rc::new(Cell::new(None)));
    let told = Rc::clone(&seen);
    local.spawn(async move {
        let drops = move |_: Option<&[u8]>| {
            told.set(Some(inside.drop_table("t").unwrap_err().kind()));
            None
        };
        own.update_with("k", drops).await.unwrap();
    });
    finish(&local);
    assert_eq!(seen.get(), Some(ErrorKind::Invalid));
    db.close().unwrap();
    let told = Rc::new(Cell::new(None));
    let seen = Rc::clone(&told);
    local.spawn(async move { seen.set(Some(late.get("k").await.unwrap_err().kind())) });
    finish(&local);
    assert_eq!(told.get(), Some(ErrorKind::Closed));
}
