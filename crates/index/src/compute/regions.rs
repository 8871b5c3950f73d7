//! Regions: operations on memory that other compute servers expose, which end soon after their owners.
//!
//! A fabric ends an operation on the region of a stopped owner after its own limit (seconds), and once it has
//! been told that the owner is dead. So whoever waits asks for that news now and then, as for calls.

use std::future::Future;
use std::pin::{Pin, pin};

use farleaf_fabric::{Endpoint, Incarnation, OpError, OpErrorKind, ServerId};
use farleaf_pool::Session;

use super::messages::alive_check_ns;
use crate::IndexError;
use crate::join::within;

/// An operation on the region of an owner that lives is waited for as long, before it counts as unreachable.
const UNREACHABLE_NS: u64 = 1_000_000_000;

/// Outcome of an operation on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionEnd<T> {
    /// It has taken effect.
    Done(T),
    /// Its owner's life has ended, or it has left the pool, and the region with it.
    Gone,
    /// The owner is not known to be dead, and the operation failed; by its error it may have taken effect,
    /// and may take effect until the thread has reconnected.
    Unreachable(OpError),
}

/// The number under which this process reaches the region of the life `owner`; `None` if it is no member of
/// the pool that exposes memory.
///
/// Cost: 1 READ the first time, nothing later.
///
/// # Errors
/// Those of the READ.
pub async fn attach_region(
    session: &Session,
    owner: Incarnation,
) -> Result<Option<ServerId>, IndexError> {
    let endpoint = session.endpoint();
    if owner == endpoint.incarnation() {
        return Ok(endpoint.own_region().map(|own| own.number));
    }
    // One that was attached for calls may have exposed memory since.
    if let Some(peer) = endpoint.peer_of(owner).filter(|peer| peer.region_bytes > 0) {
        return Ok(Some(peer.server));
    }
    let members = session.members().await?;
    let member = members.into_iter().find(|member| member.incarnation == owner);
    let peer = member.map(|member| member.peer()).filter(|peer| peer.region_bytes > 0);
    // One that has published no address cannot be reached.
    Ok(peer.filter(|peer| endpoint.attach(*peer).is_ok()).map(|peer| peer.server))
}

/// Waits for `posted`, an operation, chain or batch on the region of `owner`, and looks every so often whether
/// the owner lives: every 20 ms, in the simulator every 2 ms. One that takes a second, over a cut link say, is dropped.
///
/// Cost: that of the operation; 1 READ of the member table if it has failed.
pub async fn on_region<T>(
    session: &Session,
    owner: Incarnation,
    posted: impl Future<Output = Result<T, OpError>>,
) -> RegionEnd<T> {
    let endpoint = session.endpoint();
    let looks = looks_in(session, UNREACHABLE_NS);
    let result = match watch(session, owner, pin!(posted), looks).await {
        Watched::Ended(result) => result,
        Watched::Dead => return RegionEnd::Gone,
        Watched::Late => match endpoint.peer_of(owner) {
            Some(peer) => Err(OpError { server: peer.server, kind: OpErrorKind::Timeout }),
            None => return RegionEnd::Gone,
        },
    };
    match result {
        Ok(value) => RegionEnd::Done(value),
        Err(error) if matches!(error.kind, OpErrorKind::Gone { .. }) => RegionEnd::Gone,
        // It is detached by those who have learned of its end.
        Err(_) if owner != endpoint.incarnation() && endpoint.peer_of(owner).is_none() => {
            RegionEnd::Gone
        }
        Err(_) if has_left(session, owner).await => RegionEnd::Gone,
        Err(error) => RegionEnd::Unreachable(error),
    }
}

/// Returns whether the member table is known to name `owner` no more. One that has left the pool in order was never dead.
///
/// Cost: 1 READ.
async fn has_left(session: &Session, owner: Incarnation) -> bool {
    let members = session.members().await;
    members.is_ok_and(|members| members.iter().all(|member| member.incarnation != owner))
}

/// Returns whether the life `owner` has ended: it is dead, or has left the pool. "No" is always a legal answer.
///
/// Cost: 1 READ if it is not known to be dead.
pub async fn has_ended(session: &Session, owner: Incarnation) -> bool {
    session.endpoint().is_dead(owner).await || has_left(session, owner).await
}

