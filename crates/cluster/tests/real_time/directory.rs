//! Directory tests: entries, refused names and the coordinator, on a real etcd.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{Server, eventually};
use farleaf_cluster::{
    ClusterError, ComputeRecord, ComputeRegistration, Directory, EtcdAccess, MemoryRecord, View,
    Way,
};
use farleaf_fabric::Incarnation;

const LONG: Duration = Duration::from_secs(20);

fn directory(server: &Server, name: &str) -> Directory {
    Directory::with(&server.address(name), &EtcdAccess::default())
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn memory(server: u16, servers: u16, port: u16) -> MemoryRecord {
    MemoryRecord::new(at(port), (server, servers), 1 << 20, None)
}

fn compute(directory: &Directory, name: u64) -> ComputeRegistration {
    let record = ComputeRecord { address: None, process: "test:1".to_owned(), serves: true };
    directory.register_compute(Incarnation(name), record).unwrap()
}

fn beat(registration: &mut ComputeRegistration) -> View {
    registration.beat(None).unwrap()
}

#[test]
fn memory_servers_are_found_by_the_name_of_their_cluster() {
    let Some(etcd) = crate::server::start("memory_servers_are_found_by_the_name_of_their_cluster")
    else {
        return;
    };
    let there = directory(&etcd, "one");
    let refused = |what: &str| {
        let error = there.memory_servers().unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        error
    };
    let error = refused("knows no cluster \"one\";");
    assert!(matches!(error, ClusterError::NoSuchCluster { .. }), "{error}");
    directory(&etcd, "two").register_memory(memory(0, 1, 9)).unwrap();
    refused("knows no cluster \"one\", but two;");
    let _second = there.register_memory(memory(1, 3, 71)).unwrap();
    let error = refused("of 3 memory servers, 0, 2 are not registered");
    assert!(matches!(error, ClusterError::Missing { .. }), "{error}");
    let mut first = there.register_memory(memory(0, 3, 70)).unwrap();
    refused("of 3 memory servers, 2 is not registered");
    let third = there.register_memory(memory(2, 3, 72)).unwrap();
    assert_eq!(there.memory_servers().unwrap().0, [70, 71, 72].map(at));
    first.keep(Some(7)).unwrap();
    let snapshot = there.look().unwrap();
    assert_eq!(snapshot.memory[&0].pool(), Some(7));
    assert_eq!(snapshot.memory[&1], memory(1, 3, 71));
    third.leave().unwrap();
    refused("2 is not registered");
}

/// Two servers claim one number, and one comes back after it was killed.
#[test]
fn a_number_belongs_to_one_memory_server() {
    let Some(etcd) = crate::server::start("a_number_belongs_to_one_memory_server") else { return };
    let there = directory(&etcd, "c");
    let mut holder = there.register_memory(memory(0, 2, 70)).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                holder.keep(None).unwrap();
                thread::sleep(Duration::from_millis(200));
            }
            // Killed: it does not tell etcd.
        });
        let error = there.register_memory(memory(0, 2, 71)).unwrap_err();
        assert_eq!(
            error,
            ClusterError::NumberTaken { name: "c".to_owned(), server: 0, holder: at(70) }
        );
        drop(stop);
    });
    // The entry has its own address: the next life of the same server need not wait.
    let start = Instant::now();
    drop(there.register_memory(memory(0, 2, 70)).unwrap());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    // The entry has another address: the server waits until the dead one's entry has run out.
    let mut next = there.register_memory(memory(0, 2, 71)).unwrap();
    assert_eq!(there.look().unwrap().memory[&0].address, at(71));
    // Another count of servers.
    let error = there.register_memory(memory(1, 3, 72)).unwrap_err();
    assert!(error.to_string().contains("says that there are 3, and another 2"), "{error}");
    next.keep(None).unwrap();
}

