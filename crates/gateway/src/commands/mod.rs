//! Commands: one table of names, arities and handlers, from which dispatch, `COMMAND` and the page of commands follow.
//!
//! A handler plans a command: it checks the arguments, and names the operations of the table that answer it. The
//! connection runs reads that stand next to each other as one batch; a write waits for what came before it.

mod connection;
mod keyspace;
mod order;
mod refused;
mod server;
mod strings;

use farleaf::{Answer, Operation, Table};

pub use refused::REFUSED;

use crate::client::Client;
use crate::resp::replies::Replies;
use crate::shared::Shared;

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

    /// Tells whether it may change what the client has chosen.
    fn changes_client(&self) -> bool {
        self.group == "connection"
    }

    /// Tells whether it runs once all before it are answered, and not beside them.
    pub(crate) fn begins_a_part(&self) -> bool {
        self.changes_client() || self.flags == ["write"]
    }

    /// Tells whether Redis takes so many arguments, the name among them.
    fn takes(&self, args: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { args >= arity } else { args == arity }
    }
}

/// Every command, by group.
pub fn commands() -> impl Iterator<Item = &'static Command> {
    let all: [&[Command]; 5] = [
        strings::COMMANDS,
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

/// The work that a command needs.
pub(crate) enum Plan {
    /// These bytes answer it.
    Reply(Vec<u8>),
    /// Reads, which may run beside those of neighbouring commands.
    Reads(Vec<Operation>, Shape),
    /// Changes, which wait for all before them.
    Writes(Vec<Operation>, Shape),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// `string` or `none`.
    Type,
    /// `OK`.
    Ok,
    /// `OK`, or null if nothing was done.
    OkIfDone,
    /// 1 if it was done, else 0.
    OneIfDone,
    /// The number of those that were done.
    CountDone,
}

impl Shape {
    /// Writes the reply. The first error of the operations is the reply if there is one.
    pub(crate) fn write(
        self,
        name: &str,
        answers: &[farleaf::Result<Answer>],
        replies: &mut Replies,
    ) {
        if let Some(Err(error)) = answers.iter().find(|answer| answer.is_err()) {
            let done = answers.iter().filter(|answer| answer.is_ok()).count();
            let text = error_text(name, error);
            return match answers.len() {
                1 => replies.error(&text),
                all => replies.error(&format!("{text} ({done} of {all} keys were done)")),
            };
        }
        let answers = || answers.iter().flatten();
        let first = || match answers().next() {
            Some(Answer::Value(value)) => value.as_deref(),
            _ => None,
        };
        let done = answers().filter(|answer| is_done(answer)).count();
        match self {
            Shape::Value => replies.value(first()),
            Shape::Values => {
                replies.array(answers().count());
                for answer in answers() {
                    match answer {
                        Answer::Value(value) => replies.value(value.as_deref()),
                        _ => replies.null(),
                    }
                }
            }
            Shape::Length => replies.integer(first().map_or(0, |value| value.len() as i64)),
            Shape::Part(from, to) => replies.bulk(part(first().unwrap_or_default(), from, to)),
            Shape::Count | Shape::CountDone => replies.integer(done as i64),
            Shape::Type => replies.simple(if first().is_some() { "string" } else { "none" }),
            Shape::Ok => replies.simple("OK"),
            Shape::OkIfDone if done > 0 => replies.simple("OK"),
            Shape::OkIfDone => replies.null(),
            Shape::OneIfDone => replies.integer((done > 0).into()),
        }
    }
}

fn is_done(answer: &Answer) -> bool {
    match answer {
        Answer::Value(value) => value.is_some(),
        Answer::Flag(flag) => *flag,
        Answer::Exchange(farleaf::CompareExchange::Exchanged) => true,
        _ => false,
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

/// Plans a call of `command`, or refuses one of none that there is.
pub(crate) fn plan(command: Option<&Command>, call: &mut Call<'_>) -> Result<Plan, String> {
    let command = command.ok_or_else(|| refused::text(call.args))?;
    if !command.takes(call.args.len()) {
        return Err(wrong_arity(command.name));
    }
    (command.plan)(call)
}

fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

const SYNTAX: &str = "ERR syntax error";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";

fn lower(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_lowercase()
}

fn integer(text: &[u8]) -> Result<i64, String> {
    crate::resp::number(text).ok_or_else(|| NO_INTEGER.to_owned())
}

fn unknown_subcommand(call: &Call<'_>) -> String {
    let sub = call.args.get(1).map(|word| String::from_utf8_lossy(word).into_owned());
    let name = lower(call.args[0]).to_uppercase();
    format!("ERR unknown subcommand '{}'. Try {name} HELP.", sub.unwrap_or_default())
}

/// The error reply of a failure of the library: its first word tells clients what they may do.
pub(crate) fn error_text(name: &str, error: &farleaf::Error) -> String {
    use farleaf::ErrorKind;
    match error.kind() {
        ErrorKind::Unavailable => format!("TRYAGAIN {error}"),
        ErrorKind::OutcomeUnknown => {
            let name = name.to_uppercase();
            format!("UNKNOWN outcome of {name}: it may or may not have happened: {error}")
        }
        ErrorKind::Full => format!("OOM {error}"),
        ErrorKind::Closed => "LOADING the pool is lost, and this gateway ends with it".to_owned(),
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