/// The outcome of `work`, which uses the region of `owner`; `None` if that is dead, or cannot be reached for a second, and
/// the work has not ended. It is dropped then.
///
/// Cost: that of the work.
pub async fn while_reachable<T>(
    session: &Session,
    owner: Incarnation,
    work: impl Future<Output = T>,
) -> Option<T> {
    match watch(session, owner, pin!(work), looks_in(session, UNREACHABLE_NS)).await {
        Watched::Ended(outcome) => Some(outcome),
        Watched::Dead | Watched::Late => None,
    }
}

/// Looks of a wait that ends with its owner alone.
pub(crate) const LOOKS_MAX: u64 = u64::MAX;

/// Looks of a wait of that length.
pub(crate) fn looks_in(session: &Session, ns: u64) -> u64 {
    ns / alive_check_ns(session.endpoint())
}

/// The end of a wait for an owner's memory.
pub(crate) enum Watched<T> {
    Ended(T),
    /// The owner is dead, and the work has not ended soon after.
    Dead,
    /// It has not ended after so many looks, and the owner lives.
    Late,
}

/// Waits for `work`, and looks every so often whether `owner` lives, at most that many times.
pub(crate) async fn watch<T>(
    session: &Session,
    owner: Incarnation,
    mut work: Pin<&mut impl Future<Output = T>>,
    looks: u64,
) -> Watched<T> {
    let endpoint = session.endpoint();
    let check_ns = alive_check_ns(endpoint);
    for _ in 0..looks {
        if let Some(outcome) = within(endpoint, work.as_mut(), check_ns).await {
            return Watched::Ended(outcome);
        }
        if endpoint.is_dead(owner).await {
            // The fabric ends what is under way now.
            let outcome = within(endpoint, work, check_ns).await;
            return outcome.map_or(Watched::Dead, Watched::Ended);
        }
    }
    Watched::Late
}

