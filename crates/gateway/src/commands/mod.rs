//! Commands: one table of names, arities and handlers, from which dispatch, `COMMAND` and the page of commands follow.
//!
//! A handler plans a command: it checks the arguments, and names the operations of the table that answer it. The
//! connection runs reads that stand next to each other as one batch; a write waits for what came before it.

mod connection;
mod expiry;
mod hashes;
mod keyspace;
mod order;
mod records;
mod refused;
mod server;
mod strings;

use farleaf::{Answer, ErrorKind, Operation, Table};
use smallvec::SmallVec;

pub use refused::REFUSED;

use self::records::{RecordReply, WRONG_TYPE};
use crate::Overlap;
use crate::client::Client;
use crate::shared::Shared;
use crate::users::{Rights, User};
use farleaf_resp::replies::Replies;

/// A command that clients may send.
#[derive(Debug)]
pub struct Command {
    /// Its name in lower case.
    pub name: &'static str,
    /// Arguments, the name among them; if negative, at least so many.
    pub arity: i32,
    /// Redis's words for what it does.
    pub flags: &'static [&'static str],
    /// The first key, the last, and the step between, as Redis counts them; 0 for none.
    pub keys: [i32; 3],
    /// Redis's group.
    pub group: &'static str,
    /// One line of text.
    pub about: &'static str,
    /// The difference from Redis, if there is one.
    pub differs: Option<&'static str>,
    /// Plans it.
    pub(crate) plan: fn(&mut Call<'_>) -> Result<Plan, String>,
}

impl Command {
    const fn new(
        name: &'static str,
        arity: i32,
        group: &'static str,
        about: &'static str,
        plan: fn(&mut Call<'_>) -> Result<Plan, String>,
    ) -> Self {
        Command {
            name,
            arity,
            flags: &["fast"],
            keys: [0, 0, 0],
            group,
            about,
            differs: None,
            plan,
        }
    }

    const fn reads(mut self, keys: [i32; 3]) -> Self {
        (self.flags, self.keys) = (&["readonly"], keys);
        self
    }

    const fn writes(mut self, keys: [i32; 3]) -> Self {
        (self.flags, self.keys) = (&["write"], keys);
        self
    }

    const fn differs(mut self, text: &'static str) -> Self {
        self.differs = Some(text);
        self
    }

    /// It is for tables of records.
    const fn needs_records(self) -> Self {
        self.differs("in tables of records")
    }

    /// The same, and Redis has another order of fields.
    const fn orders_by_name(self) -> Self {
        self.differs("in tables of records; fields in the order of their names")
    }

    /// Tells whether it may change what the client has chosen.
    fn changes_client(&self) -> bool {
        self.group == "connection"
    }

    /// Tells whether it runs once all before it are answered, and not beside them.
    pub(crate) fn begins_a_part(&self, overlap: Overlap) -> bool {
        self.changes_client()
            || match overlap {
                Overlap::Nothing => true,
                Overlap::Reads => self.flags == ["write"],
                Overlap::All => false,
            }
    }

    /// The rights that it takes of a user.
    fn rights(&self) -> Rights {
        match self.flags {
            _ if ADMIN.contains(&self.name) => Rights::Admin,
            ["write"] => Rights::Write,
            _ => Rights::Read,
        }
    }

    /// Tells whether Redis takes so many arguments, the name among them.
    fn takes(&self, args: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { args >= arity } else { args == arity }
    }
}

/// Commands that take the rights `admin`.
const ADMIN: [&str; 3] = ["flushdb", "flushall", "slowlog"];

/// Every command, by group.
pub fn commands() -> impl Iterator<Item = &'static Command> {
    let all: [&[Command]; 7] = [
        strings::COMMANDS,
        expiry::COMMANDS,
        hashes::COMMANDS,
        order::COMMANDS,
        keyspace::COMMANDS,
        connection::COMMANDS,
        server::COMMANDS,
    ];
    all.into_iter().flatten()
}

