//! Compute servers: what they are to each other, for every engine whose tables have owners.
//!
//! Compute servers call each other by the fabric (F12). A request names its table by the address of the meta
//! object, so one [`Host`] serves all tables of a compute server. `docs/design/compute.md` has the bytes.
//!
//! - `INV-COMPUTE-1` A change is done at most once: its sender sends it again only if it was not begun.
//!   If nobody can tell, its outcome is unknown.
//! - `INV-COMPUTE-2` A request begins only while its table is hosted. A table that leaves waits for the
//!   requests that were begun, and the others are not begun.

mod guest;
mod host;
pub mod messages;
mod migration;
mod owned;
mod owned_table;
pub mod ownership;
pub mod partitions;
mod range_owner;
pub mod regions;

use std::future::Future;

use farleaf_fabric::{GlobalAddr, ServerId, ServiceId};
use farleaf_pool::Session;

use crate::IndexError;
pub use guest::{NoGuests, Unowned};
pub use host::{Host, Leaving};
use messages::{OpReply, Request};
pub use migration::{
    Balance, BalanceOptions, Balancer, MoveError, PartLoad, RangeCalls, RangeMove,
};
pub use owned::Owned;
pub use owned_table::OwnedTable;
pub use ownership::{JoinOptions, Owner, Take, equal_width, sampled};
pub use range_owner::{OptionsOf, RangeOwner, ShapeOf};

/// The seeded bugs of ownership and of partitions.
pub mod canaries {
    pub use super::migration::GIVE_UNDRAINED;
    pub use super::ownership::FORWARD_UNCHECKED;
    pub use super::partitions::{
        ACK_UNDRAINED, IGNORE_TERM, MAP_BEFORE_ACK, OPEN_UNACKNOWLEDGED, OPEN_UNFINISHED,
        TWO_CONDUCTORS,
    };
}

/// The service by which compute servers ask each other about tables.
pub const TABLE_SERVICE: ServiceId = ServiceId(1);

/// The number by which the fabric knows the member in `slot` of the pool's table of members.
pub fn number_of(slot: u32) -> ServerId {
    ServerId(ServerId::COMPUTE_FIRST.0 + slot as u16)
}

/// An open table that executes the requests of other compute servers.
pub trait HostedTable: Clone + 'static {
    /// The address of its meta object.
    fn meta(&self) -> GlobalAddr;

    /// Executes a request that another compute server has sent. If its keys are not this compute
    /// server's, nothing is done and the reply says so.
    ///
    /// # Errors
    /// Those of the operation.
    fn serve(
        &self,
        session: &Session,
        request: Request,
    ) -> impl Future<Output = Result<OpReply, IndexError>>;
}
