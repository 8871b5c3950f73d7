//! Killed writer: a second process that dies in the middle of its WRITEs, for real fabrics' harnesses.

pub(crate) mod real;

use std::env;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use farleaf_fabric::conformance::{Attach, CallSurvivor, Role, Survivor, party, victim};
use farleaf_fabric::tcp::Tls;
use farleaf_fabric::{Endpoint, Fabric, GlobalAddr, ListenConfig, ServerId};

const VICTIM_POOL: &str = "FARLEAF_TEST_VICTIM_POOL";
const VICTIM_ADDR: &str = "FARLEAF_TEST_VICTIM_ADDR";
const VICTIM_ROLE: &str = "FARLEAF_TEST_VICTIM_ROLE";

/// A child that does not outlive its parent's test.
pub(crate) struct Reaped(Child);

impl Reaped {
    /// Starts this program's test `dies_when_asked_to` alone. It opens the pool and writes to `addr`, or
    /// plays a role in a call.
    pub(crate) fn victim(pool: &str, addr: GlobalAddr, role: Option<Role>) -> Reaped {
        let role = match role {
            None => "writer",
            Some(Role::Callee) => "callee",
            Some(Role::Caller) => "caller",
        };
        Reaped(
            Command::new(env::current_exe().expect("this test's path"))
                .args(["--exact", "dies_when_asked_to", "--nocapture"])
                .env(VICTIM_POOL, pool)
                .env(VICTIM_ADDR, addr.word().to_string())
                .env(VICTIM_ROLE, role)
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
        mut self,
        endpoint: E,
        attach: Attach,
        survivor: CallSurvivor<E>,
        lease: Duration,
    ) {
        let kill = move || {
            self.kill();
            thread::sleep(2 * lease);
        };
        survivor(endpoint, attach, Box::new(kill)).await;
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
    assert_eq!(addr.server(), ServerId(1));
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
        _ => victim(endpoint, addr).await,
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