/// A command that a client has sent.
pub(crate) struct Call<'a> {
    /// The name and the arguments.
    pub(crate) args: &'a [&'a [u8]],
    pub(crate) client: &'a mut Client,
    pub(crate) shared: &'a Shared,
}

impl Call<'_> {
    /// The arguments behind the name.
    fn rest(&self) -> &[&[u8]] {
        &self.args[1..]
    }

    fn key(&self) -> Vec<u8> {
        self.args[1].to_vec()
    }

    /// A reply that needs no table.
    fn reply(&self, write: impl FnOnce(&mut Replies)) -> Result<Plan, String> {
        let mut replies = Replies { protocol: self.client.protocol, ..Replies::default() };
        write(&mut replies);
        Ok(Plan::Reply(replies.bytes))
    }

    /// The first argument behind the name, in lower case.
    fn word(&self) -> String {
        self.args.get(1).map(|word| lower(word)).unwrap_or_default()
    }
}

/// The operations of a command: one of most commands.
pub(crate) type Operations = SmallVec<[Operation; 1]>;

/// The work that a command needs.
pub(crate) enum Plan {
    /// These bytes answer it.
    Reply(Vec<u8>),
    /// Reads, which may run beside those of neighbouring commands.
    Reads(Operations, Shape),
    /// Changes, which wait for all before them.
    Writes(Operations, Shape),
    /// Work on the table that is more than a batch; it runs alone.
    Alone(Work),
}

/// Work of a command on its table, which writes the reply.
pub(crate) type Work = Box<dyn FnOnce(&Table, &Shared, &mut Replies) -> Result<(), Failure>>;

/// The end of a command's work without a reply.
pub(crate) enum Failure {
    /// An error of the library.
    Store(farleaf::Error),
    /// An error reply.
    Text(String),
}

impl From<farleaf::Error> for Failure {
    fn from(error: farleaf::Error) -> Self {
        Failure::Store(error)
    }
}

/// The reply that follows from the answers of a plan's operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The value, or null.
    Value,
    /// An array of values.
    Values,
    /// The length of the value.
    Length,
    /// A part of the value, from a byte to a byte, as `GETRANGE` counts.
    Part(i64, i64),
    /// The number of keys that are there.
    Count,
    /// `string`, `hash` or `none`.
    Type,
    /// `OK`.
    Ok,
    /// `OK`, or null if nothing was done.
    OkIfDone,
    /// 1 if it was done, else 0.
    OneIfDone,
    /// The number of those that were done.
    CountDone,
    /// The reply that a command makes of a record.
    Record(RecordReply),
}

impl Shape {
    /// Tells whether a hash counts as a key that is there, where strings are asked for.
    pub(crate) fn takes_hashes(&self) -> bool {
        matches!(self, Shape::Count | Shape::Type | Shape::Values)
    }

    /// Writes the reply. The first error of the operations is the reply if there is one.
    pub(crate) fn write(
        self,
        name: &str,
        operations: &[Operation],
        answers: &[farleaf::Result<Answer>],
        replies: &mut Replies,
    ) {
        // A hash is there, and is no string.
        let takes_hashes = self.takes_hashes();
        let fails = |error: &farleaf::Error| !(takes_hashes && is_hash(error));
        let failed = answers.iter().position(|answer| answer.as_ref().is_err_and(fails));
        if let Some((Err(error), at)) = failed.map(|at| (&answers[at], at)) {
            let done = answers.iter().filter(|answer| answer.is_ok()).count();
            let text = error_text(name, Some(operations[at].key()), error);
            return match answers.len() {
                1 => replies.error(&text),
                all => replies.error(&format!("{text} ({done} of {all} keys were done)")),
            };
        }
        let first = || match answers.first() {
            Some(Ok(Answer::Value(value))) => value.as_deref(),
            _ => None,
        };
        let done = answers.iter().filter(|answer| answer.as_ref().map_or(true, is_done)).count();
        match self {
            Shape::Value => replies.value(first()),
            Shape::Values => {
                replies.array(answers.len());
                for answer in answers {
                    match answer {
                        Ok(answer) => write_value(answer, replies),
                        Err(_) => replies.null(),
                    }
                }
            }
            Shape::Length => replies.integer(first().map_or(0, |value| value.len() as i64)),
            Shape::Part(from, to) => replies.bulk(part(first().unwrap_or_default(), from, to)),
            Shape::Count | Shape::CountDone => replies.integer(done as i64),
            Shape::Type if answers.iter().any(Result::is_err) => replies.simple("hash"),
            Shape::Type => replies.simple(if first().is_some() { "string" } else { "none" }),
            Shape::Ok => replies.simple("OK"),
            Shape::OkIfDone if done > 0 => replies.simple("OK"),
            Shape::OkIfDone => replies.null(),
            Shape::OneIfDone => replies.integer((done > 0).into()),
            Shape::Record(reply) => {
                reply.write(answers.first().and_then(|answer| answer.as_ref().ok()), replies);
            }
        }
    }
}

