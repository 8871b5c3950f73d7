//! etcd client: speaks to etcd's JSON gateway over HTTP (`/v3/...`, etcd 3.4 or later).
//!
//! Calls block, and each has a time limit. The client asks each server in turn until one answers, first
//! the one that answered last. So etcd may run a request twice, which harms none of the requests here:
//! see each of them. The client makes a connection for each request, because it sends only a few per
//! second.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::Agent;

use crate::access::User;
use crate::tls::{Tls, diagnose};
use crate::{ClusterError, EtcdAccess};

/// Longest wait for one server's answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer that the client reads.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Codes of gRPC: not found; codes after which another server, or a later try, may succeed.
const NOT_FOUND: i64 = 5;
const PASSING: [i64; 3] = [4, 8, 14];
/// More codes of gRPC: invalid argument, permission denied, failed precondition, and a token that is no
/// longer valid.
const INVALID: i64 = 3;
const NOT_ALLOWED: i64 = 7;
const OUT_OF_STATE: i64 = 9;
const NOT_KNOWN: i64 = 16;
/// The gateway's answer, which is not JSON, to a certificate with a common name while etcd has users.
const COMMON_NAME: &[u8] = b"CommonName of client";
/// etcd's messages under the code `INVALID`: to a request without a user, and to a token from before a change
/// of users.
const NOBODY: &str = "user name is empty";
const OLD_TOKEN: &str = "revision of auth store is old";

/// A lease of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseId(i64);

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: String,
    /// The value; bytes that are no text are replaced by U+FFFD.
    pub value: String,
    /// The revision of its last change.
    pub revision: i64,
    /// The lease that it is bound to, if it is.
    pub lease: Option<LeaseId>,
}

/// Servers of one etcd. Use it from any thread.
#[derive(Debug)]
pub struct Etcd {
    agent: Agent,
    tls: Option<Tls>,
    user: Option<User>,
    /// The user's token, if etcd has issued one.
    token: Mutex<Option<String>>,
    endpoints: Vec<String>,
    /// Index of the server that answered last.
    last: AtomicUsize,
}

impl Etcd {
    /// The servers at these addresses, each a host and a port, with `access` to them. Sends no request yet.
    pub fn with<S: Into<String>>(
        endpoints: impl IntoIterator<Item = S>,
        access: &EtcdAccess,
    ) -> Self {
        let EtcdAccess { tls, user } = access.clone();
        let mut config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .max_idle_connections(0);
        if let Some(tls) = &tls {
            config = config.tls_config(tls.agent.clone());
        }
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        let (agent, token) = (config.build().into(), Mutex::new(None));
        Etcd { agent, tls, user, token, endpoints, last: AtomicUsize::new(0) }
    }

    /// The servers' addresses, with commas.
    pub fn endpoints(&self) -> String {
        self.endpoints.join(",")
    }

    /// Makes a new lease; etcd may make it longer. If the answer is lost, the lease ends by itself.
    ///
    /// # Errors
    /// See [`ClusterError`]; the same holds for all functions here.
    pub fn grant(&self, time: Duration) -> Result<LeaseId, ClusterError> {
        let seconds = time.as_secs().max(1);
        let granted: Granted = self.call(
            ("grant a lease", ""),
            "/v3/lease/grant",
            &json!({ "TTL": seconds.to_string() }),
        )?;
        Ok(LeaseId(granted.id.0))
    }

