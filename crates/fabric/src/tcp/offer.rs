//! Card access: opens another way to a memory server's words, beside its connections.
//!
//! An accepted connection may ask for such a way (verb 11). The way belongs to the connection: the
//! server cuts it before it closes the connection's admission (TCP-7 in `lives.rs`), so that fences and
//! reconnects hold for both.

use std::io;

use super::call::Caller;

/// Makes ways on the server.
pub(crate) trait Offer: Send + Sync {
    /// Returns whether atomics by its ways and by the processor are atomic against each other.
    fn mixes(&self) -> bool;

    /// Answers a question. `None` if it is not of the protocol. RPCs by the new way run in the name of
    /// `caller`.
    fn answer(&self, question: &[u8], caller: Caller) -> Option<Offered>;
}

/// Result of a question.
pub(crate) struct Offered {
    pub(crate) answer: Vec<u8>,
    /// A way that was made.
    pub(crate) way: Option<Box<dyn Way>>,
}

/// A way to the server's words. Dropped, it is cut as well, but nobody learns whether that succeeded.
pub(crate) trait Way: Send {
    /// Cuts the way: after success, nothing that came by it takes effect any more. After a failure it may be
    /// called again.
    fn cut(&mut self) -> io::Result<()>;
}
