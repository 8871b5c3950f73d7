//! RDMA device: an open card, its ports, and the memory registered with it.

use std::any::Any;
use std::ffi::{CStr, c_int};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::ffi::{self, ibv_context, ibv_mr, ibv_pd};
use super::library::Library;
use crate::Words;
use crate::raw::slab::{Registered, Registrar, SlabRef};
use crate::verbs::VerbsError;

/// The vendor number of `rdma_rxe`, which is no card but a driver.
const VENDOR_SOFT_ROCE: u32 = 0xff_ffff;

/// An open device with a protection domain of its own.
#[derive(Debug)]
pub(crate) struct Device {
    pub(super) library: &'static Library,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    name: String,
    pub(crate) facts: DeviceFacts,
}

// SAFETY: libibverbs may be called from any thread, on the same objects too.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Facts that a card states about itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceFacts {
    pub(crate) is_soft_roce: bool,
    /// Most work requests of a queue.
    pub(crate) queue_max: u32,
    /// Most entries of a completion queue.
    pub(crate) completions_max: u32,
    /// READs and atomics that a queue pair answers, and has in flight, at a time.
    pub(crate) answers_max: u8,
    pub(crate) flights_max: u8,
    pub(crate) has_atomics: bool,
    /// Its atomics are atomic against the processor's.
    pub(crate) global_atomics: bool,
}

/// Facts that a port states about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortFacts {
    pub(crate) is_active: bool,
    /// The MTU's number: 1 for 256 bytes to 5 for 4096.
    pub(crate) mtu: u8,
    pub(crate) gid_entries: u32,
    pub(crate) lid: u16,
    pub(crate) is_ethernet: bool,
    pub(crate) message_bytes_max: u32,
}

/// The names of all devices, in the library's order.
pub(crate) fn device_names() -> Result<Vec<String>, VerbsError> {
    let list = List::new(Library::get()?)?;
    Ok(list.devices().map(|device| list.name(device)).collect())
}

/// The library's list of devices.
struct List {
    library: &'static Library,
    first: *mut *mut ffi::ibv_device,
    count: usize,
}

