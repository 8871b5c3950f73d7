//! Access tests: etcd with TLS and with users accepts some clients, and explains each refusal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::authority::Authority;
use crate::server::{Server, ServerTls, eventually};
use farleaf_cluster::{
    ClusterError, ComputeRecord, Directory, Etcd, EtcdAccess, EtcdTlsFiles, MemoryRecord,
};
use farleaf_fabric::Incarnation;

/// Trusts this authority, and shows no certificate.
fn trusting(authority: &Authority) -> EtcdTlsFiles {
    EtcdTlsFiles { ca: authority.folder.join("ca.pem"), identity: None }
}

/// The same, with a certificate of `signer`.
fn known(authority: &Authority, signer: &Authority) -> EtcdTlsFiles {
    let files = signer.files("client", "client");
    EtcdTlsFiles { identity: Some((files.certificate, files.key)), ..trusting(authority) }
}

fn by(files: &EtcdTlsFiles) -> EtcdAccess {
    EtcdAccess::default().tls(files).unwrap()
}

/// Starts etcd anew with a certificate for `name`; it demands clients' certificates if `asks`.
fn with_tls(etcd: &mut Server, authority: &Authority, name: &str, asks: bool, access: EtcdAccess) {
    let files = authority.files("server", name);
    let clients = asks.then_some(files.ca);
    let tls = ServerTls { certificate: files.certificate, key: files.key, clients };
    etcd.restart_with(tls, access);
}

fn get(etcd: &Server, access: &EtcdAccess) -> Result<(), ClusterError> {
    let client = Etcd::with([etcd.endpoint()], access);
    answered(|| client.get("/farleaf/c/pool").map(drop))
}

/// The result of a request that etcd answers in time, which it may not on a busy machine.
fn answered<T>(mut ask: impl FnMut() -> Result<T, ClusterError>) -> Result<T, ClusterError> {
    let mut answer = ask();
    eventually(Duration::from_secs(30), "etcd answers", || {
        let is_answered = !matches!(
            &answer,
            Err(ClusterError::Unreachable { .. } | ClusterError::Missing { .. })
        );
        if !is_answered {
            answer = ask();
        }
        is_answered
    });
    answer
}

fn user(name: &str, password: &str) -> EtcdAccess {
    EtcdAccess::default().user(name, password)
}