/// Tells whether the key holds a hash where a string was asked for.
pub(crate) fn is_hash(error: &farleaf::Error) -> bool {
    error.kind() == ErrorKind::WrongType
}

pub(crate) fn is_done(answer: &Answer) -> bool {
    match answer {
        Answer::Value(value) => value.is_some(),
        Answer::Flag(flag) => *flag,
        Answer::Record(record) => record.is_some(),
        Answer::Exchange(farleaf::CompareExchange::Exchanged) => true,
        _ => false,
    }
}

/// Writes the value of an answer, or null.
pub(crate) fn write_value(answer: &Answer, replies: &mut Replies) {
    match answer {
        Answer::Value(value) => replies.value(value.as_deref()),
        _ => replies.null(),
    }
}

/// The bytes that `GETRANGE` returns: both ends are included, and count from the end if they are negative.
fn part(value: &[u8], from: i64, to: i64) -> &[u8] {
    let len = value.len() as i64;
    if from < 0 && to < 0 && from > to {
        return &[];
    }
    let from_begin = |at: i64| if at < 0 { (len + at).max(0) } else { at };
    let (from, to) = (from_begin(from), from_begin(to).min(len - 1));
    if from > to { &[] } else { &value[from as usize..=to as usize] }
}

/// Plans the command that `call` names.
pub(crate) fn plan(call: &mut Call<'_>, command: Option<&'static Command>) -> Result<Plan, String> {
    let command = check(call, command)?;
    (command.plan)(call)
}

/// Checks that there is such a command, that it takes so many arguments, and that the client may use it.
pub(crate) fn check(
    call: &Call<'_>,
    command: Option<&'static Command>,
) -> Result<&'static Command, String> {
    if !call.shared.knows(call.client)
        && !command.is_some_and(|command| BEFORE_AUTH.contains(&command.name))
    {
        return Err("NOAUTH Authentication required.".to_owned());
    }
    let Some(command) = command else { return Err(refused::text(call.args)) };
    if !command.takes(call.args.len()) {
        return Err(wrong_arity(command.name));
    }
    if let Some(user) = &call.client.user
        && user.rights < command.rights()
    {
        return Err(not_allowed(call, user, command));
    }
    Ok(command)
}

/// Commands of clients that have not said who they are.
const BEFORE_AUTH: [&str; 4] = ["auth", "hello", "quit", "reset"];

fn not_allowed(call: &Call<'_>, user: &User, command: &Command) -> String {
    let name = &user.name;
    match command.rights() {
        Rights::Admin => {
            let command = command.name.to_uppercase();
            format!("NOPERM user \"{name}\" may not {command}: that takes the rights \"admin\"")
        }
        _ => {
            let table = call.shared.table_name(call.client.table);
            format!("NOPERM user \"{name}\" may not write table \"{table}\"")
        }
    }
}

/// Refuses a subcommand that takes the rights `admin`.
fn check_admin(call: &Call<'_>, what: &str) -> Result<(), String> {
    match &call.client.user {
        Some(user) if user.rights < Rights::Admin => Err(format!(
            "NOPERM user \"{}\" may not {what}: that takes the rights \"admin\"",
            user.name
        )),
        _ => Ok(()),
    }
}

