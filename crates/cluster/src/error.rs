//! Directory errors: say why a request to the directory failed.

use std::net::SocketAddr;

use crate::record::Way;

/// A failed call. No failure or answer of etcd changes the content of the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// An address that does not parse.
    #[error("{0}")]
    Address(String),
    /// No server of etcd has answered.
    #[error("etcd cannot be reached ({tried}): start it, or correct the addresses")]
    Unreachable {
        /// Each address with its error.
        tried: String,
    },
    /// Files for TLS to etcd that cannot be used.
    #[error("{0}")]
    Files(String),
    /// A server shows a certificate that cannot be trusted.
    #[error(
        "the certificate of etcd at {endpoint} is not accepted ({why}): name the authority that has signed \
         it (--etcd-tls-ca), and address it by a name that it is made out to"
    )]
    NotTrusted {
        /// The server.
        endpoint: String,
        /// The fault of the certificate.
        why: String,
    },
    /// A server accepts no client without a certificate.
    #[error(
        "etcd at {endpoint} lets in only who shows a certificate: name one and its key (--etcd-tls-cert, \
         --etcd-tls-key)"
    )]
    WantsCertificate {
        /// The server.
        endpoint: String,
    },
    /// A server does not accept this process's certificate.
    #[error(
        "etcd at {endpoint} does not accept the certificate that it is shown ({why}): take one that its \
         authority has signed (its --trusted-ca-file) and that is still good"
    )]
    CertificateRefused {
        /// The server.
        endpoint: String,
        /// The server's alert.
        why: String,
    },
    /// A server speaks TLS, and this process does not.
    #[error("etcd at {endpoint} speaks TLS: name the authority of its certificate (--etcd-tls-ca)")]
    WantsTls {
        /// The server.
        endpoint: String,
    },
    /// A server does not speak TLS.
    #[error(
        "etcd at {endpoint} does not speak TLS: start it with --cert-file and --key-file, or leave out \
         --etcd-tls-ca"
    )]
    WantsPlain {
        /// The server.
        endpoint: String,
    },
    /// etcd has users, and this process named none.
    #[error(
        "etcd at {endpoint} answers its users only: name one (--etcd-user), and a file with the password \
         (--etcd-password-file)"
    )]
    NoUser {
        /// The server.
        endpoint: String,
    },
    /// etcd has users, and accepts no certificate with a common name.
    #[error(
        "etcd at {endpoint} has users, and its gateway then lets in no certificate that has a common name: \
         take one whose subject has none (--etcd-tls-cert)"
    )]
    CommonName {
        /// The server.
        endpoint: String,
    },
    /// etcd does not know the user by that password.
    #[error(
        "etcd at {endpoint} knows no user \"{user}\" with that password: correct --etcd-user or the password"
    )]
    WrongPassword {
        /// The server.
        endpoint: String,
        /// The user that this process named.
        user: String,
    },
    /// etcd has no users.
    #[error(
        "etcd at {endpoint} has its users turned off, and so does not know \"{user}\": turn them on \
         (etcdctl auth enable), or leave out --etcd-user"
    )]
    UsersOff {
        /// The server.
        endpoint: String,
        /// The user that this process named.
        user: String,
    },
    /// The user may not do that.
    #[error(
        "etcd at {endpoint} does not let its user \"{user}\" {what}{key}: one of the user's roles must \
         allow to read and write what begins with /farleaf/CLUSTER/ (etcdctl role grant-permission ROLE \
         --prefix=true readwrite /farleaf/CLUSTER/)"
    )]
    NotAllowed {
        /// The server.
        endpoint: String,
        /// The user that this process named.
        user: String,
        /// The request that etcd refused.
        what: &'static str,
        /// The key of the request behind a space; empty if it had none.
        key: String,
    },
    /// etcd has understood the request, and refuses it.
    #[error("etcd at {endpoint} refuses to {what}: {message}")]
    Refused {
        /// The server.
        endpoint: String,
        /// The request that etcd refused.
        what: &'static str,
        /// The code of gRPC in the answer.
        code: i64,
        /// Its reason.
        message: String,
    },
    /// The process that answers is no etcd.
    #[error(
        "what answers at {endpoint} is no etcd that can be used ({why}): it takes etcd 3.4 or later"
    )]
    NotEtcd {
        /// The address.
        endpoint: String,
        /// The unexpected answer.
        why: String,
    },
    /// The directory has nothing of that name.
    #[error(
        "etcd at {etcd} knows no cluster \"{name}\"{others}; its memory servers register with \
         farleaf memory --etcd {etcd} --cluster {name}"
    )]
    NoSuchCluster {
        /// The name.
        name: String,
        /// The servers of etcd that this process asked.
        etcd: String,
        /// The existing clusters, as text to append to the name.
        others: String,
    },
    /// Memory servers of the cluster are not registered.
    #[error(
        "cluster \"{name}\": of {servers} memory servers, {missing} not registered: start what is \
         missing, or wait until it is back"
    )]
    Missing {
        /// The cluster.
        name: String,
        /// The missing servers, as text.
        missing: String,
        /// Memory servers that the cluster should have.
        servers: u16,
    },
    /// Memory servers of the cluster do not agree on how many they are.
    #[error(
        "cluster \"{name}\": memory server {server} at {address} says that there are {servers}, and \
         another {others}: start them with the same --servers"
    )]
    OtherCount {
        /// The cluster.
        name: String,
        /// One of them.
        server: u16,
        /// The address at which it listens.
        address: SocketAddr,
        /// The number of servers that it states.
        servers: u16,
        /// The number that the others state.
        others: u16,
    },
    /// Memory servers of the cluster are not all reached by the same fabric.
    #[error(
        "cluster \"{name}\": memory server {server} at {address} is reached by {fabric}, and another by \
         {others}: start them with the same --fabric"
    )]
    OtherWay {
        /// The cluster.
        name: String,
        /// One of them.
        server: u16,
        /// The address at which it listens.
        address: SocketAddr,
        /// The fabric by which clients reach it.
        fabric: Way,
        /// The fabric by which clients reach the others.
        others: Way,
    },
    /// A key or value of the directory is not Farleaf's.
    #[error("the key {key} of etcd is no entry of a cluster's directory ({why}): remove it")]
    Foreign {
        /// The key.
        key: String,
        /// The fault of the entry.
        why: String,
    },
    /// Another memory server has that number.
    #[error(
        "cluster \"{name}\" has a memory server {server} already, at {holder}, which is alive: give \
         this one another number (--server), or end that one"
    )]
    NumberTaken {
        /// The cluster.
        name: String,
        /// The number.
        server: u16,
        /// The memory server that has the number.
        holder: SocketAddr,
    },
    /// The memory servers hold another pool than the cluster had.
    #[error(
        "cluster \"{name}\" is of pool {expected:032x}, and {what} of pool {found:032x}: start the \
         memory servers over the files that belong to it, or take another name for the cluster"
    )]
    OtherPool {
        /// The cluster.
        name: String,
        /// The pool that its directory names.
        expected: u128,
        /// The pool that is there.
        found: u128,
        /// The holder of the other pool.
        what: String,
    },
    /// The cluster has no such compute server.
    #[error("cluster \"{name}\" has no compute server {server} registered")]
    NoSuchServer {
        /// The cluster.
        name: String,
        /// The compute server.
        server: String,
    },
}
