//! Completion queues: collect the completions of queue pairs.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::device::Device;
use super::ffi::{self, ibv_comp_channel, ibv_cq, ibv_wc};
use crate::verbs::VerbsError;

/// Completions taken at a time.
const BATCH: usize = 32;
/// Bit that marks the numbers of receives.
pub(super) const RECEIVED: u64 = 1 << 63;

/// A completion queue, and the descriptor that signals an event after [`Completions::arm`].
#[derive(Debug)]
pub(crate) struct Completions {
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread, on the same objects too.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

/// End of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// Number that [`super::SendQueue::post`], or the poster on a bare queue pair, gave it.
    pub(crate) number: u64,
    /// Bytes of the message, if this is the completion of a receive.
    pub(crate) received: Option<u32>,
    pub(crate) is_done: bool,
    /// The library's number of the error.
    pub(crate) status: u32,
}

impl Completions {
    /// A queue of at least `entries`.
    pub(crate) fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        let library = device.library;
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(device.context()) };
        let channel = NonNull::new(channel)
            .ok_or_else(|| device.last_error("create a completion channel"))?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are there; no context pointer is given.
        let cq = unsafe {
            let none = ptr::null_mut();
            (library.ibv_create_cq)(device.context(), entries, none, channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = device.last_error("create a completion queue");
            // SAFETY: made above, and nothing uses it.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Completions { cq, channel, device: Arc::clone(device) };
        // Taking an event never waits.
        let flags = rustix::fs::fcntl_getfl(queue.as_fd());
        let set = flags.and_then(|flags| {
            rustix::fs::fcntl_setfl(queue.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)
        });
        set.map_err(|error| device.failed("set up a completion channel")(error.into()))?;
        Ok(Arc::new(queue))
    }

    pub(super) fn cq(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Takes the completions; returns their number.
    pub(crate) fn poll(&self, mut each: impl FnMut(Completion)) -> usize {
        let mut found = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let mut all = 0;
        loop {
            // SAFETY: the queue and its context are there, and there is room for as many.
            let count = unsafe {
                let context = (*self.cq()).context;
                ((*context).ops.poll_cq)(self.cq(), BATCH as c_int, found.as_mut_ptr().cast())
            };
            let count = usize::try_from(count).unwrap_or(0).min(BATCH);
            for wc in &found[..count] {
                let wc = wc.as_ptr();
                // SAFETY: the library has filled as many entries as it says, these two fields in any case.
                let (number, status) = unsafe { ((*wc).wr_id, (*wc).status) };
                let is_done = status == ffi::IBV_WC_SUCCESS;
                let received = (number & RECEIVED != 0).then(|| match is_done {
                    // SAFETY: of a receive that has ended well the library has filled this one, too.
                    true => unsafe { (*wc).byte_len },
                    false => 0,
                });
                each(Completion { number: number & !RECEIVED, received, is_done, status });
            }
            all += count;
            if count < BATCH {
                return all;
            }
        }
    }

    /// Asks for an event at the next completion. Earlier completions may raise none: poll once more.
    pub(crate) fn arm(&self) -> bool {
        // SAFETY: the queue and its context are there.
        unsafe {
            let context = (*self.cq()).context;
            ((*context).ops.req_notify_cq)(self.cq(), 0) == 0
        }
    }

    /// Takes the events of the descriptor.
    pub(crate) fn take_events(&self) {
        let mut count = 0;
        loop {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is there, does not wait, and there is room for both pointers.
            let code = unsafe {
                let channel = self.channel.as_ptr();
                (self.device.library.ibv_get_cq_event)(channel, &mut cq, &mut context)
            };
            if code != 0 {
                break;
            }
            count += 1;
        }
        if count > 0 {
            // SAFETY: the channel has this one queue, so they were all its own.
            unsafe { (self.device.library.ibv_ack_cq_events)(self.cq(), count) };
        }
    }
}

impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open as long as the channel, which lives with `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold this, so none is left; all events have been acknowledged.
        let code = unsafe { (self.device.library.ibv_destroy_cq)(self.cq()) };
        if code == 0 {
            // SAFETY: its only queue is gone.
            unsafe { (self.device.library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        } else {
            // It stays until the process ends, and harms nobody.
            debug_assert_eq!(code, 0, "{}", io::Error::from_raw_os_error(code));
        }
    }
}
