//! Queue pairs of reliable connections.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::completions::Completions;
use super::device::{Device, error_of};
use super::ffi::{
    self, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
};
use crate::verbs::VerbsError;

/// What both ends of a connection must know of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) queue: u32,
    /// Number of the first packet that it sends, 24 bits.
    pub(crate) first_packet: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
}

/// Where this end stands.
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
    /// How long an acknowledgement is waited for: 4.096 us, doubled so many times.
    pub(crate) timeout: u8,
    /// How often a packet is sent again. 7 would be for ever on some cards.
    pub(crate) retries: u8,
}

/// A queue pair. Destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct QueuePair {
    /// `None` once it is destroyed.
    qp: Option<NonNull<ibv_qp>>,
    number: u32,
    inline_max: u32,
    completions: Arc<Completions>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A queue pair that may have `depth` work requests outstanding, in the state INIT. `inline_max`
    /// is a wish. Others may reach what is registered for them only if `is_target`.
    pub(crate) fn new(
        completions: &Arc<Completions>,
        depth: u32,
        inline_max: u32,
        port: u8,
        is_target: bool,
    ) -> Result<QueuePair, VerbsError> {
        let mut pair = match Self::create(completions, depth, inline_max) {
            Err(_) if inline_max > 0 => Self::create(completions, depth, 0)?,
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

    fn create(
        completions: &Arc<Completions>,
        depth: u32,
        inline_max: u32,
    ) -> Result<QueuePair, VerbsError> {
        let device = completions.device();
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: completions.cq(),
            recv_cq: completions.cq(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: depth,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_max,
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
        Ok(QueuePair { qp: Some(qp), number, inline_max, completions: Arc::clone(completions) })
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

    pub(super) fn qp(&self) -> Option<NonNull<ibv_qp>> {
        self.qp
    }

    fn modify(
        &mut self,
        attr: &mut ibv_qp_attr,
        mask: i32,
        what: &'static str,
    ) -> Result<(), VerbsError> {
        let device = self.completions.device();
        let Some(qp) = self.qp else { return Err(gone(device.name(), what)) };
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

    /// Moves it to the error state: nothing more is sent or answered, and what was posted completes
    /// as flushed. It may be there already.
    pub(crate) fn stop(&mut self) {
        let mut attr = ibv_qp_attr { qp_state: ffi::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        // A failure shows when it is destroyed.
        let _ = self.modify(&mut attr, ffi::IBV_QP_STATE, "stop a queue pair");
    }

    /// Stops and destroys it. When this has succeeded, no request of the other end changes memory
    /// here any more, and no answer of the other end changes memory here either. It may be called
    /// again if it has failed.
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
        }
    }
}

#[cold]
fn gone(device: &str, what: &'static str) -> VerbsError {
    let source = io::ErrorKind::NotConnected.into();
    VerbsError::Failed { device: device.to_owned(), what, source }
}
