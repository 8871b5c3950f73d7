//! Bus errors: ends a process with a message if memory of a mapped file cannot be had.
//!
//! The system sends SIGBUS to a thread that touches a page of a mapped file which it cannot provide: the file
//! system is full, the file was cut short, or the disk failed. The access cannot go on, so the process ends.

use std::sync::OnceLock;

/// Message, and exit code.
static END: OnceLock<(&'static str, u8)> = OnceLock::new();

/// From here on, a bus error writes `message` to standard error and ends the process with exit code `code`,
/// without running anything else: to others the process has died. The first call counts.
///
/// For programs. A library leaves it to its program what signals do.
pub fn exit_on_bus_error(message: &'static str, code: u8) {
    if END.set((message, code)).is_err() {
        return;
    }
    // SAFETY: all zero bytes are a valid `sigaction`, whose fields are numbers, a set of bits and an optional
    // function.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: `action` is initialised and lives through the call; the old action is not asked for. The handler
    // only calls functions that are safe in a signal handler.
    let _ = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
}

extern "C" fn on_bus_error(_signal: libc::c_int) {
    // A lock-free load: the cell was set before this handler was.
    let (message, code) = END.get().copied().unwrap_or(("", 1));
    // SAFETY: `write` and `_exit` are safe in a signal handler, and the message lives for ever.
    unsafe {
        let _ = libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
        libc::_exit(code.into());
    }
}
