//! Library loader: loads libibverbs at run time, so that the program also runs without rdma-core.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::ffi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use crate::verbs::VerbsError;

/// Name for the dynamic linker, with the library's only version so far.
const NAME: &str = "libibverbs.so.1";

macro_rules! library {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions that are used.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)+
        }

        impl Library {
            fn load() -> Result<Library, libloading::Error> {
                // SAFETY: the library's initialisers register its drivers and touch nothing of ours.
                let library = unsafe { libloading::Library::new(NAME) }?;
                let found = Library {
                    // SAFETY: each type is that of the function in `infiniband/verbs.h`.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0")) }?,)+
                };
                // Never unloaded: the functions are used until the process ends.
                std::mem::forget(library);
                Ok(found)
            }
        }
    };
}

library! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq:
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
}

impl Library {
    /// The library, loaded once.
    pub(super) fn get() -> Result<&'static Library, VerbsError> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY
            .get_or_init(|| Library::load().map_err(|error| error.to_string()))
            .as_ref()
            .map_err(|why| VerbsError::NoLibrary { why: why.clone() })
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(NAME)
    }
}
