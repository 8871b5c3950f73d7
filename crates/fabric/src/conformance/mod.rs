//! Conformance suite: tests the contract on any fabric. Behind the feature `conformance`.
//!
//! A fabric shows itself through a [`Harness`]; then one line makes a test of every case:
//!
//! ```text
//! mod mapped_anonymous {
//!     farleaf_fabric::conformance_tests!(super::anonymous());
//! }
//! ```
//!
//! Each case takes a fresh harness of its own, on which every operation succeeds unless it must fail.
//! If the fabric breaks the contract, the case panics. Cases name the rule of [`crate::contract`] that
//! they check. They assume none of [`crate::Capabilities`] beyond the contract. If the fabric claims one,
//! they check the claim.
//!
//! Cases also run on single-threaded executors in virtual time. A case waits by operations and yields,
//! and every wait has a bound in the fabric's own time. Tasks talk through fabric memory or, once they
//! have ended, through shared results.

mod atomics;
mod calls;
mod clock;
mod counted;
mod dropped;
mod ended;
mod fenced;
mod lists;
mod order;
mod reconnect;
mod refused;
mod regions;
mod rpc;
mod tools;
mod transfer;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Counters, Endpoint, GlobalAddr, Peer, ServerId, Service, ServiceId};

pub use calls::party;
pub use fenced::victim;
pub use regions::OnRegions;

/// Bytes of scratch memory that a harness has on every server.
pub const SCRATCH_BYTES: u64 = 4 << 20;
/// Servers that a harness has at least.
pub const SERVERS: usize = 2;

/// A future that stays on its thread.
pub type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Work of one compute server's thread, with the endpoint that it gets on that thread.
pub type Task<E> = Box<dyn FnOnce(E) -> LocalFuture + Send>;

/// Kills the victim, as a crash would; returns when it is gone.
pub type Kill = Box<dyn FnOnce()>;

/// Work beside a victim.
pub type Survivor<E> = Box<dyn FnOnce(E, Kill) -> LocalFuture + Send>;

/// Role of a compute server that the harness kills in the middle of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes calls, begins them and never replies.
    Callee,
    /// Calls the compute server that the test names.
    Caller,
    /// Exposes a region of [`REGION_BYTES`], and does nothing else.
    Owner,
    /// The same; the harness stops it instead of killing it, as by SIGSTOP, and kills it at the end.
    StoppedOwner,
}

/// Bytes of the region of a compute server that the harness kills.
pub const REGION_BYTES: u64 = 64 << 10;

/// Attaches a peer to the survivor's compute server.
pub type Attach = Box<dyn Fn(Peer)>;

/// Work beside a compute server that calls or is called.
pub type CallSurvivor<E> = Box<dyn FnOnce(E, Attach, Kill) -> LocalFuture + Send>;