pub(crate) fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

/// Bytes of a reply whose length is known only once all of it is there.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Returns `bytes`, those of a reply so far, unless they are too many.
fn check_reply(bytes: usize, remedy: &str) -> Result<usize, Failure> {
    if bytes > REPLY_BYTES_MAX {
        return Err(Failure::Text(format!(
            "ERR the reply takes more than {REPLY_BYTES_MAX} bytes: {remedy}"
        )));
    }
    Ok(bytes)
}

const SYNTAX: &str = "ERR syntax error";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";

pub(crate) fn lower(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_lowercase()
}

fn integer(text: &[u8]) -> Result<i64, String> {
    farleaf_resp::number(text).ok_or_else(|| NO_INTEGER.to_owned())
}

fn unknown_subcommand(call: &Call<'_>) -> String {
    let sub = call.args.get(1).map(|word| String::from_utf8_lossy(word).into_owned());
    let name = lower(call.args[0]).to_uppercase();
    format!("ERR unknown subcommand '{}'. Try {name} HELP.", sub.unwrap_or_default())
}

/// The reply to commands while the pool is lost. Clients send them again by themselves.
pub(crate) const LOADING: &str = "LOADING farleaf is opening the pool";

/// Tells whether the command is a change: over a loss of the pool it may have happened.
fn may_have_happened(name: &str) -> bool {
    commands().any(|command| command.name == name && command.flags == ["write"])
}

/// The error reply of a failure of the library: its first word tells clients what they may do.
pub(crate) fn error_text(name: &str, key: Option<&[u8]>, error: &farleaf::Error) -> String {
    match error.kind() {
        ErrorKind::WrongType => WRONG_TYPE.to_owned(),
        ErrorKind::Unavailable => format!("TRYAGAIN {error}"),
        ErrorKind::OutcomeUnknown => {
            let name = name.to_uppercase();
            let key = key.map(|key| format!(" \"{}\"", key.escape_ascii())).unwrap_or_default();
            format!("UNKNOWN outcome of {name}{key}: it may or may not have happened: {error}")
        }
        ErrorKind::Full => format!("OOM the pool has no memory left: {error}"),
        ErrorKind::Closed if may_have_happened(name) => {
            let name = name.to_uppercase();
            format!(
                "UNKNOWN outcome of {name}: the pool was lost over it, and it may or may not have happened"
            )
        }
        ErrorKind::Closed => LOADING.to_owned(),
        ErrorKind::Corrupt => format!("CORRUPT {error}"),
        ErrorKind::Internal => format!("ERR internal: {error}"),
        _ => format!("ERR {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_stand_once() {
        let mut names: Vec<_> = commands().map(|command| command.name).collect();
        names.extend(REFUSED.iter().flat_map(|(names, _)| names.iter()));
        let count = names.len();
        assert!(names.iter().all(|name| *name == name.to_lowercase()), "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name stands twice");
    }

    #[test]
    fn a_record_of_a_later_version_says_so() {
        let fault = farleaf::RecordView::read(&[0x42]).expect_err("no record of this version");
        let error = farleaf::RecordError::Format { key: b"ada".to_vec(), fault };
        let text = error_text("get", Some(b"ada"), &error.into());
        assert!(text.starts_with("CORRUPT ") && text.contains("ada"), "{text}");
        assert!(text.contains("was written by a later version"), "{text}");
    }

    #[test]
    fn parts_of_values_are_those_of_redis() {
        let of =
            |from, to| String::from_utf8_lossy(part(b"This is a string", from, to)).into_owned();
        assert_eq!(of(0, 3), "This");
        assert_eq!(of(-3, -1), "ing");
        assert_eq!(of(0, -1), "This is a string");
        assert_eq!(of(10, 100), "string");
        assert_eq!(of(5, 3), "");
        assert_eq!(of(-1, -5), "");
        assert_eq!(of(-100, 1), "Th");
        assert_eq!(part(b"", 0, -1), b"");
    }
}
