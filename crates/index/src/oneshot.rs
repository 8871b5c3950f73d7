//! Oneshot: passes one value from one task of a thread to another.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
struct OneshotSlot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// Gives the value.
#[derive(Debug)]
pub struct Sender<T>(Rc<RefCell<OneshotSlot<T>>>);

/// Waits for the value. Dropped, it leaves the sender alone.
#[derive(Debug)]
pub struct Receiver<T>(Rc<RefCell<OneshotSlot<T>>>);

/// A pair of ends.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Rc::new(RefCell::new(OneshotSlot { value: None, waker: None }));
    (Sender(Rc::clone(&slot)), Receiver(slot))
}

impl<T> Sender<T> {
    /// Gives the value to the receiver.
    pub fn send(self, value: T) {
        let waker = {
            let mut slot = self.0.borrow_mut();
            slot.value = Some(value);
            slot.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Future for Receiver<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.borrow_mut();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