#[test]
fn all_memory_servers_of_a_cluster_are_reached_the_same_way() {
    let name = "all_memory_servers_of_a_cluster_are_reached_the_same_way";
    let Some(etcd) = crate::server::start(name) else { return };
    let there = directory(&etcd, "c");
    let verbs = |server: u16, port: u16| memory(server, 2, port).by(Way::Verbs);
    let mut first = there.register_memory(verbs(0, 70)).unwrap();
    let error = there.register_memory(memory(1, 2, 71)).unwrap_err();
    assert!(matches!(error, ClusterError::OtherWay { server: 1, .. }), "{error}");
    let said = "memory server 1 at 127.0.0.1:71 is reached by tcp, and another by verbs";
    assert!(error.to_string().contains(said), "{error}");
    let second = there.register_memory(verbs(1, 71)).unwrap();
    assert_eq!(there.memory_servers().unwrap(), ([70, 71].map(at).to_vec(), Way::Verbs));
    // An entry that is rewritten with its pool still names the fabric.
    first.keep(Some(7)).unwrap();
    assert_eq!(there.memory_servers().unwrap().1, Way::Verbs);
    // A program that did not check wrote this entry.
    second.leave().unwrap();
    let plain = r#"{"address":"127.0.0.1:71","server":1,"servers":2,"bytes":1,"pool":null}"#;
    etcd.client().put("/farleaf/c/memory/00001", plain, None).unwrap();
    let error = there.memory_servers().unwrap_err();
    assert!(matches!(error, ClusterError::OtherWay { others: Way::Verbs, .. }), "{error}");
}

#[test]
fn a_cluster_keeps_its_pool() {
    let Some(etcd) = crate::server::start("a_cluster_keeps_its_pool") else { return };
    let there = directory(&etcd, "c");
    there.agree_on_pool(5, 1, false).unwrap();
    there.agree_on_pool(5, 1, false).unwrap();
    let other = |result: Result<(), ClusterError>, what: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, ClusterError::OtherPool { expected: 5, found: 6, .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    other(there.agree_on_pool(6, 1, false), "its memory servers hold data");
    let holding = |pool| MemoryRecord::new(at(70), (0, 1), 1 << 20, Some(pool));
    other(there.register_memory(holding(6)).map(drop), "memory server 0 holds data");
    drop(there.register_memory(holding(5)).unwrap());
    let error = there.register_memory(memory(0, 2, 70)).unwrap_err();
    assert!(matches!(error, ClusterError::OtherCount { .. }), "{error}");
    // All memory is gone, and somebody makes a pool anew.
    there.agree_on_pool(6, 2, true).unwrap();
    assert_eq!(there.look().unwrap().pool.map(|pool| (pool.id(), pool.servers)), Some((6, 2)));
}

#[test]
fn foreign_keys_are_reported() {
    let Some(etcd) = crate::server::start("foreign_keys_are_reported") else { return };
    let there = directory(&etcd, "c");
    let client = etcd.client();
    let _registration = there.register_memory(memory(0, 1, 70)).unwrap();
    client.put("/farleaf/c/letter", "dear", None).unwrap();
    client.put("/farleaf/cc/letter", "dear", None).unwrap();
    let snapshot = there.look().unwrap();
    assert_eq!(snapshot.foreign.len(), 1);
    assert_eq!(snapshot.foreign[0].key, "/farleaf/c/letter");
    assert_eq!(there.memory_servers().unwrap(), (vec![at(70)], Way::Tcp));
    let foreign = |result: Result<(), ClusterError>, key: &str| {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, ClusterError::Foreign { key: found, .. } if found == key),
            "{error}"
        );
    };
    client.put("/farleaf/c/memory/00001", "dear", None).unwrap();
    foreign(there.memory_servers().map(drop), "/farleaf/c/memory/00001");
    crate::etcd::remove(&client, "/farleaf/c/memory/00000");
    foreign(there.register_memory(memory(1, 2, 71)).map(drop), "/farleaf/c/memory/00001");
    client.put("/farleaf/c/pool", "7", None).unwrap();
    foreign(there.agree_on_pool(1, 1, false), "/farleaf/c/pool");
}

