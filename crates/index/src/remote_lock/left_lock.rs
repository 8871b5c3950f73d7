//! Left lock: a lock word in the memory of a compute server that could not be reached when its holder had done with it.
//!
//! The holder's thread may never run again, and its last operations there may still take effect. So another thread of the
//! compute server, one that always runs, ends the connection on which they travelled, and gives the word back.

use std::fmt::Debug;
use std::pin::pin;

use farleaf_fabric::{ConnectionMark, Endpoint, GlobalAddr, Incarnation, Op, OpError, Ops};
use farleaf_pool::{Session, is_open};

use super::settle_chain;
use crate::compute::regions::has_ended;
use crate::join::within;

/// One attempt to give a lock back, and the pause before the next one.
const ATTEMPT_NS: u64 = 2_000_000_000;
const PAUSE_NS: u64 = 20_000_000;

/// A lock word in the memory of a compute server that could not be reached when its holder had done with it. It keeps nothing
/// of the thread that had the lock.
#[derive(Debug)]
pub struct LeftLock {
    owner: Incarnation,
    word: GlobalAddr,
    token: u64,
    /// The word that takes the place of the token.
    next: u64,
    /// WRITEs that are to be done before.
    writes: Vec<(GlobalAddr, Vec<u8>)>,
    /// Operations of the holder may be under way here.
    connection: Option<ConnectionMark>,
}

/// The keeper of a guard's entry for a lock, which takes the lock if it has to be left.
pub trait LockKeeper: Debug {
    /// Returns whether [`LockKeeper::leave`] may be called.
    fn takes(&self) -> bool;

    /// Sees to it that [`LeftLock::give_back`] is called, by a thread that always runs. The entry ends.
    fn leave(self: Box<Self>, lock: LeftLock);
}

impl LeftLock {
    /// The lock whose word at `owner` holds `token`, with all that `spare` still has to write.
    pub(super) fn new(
        session: &Session,
        owner: Incarnation,
        (word, token, next): (GlobalAddr, u64, u64),
        spare: Option<&Ops>,
    ) -> Self {
        let connection = session.endpoint().connection(word.server());
        let write = |op: &Op| match op {
            Op::Write { to, from } => Some((*to, from.window_bytes().to_vec())),
            Op::WriteWord { to, value } => Some((*to, value.to_le_bytes().to_vec())),
            Op::Read { .. } | Op::Cas { .. } | Op::Faa { .. } => None,
        };
        let writes = spare.into_iter().flat_map(Ops::iter).filter_map(write).collect();
        LeftLock { owner, word, token, next, writes, connection }
    }

    /// Gives it back, once its owner can be reached; returns whether it did, or nothing is left to be given back. `false` if
    /// `ends` says so before that. Called within a task of [`Session::spawn`].
    ///
    /// Cost: 1 round trip to end the holder's connection, 1 reconnect, 1 READ, and a chain of the WRITEs and a CAS.
    pub async fn give_back(&mut self, session: &Session, ends: impl Fn() -> bool) -> bool {
        let endpoint = session.endpoint();
        while !ends() {
            if has_ended(session, self.owner).await {
                return true;
            }
            match within(endpoint, pin!(self.attempt(session)), ATTEMPT_NS).await {
                Some(Ok(())) => return true,
                // This compute server has been cut off, or the owner is gone.
                Some(Err(error)) if !is_open(error) => return true,
                Some(Err(_)) | None => endpoint.sleep(PAUSE_NS).await,
            }
        }
        false
    }

    /// Ends with nothing under way but what the next attempt settles.
    async fn attempt(&mut self, session: &Session) -> Result<(), OpError> {
        if let Some(connection) = self.connection {
            session.endpoint().end_connection(connection).await?;
            self.connection = None;
        }
        let mut spare = session.client().ops();
        for (to, bytes) in &self.writes {
            let mut buf = session.client().buf(bytes.len());
            buf.bytes_mut().copy_from_slice(bytes);
            spare.write(*to, buf);
        }
        settle_chain(session, &spare, (self.word, self.token, self.next), false).await
    }
}
