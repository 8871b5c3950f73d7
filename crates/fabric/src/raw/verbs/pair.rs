//! Queue pairs: make, connect and destroy the ends of reliable connections.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::completions::{Completions, RECEIVED};
use super::device::{Device, error_of};
use super::ffi::{
    self, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wr, ibv_wr_rdma,
};
use super::messages::Messages;
use crate::verbs::VerbsError;

/// Facts about one end of a connection that both ends need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) queue: u32,
    /// Number of the first packet that it sends, 24 bits.
    pub(crate) first_packet: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
}

/// Settings of this end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    /// Addressed by GID, as on Ethernet; else by LID.
    pub(crate) is_global: bool,
    pub(crate) first_packet: u32,
    /// READs and atomics that are answered, and in flight, at a time.
    pub(crate) answers: u8,
    pub(crate) flights: u8,
    /// The MTU's number.
    pub(crate) mtu: u8,
    /// Wait for an acknowledgement: 4.096 us, doubled so many times.
    pub(crate) timeout: u8,
    /// Times that the card sends a packet again. 7 means for ever on some cards.
    pub(crate) retries: u8,
}

/// Capacity of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Work requests that may be outstanding.
    pub(crate) depth: u32,
    /// Bytes that a work request should be able to carry itself; the card may grant less.
    pub(crate) inline_max: u32,
    /// Receives that may be posted, and messages that may be in sending.
    pub(crate) messages: u16,
    /// Bytes of the longest message.
    pub(crate) message_bytes: usize,
}