    /// Renews a lease; returns its time to live, or `None` if it has run out.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, ClusterError> {
        let body = json!({ "ID": lease.0.to_string() });
        let kept: Kept = self.call(("renew a lease", ""), "/v3/lease/keepalive", &body)?;
        let seconds = u64::try_from(kept.result.ttl.0).unwrap_or(0);
        Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
    }

    /// Ends a lease, and with it the keys that are bound to it. An expired lease is no error.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn revoke(&self, lease: LeaseId) -> Result<(), ClusterError> {
        let body = json!({ "ID": lease.0.to_string() });
        match self.call::<Value>(("end a lease", ""), "/v3/lease/revoke", &body) {
            Ok(_) | Err(ClusterError::Refused { code: NOT_FOUND, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn get(&self, key: &str) -> Result<Option<Pair>, ClusterError> {
        let found: Range =
            self.call(("read", key), "/v3/kv/range", &json!({ "key": coded(key) }))?;
        Ok(self.pairs(found)?.pop())
    }

    /// Returns all keys with this prefix, in their order.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn list(&self, prefix: &str) -> Result<Vec<Pair>, ClusterError> {
        self.list_as(prefix, false)
    }

    /// Returns all keys with this prefix, without values.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn list_keys(&self, prefix: &str) -> Result<Vec<Pair>, ClusterError> {
        self.list_as(prefix, true)
    }

    fn list_as(&self, prefix: &str, keys_only: bool) -> Result<Vec<Pair>, ClusterError> {
        let range = json!({
            "key": coded(prefix),
            "range_end": STANDARD.encode(end_of(prefix)),
            "keys_only": keys_only,
        });
        let found: Range = self.call(("list", prefix), "/v3/kv/range", &range)?;
        self.pairs(found)
    }

    /// Sets a key, bound to `lease` if there is one; false if the lease has run out.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn put(
        &self,
        key: &str,
        value: &str,
        lease: Option<LeaseId>,
    ) -> Result<bool, ClusterError> {
        match self.call::<Value>(("write", key), "/v3/kv/put", &put_of(key, value, lease)) {
            Ok(_) => Ok(true),
            Err(ClusterError::Refused { code: NOT_FOUND, .. }) if lease.is_some() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sets a key if its last change is of `revision`, 0 for a key that does not exist. Otherwise returns the
    /// present pair, or nothing if the key has gone or the lease has run out. If the same value already
    /// stands there under the same lease, that counts as done: a request whose answer was lost has set it.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn put_if(
        &self,
        key: &str,
        value: &str,
        lease: Option<LeaseId>,
        revision: i64,
    ) -> Result<Result<(), Option<Pair>>, ClusterError> {
        let transaction = json!({
            "compare": [{
                "key": coded(key),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": revision.to_string(),
            }],
            "success": [{ "request_put": put_of(key, value, lease) }],
            "failure": [{ "request_range": { "key": coded(key) } }],
        });
        let done: Result<Transaction, _> = self.call(("write", key), "/v3/kv/txn", &transaction);
        let done = match done {
            Err(ClusterError::Refused { code: NOT_FOUND, .. }) if lease.is_some() => {
                return Ok(Err(None));
            }
            done => done?,
        };
        if done.succeeded {
            return Ok(Ok(()));
        }
        let found = done.responses.into_iter().find_map(|response| response.response_range);
        let found = self.pairs(found.unwrap_or_default())?.pop();
        let is_own = |pair: &Pair| pair.value == value && pair.lease == lease && lease.is_some();
        Ok(if found.as_ref().is_some_and(is_own) { Ok(()) } else { Err(found) })
    }

    /// Sends a request to one server after the other. `what` names the request and its key, for errors.
    fn call<T: DeserializeOwned>(
        &self,
        what: (&'static str, &str),
        path: &str,
        body: &Value,
    ) -> Result<T, ClusterError> {
        let body = body.to_string();
        let first = self.last.load(Ordering::Relaxed);
        let (mut tried, mut wrong) = (Vec::new(), None);
        for step in 0..self.endpoints.len() {
            let number = (first + step) % self.endpoints.len();
            let endpoint = &self.endpoints[number];
            match self.ask(endpoint, path, &body) {
                Ok(answer) => {
                    self.last.store(number, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(AskError::Passing(why)) => tried.push(format!("{endpoint}: {why}")),
                Err(AskError::Wrong(error)) => wrong = wrong.or(Some(error)),
                Err(AskError::Refused(refusal)) => {
                    return Err(self.refused(endpoint, what, refusal));
                }
                Err(AskError::Final(error)) => return Err(error),
            }
        }
        // An error that the user can correct is more useful than a list of silent servers.
        Err(wrong.unwrap_or_else(|| ClusterError::Unreachable { tried: tried.join("; ") }))
    }

    /// Sends a request as the user, if there is one; with a new token if the old one has run out.
    fn ask<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        path: &str,
        body: &str,
    ) -> Result<T, AskError> {
        let Some(user) = &self.user else { return self.send(endpoint, path, body, None) };
        let known = self.token().clone();
        let is_new = known.is_none();
        let token = known.map_or_else(|| self.authenticate(endpoint, user), Ok)?;
        match self.send(endpoint, path, body, Some(&token)) {
            Err(AskError::Refused(refusal)) if refusal.is_of_old_token() && !is_new => {
                let token = self.authenticate(endpoint, user)?;
                self.send(endpoint, path, body, Some(&token))
            }
            asked => asked,
        }
    }

    /// The error for a request that a server has refused.
    fn refused(
        &self,
        endpoint: &str,
        (what, key): (&'static str, &str),
        Refusal { code, message }: Refusal,
    ) -> ClusterError {
        let endpoint = endpoint.to_owned();
        match &self.user {
            None if code == INVALID && message.contains(NOBODY) => {
                ClusterError::NoUser { endpoint }
            }
            Some(user) if code == NOT_ALLOWED => {
                let space = if key.is_empty() { "" } else { " " };
                let (user, key) = (user.name.clone(), format!("{space}{key}"));
                ClusterError::NotAllowed { endpoint, user, what, key }
            }
            _ => ClusterError::Refused { endpoint, what, code, message },
        }
    }

    /// Gets a token for the user, and keeps it.
    fn authenticate(&self, endpoint: &str, user: &User) -> Result<String, AskError> {
        let body = json!({ "name": user.name, "password": user.password }).to_string();
        let asked = self.send(endpoint, "/v3/auth/authenticate", &body, None);
        let Authenticated { token } = asked.map_err(|asked| {
            let AskError::Refused(Refusal { code, message }) = asked else { return asked };
            let (endpoint, user) = (endpoint.to_owned(), user.name.clone());
            AskError::Final(match code {
                INVALID => ClusterError::WrongPassword { endpoint, user },
                OUT_OF_STATE => ClusterError::UsersOff { endpoint, user },
                _ => ClusterError::Refused { endpoint, what: "let a user in", code, message },
            })
        })?;
        *self.token() = Some(token.clone());
        Ok(token)
    }

    fn token(&self) -> MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        path: &str,
        body: &str,
        token: Option<&str>,
    ) -> Result<T, AskError> {
        let wrong = || diagnose(endpoint, self.tls.as_ref()).map(AskError::Wrong);
        let passing = |error: ureq::Error| {
            let is_broken_off = matches!(&error, ureq::Error::Io(error) if is_broken_off(error));
            let wrong = if is_broken_off { wrong() } else { None };
            wrong.unwrap_or_else(|| AskError::Passing(error.to_string()))
        };
        let not_etcd = |why: String| {
            let error = || ClusterError::NotEtcd { endpoint: endpoint.to_owned(), why };
            wrong().unwrap_or_else(|| AskError::Final(error()))
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut request = self
            .agent
            .post(format!("{scheme}://{endpoint}{path}"))
            .header("Content-Type", "application/json");
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let mut answer = request.send(body).map_err(|error| match error {
            // The server has answered, and not in HTTP.
            ureq::Error::Protocol(error) => not_etcd(error.to_string()),
            error => passing(error),
        })?;
        let status = answer.status().as_u16();
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(passing)?;
        if status == 400 && bytes.starts_with(COMMON_NAME) {
            return Err(AskError::Final(ClusterError::CommonName {
                endpoint: endpoint.to_owned(),
            }));
        }
        let answer: Value = serde_json::from_slice(&bytes)
            .map_err(|error| not_etcd(format!("it answers {status} to {path}: {error}")))?;
        // The gateway refuses a call with a stream of answers within an answer, with status 200.
        let refused = if status == 200 { answer.get("error") } else { Some(&answer) };
        let Some(refused) = refused else {
            return T::deserialize(answer)
                .map_err(|error| not_etcd(format!("its answer is malformed: {error}")));
        };
        let refusal = Refusal::deserialize(refused)
            .map_err(|error| not_etcd(format!("it answers {status} to {path}: {error}")))?;
        Err(if PASSING.contains(&refusal.code) {
            AskError::Passing(refusal.message)
        } else {
            AskError::Refused(refusal)
        })
    }

    fn pairs(&self, found: Range) -> Result<Vec<Pair>, ClusterError> {
        let pairs: Option<Vec<Pair>> = found.kvs.into_iter().map(KeyValue::decode).collect();
        pairs.ok_or_else(|| ClusterError::NotEtcd {
            endpoint: self.endpoints(),
            why: "a key or value is not coded in base64".to_owned(),
        })
    }
}

/// Failure of a request to one server.
enum AskError {
    /// Another server may succeed.
    Passing(String),
    /// This server does not accept such requests; another one may.
    Wrong(ClusterError),
    /// etcd has understood the request, and refuses it.
    Refused(Refusal),
    /// No server will succeed.
    Final(ClusterError),
}

/// Returns whether the server was reached and then broke the request off.
fn is_broken_off(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::TimedOut
            | ErrorKind::WouldBlock
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::AddrNotAvailable
    )
}

/// A number, which the gateway writes as text.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
struct Number(i64);

impl TryFrom<String> for Number {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Number)
    }
}

