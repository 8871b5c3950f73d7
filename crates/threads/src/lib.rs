//! Thread models: model the words that threads share; the models are this crate's tests.
//!
//! So the library has nothing to import.
//!
//! Modules with a small protocol between threads take their atomics, locks and threads from
//! `crate::sync`. In their own crate that is the standard library's. The tests here compile the same
//! files by path, with `loom`'s (`tests/loom.rs`) or `shuttle`'s (`tests/shuttle.rs`) in its place.
//! So no crate is built twice, release code is what it was, and the models run with `make test`;
//! `make threads` lets them run longer. (`cfg(loom)` is set in this crate alone: a module that has plain
//! tests of its own leaves them out under it.)
//!
//! `loom` runs every interleaving, and every value that a load may return under the C11 rules. It
//! takes a `SeqCst` load or store for an acquire or a release, and would call protocols wrong that
//! need more (store one word, then look at another). Those run in `shuttle`, to whom everything is
//! sequentially consistent, as they are by the rules: all their accesses are `SeqCst`. Small ones run
//! through all interleavings there, larger ones through random ones.
//!
//! # What threads share, and how it is shown to be right
//!
//! | what | where | shown by |
//! |---|---|---|
//! | words of regions and frames | `fabric/src/raw/copy.rs` | loom |
//! | ready tasks and the root's waker of an executor | `fabric/src/wake.rs` | loom |
//! | wake-ups of the simulator | `fabric/src/sim/woken.rs` | loom |
//! | pins, view, announced-live flag of a member | `pool/src/pins.rs` | shuttle, two threads exhaustively |
//! | operation locks of contexts, closing, the sleeping maintenance thread | `store/src/op_lock.rs` | loom |
//! | latches, work left to their holders and to leaders, mapping table, cooling map and queue, free frames, waiters of the engine `dex` | `index/src/local/`, `engines/src/dex/`; operations inside a range guard: `index/src/compute/ownership/op_counters.rs` | loom (`tests/loom_index.rs`) |
//! | pins on its frames, against who takes the latch | `index/src/local/latch.rs` | shuttle, exhaustively: four `SeqCst` accesses, see `Latch::try_x` |
//! | items of the bench | `bench/src/item_space.rs` | shuttle |
//!
//! The rest is argued, and run under ThreadSanitizer (`make tsan`):
//!
//! - *Counters* (`fabric/src/counters.rs`): each has one writer, who loads and stores; readers take
//!   any value that it had. Nothing follows from one.
//! - *Slabs, buffers, sessions, contexts* hold `Rc` or raw pointers, are not `Send`, and stay on their
//!   thread.
//! - *Tasks of an executor* (`fabric/src/tasks.rs`): their own thread's, but for the queue above.
//! - *The allocator, retired objects, closed clients, retirements* of a member, and the *tables* of a
//!   store: each behind one mutex, never held across an await, no two of them at a time but
//!   `retired` and then `alloc`.
//! - *Copies of remote nodes* (`index/src/local/node_cache.rs`) and *lines for a lock word* (`index/src/local/hand_over.rs`): a
//!   mutex for each part, no two at a time. Copies never change; wakers are called without a mutex.
//! - *The right to free a session's retired objects* (`Retirement::claim`): one flag, taken by `swap`
//!   and given back by `store`; what it guards is behind the mutex beside it.
//! - *The right to announce* (`Epochs::acquire`): a state behind a mutex.
//! - *The root lock's token* (`pool/src/root.rs`): taken by CAS from 0. What a dropped call leaves
//!   over is released by a remote CAS from that very token, which is never used again.
//! - *A tree's root address* (`btree`): a hint. Whatever it leads to is checked by its checksum, which
//!   is bound to the tree.
//! - *Operations of workers on a table* (`TableCore::begin_async`): count, then look at the flag;
//!   flag, then look at the count: all `SeqCst`, as for pins.
//! - *Lives and admissions of a memory server* (`fabric/src/tcp/lives.rs`): a mutex each, taken in the order
//!   known lives, one life, one admission, its other ways, and never two admissions.
//! - *A store's entry in its cluster's directory* (`store/src/registered.rs`): one thread has it; what that
//!   tells the others is behind a mutex, and a channel ends it.
//! - *Jobs of the async API*: `async-channel`, and a mutex around starting and closing.
//! - *A mapped fabric's services and counters*: a lock each; *regions*: never change.
//! - *`farleaf load`*: channels, and flags from which nothing follows.

#![forbid(unsafe_code)]