#[test]
fn one_is_coordinator_and_another_follows_when_it_dies() {
    let Some(etcd) = crate::server::start("one_is_coordinator_and_another_follows_when_it_dies")
    else {
        return;
    };
    let there = directory(&etcd, "c");
    let mut registrations: Vec<ComputeRegistration> =
        (1..=3).map(|name| compute(&there, name)).collect();
    assert!(
        registrations.iter_mut().all(|registration| !beat(registration).is_coordinator),
        "not at once"
    );
    let mut first = None;
    eventually(LONG, "one is elected", || {
        let views: Vec<View> = registrations.iter_mut().map(beat).collect();
        let coordinators = views.iter().filter(|view| view.is_coordinator).count();
        assert!(coordinators <= 1);
        first = views.iter().position(|view| view.is_coordinator);
        first.is_some()
    });
    let dead = registrations.remove(first.unwrap());
    let name = there.look().unwrap().coordinator.unwrap();
    drop(dead);
    let took = eventually(LONG, "another follows", || {
        let views: Vec<View> = registrations.iter_mut().map(beat).collect();
        views.iter().any(|view| view.is_coordinator)
    });
    let snapshot = there.look().unwrap();
    assert_eq!(snapshot.compute.len(), 2, "the dead coordinator's entry is gone");
    assert!(!snapshot.compute.contains_key(&name));
    assert_ne!(snapshot.coordinator, Some(name));
    assert!(took < Duration::from_secs(8), "{took:?}");
    println!("another coordinator after {took:?}");
    // Ended in order: at once.
    let coordinator = registrations
        .iter_mut()
        .position(|registration| beat(registration).is_coordinator)
        .unwrap();
    registrations.remove(coordinator).leave().unwrap();
    assert_eq!(there.look().unwrap().coordinator, None);
    assert!(beat(&mut registrations[0]).is_coordinator);
}

#[test]
fn entries_come_back_when_etcd_does() {
    let Some(mut etcd) = crate::server::start("entries_come_back_when_etcd_does") else { return };
    let there = directory(&etcd, "c");
    let mut one = compute(&there, 1);
    let mut memory = there.register_memory(memory(0, 1, 70)).unwrap();
    etcd.kill();
    let error = one.beat(None).unwrap_err();
    assert!(matches!(error, ClusterError::Unreachable { .. }), "{error}");
    // Long enough for every lease to run out once it is back.
    thread::sleep(Duration::from_secs(1));
    assert!(memory.keep(None).is_err());
    etcd.restart();
    let client = etcd.client();
    for key in ["compute/0000000000000001", "memory/00000"] {
        let lease = client.get(&format!("/farleaf/c/{key}")).unwrap().unwrap().lease.unwrap();
        client.revoke(lease).unwrap();
    }
    assert!(there.look().unwrap().compute.is_empty());
    thread::sleep(Duration::from_secs(1));
    let view = one.beat(Some(at(9))).unwrap();
    assert_eq!(view.snapshot.compute[&Incarnation(1)].address, Some(at(9)));
    memory.keep(Some(3)).unwrap();
    assert_eq!(there.look().unwrap().memory[&0].pool(), Some(3));
    eventually(LONG, "it is elected, being alone", || beat(&mut one).is_coordinator);
}

#[test]
fn a_compute_server_learns_that_it_should_leave() {
    let Some(etcd) = crate::server::start("a_compute_server_learns_that_it_should_leave") else {
        return;
    };
    let there = directory(&etcd, "c");
    let (mut one, mut two) = (compute(&there, 1), compute(&there, 2));
    there.ask_to_leave(Incarnation(2)).unwrap();
    assert!(!beat(&mut one).is_leaving);
    assert!(beat(&mut two).is_leaving);
    two.leave().unwrap();
    assert!(there.look().unwrap().leaving.is_empty(), "nothing is left of it");
    let error = there.ask_to_leave(Incarnation(2)).unwrap_err();
    assert!(error.to_string().contains("no compute server 0000000000000002"), "{error}");
}
