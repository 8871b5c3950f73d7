//! Contract types: small types that operations take and return.

use std::fmt;
use std::str::FromStr;

use crate::{FabricError, ServerId, Words};

/// A compute server: one life of a process that has the memory servers open. Its number is never 0 and never
/// used again; its text is 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({self})")
    }
}

impl FromStr for Incarnation {
    type Err = FabricError;

    fn from_str(text: &str) -> Result<Self, FabricError> {
        let is_whole = text.len() == 16 && !text.starts_with('+');
        let number = u64::from_str_radix(text, 16).ok().filter(|number| is_whole && *number != 0);
        number.map(Incarnation).ok_or_else(|| {
            FabricError::Config(format!(
                "{text:?} is no compute server: 16 hexadecimal digits name one"
            ))
        })
    }
}

/// The operations that one thread of this compute server had posted to one server up to some moment, by the connection
/// that carries them (F13). Any thread of the same compute server may end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionMark {
    pub(crate) server: ServerId,
    /// The life at the other end; [`ConnectionMark::MEMORY`] for a memory server.
    pub(crate) life: Incarnation,
    /// The thread and the server, as the fabric numbers them.
    pub(crate) line: u64,
    /// The server's number of the connection; 0 if it has none.
    pub(crate) number: u64,
    /// Count of what came before it on the line: the marked operations are those before it.
    pub(crate) posts: u64,
}

impl ConnectionMark {
    pub(crate) const MEMORY: Incarnation = Incarnation(0);

    /// The server at the other end.
    pub fn server(self) -> ServerId {
        self.server
    }
}

/// Promises of a fabric beyond the contract. The fabric determines them at its start, and every result prints
/// them.
/// An engine that profits from one has the safe way beside it. [`Capabilities::NONE`] has only the promises
/// of the contract; the correctness suites run with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Aligned 8-byte words are atomic. The contract demands it; only Soft-RoCE is known to lack
    /// it.
    pub word_atomic: bool,
    /// An aligned 64-byte line is read and written as one.
    pub line_atomic: bool,
    /// The bytes of one WRITE land in address order.
    pub write_inorder: bool,
    /// A WRITE of one aligned word is atomic against CAS and FAA on it, so that a lock may be
    /// released by a WRITE.
    pub write_vs_rmw: bool,
    /// Fabric atomics are atomic against that server's own CPU atomics.
    pub rmw_global: bool,
    /// A completed WRITE is visible to the server's RPC handlers without more.
    pub cpu_visible: bool,
    /// CAS and FAA run without the CPU of a memory server.
    pub native_atomics: bool,
    /// Operations make progress only while the memory server's process runs.
    pub needs_target_progress: bool,
    /// A WRITE of at most so many bytes lands whole or not at all when its initiator dies.
    pub crash_atomic_bytes: u32,
}

impl Capabilities {
    /// The promises of the contract alone.
    pub const NONE: Capabilities = Capabilities {
        word_atomic: true,
        line_atomic: false,
        write_inorder: false,
        write_vs_rmw: false,
        rmw_global: false,
        cpu_visible: false,
        native_atomics: false,
        needs_target_progress: true,
        crash_atomic_bytes: 8,
    };
}

/// The number under which a service answers RPCs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServiceId(pub u16);

/// Result of a service's handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceReply {
    /// Bytes of the reply buffer that hold the reply.
    pub len: usize,
    /// CPU time that the handler stands for, in nanoseconds; only the simulator asks.
    pub cpu_ns: u64,
}

/// A handler that runs on a memory server (allocation, offload) and answers RPCs there.
///
/// A handler reads and changes its server's memory only through `memory`, never waits, and treats
/// the request as input from a stranger.
pub trait Service: Send + Sync {
    /// Answers one request. `reply` is as long as the caller's reply buffer.
    fn call(&self, memory: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply;

    /// Answers a request that came when the server's queue was full, without a look at it; `None`, as
    /// here, lets it wait all the same. Asked by fabrics that have such a queue (the simulator).
    fn busy(&self, reply: &mut [u8]) -> Option<ServiceReply> {
        let _ = reply;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_compute_servers_are_read_back() {
        let name = Incarnation(0xFF);
        assert_eq!(name.to_string(), "00000000000000ff");
        for text in ["00000000000000ff", "00000000000000FF"] {
            assert_eq!(text.parse::<Incarnation>().expect("a name"), name);
        }
        for wrong in ["", "ff", "0000000000000000", "+00000000000000f", "00000000000000fg"] {
            let error = wrong.parse::<Incarnation>().expect_err(wrong).to_string();
            assert!(error.contains(&format!("{wrong:?} is no compute server")), "{error}");
        }
    }
}