impl List {
    fn new(library: &'static Library) -> Result<List, VerbsError> {
        let mut count = 0;
        // SAFETY: `count` may be written.
        let first = unsafe { (library.ibv_get_device_list)(&mut count) };
        if first.is_null() {
            // ENOSYS or EOPNOTSUPP: no RDMA in this kernel, which is as good as no device.
            return Ok(List { library, first, count: 0 });
        }
        Ok(List { library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = *mut ffi::ibv_device> {
        // SAFETY: the library gave an array of `count` pointers, which stays until it is freed.
        (0..self.count).map(|index| unsafe { *self.first.add(index) })
    }

    fn name(&self, device: *mut ffi::ibv_device) -> String {
        // SAFETY: a device of this list, whose name ends with a zero and lives as long.
        let name = unsafe { CStr::from_ptr((self.library.ibv_get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: it came from `ibv_get_device_list`; devices that were opened stay.
            unsafe { (self.library.ibv_free_device_list)(self.first) };
        }
    }
}

impl Device {
    /// Opens the device of that name.
    pub(crate) fn open(name: &str) -> Result<Arc<Device>, VerbsError> {
        let library = Library::get()?;
        let list = List::new(library)?;
        let Some(device) = list.devices().find(|device| list.name(*device) == name) else {
            let found = list.devices().map(|device| list.name(device)).collect();
            return Err(VerbsError::NoDevice { wanted: Some(name.to_owned()), found });
        };
        // SAFETY: a device of a list that is still there.
        let context = NonNull::new(unsafe { (library.ibv_open_device)(device) })
            .ok_or_else(|| not_opened(name, io::Error::last_os_error()))?;
        // SAFETY: the context is open.
        let Some(pd) = NonNull::new(unsafe { (library.ibv_alloc_pd)(context.as_ptr()) }) else {
            let error = refused(name, "allocate a protection domain", io::Error::last_os_error());
            // SAFETY: opened above, and nothing was made in it.
            unsafe { (library.ibv_close_device)(context.as_ptr()) };
            return Err(error);
        };
        let (name, facts) = (name.to_owned(), DeviceFacts::default());
        let mut device = Device { library, context, pd, name, facts };
        device.facts = device.query()?;
        Ok(Arc::new(device))
    }

    fn query(&self) -> Result<DeviceFacts, VerbsError> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: the context is open, and there is room for what is written.
        let code = unsafe { (self.library.ibv_query_device)(self.context(), attr.as_mut_ptr()) };
        self.check(code, "query the limits")?;
        // SAFETY: all its fields are integers, for which zero is a value.
        let attr: ffi::ibv_device_attr = unsafe { attr.assume_init() };
        let at_most = |value: c_int| u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(DeviceFacts {
            is_soft_roce: attr.vendor_id == VENDOR_SOFT_ROCE,
            queue_max: u32::try_from(attr.max_qp_wr).unwrap_or(0),
            completions_max: u32::try_from(attr.max_cqe).unwrap_or(0),
            answers_max: at_most(attr.max_qp_rd_atom),
            flights_max: at_most(attr.max_qp_init_rd_atom),
            has_atomics: attr.atomic_cap != ffi::IBV_ATOMIC_NONE,
            global_atomics: attr.atomic_cap == ffi::IBV_ATOMIC_GLOB,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(super) fn pd(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }

    /// Reads the facts of a port; the first is 1.
    pub(crate) fn port(&self, port: u8) -> Result<PortFacts, VerbsError> {
        let mut attr = ffi::ibv_port_attr::default();
        // SAFETY: the context is open, and there is room for what is written. The function fills
        // as much of the structure as it knows; the rest stays zero.
        let code = unsafe { (self.library.ibv_query_port)(self.context(), port, &mut attr) };
        if code != 0 {
            let why = "does not exist".to_owned();
            return Err(VerbsError::Port { device: self.name.clone(), port, why });
        }
        Ok(PortFacts {
            is_active: attr.state == ffi::IBV_PORT_ACTIVE,
            mtu: u8::try_from(attr.active_mtu).unwrap_or(1),
            gid_entries: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            lid: attr.lid,
            is_ethernet: attr.link_layer == ffi::IBV_LINK_LAYER_ETHERNET,
            message_bytes_max: attr.max_msg_sz,
        })
    }

    /// An entry of a port's GID table; `None` if it cannot be read or is empty.
    pub(crate) fn gid(&self, port: u8, index: u32) -> Option<[u8; 16]> {
        let mut gid = ffi::ibv_gid::default();
        let index = c_int::try_from(index).ok()?;
        // SAFETY: the context is open, and there is room for what is written.
        let code = unsafe { (self.library.ibv_query_gid)(self.context(), port, index, &mut gid) };
        // The last 8 bytes name the interface; an empty entry has none.
        (code == 0 && gid.raw[8..] != [0; 8]).then_some(gid.raw)
    }

    /// Registers words: for other machines to READ, WRITE and change by atomics, or for this side alone.
    pub(crate) fn register(
        self: &Arc<Self>,
        words: Arc<Words>,
        is_remote: bool,
    ) -> Result<WordsKey, VerbsError> {
        let access = if is_remote {
            ffi::IBV_ACCESS_LOCAL_WRITE
                | ffi::IBV_ACCESS_REMOTE_WRITE
                | ffi::IBV_ACCESS_REMOTE_READ
                | ffi::IBV_ACCESS_REMOTE_ATOMIC
        } else {
            ffi::IBV_ACCESS_LOCAL_WRITE
        };
        let first = words.as_slice().as_ptr();
        let bytes = words.bytes() as usize;
        // SAFETY: the words are mapped until the key is gone, which deregisters them first. They are
        // atomic words: what a card stores there at any time is sound.
        let key = unsafe { self.register_memory(first as usize, bytes, access) }?;
        Ok(WordsKey { key, words })
    }

    /// # Safety
    /// The memory stays, and what a card does to it is sound, until the key is dropped.
    unsafe fn register_memory(
        self: &Arc<Self>,
        address: usize,
        bytes: usize,
        access: c_int,
    ) -> Result<RegionKey, VerbsError> {
        let start = ptr::with_exposed_provenance_mut(address);
        // SAFETY: the domain is there; the caller answers for the memory.
        let mr = unsafe { (self.library.ibv_reg_mr)(self.pd(), start, bytes, access) };
        let Some(mr) = NonNull::new(mr) else {
            let source = io::Error::last_os_error();
            let limit_bytes = getrlimit(Resource::Memlock).current;
            let (device, bytes) = (self.name.clone(), bytes as u64);
            return Err(VerbsError::Memory { device, bytes, limit_bytes, source });
        };
        Ok(RegionKey { mr, device: Arc::clone(self) })
    }

    /// Makes the error of a call for this device that failed, other than for its rights.
    pub(crate) fn failed(&self, what: &'static str) -> impl Fn(io::Error) -> VerbsError {
        move |source| VerbsError::Failed { device: self.name.clone(), what, source }
    }

    /// Makes the error of a card that cannot do what every engine needs.
    pub(crate) fn unfit(&self, why: &str) -> VerbsError {
        VerbsError::Unfit { device: self.name.clone(), why: why.to_owned() }
    }

    /// Turns a code of the library into a result.
    pub(super) fn check(&self, code: c_int, what: &'static str) -> Result<(), VerbsError> {
        match code {
            0 => Ok(()),
            code => Err(refused(&self.name, what, error_of(code))),
        }
    }

    pub(super) fn last_error(&self, what: &'static str) -> VerbsError {
        refused(&self.name, what, io::Error::last_os_error())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all that was made in the domain holds this, so nothing is left. A failure leaves
        // the kernel to clean up when the process ends.
        unsafe {
            (self.library.ibv_dealloc_pd)(self.pd());
            (self.library.ibv_close_device)(self.context());
        }
    }
}

/// Finds the reason for which a device could not be opened. rdma-core reports "no such file" if it may not
/// open one, so this looks again.
#[cold]
fn not_opened(name: &str, said: io::Error) -> VerbsError {
    let nodes = fs::read_dir("/sys/class/infiniband_verbs").into_iter().flatten().flatten();
    let of_device = |folder: &fs::DirEntry| {
        let of = fs::read_to_string(folder.path().join("ibdev")).unwrap_or_default();
        of.trim() == name
    };
    let node = nodes.filter(of_device).map(|folder| folder.file_name()).next();
    let tried = node.map(|node| {
        let path = Path::new("/dev/infiniband").join(node);
        fs::File::options().read(true).write(true).open(path)
    });
    match tried {
        Some(Err(error)) => refused(name, "open the node in /dev/infiniband", error),
        _ => refused(name, "open a context", said),
    }
}

/// Some functions return the error's number, others -1 with the number in `errno`.
pub(super) fn error_of(code: c_int) -> io::Error {
    if code > 0 { io::Error::from_raw_os_error(code) } else { io::Error::last_os_error() }
}

fn refused(device: &str, what: &'static str, source: io::Error) -> VerbsError {
    let device = device.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied => VerbsError::Denied { device, what, source },
        _ => VerbsError::Failed { device, what, source },
    }
}

/// Registered memory; deregistered when it is dropped.
#[derive(Debug)]
struct RegionKey {
    mr: NonNull<ibv_mr>,
    device: Arc<Device>,
}

// SAFETY: as of `Device`.
unsafe impl Send for RegionKey {}
// SAFETY: as of `Device`.
unsafe impl Sync for RegionKey {}

impl RegionKey {
    fn local(&self) -> u32 {
        // SAFETY: the registration is there.
        unsafe { self.mr.as_ref() }.lkey
    }

    fn remote(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }
}

impl Drop for RegionKey {
    fn drop(&mut self) {
        // SAFETY: registered by `register_memory`, and dropped once.
        let code = unsafe { (self.device.library.ibv_dereg_mr)(self.mr.as_ptr()) };
        // The memory is given back next, and a card that still knows it could write into what others
        // put there. Nothing that this program does can bring this about.
        assert_eq!(code, 0, "memory cannot be deregistered: {}", error_of(code));
    }
}

/// Registered words.
#[derive(Debug)]
pub(crate) struct WordsKey {
    // In this order: first deregistered, then unmapped.
    key: RegionKey,
    words: Arc<Words>,
}

impl WordsKey {
    pub(crate) fn words(&self) -> &Arc<Words> {
        &self.words
    }

    /// The key by which this side's queues reach the words.
    pub(super) fn local(&self) -> u32 {
        self.key.local()
    }

    /// The key by which other machines reach the words.
    pub(crate) fn remote(&self) -> u32 {
        self.key.remote()
    }

    /// Address at which the other end reaches the words.
    pub(crate) fn base(&self) -> u64 {
        self.words.as_slice().as_ptr().expose_provenance() as u64
    }
}

/// A slab whose buffers the device knows.
pub(crate) fn registered_slab(device: &Arc<Device>) -> SlabRef {
    SlabRef::registered(Arenas(Arc::clone(device)))
}

/// Registers the arenas of a thread's slab.
struct Arenas(Arc<Device>);

impl Registrar for Arenas {
    unsafe fn register(&self, memory: NonNull<u8>, bytes: usize) -> Option<Registered> {
        let address = memory.expose_provenance().get();
        // SAFETY: the caller keeps the memory until the guard is gone. Cards write only into buffers
        // that a `Hold` owns meanwhile.
        let key = unsafe { self.0.register_memory(address, bytes, ffi::IBV_ACCESS_LOCAL_WRITE) };
        let key = key.ok()?;
        Some(Registered { key: key.local(), guard: Box::new(key) as Box<dyn Any> })
    }
}