/// The outcome of `posted`, an operation on a region, if it comes as soon as that of a living owner does: within 20 ms, in
/// the simulator 2 ms. For reads that have another way.
///
/// Cost: that of the operation.
pub async fn soon<T>(session: &Session, posted: impl Future<Output = T>) -> Option<T> {
    let endpoint = session.endpoint();
    within(endpoint, pin!(posted), alive_check_ns(endpoint)).await
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::sim::{Sim, SimConfig};
    use farleaf_fabric::{Client, Fabric, GlobalAddr, ListenConfig, ToAny};
    use farleaf_pool::{Pool, PoolOptions, format};

    use super::*;

    const BYTES: u64 = 64 << 10;
    const LEASE_NS: u64 = 10_000_000;

    /// Two compute servers with a pool. The fabric's own limit is a second.
    fn simulation() -> Sim {
        simulation_with(1_000_000_000)
    }

    fn simulation_with(timeout_ns: u64) -> Sim {
        let mut config = SimConfig {
            compute_servers: 2,
            region_bytes: 4 << 20,
            lease_ns: LEASE_NS,
            ..SimConfig::seeded(1)
        };
        config.adversary.timeout_ns = timeout_ns;
        let sim = Sim::new(config).expect("a simulation");
        let client = Client::new(sim.fabric(0).any_endpoint().expect("an endpoint"));
        let options = PoolOptions { clients_max: 8, members_max: 4, ..PoolOptions::default() };
        let options =
            PoolOptions { block_bytes: 64 << 10, tables_max: 4, redo_bytes: 4096, ..options };
        sim.block_on(format(&client, &options)).expect("no deadlock").expect("a pool");
        sim
    }

    fn session(sim: &Sim, compute: usize) -> Session {
        let endpoint = sim.fabric(compute).any_endpoint().expect("an endpoint");
        let joined = sim.block_on(async {
            let pool = Pool::join(&Client::new(endpoint.clone())).await?;
            pool.session(endpoint.clone()).await
        });
        joined.expect("no deadlock").expect("a session")
    }

    /// An owner that cannot be reached is `Gone` once it has left the pool, though it was never dead.
    #[test]
    fn an_owner_that_has_left_in_order_is_gone() {
        let sim = simulation();
        let (mine, theirs) = (session(&sim, 0), session(&sim, 1));
        let (owner, number) = (sim.fabric(1), super::super::number_of(theirs.pool().member()));
        let who = owner.incarnation();
        owner.expose(number, BYTES, &ListenConfig::default()).expect("exposed");
        sim.block_on(theirs.publish_region(BYTES)).expect("no deadlock").expect("published");
        let attached = sim.block_on(attach_region(&mine, who)).expect("no deadlock");
        assert_eq!(attached.expect("read"), Some(number));
        let read = || {
            let posted = mine.client().faa(GlobalAddr::new(number, 64), 1);
            sim.block_on(on_region(&mine, who, posted)).expect("no deadlock")
        };
        sim.cut(0, 1);
        assert!(matches!(read(), RegionEnd::Unreachable(_)));
        assert!(!sim.block_on(has_ended(&mine, who)).expect("no deadlock"));
        sim.block_on(theirs.leave()).expect("no deadlock").expect("left");
        assert_eq!(read(), RegionEnd::Gone);
        assert!(sim.block_on(has_ended(&mine, who)).expect("no deadlock"));
    }

    /// The fabric's limit is 5 s, as over TCP.
    #[test]
    fn an_owner_behind_a_cut_link_is_waited_for_a_second() {
        let sim = simulation_with(5_000_000_000);
        let (mine, theirs) = (session(&sim, 0), session(&sim, 1));
        let (owner, number) = (sim.fabric(1), super::super::number_of(theirs.pool().member()));
        let who = owner.incarnation();
        owner.expose(number, BYTES, &ListenConfig::default()).expect("exposed");
        sim.block_on(theirs.publish_region(BYTES)).expect("no deadlock").expect("published");
        let attached = sim.block_on(attach_region(&mine, who)).expect("no deadlock");
        assert_eq!(attached.expect("read"), Some(number));
        let add = || {
            let posted = mine.client().faa(GlobalAddr::new(number, 64), 1);
            let since_ns = sim.now_ns();
            let ended = sim.block_on(on_region(&mine, who, posted)).expect("no deadlock");
            (ended, sim.now_ns() - since_ns)
        };
        sim.cut(0, 1);
        let (ended, waited_ns) = add();
        let lost = OpError { server: number, kind: OpErrorKind::Timeout };
        assert_eq!(ended, RegionEnd::Unreachable(lost));
        assert!((UNREACHABLE_NS..UNREACHABLE_NS * 11 / 10).contains(&waited_ns), "{waited_ns} ns");
        sim.heal(0, 1);
    }

    /// Done while the owner lives; `Unreachable` behind a cut link; `Gone` soon after a stopped owner's lease,
    /// although the fabric's own limit is a second.
    #[test]
    fn an_operation_ends_soon_after_its_owner() {
        let sim = simulation();
        let (mine, theirs) = (session(&sim, 0), session(&sim, 1));
        let owner = sim.fabric(1);
        let who = owner.incarnation();
        let attached = || sim.block_on(attach_region(&mine, who)).expect("no deadlock");
        assert_eq!(attached().expect("read"), None, "it exposes nothing yet");
        let number = super::super::number_of(theirs.pool().member());
        owner.expose(number, BYTES, &ListenConfig::default()).expect("exposed");
        sim.block_on(theirs.publish_region(BYTES)).expect("no deadlock").expect("published");
        assert_eq!(attached().expect("read"), Some(number));
        let add = || {
            let posted = mine.client().faa(GlobalAddr::new(number, 64), 1);
            let since_ns = sim.now_ns();
            let ended = sim.block_on(on_region(&mine, who, posted)).expect("no deadlock");
            (ended, sim.now_ns() - since_ns)
        };
        assert_eq!(add().0, RegionEnd::Done(0));
        sim.cut(0, 1);
        let lost = OpError { server: number, kind: OpErrorKind::Timeout };
        assert_eq!(add().0, RegionEnd::Unreachable(lost));
        sim.heal(0, 1);
        owner.stop_with_region();
        let (ended, waited_ns) = add();
        assert_eq!(ended, RegionEnd::Gone);
        assert!((LEASE_NS..LEASE_NS + 6_000_000).contains(&waited_ns), "{waited_ns} ns");
        let (ended, waited_ns) = add();
        assert_eq!(ended, RegionEnd::Gone);
        assert!(waited_ns < 10_000, "it is known: {waited_ns} ns");
        owner.kill();
    }
}
