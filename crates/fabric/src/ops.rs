//! Operation lists: hold operations that a client posts together.

use crate::raw::SlabRef;
use crate::{Buf, GlobalAddr, ServerId};

/// One operation of a chain or a batch, and its result once the list has come back.
#[derive(Debug)]
pub enum Op {
    /// READ into the buffer's window.
    Read {
        /// First byte to read.
        from: GlobalAddr,
        /// Destination of the bytes.
        into: Buf,
    },
    /// WRITE of the buffer's window.
    Write {
        /// First byte to write.
        to: GlobalAddr,
        /// Bytes to write.
        from: Buf,
    },
    /// WRITE of one aligned word, carried in the request itself.
    WriteWord {
        /// The word's address.
        to: GlobalAddr,
        /// Its new value.
        value: u64,
    },
    /// CAS.
    Cas {
        /// The word's address.
        at: GlobalAddr,
        /// Stored only over this value.
        expected: u64,
        /// Its new value.
        new: u64,
        /// Result: the word that was there.
        old: u64,
    },
    /// FAA.
    Faa {
        /// The word's address.
        at: GlobalAddr,
        /// Added, wrapping.
        add: u64,
        /// Result: the word that was there.
        old: u64,
    },
}

impl Op {
    /// The first byte that the operation touches.
    pub fn addr(&self) -> GlobalAddr {
        match self {
            Op::Read { from, .. } => *from,
            Op::Write { to, .. } | Op::WriteWord { to, .. } => *to,
            Op::Cas { at, .. } | Op::Faa { at, .. } => *at,
        }
    }

    /// The bytes that it touches.
    pub fn bytes(&self) -> usize {
        match self {
            Op::Read { into, .. } => into.window_len(),
            Op::Write { from, .. } => from.window_len(),
            Op::WriteWord { .. } | Op::Cas { .. } | Op::Faa { .. } => 8,
        }
    }
}

/// A list of operations to post together, taken from and given back to its thread's store, so
/// that building one allocates nothing once warm.
///
/// Results stand in the list that comes back, at the index at which the operation was added.
#[derive(Debug)]
pub struct Ops {
    list: Vec<Op>,
    home: SlabRef,
}

impl Ops {
    pub(crate) fn new(home: SlabRef) -> Self {
        Ops { list: home.take_list(), home }
    }

    /// Adds a READ into the buffer's window; returns its index.
    pub fn read(&mut self, from: GlobalAddr, into: Buf) -> usize {
        self.push(Op::Read { from, into })
    }

    /// Adds a WRITE of the buffer's window; returns its index.
    pub fn write(&mut self, to: GlobalAddr, from: Buf) -> usize {
        self.push(Op::Write { to, from })
    }

    /// Adds a WRITE of one aligned word; returns its index.
    pub fn write_word(&mut self, to: GlobalAddr, value: u64) -> usize {
        self.push(Op::WriteWord { to, value })
    }

    /// Adds a CAS; returns its index.
    pub fn cas(&mut self, at: GlobalAddr, expected: u64, new: u64) -> usize {
        self.push(Op::Cas { at, expected, new, old: 0 })
    }

    /// Adds an FAA; returns its index.
    pub fn faa(&mut self, at: GlobalAddr, add: u64) -> usize {
        self.push(Op::Faa { at, add, old: 0 })
    }

    pub(crate) fn push(&mut self, op: Op) -> usize {
        self.list.push(op);
        self.list.len() - 1
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The operations, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Op> {
        self.list.iter()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> &Op {
        &self.list[index]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Op {
        &mut self.list[index]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Op] {
        &mut self.list
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Op> {
        self.list.iter_mut()
    }

    /// The server of the first operation, if there is one.
    pub fn server(&self) -> Option<ServerId> {
        self.list.first().map(|op| op.addr().server())
    }

    /// Checks that they can be a chain.
    ///
    /// # Panics
    /// If they go to more than one server.
    #[inline]
    pub(crate) fn assert_chain(&self) {
        let server = self.server();
        let one_server = self.iter().all(|op| Some(op.addr().server()) == server);
        assert!(one_server, "a chain goes to one server");
    }

    /// The buffer of the READ or WRITE at `index`.
    ///
    /// # Panics
    /// If there is no READ or WRITE at that index.
    pub fn buf(&self, index: usize) -> &Buf {
        match &self.list[index] {
            Op::Read { into: buf, .. } | Op::Write { from: buf, .. } => buf,
            other => panic!("operation {index} has no buffer: {other:?}"),
        }
    }

    /// Takes the buffer of the READ or WRITE at `index` out of a list that has come back; an empty
    /// one takes its place.
    ///
    /// # Panics
    /// If there is no READ or WRITE at that index.
    pub fn take_buf(&mut self, index: usize) -> Buf {
        let empty = self.home.buf(0);
        match &mut self.list[index] {
            Op::Read { into: buf, .. } | Op::Write { from: buf, .. } => {
                std::mem::replace(buf, empty)
            }
            other => panic!("operation {index} has no buffer: {other:?}"),
        }
    }

    /// The word that the CAS or FAA at `index` found.
    ///
    /// # Panics
    /// If there is no atomic at that index.
    pub fn old(&self, index: usize) -> u64 {
        match &self.list[index] {
            Op::Cas { old, .. } | Op::Faa { old, .. } => *old,
            other => panic!("operation {index} is no atomic: {other:?}"),
        }
    }
}

impl Drop for Ops {
    fn drop(&mut self) {
        self.home.give_list(std::mem::take(&mut self.list));
    }
}