#[track_caller]
fn says(error: &ClusterError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

/// Uses every request of the directory.
fn use_directory(there: &Directory) {
    let address = SocketAddr::from(([127, 0, 0, 1], 70));
    let mut memory =
        there.register_memory(MemoryRecord::new(address, (0, 1), 1 << 20, None)).unwrap();
    there.agree_on_pool(5, 1, false).unwrap();
    let record = ComputeRecord { address: None, process: "test:1".to_owned(), serves: true };
    let mut compute = there.register_compute(Incarnation(7), record).unwrap();
    // Long enough for leases to be renewed.
    std::thread::sleep(Duration::from_millis(1100));
    memory.keep(Some(5)).unwrap();
    there.ask_to_leave(Incarnation(7)).unwrap();
    assert!(compute.beat(None).unwrap().is_leaving);
    assert_eq!(there.memory_servers().unwrap().0, [address]);
    compute.leave().unwrap();
    memory.leave().unwrap();
    assert!(there.look().unwrap().compute.is_empty());
}

#[test]
fn etcd_is_reached_by_tls_with_certificates_of_both_sides() {
    let name = "etcd_is_reached_by_tls_with_certificates_of_both_sides";
    let Some(mut etcd) = crate::server::start(name) else { return };
    let (ours, others) = (Authority::new(), Authority::new());
    let access = by(&known(&ours, &ours));
    with_tls(&mut etcd, &ours, "127.0.0.1", true, access.clone());
    use_directory(&Directory::with(&etcd.address("c"), &access));

    let endpoint = etcd.endpoint();
    let refused = |access: &EtcdAccess| get(&etcd, access).unwrap_err();
    // Several times: the server's alert before its close must not be missed.
    for _ in 0..5 {
        let error = refused(&by(&known(&others, &ours)));
        assert!(matches!(error, ClusterError::NotTrusted { .. }), "{error}");
        says(&error, &[&endpoint, "--etcd-tls-ca"]);
        let error = refused(&by(&trusting(&ours)));
        assert!(matches!(error, ClusterError::WantsCertificate { .. }), "{error}");
        says(&error, &[&endpoint, "--etcd-tls-cert"]);
        let error = refused(&by(&known(&ours, &others)));
        assert!(matches!(error, ClusterError::CertificateRefused { .. }), "{error}");
        says(&error, &[&endpoint, "--trusted-ca-file"]);
        let error = refused(&EtcdAccess::default());
        assert!(matches!(error, ClusterError::WantsTls { .. }), "{error}");
        says(&error, &[&endpoint, "--etcd-tls-ca"]);
    }
    // A server that cannot be used does not hide one that can.
    let nobody = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let both = Etcd::with([nobody.to_string(), etcd.endpoint()], &by(&trusting(&ours)));
    let error = answered(|| both.get("k")).unwrap_err();
    assert!(matches!(error, ClusterError::WantsCertificate { .. }), "{error}");
}

#[test]
fn a_certificate_must_name_its_server() {
    let name = "a_certificate_must_name_its_server";
    let Some(mut etcd) = crate::server::start(name) else { return };
    let authority = Authority::new();
    let access = by(&trusting(&authority));
    let error = get(&etcd, &access).unwrap_err();
    assert!(matches!(error, ClusterError::WantsPlain { .. }), "{error}");
    says(&error, &[&etcd.endpoint(), "--etcd-tls-ca"]);
    // etcd asks for no certificate; its own has to be for the name by which clients address it.
    with_tls(&mut etcd, &authority, "localhost", false, access.clone());
    let error = get(&etcd, &access).unwrap_err();
    assert!(matches!(error, ClusterError::NotTrusted { .. }), "{error}");
    says(&error, &["127.0.0.1", "localhost"]);
    let by_name = etcd.endpoint().replace("127.0.0.1", "localhost");
    answered(|| Etcd::with([by_name.clone()], &access).get("k")).unwrap();
    // A certificate that etcd does not ask for does no harm.
    let known = Etcd::with([by_name], &by(&known(&authority, &authority)));
    answered(|| known.get("k")).unwrap();
}

#[test]
fn users_are_let_in_with_their_password_and_up_to_their_rights() {
    let name = "users_are_let_in_with_their_password_and_up_to_their_rights";
    let Some(mut etcd) = crate::server::start(name) else { return };
    let error = get(&etcd, &user("farleaf", "farleaf")).unwrap_err();
    assert!(matches!(error, ClusterError::UsersOff { .. }), "{error}");
    says(&error, &[&etcd.endpoint(), "\"farleaf\"", "etcdctl auth enable"]);
    etcd.turn_users_on(&["farleaf"]);
    let access = user("farleaf", "farleaf");
    let there = Directory::with(&etcd.address("c"), &access);
    let error = answered(|| there.memory_servers()).unwrap_err();
    // The user may not see the names of other clusters.
    assert!(matches!(&error, ClusterError::NoSuchCluster { others, .. } if others.is_empty()));
    use_directory(&there);

    let error = get(&etcd, &EtcdAccess::default()).unwrap_err();
    assert!(matches!(error, ClusterError::NoUser { .. }), "{error}");
    says(&error, &[&etcd.endpoint(), "--etcd-user"]);
    for (name, password) in [("farleaf", "wrong"), ("nobody", "farleaf")] {
        let error = get(&etcd, &user(name, password)).unwrap_err();
        assert!(matches!(error, ClusterError::WrongPassword { .. }), "{error}");
        says(&error, &[&etcd.endpoint(), name]);
        assert!(!error.to_string().contains(password) || name == password, "{error}");
    }
    let client = Etcd::with([etcd.endpoint()], &access);
    let other = Directory::with(&etcd.address("cc"), &access);
    let other = answered(|| other.look()).unwrap_err();
    assert!(matches!(other, ClusterError::NotAllowed { .. }), "{other}");
    says(&other, &["\"farleaf\" list /farleaf/cc/", "role grant-permission"]);
    let error = answered(|| client.put("/farleaf/cc/pool", "7", None)).unwrap_err();
    says(&error, &["\"farleaf\" write /farleaf/cc/pool", "/farleaf/CLUSTER/"]);

    // A change of users invalidates tokens, and a restarted etcd knows none.
    etcd.add_another_user();
    let put = |value: &str| answered(|| client.put("/farleaf/c/letter", value, None));
    put("1").unwrap();
    etcd.restart();
    put("2").unwrap();
    assert_eq!(answered(|| client.get("/farleaf/c/letter")).unwrap().unwrap().value, "2");
}

#[test]
fn users_are_let_in_by_tls() {
    let Some(mut etcd) = crate::server::start("users_are_let_in_by_tls") else { return };
    etcd.turn_users_on(&["farleaf"]);
    let authority = Authority::new();
    let nameless = authority.nameless("nameless");
    let identity = Some((nameless.certificate, nameless.key));
    let files = EtcdTlsFiles { identity, ..trusting(&authority) };
    let access = by(&files).user("farleaf", "farleaf");
    with_tls(&mut etcd, &authority, "127.0.0.1", true, access.clone());
    use_directory(&Directory::with(&etcd.address("c"), &access));
    // A certificate does not name a user.
    let error = get(&etcd, &by(&files)).unwrap_err();
    assert!(matches!(error, ClusterError::NoUser { .. }), "{error}");
    // One with a common name does harm.
    let named = by(&known(&authority, &authority)).user("farleaf", "farleaf");
    let error = get(&etcd, &named).unwrap_err();
    assert!(matches!(error, ClusterError::CommonName { .. }), "{error}");
    says(&error, &[&etcd.endpoint(), "common name"]);
}

#[test]
fn unusable_files_are_reported() {
    let (authority, other) = (Authority::new(), Authority::new());
    let why = |files: EtcdTlsFiles| EtcdAccess::default().tls(&files).unwrap_err().to_string();
    let gone = authority.folder.join("gone.pem");
    let good = known(&authority, &authority);
    let (certificate, key) = good.identity.clone().unwrap();
    let shown = |certificate: &PathBuf, key: &PathBuf| {
        why(EtcdTlsFiles { identity: Some((certificate.clone(), key.clone())), ..good.clone() })
    };
    for (told, words) in [
        (why(EtcdTlsFiles { ca: gone.clone(), identity: None }), "gone.pem"),
        (why(EtcdTlsFiles { ca: key.clone(), identity: None }), "no certificate in"),
        (shown(&certificate, &gone), "gone.pem"),
        (shown(&certificate, &certificate), "no key in"),
        (shown(&certificate, &other.files("x", "x").key), "no certificate and its key"),
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
}