// The gateway leaves out fields that are zero or empty.
#[derive(Debug, Default, Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Debug, Deserialize)]
struct KeyValue {
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    mod_revision: Number,
    #[serde(default)]
    lease: Number,
}

impl KeyValue {
    fn decode(self) -> Option<Pair> {
        let text = |coded: &str| {
            let bytes = STANDARD.decode(coded).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let lease = (self.lease.0 != 0).then_some(LeaseId(self.lease.0));
        Some(Pair {
            key: text(&self.key)?,
            value: text(&self.value)?,
            revision: self.mod_revision.0,
            lease,
        })
    }
}

#[derive(Debug, Deserialize)]
struct Authenticated {
    token: String,
}

#[derive(Debug, Deserialize)]
struct Granted {
    #[serde(rename = "ID")]
    id: Number,
}

#[derive(Debug, Deserialize)]
struct Kept {
    result: KeptLease,
}

#[derive(Debug, Deserialize)]
struct KeptLease {
    #[serde(rename = "TTL", default)]
    ttl: Number,
}

#[derive(Debug, Deserialize)]
struct Transaction {
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

#[derive(Debug, Deserialize)]
struct Response {
    response_range: Option<Range>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    #[serde(alias = "grpc_code")]
    code: i64,
    #[serde(default)]
    message: String,
}

impl Refusal {
    /// Returns whether a token is no longer valid: it expired, etcd restarted, or somebody changed its users.
    fn is_of_old_token(&self) -> bool {
        self.code == NOT_KNOWN || self.code == INVALID && self.message.contains(OLD_TOKEN)
    }
}

fn coded(text: &str) -> String {
    STANDARD.encode(text)
}

fn put_of(key: &str, value: &str, lease: Option<LeaseId>) -> Value {
    let lease = lease.map_or(0, |lease| lease.0).to_string();
    json!({ "key": coded(key), "value": coded(value), "lease": lease })
}

/// Returns the first key behind all keys with this prefix.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // UTF-8 has no byte 0xff, so the last one can be counted up.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