/// Access of the suite to a fabric.
pub trait Harness: 'static {
    /// Endpoint that its tasks use.
    type Endpoint: Endpoint;

    /// The two servers whose memory the cases use.
    const ONE: ServerId = ServerId(0);
    /// The second of them.
    const OTHER: ServerId = ServerId(1);

    /// Runs all `tasks` concurrently to their end, each with an endpoint of its own (on its own
    /// thread or compute server), and everything that they spawned. A panic of a task must come out
    /// of this call. Cases call it several times, one after the other, over the same memory.
    fn run(&self, tasks: Vec<Task<Self::Endpoint>>);

    /// Offsets of zeroed memory that the suite may use on each of the first [`SERVERS`] servers: at least
    /// [`SCRATCH_BYTES`] from a multiple of 4096 on, up to the region's end.
    fn scratch(&self) -> Range<u64>;

    /// As [`crate::Fabric::serve`].
    fn serve(&self, id: ServiceId, service: Arc<dyn Service>);

    /// As [`crate::Fabric::counters`], of all compute servers.
    fn counters(&self) -> Vec<Arc<Counters>>;

    /// Buffers of that endpoint's thread that a caller or an operation holds.
    fn buffers_out(endpoint: &Self::Endpoint) -> usize;

    /// Starts that endpoint's random numbers anew from `seed`; false if it cannot.
    fn seed(endpoint: &Self::Endpoint, seed: u64) -> bool;

    /// Repetitions of a case that repeats `rounds` times on memory of this process. A fabric whose round trip
    /// takes thousands of times as long returns less.
    fn rounds(&self, rounds: u64) -> u64 {
        rounds
    }

    /// Runs [`victim`] at `addr` on a compute server of its own, and `survivor` beside it with the means to
    /// kill it. If only processes can die, the victim runs in another process. False, having run neither, if
    /// this fabric has no compute server that can die alone.
    fn run_beside_victim(&self, addr: GlobalAddr, survivor: Survivor<Self::Endpoint>) -> bool {
        let _ = (addr, survivor);
        false
    }

    /// Exposes the compute servers for calls, unless that is done, and attaches each to all, itself included.
    /// Returns them in the order in which [`Harness::run`] deals tasks to them, from the first task on in
    /// turn; at least two. None if the fabric carries no calls.
    fn connect_peers(&self) -> Vec<Peer> {
        Vec::new()
    }

    /// As [`Harness::connect_peers`], and each exposes zeroed memory up to the end of
    /// [`Harness::scratch`]. The first two have the numbers [`ServerId::COMPUTE_FIRST`] and the next one.
    /// None if the fabric exposes nothing; then all cases about regions are skipped.
    fn regions(&self) -> Vec<Peer> {
        Vec::new()
    }

    /// As [`Harness::run_beside_victim`], for [`party`] in that role. The survivor runs on the compute
    /// server of the first task.
    fn run_beside_party(
        &self,
        role: Role,
        addr: GlobalAddr,
        survivor: CallSurvivor<Self::Endpoint>,
    ) -> bool {
        let _ = (role, addr, survivor);
        false
    }
}

/// A task from a function that makes a future of its endpoint.
pub fn task<E, F: Future<Output = ()> + 'static>(
    body: impl FnOnce(E) -> F + Send + 'static,
) -> Task<E> {
    Box::new(move |endpoint| Box::pin(body(endpoint)))
}

/// One case of the suite.
pub struct Case<H> {
    /// Its name, a sentence about a fabric that keeps the contract.
    pub name: &'static str,
    /// It is about memory, so that [`run_case_on_regions`] runs it as well.
    pub is_of_memory: bool,
    /// Panics if the fabric does not.
    pub run: fn(&H),
}

/// Runs one case about memory by name, with regions of compute servers in place of memory servers. Returns
/// whether the fabric exposes regions: otherwise the case has not run.
///
/// # Panics
/// As [`run_case`].
pub fn run_case_on_regions<H: Harness>(name: &str, harness: H) -> bool {
    let exposes = !harness.regions().is_empty();
    if exposes {
        let cases = cases::<OnRegions<H>>();
        let mut cases = cases.iter().filter(|case| case.is_of_memory);
        let case = cases.find(|case| case.name == name).expect("a case of that name");
        (case.run)(&OnRegions(harness));
    }
    exposes
}

/// Runs one case by name.
///
/// # Panics
/// If the fabric breaks the contract, or no case has that name.
pub fn run_case<H: Harness>(name: &str, harness: H) {
    let scratch = harness.scratch();
    assert!(scratch.start.is_multiple_of(4096), "scratch memory starts at a page");
    assert!(scratch.end - scratch.start >= SCRATCH_BYTES, "too little scratch memory");
    let cases = cases::<H>();
    let case = cases.iter().find(|case| case.name == name).expect("a case of that name");
    (case.run)(&harness);
}

/// The list of cases, once as functions and once as a macro that makes tests. Those in the first braces are
/// about memory, and run on regions as well.
macro_rules! cases {
    (
        $d:tt
        { $($module:ident: $($name:ident),+ ;)+ }
        { $($other_module:ident: $($other:ident),+ ;)+ }
    ) => {
        /// Every case of the suite.
        pub fn cases<H: Harness>() -> Vec<Case<H>> {
            vec![
                $($(case(stringify!($name), true, $module::$name::<H>),)+)+
                $($(case(stringify!($other), false, $other_module::$other::<H>),)+)+
            ]
        }

        /// Makes a `#[test]` of every case of [`conformance`](crate::conformance); the argument
        /// is an expression that makes a fresh harness.
        #[macro_export]
        macro_rules! conformance_tests {
            ($d harness:expr) => {
                fn fresh_harness() -> impl $d crate::conformance::Harness {
                    $d harness
                }

                $($(
                    #[test]
                    fn $name() {
                        $d crate::conformance::run_case(stringify!($name), fresh_harness());
                    }
                )+)+

                $($(
                    #[test]
                    fn $other() {
                        $d crate::conformance::run_case(stringify!($other), fresh_harness());
                    }
                )+)+

                /// The cases about memory, on memory that compute servers expose.
                mod on_regions {
                    $($(
                        #[test]
                        fn $name() {
                            let harness = super::fresh_harness();
                            $d crate::conformance::run_case_on_regions(stringify!($name), harness);
                        }
                    )+)+
                }
            };
        }
    };
}

