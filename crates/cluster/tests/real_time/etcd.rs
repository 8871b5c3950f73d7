//! Client tests: the client of etcd, on a real etcd.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::server::eventually;
use farleaf_cluster::{ClusterError, Etcd, EtcdAccess};

const SHORT: Duration = Duration::from_secs(2);

/// A client of the servers there, without TLS and users.
fn client<const COUNT: usize>(endpoints: [String; COUNT]) -> Etcd {
    Etcd::with(endpoints, &EtcdAccess::default())
}

/// Removes a key, as the end of a lease that it is bound to.
pub(crate) fn remove(etcd: &Etcd, key: &str) {
    let lease = etcd.grant(SHORT).unwrap();
    assert!(etcd.put(key, "", Some(lease)).unwrap());
    etcd.revoke(lease).unwrap();
}

/// An address at which no process listens.
fn nobody() -> String {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string()
}

/// The address of a server that gives every request this answer.
fn answering(status: &str, body: &str) -> String {
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    saying(answer)
}

fn saying(answer: String) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn keys_are_written_read_listed_and_removed() {
    let Some(server) = crate::server::start("keys_are_written_read_listed_and_removed") else {
        return;
    };
    let etcd = server.client();
    assert_eq!(etcd.get("/a/1").unwrap(), None);
    assert_eq!(etcd.list("/a/").unwrap(), []);
    for (key, value) in [("/a/2", "two"), ("/a/1", ""), ("/b/1", "b"), ("/a/1", "h\u{f6}")] {
        assert!(etcd.put(key, value, None).unwrap());
    }
    let listed = etcd.list("/a/").unwrap();
    let pairs: Vec<_> =
        listed.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect();
    assert_eq!(pairs, [("/a/1", "h\u{f6}"), ("/a/2", "two")]);
    assert!(listed[0].revision > listed[1].revision);
    assert_eq!(etcd.list_keys("/").unwrap().len(), 3);
    assert_eq!(etcd.list_keys("/a/2").unwrap()[0].value, "");
    remove(&etcd, "/a/1");
    assert_eq!(etcd.get("/a/1").unwrap(), None);
}

#[test]
fn a_key_is_set_only_at_its_revision() {
    let Some(server) = crate::server::start("a_key_is_set_only_at_its_revision") else { return };
    let etcd = server.client();
    assert_eq!(etcd.put_if("k", "1", None, 0).unwrap(), Ok(()));
    let found = etcd.put_if("k", "2", None, 0).unwrap().unwrap_err().unwrap();
    assert_eq!((found.value.as_str(), found.lease), ("1", None));
    assert_eq!(etcd.put_if("k", "2", None, found.revision).unwrap(), Ok(()));
    assert_eq!(etcd.put_if("gone", "2", None, found.revision).unwrap(), Err(None));
    // The answer was lost: the repeated request counts as done.
    let lease = etcd.grant(SHORT).unwrap();
    for _ in 0..2 {
        assert_eq!(etcd.put_if("own", "1", Some(lease), 0).unwrap(), Ok(()));
    }
    let other = etcd.grant(SHORT).unwrap();
    let found = etcd.put_if("own", "1", Some(other), 0).unwrap().unwrap_err().unwrap();
    assert_eq!(found.lease, Some(lease));
}

#[test]
fn a_lease_takes_its_keys_with_it() {
    let Some(server) = crate::server::start("a_lease_takes_its_keys_with_it") else { return };
    let etcd = server.client();
    let (kept, left) = (etcd.grant(SHORT).unwrap(), etcd.grant(SHORT).unwrap());
    for (key, lease) in [("kept", kept), ("left", left)] {
        assert!(etcd.put(key, "v", Some(lease)).unwrap());
        assert_eq!(etcd.get(key).unwrap().unwrap().lease, Some(lease));
    }
    eventually(Duration::from_secs(10), "the one that is not renewed runs out", || {
        assert!(etcd.keep_alive(kept).unwrap().is_some_and(|time| time <= 2 * SHORT));
        etcd.get("left").unwrap().is_none()
    });
    assert!(etcd.get("kept").unwrap().is_some());
    assert_eq!(etcd.keep_alive(left).unwrap(), None);
    assert!(!etcd.put("left", "v", Some(left)).unwrap());
    assert_eq!(etcd.put_if("left", "v", Some(left), 0).unwrap(), Err(None));
    for _ in 0..2 {
        etcd.revoke(kept).unwrap();
    }
    assert_eq!(etcd.get("kept").unwrap(), None);
}

#[test]
fn servers_are_asked_in_turn() {
    let Some(mut server) = crate::server::start("servers_are_asked_in_turn") else { return };
    let etcd = client([nobody(), server.endpoint()]);
    assert!(etcd.put("k", "v", None).unwrap());
    server.kill();
    let error = etcd.get("k").unwrap_err();
    assert!(matches!(error, ClusterError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&server.endpoint()), "{error}");
    assert_eq!(error.to_string().matches("127.0.0.1:").count(), 2, "{error}");
    server.restart();
    assert_eq!(etcd.get("k").unwrap().unwrap().value, "v");
}

#[test]
fn a_server_that_is_no_etcd_is_reported() {
    let not_etcd = |address: String, what: &str| {
        let error = client([address.clone()]).get("k").unwrap_err();
        assert!(matches!(error, ClusterError::NotEtcd { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(what) && text.contains(&address), "{text}");
    };
    not_etcd(answering("404 Not Found", "no"), "it answers 404 to /v3/");
    not_etcd(answering("302 Found", ""), "it answers 302 to /v3/");
    not_etcd(answering("200 OK", "hello"), "it answers 200 to /v3/");
    not_etcd(answering("200 OK", "7"), "its answer is malformed");
    not_etcd(answering("200 OK", "{\"error\":1}"), "it answers 200 to /v3/");
    not_etcd(answering("200 OK", "{\"kvs\":[{\"key\":\"?\"}]}"), "base64");
    not_etcd(saying("+OK whatever\r\n\r\n".to_owned()), "etcd 3.4 or later");
}

#[test]
fn refusals_are_reported_and_transient_ones_are_not_final() {
    let asked = |status: &str, body: &str| client([answering(status, body)]).get("k").unwrap_err();
    let rights = "{\"grpc_code\":7,\"message\":\"no rights\"}";
    for error in [
        asked("403 Forbidden", "{\"code\":7,\"message\":\"no rights\"}"),
        asked("200 OK", &format!("{{\"error\":{rights}}}")),
    ] {
        assert!(matches!(error, ClusterError::Refused { code: 7, .. }), "{error}");
        assert!(error.to_string().contains("refuses to read: no rights"), "{error}");
    }
    let error = asked("503 Unavailable", "{\"message\":\"no leader\",\"code\":14}");
    assert!(matches!(error, ClusterError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("no leader"), "{error}");
}

/// A silent server costs its time limit and no more.
#[test]
fn a_server_that_hangs_is_given_up() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let start = Instant::now();
    let error = client([address.clone(), nobody()]).get("k").unwrap_err();
    assert!(matches!(error, ClusterError::Unreachable { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(error.to_string().contains(&address), "{error}");
}
