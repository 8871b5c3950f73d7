//! Bindings: declare the part of libibverbs that this crate uses, as rdma-core's `verbs.h` declares it.
//!
//! The binary interface is frozen (symbol versions `IBVERBS_1.0` and later): rdma-core adds fields only
//! behind those of this file. If the header is installed, `layouts_are_those_of_the_header` compiles a
//! C program against it and compares every size and offset. The assertions below check the same in
//! builds without the header. x86-64 and AArch64 differ only in the mutexes, which lie behind all
//! fields that this crate uses.
#![allow(
    non_camel_case_types,
    reason = "the names of the header, so that both can be read side by side"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Only ever handled by pointer.
#[repr(C)]
pub(super) struct ibv_device {
    _opaque: [u8; 0],
}

/// The table behind `ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq` and `ibv_req_notify_cq`, which are
/// inline functions in the header. All other entries are left to their exported functions.
#[repr(C)]
pub(super) struct ibv_context_ops {
    _before_poll_cq: [*const c_void; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    _before_post_send: [*const c_void; 12],
    pub(super) post_send:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub(super) post_recv:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    _behind: [*const c_void; 5],
}

#[repr(C)]
pub(super) struct ibv_context {
    _device: *mut ibv_device,
    pub(super) ops: ibv_context_ops,
    // More follows.
}

#[repr(C)]
pub(super) struct ibv_pd {
    _context: *mut ibv_context,
    _handle: u32,
}

#[repr(C)]
pub(super) struct ibv_mr {
    _context: *mut ibv_context,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct ibv_comp_channel {
    _context: *mut ibv_context,
    pub(super) fd: c_int,
    _refcnt: c_int,
}

#[repr(C)]
pub(super) struct ibv_cq {
    pub(super) context: *mut ibv_context,
    // More follows.
}

#[repr(C)]
pub(super) struct ibv_qp {
    pub(super) context: *mut ibv_context,
    _qp_context: *mut c_void,
    _pd: *mut ibv_pd,
    _send_cq: *mut ibv_cq,
    _recv_cq: *mut ibv_cq,
    _srq: *mut c_void,
    _handle: u32,
    pub(super) qp_num: u32,
    // More follows.
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_qp_cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct ibv_qp_init_attr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_global_route {
    /// A union in the header, of words too: hence the alignment.
    pub(super) dgid: ibv_gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_gid {
    pub(super) raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_ah_attr {
    pub(super) grh: ibv_global_route,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct ibv_qp_attr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: ibv_qp_cap,
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) alt_ah_attr: ibv_ah_attr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
pub(super) struct ibv_device_attr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_uint,
    /// `max_ee` and what stands behind it.
    pub(super) behind: [c_int; 16],
}

#[repr(C)]
#[derive(Default)]
pub(super) struct ibv_port_attr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// The `wr` union of a work request: one layout for both members that are used, see
/// [`ibv_wr_atomic`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union ibv_wr {
    pub(super) rdma: ibv_wr_rdma,
    pub(super) atomic: ibv_wr_atomic,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_wr_rdma {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_wr_atomic {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_send_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    pub(super) imm_data: u32,
    pub(super) wr: ibv_wr,
    /// `qp_type`, then `bind_mw` or `tso`: of no use to a reliable connection.
    pub(super) behind: [u64; 7],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_recv_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_recv_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

pub(super) const IBV_QPT_RC: c_uint = 2;
pub(super) const IBV_QPS_INIT: c_uint = 1;
pub(super) const IBV_QPS_RTR: c_uint = 2;
pub(super) const IBV_QPS_RTS: c_uint = 3;
pub(super) const IBV_QPS_ERR: c_uint = 6;

pub(super) const IBV_QP_STATE: c_int = 1 << 0;
pub(super) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const IBV_QP_PORT: c_int = 1 << 5;
pub(super) const IBV_QP_AV: c_int = 1 << 7;
pub(super) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(super) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(super) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(super) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(super) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(super) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(super) const IBV_ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;

pub(super) const IBV_WR_RDMA_WRITE: c_uint = 0;
pub(super) const IBV_WR_SEND: c_uint = 2;
pub(super) const IBV_WR_RDMA_READ: c_uint = 4;
pub(super) const IBV_WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
pub(super) const IBV_WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;

pub(super) const IBV_SEND_FENCE: c_uint = 1 << 0;
pub(super) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const IBV_SEND_INLINE: c_uint = 1 << 3;

pub(super) const IBV_WC_SUCCESS: c_uint = 0;

pub(super) const IBV_PORT_ACTIVE: c_uint = 4;
pub(super) const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub(super) const IBV_ATOMIC_NONE: c_uint = 0;
pub(super) const IBV_ATOMIC_GLOB: c_uint = 2;

// From rdma-core 44.0, libibverbs/verbs.h, on x86-64.
const _: () = {
    assert!(size_of::<ibv_context_ops>() == 256);
    assert!(size_of::<ibv_pd>() == 16);
    assert!(size_of::<ibv_mr>() == 48);
    assert!(size_of::<ibv_comp_channel>() == 16);
    assert!(size_of::<ibv_qp_cap>() == 20);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_global_route>() == 24);
    assert!(size_of::<ibv_ah_attr>() == 32);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_wc>() == 48);
};

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// Compares sizes and offsets with those of the C compiler.
    #[test]
    #[cfg_attr(miri, ignore = "runs a compiler")]
    fn layouts_are_those_of_the_header() {
        macro_rules! layouts {
            ($($name:ident: $($field:ident),* ;)+) => {
                vec![$(
                    $((
                        format!("offsetof(struct {}, {})", stringify!($name), stringify!($field)),
                        offset_of!($name, $field),
                    ),)*
                )+]
            };
        }
        let mut wanted = layouts! {
            ibv_context: ops;
            ibv_context_ops: poll_cq, req_notify_cq, post_send, post_recv;
            ibv_mr: lkey, rkey;
            ibv_comp_channel: fd;
            ibv_cq: context;
            ibv_qp: context, qp_num;
            ibv_qp_cap: max_send_wr, max_recv_wr, max_recv_sge, max_inline_data;
            ibv_qp_init_attr: send_cq, recv_cq, srq, cap, qp_type, sq_sig_all;
            ibv_global_route: dgid, flow_label, sgid_index, hop_limit;
            ibv_ah_attr: grh, dlid, sl, is_global, port_num;
            ibv_qp_attr: qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
                ah_attr, pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num,
                timeout, retry_cnt, rnr_retry, rate_limit;
            ibv_device_attr: vendor_id, max_qp_wr, max_cqe, max_qp_rd_atom, max_qp_init_rd_atom,
                atomic_cap;
            ibv_port_attr: state, active_mtu, gid_tbl_len, max_msg_sz, lid, link_layer;
            ibv_sge: addr, length, lkey;
            ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags, wr;
            ibv_recv_wr: wr_id, next, sg_list, num_sge;
            ibv_wc: wr_id, status, opcode, byte_len, qp_num;
        };
        macro_rules! sizes {
            ($($name:ident)+) => {
                [$((format!("sizeof(struct {})", stringify!($name)), size_of::<$name>()),)+]
            };
        }
        wanted.extend(sizes! {
            ibv_context_ops ibv_pd ibv_mr ibv_comp_channel ibv_qp_cap ibv_qp_init_attr
            ibv_global_route ibv_ah_attr ibv_qp_attr ibv_device_attr ibv_port_attr ibv_sge
            ibv_send_wr ibv_recv_wr ibv_wc
        });
        let union = offset_of!(ibv_send_wr, wr);
        for (field, at) in [
            ("wr.rdma.remote_addr", offset_of!(ibv_wr_rdma, remote_addr)),
            ("wr.rdma.rkey", offset_of!(ibv_wr_rdma, rkey)),
            ("wr.atomic.compare_add", offset_of!(ibv_wr_atomic, compare_add)),
            ("wr.atomic.swap", offset_of!(ibv_wr_atomic, swap)),
            ("wr.atomic.rkey", offset_of!(ibv_wr_atomic, rkey)),
        ] {
            wanted.push((format!("offsetof(struct ibv_send_wr, {field})"), union + at));
        }
        for (name, value) in [
            ("IBV_QPT_RC", IBV_QPT_RC),
            ("IBV_QPS_ERR", IBV_QPS_ERR),
            ("IBV_QP_DEST_QPN", IBV_QP_DEST_QPN as u32),
            ("IBV_QP_MAX_DEST_RD_ATOMIC", IBV_QP_MAX_DEST_RD_ATOMIC as u32),
            ("IBV_ACCESS_REMOTE_ATOMIC", IBV_ACCESS_REMOTE_ATOMIC as u32),
            ("IBV_WR_SEND", IBV_WR_SEND),
            ("IBV_WR_RDMA_READ", IBV_WR_RDMA_READ),
            ("IBV_WR_ATOMIC_FETCH_AND_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD),
            ("IBV_SEND_INLINE", IBV_SEND_INLINE),
            ("IBV_PORT_ACTIVE", IBV_PORT_ACTIVE),
            ("IBV_LINK_LAYER_ETHERNET", u32::from(IBV_LINK_LAYER_ETHERNET)),
            ("IBV_ATOMIC_GLOB", IBV_ATOMIC_GLOB),
        ] {
            wanted.push((name.to_owned(), value as usize));
        }
        if !Path::new("/usr/include/infiniband/verbs.h").exists() {
            println!("skipped: no infiniband/verbs.h here (Debian: libibverbs-dev)");
            return;
        }
        let folder = std::env::temp_dir().join(format!("farleaf-ffi-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let checks: String = wanted
            .iter()
            .map(|(what, value)| format!("_Static_assert({what} == {value}, \"{what}\");\n"))
            .collect();
        let source =
            format!("#include <stddef.h>\n#include <infiniband/verbs.h>\n{checks}int nothing;\n");
        let path = folder.join("layouts.c");
        std::fs::write(&path, source).expect("written");
        let compiled = Command::new("cc").args(["-fsyntax-only"]).arg(&path).output();
        std::fs::remove_dir_all(&folder).expect("removed");
        match compiled {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{said}");
            }
            Err(error) => println!("skipped: no C compiler: {error}"),
        }
    }
}