fn case<H>(name: &'static str, is_of_memory: bool, run: fn(&H)) -> Case<H> {
    Case { name, is_of_memory, run }
}

cases! { $ {
    transfer: every_length_and_alignment_arrives, a_megabyte_arrives, an_operation_moves_its_window,
        frames_are_filled_where_asked, neighbours_keep_their_bytes;
    atomics: atomics_return_the_old_word, every_addition_counts, every_swap_is_won_once,
        words_are_never_torn, a_lock_guards_a_counter;
    order: completion_is_visible_to_all, no_store_waits_behind_a_read, a_chain_lands_in_order,
        a_chain_reads_in_order;
    lists: a_chain_sees_itself, a_failed_swap_lets_the_chain_go_on, results_stand_at_their_index,
        post_many_reaches_every_server, an_empty_list_completes, a_chain_goes_to_one_server;
    refused: nothing_outside_is_touched, misaligned_atomics_do_nothing,
        unknown_servers_have_no_memory, a_chain_ends_at_its_error;
    dropped: an_unpolled_future_does_nothing, a_dropped_write_lands_unseen,
        a_dropped_read_keeps_its_buffer, a_dropped_chain_lands_unseen,
        a_dropped_batch_lands_unseen, a_dropped_atomic_counts_once;
    counted: every_operation_is_counted_exactly, finished_endpoints_stay_counted;
    fenced: the_living_are_not_dead, a_fenced_victim_writes_no_more;
    reconnect: nothing_older_lands_after_a_reconnect, a_reconnect_leaves_nobody_waiting,
        a_reconnect_affects_one_thread;
    ended: nothing_lands_once_its_connection_was_ended, an_end_leaves_nobody_waiting,
        an_end_affects_one_connection, an_end_may_come_late_or_twice;
} {
    rpc: an_echo_comes_back_whole, a_reply_is_cut_to_the_written_bytes,
        an_unknown_service_is_named, a_handler_works_on_its_servers_memory;
    clock: time_never_goes_back, sleep_is_long_enough, sleepers_wake_in_order,
        a_spawned_task_outlives_its_parent, a_yield_lets_others_run,
        endpoints_draw_their_own_random_numbers;
    calls: a_call_comes_back_whole, calls_overtake_each_other, a_long_call_is_refused,
        a_call_to_nobody_is_not_begun,
        a_call_that_waits_is_not_begun_when_the_receiver_leaves,
        a_begun_call_is_unknown_when_the_receiver_dies, a_dropped_incoming_says_how_far_it_was,
        a_reply_does_not_answer_another_request, a_fenced_life_is_not_served,
        nothing_older_is_begun_after_a_reconnect, calls_are_bounded, calls_are_counted,
        a_request_is_taken_once;
    regions: a_region_begins_zeroed, a_region_is_reached_by_all, the_owner_reaches_its_own,
        a_lock_is_shared_by_owner_and_others, a_batch_reaches_both_kinds,
        a_chain_stays_on_one_server, nothing_outside_a_region_is_touched,
        an_unattached_number_is_out_of_bounds, a_dead_owners_region_is_gone,
        what_was_in_flight_to_the_dead_fails, a_new_life_begins_empty,
        old_operations_miss_the_new_life, a_fence_reaches_regions,
        a_fenced_life_finds_no_region_later, a_fenced_owner_does_not_vouch,
        own_loads_see_whole_words, own_loads_see_completed_writes_if_claimed,
        a_reconnect_settles_a_region, a_thread_works_on_after_its_connection_was_ended,
        operations_are_counted_by_kind,
        a_stopped_owner_blocks_nobody_elsewhere, an_exposed_region_takes_calls_as_well,
        expose_refuses_a_second_region;
} }