/// A queue pair. Destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct QueuePair {
    /// `None` once it is destroyed.
    qp: Option<NonNull<ibv_qp>>,
    number: u32,
    inline_max: u32,
    completions: Arc<Completions>,
    /// Freed after the queue pair (INV-MESSAGE-1).
    messages: Option<Messages>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A queue pair in the state INIT. Other machines may reach memory registered for them only if
    /// `is_target`.
    pub(crate) fn new(
        completions: &Arc<Completions>,
        size: Size,
        port: u8,
        is_target: bool,
    ) -> Result<QueuePair, VerbsError> {
        let mut pair = match Self::create(completions, size) {
            Err(_) if size.inline_max > 0 => {
                Self::create(completions, Size { inline_max: 0, ..size })?
            }
            pair => pair?,
        };
        let access = if is_target {
            ffi::IBV_ACCESS_REMOTE_WRITE
                | ffi::IBV_ACCESS_REMOTE_READ
                | ffi::IBV_ACCESS_REMOTE_ATOMIC
        } else {
            0
        };
        let mut attr = ibv_qp_attr {
            qp_state: ffi::IBV_QPS_INIT,
            port_num: port,
            qp_access_flags: access as u32,
            ..ibv_qp_attr::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_PKEY_INDEX
            | ffi::IBV_QP_PORT
            | ffi::IBV_QP_ACCESS_FLAGS;
        pair.modify(&mut attr, mask, "initialise a queue pair")?;
        Ok(pair)
    }

    fn create(completions: &Arc<Completions>, size: Size) -> Result<QueuePair, VerbsError> {
        let device = completions.device();
        let messages = match size.messages {
            0 => None,
            count => Some(Messages::new(device, count, size.message_bytes)?),
        };
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: completions.cq(),
            recv_cq: completions.cq(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: size.depth,
                max_recv_wr: u32::from(size.messages.max(1)),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: size.inline_max,
            },
            qp_type: ffi::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are there and outlive the pair, which holds them.
        let qp = unsafe { (device.library.ibv_create_qp)(device.pd(), &mut attr) };
        let qp = NonNull::new(qp).ok_or_else(|| device.last_error("create a queue pair"))?;
        // SAFETY: it was just made.
        let number = unsafe { qp.as_ref() }.qp_num;
        let inline_max = attr.cap.max_inline_data;
        let completions = Arc::clone(completions);
        Ok(QueuePair { qp: Some(qp), number, inline_max, completions, messages })
    }

    /// Its number, for the other end.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        self.completions.device()
    }

    /// Bytes that a work request can carry itself.
    pub(super) fn inline_max(&self) -> u32 {
        self.inline_max
    }

    /// Returns whether it has not been destroyed.
    pub(super) fn is_there(&self) -> bool {
        self.qp.is_some()
    }

    /// Hands a list of work requests to the card.
    ///
    /// # Safety
    /// The list is whole, and what it names stays, and may be read and written, until it has completed or
    /// the pair is destroyed.
    pub(super) unsafe fn post(&self, list: *mut ibv_send_wr) -> io::Result<()> {
        let Some(qp) = self.qp else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is there; the caller answers for the list.
        let code = unsafe {
            let context = (*qp.as_ptr()).context;
            ((*context).ops.post_send)(qp.as_ptr(), list, &mut bad)
        };
        if code == 0 { Ok(()) } else { Err(error_of(code)) }
    }

    fn messages(&self) -> io::Result<&Messages> {
        self.messages.as_ref().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Number of receives that it may have posted.
    pub(super) fn places(&self) -> u64 {
        self.messages.as_ref().map_or(0, Messages::count)
    }

    /// Posts a receive for message `number`; its completion has the number `tag`, below 2^63.
    ///
    /// # Errors
    /// The library's error; `NotConnected` if the pair is destroyed.
    pub(crate) fn expect(&mut self, number: u64, tag: u64) -> io::Result<()> {
        let Some(qp) = self.qp else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut place = self.messages()?.to_receive(number);
        let (next, wr_id) = (ptr::null_mut(), tag | RECEIVED);
        let mut request = ibv_recv_wr { wr_id, next, sg_list: &mut place, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is there. The place consists of words that stay until the pair is destroyed
        // (INV-MESSAGE-1), and the library copies the request.
        let code = unsafe {
            let context = (*qp.as_ptr()).context;
            ((*context).ops.post_recv)(qp.as_ptr(), &mut request, &mut bad)
        };
        if code == 0 { Ok(()) } else { Err(error_of(code)) }
    }

    /// Copies message `number`, of `bytes`, which has arrived.
    pub(crate) fn take(&self, number: u64, bytes: u32, into: &mut Vec<u8>) -> io::Result<()> {
        self.messages()?.load(number, bytes, into);
        Ok(())
    }

    /// Puts message `number` into its place; returns its bytes.
    pub(super) fn put(&self, number: u64, parts: [&[u8]; 2]) -> io::Result<u32> {
        Ok(self.messages()?.store(number, parts))
    }

    /// Work request that sends message `number`, which was put before. Not signalled.
    pub(super) fn message(&self, number: u64, bytes: u32) -> io::Result<Form> {
        let place = self.messages()?.to_send(number, bytes);
        let send_flags = if bytes <= self.inline_max { ffi::IBV_SEND_INLINE } else { 0 };
        Ok(Form { opcode: ffi::IBV_WR_SEND, send_flags, wr: BLANK.wr, place })
    }

    /// Sends message `number`; its completion has the number `tag`.
    ///
    /// # Errors
    /// The library's error; `NotConnected` if the pair is destroyed.
    ///
    /// # Panics
    /// If it is longer than a place.
    pub(crate) fn send(&mut self, number: u64, content: &[u8], tag: u64) -> io::Result<()> {
        let bytes = self.put(number, [content, &[]])?;
        let Form { opcode, send_flags, wr, mut place } = self.message(number, bytes)?;
        let send_flags = send_flags | ffi::IBV_SEND_SIGNALED;
        let sg_list = &mut place;
        let mut request = ibv_send_wr { wr_id: tag, sg_list, opcode, send_flags, wr, ..BLANK };
        // SAFETY: a list of one, whose place consists of words that stay until the pair is destroyed
        // (INV-MESSAGE-1); the library copies the rest.
        unsafe { self.post(&mut request) }
    }

    fn modify(
        &mut self,
        attr: &mut ibv_qp_attr,
        mask: i32,
        what: &'static str,
    ) -> Result<(), VerbsError> {
        let device = self.completions.device();
        let Some(qp) = self.qp else {
            return Err(device.failed(what)(io::ErrorKind::NotConnected.into()));
        };
        // SAFETY: the pair is there.
        let code = unsafe { (device.library.ibv_modify_qp)(qp.as_ptr(), attr, mask) };
        device.check(code, what)
    }

    /// Connects to the other end: RTR, then RTS.
    pub(crate) fn connect(&mut self, here: &Here, there: &Ends) -> Result<(), VerbsError> {
        let mut attr = ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTR,
            path_mtu: here.mtu.into(),
            dest_qp_num: there.queue,
            rq_psn: there.first_packet,
            max_dest_rd_atomic: here.answers,
            min_rnr_timer: 12,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: there.gid },
                    sgid_index: here.gid_index,
                    hop_limit: 64,
                    ..ibv_global_route::default()
                },
                dlid: there.lid,
                is_global: here.is_global.into(),
                port_num: here.port,
                ..ibv_ah_attr::default()
            },
            ..ibv_qp_attr::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_AV
            | ffi::IBV_QP_PATH_MTU
            | ffi::IBV_QP_DEST_QPN
            | ffi::IBV_QP_RQ_PSN
            | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask, "connect a queue pair")?;
        let mut attr = ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTS,
            sq_psn: here.first_packet,
            max_rd_atomic: here.flights,
            timeout: here.timeout,
            retry_cnt: here.retries.min(6),
            rnr_retry: 6,
            ..ibv_qp_attr::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_SQ_PSN
            | ffi::IBV_QP_MAX_QP_RD_ATOMIC
            | ffi::IBV_QP_TIMEOUT
            | ffi::IBV_QP_RETRY_CNT
            | ffi::IBV_QP_RNR_RETRY;
        self.modify(&mut attr, mask, "start a queue pair")
    }

    /// Moves it to the error state: it sends and answers nothing more, and its work requests complete as
    /// flushed. It may be in that state already.
    pub(crate) fn stop(&mut self) {
        let mut attr = ibv_qp_attr { qp_state: ffi::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        // A failure shows when it is destroyed.
        let _ = self.modify(&mut attr, ffi::IBV_QP_STATE, "stop a queue pair");
    }

    /// Stops and destroys it. After success, no request or answer of the other end changes memory here. After
    /// a failure it may be called again.
    pub(crate) fn cut(&mut self) -> io::Result<()> {
        self.stop();
        let Some(qp) = self.qp else { return Ok(()) };
        // SAFETY: the pair is there, and forgotten if this succeeds. Nobody else has a pointer to it.
        match unsafe { (self.completions.device().library.ibv_destroy_qp)(qp.as_ptr()) } {
            0 => {
                self.qp = None;
                Ok(())
            }
            code => Err(error_of(code)),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.cut().is_err() {
            // It lives on until the process ends, and with it all that it may use.
            std::mem::forget(Arc::clone(&self.completions));
            if let Some(messages) = &self.messages {
                messages.leak();
            }
        }
    }
}

/// Parameters of a work request with one place.
pub(super) struct Form {
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    pub(super) wr: ibv_wr,
    pub(super) place: ibv_sge,
}

/// A work request to be filled in, and put into a list.
pub(super) const BLANK: ibv_send_wr = ibv_send_wr {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null_mut(),
    num_sge: 1,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    wr: ibv_wr { rdma: ibv_wr_rdma { remote_addr: 0, rkey: 0 } },
    behind: [0; 7],
};
