//! Killed writer: a second process that dies in the middle of its WRITEs, for real fabrics' harnesses.

pub(crate) mod real;

use std::cell::RefCell;
use std::env;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use farleaf_fabric::conformance::{Attach, CallSurvivor, Role, Survivor, party, victim};
use farleaf_fabric::tcp::Tls;
use farleaf_fabric::{Endpoint, Fabric, GlobalAddr, ListenConfig, Peer, ServerId};
use rustix::time::{ClockId, clock_gettime};

const VICTIM_POOL: &str = "FARLEAF_TEST_VICTIM_POOL";
const VICTIM_ADDR: &str = "FARLEAF_TEST_VICTIM_ADDR";
const VICTIM_ROLE: &str = "FARLEAF_TEST_VICTIM_ROLE";
const VICTIM_PEERS: &str = "FARLEAF_TEST_VICTIM_PEERS";

/// A peer, as one text.
fn peer_text(peer: &Peer) -> String {
    let Peer { server, incarnation, address, region_bytes } = peer;
    let address = address.map_or("-".to_owned(), |address| address.to_string());
    format!("{server},{incarnation},{address},{region_bytes}")
}

/// The peer of such a text.
fn peer_of(text: &str) -> Peer {
    let [server, incarnation, address, region_bytes] = text.split(',').collect::<Vec<_>>()[..]
    else {
        panic!("{text:?} is no peer");
    };
    Peer {
        server: ServerId(server.parse().expect("a number")),
        incarnation: incarnation.parse().expect("a life"),
        address: address.parse().ok(),
        region_bytes: region_bytes.parse().expect("a size"),
    }
}

/// A child that does not outlive its parent's test.
pub(crate) struct Reaped(Child);

impl Reaped {
    /// Starts this program's test `dies_when_asked_to` alone. It opens the pool and writes to `addr`, or
    /// plays a role in a call.
    /// It attaches `peers` first.
    pub(crate) fn victim(
        pool: &str,
        addr: GlobalAddr,
        role: Option<Role>,
        peers: &[Peer],
    ) -> Reaped {
        let role = match role {
            None => "writer",
            Some(Role::Callee) => "callee",
            Some(Role::Caller) => "caller",
            Some(Role::Owner | Role::StoppedOwner) => "owner",
        };
        let peers: Vec<String> = peers.iter().map(peer_text).collect();
        Reaped(
            Command::new(env::current_exe().expect("this test's path"))
                .args(["--exact", "dies_when_asked_to", "--nocapture"])
                .env(VICTIM_POOL, pool)
                .env(VICTIM_ADDR, addr.word().to_string())
                .env(VICTIM_ROLE, role)
                .env(VICTIM_PEERS, peers.join(";"))
                .stdout(Stdio::null())
                .spawn()
                .expect("a second process"),
        )
    }

    /// Kills it when the survivor asks for that, and waits until it has been silent for `lease`.
    pub(crate) async fn beside<E: Endpoint>(
        mut self,
        endpoint: E,
        survivor: Survivor<E>,
        lease: Duration,
    ) {
        let kill = move || {
            self.kill();
            thread::sleep(2 * lease);
        };
        survivor(endpoint, Box::new(kill)).await;
    }

    /// As [`Reaped::beside`], for a party to a call.
    pub(crate) async fn beside_party<E: Endpoint>(
        self,
        endpoint: E,
        role: Role,
        attach: Attach,
        survivor: CallSurvivor<E>,
        lease: Duration,
    ) {
        let child = Rc::new(RefCell::new(self));
        let own = Rc::clone(&child);
        let kill = move || {
            match role {
                Role::StoppedOwner => own.borrow().stop(),
                _ => own.borrow_mut().kill(),
            }
            thread::sleep(2 * lease);
        };
        survivor(endpoint, attach, Box::new(kill)).await;
        child.borrow_mut().kill();
    }

    /// Stops it, as a debugger does.
    fn stop(&self) {
        let pid = self.0.id().to_string();
        let stopped = Command::new("kill").args(["-STOP", &pid]).status();
        assert!(stopped.expect("kill").success(), "process {pid} is not stopped");
    }

    fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        self.kill();
    }
}

/// If this process is the one to kill: the pool, and the address for its WRITEs.
pub(crate) fn asked_to_die() -> Option<(String, GlobalAddr)> {
    let addr = env::var(VICTIM_ADDR).ok()?.parse().expect("a number");
    let addr = GlobalAddr::from_word(addr).expect("an address");
    Some((env::var(VICTIM_POOL).expect("a pool"), addr))
}

/// Work on `fabric` of a process that the test kills.
pub(crate) async fn die<F: Fabric>(
    fabric: F,
    endpoint: F::Endpoint,
    addr: GlobalAddr,
    tls: Option<Tls>,
) {
    let listen = ListenConfig { tls, ..ListenConfig::default() };
    match env::var(VICTIM_ROLE).as_deref() {
        Ok("callee") => party(fabric, endpoint, Role::Callee, addr, listen).await,
        Ok("caller") => party(fabric, endpoint, Role::Caller, addr, listen).await,
        Ok("owner") => party(fabric, endpoint, Role::Owner, addr, listen).await,
        _ => {
            let peers = env::var(VICTIM_PEERS).unwrap_or_default();
            for peer in peers.split(';').filter(|peer| !peer.is_empty()) {
                endpoint.attach(peer_of(peer)).expect("attached");
            }
            victim(endpoint, addr).await
        }
    }
}

/// Servers, as one text.
pub(crate) fn list(servers: impl Iterator<Item = SocketAddr>) -> String {
    servers.map(|server| server.to_string()).collect::<Vec<_>>().join(",")
}

/// The servers of such a text.
pub(crate) fn listed(servers: &str) -> impl Iterator<Item = SocketAddr> {
    servers.split(',').map(|server| server.parse().expect("an address"))
}

/// Panics unless this process uses less than 10 ms of processor time in an idle second, which it returns.
/// A busy machine adds to what little is used, so one such second among eight will do: what polls has none.
pub(crate) fn assert_idle() -> Duration {
    let used = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let mut least = Duration::MAX;
    for _ in 0..8 {
        let before = used();
        thread::sleep(Duration::from_secs(1));
        least = least.min(used() - before);
        if least < Duration::from_millis(10) {
            return least;
        }
    }
    panic!("at least {least:?} in each of eight idle seconds");
}
