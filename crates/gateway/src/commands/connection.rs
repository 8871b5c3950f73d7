//! Connection: what a client says of itself, and of the protocol.

use super::{Call, Command, Plan, SYNTAX, integer, lower, unknown_subcommand};
use crate::resp::replies::{Protocol, Replies};

const GROUP: &str = "connection";
/// The level of commands that clients look for.
pub(super) const REDIS_VERSION: &str = "7.4.0";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you \
                           sure your configuration is correct?";

pub(super) const COMMANDS: &[Command] = &[
    Command::new("ping", -1, GROUP, "Answers.", ping),
    Command::new("echo", 2, GROUP, "Returns its argument.", echo),
    Command::new("quit", -1, GROUP, "Ends the connection.", quit),
    Command::new("reset", 1, GROUP, "Forgets what the client has chosen.", reset),
    Command::new("select", 2, GROUP, "Chooses the table.", select),
    Command::new("hello", -1, GROUP, "Chooses the protocol.", hello),
    Command::new("auth", -2, GROUP, "Says who the client is.", auth)
        .differs("the gateway has no users yet"),
    Command::new("client", -2, GROUP, "Names the client, and tells of clients.", client)
        .differs("ID, GETNAME, SETNAME, SETINFO, INFO, LIST, NO-EVICT, NO-TOUCH and HELP; LIST has its own client"),
];

fn ping(call: &mut Call<'_>) -> Result<Plan, String> {
    match call.rest() {
        [] => call.reply(|replies| replies.simple("PONG")),
        [text] => call.reply(|replies| replies.bulk(text)),
        _ => Err("ERR wrong number of arguments for 'ping' command".to_owned()),
    }
}

fn echo(call: &mut Call<'_>) -> Result<Plan, String> {
    call.reply(|replies| replies.bulk(call.args[1]))
}

fn quit(call: &mut Call<'_>) -> Result<Plan, String> {
    call.client.ends = true;
    call.reply(|replies| replies.simple("OK"))
}

fn reset(call: &mut Call<'_>) -> Result<Plan, String> {
    call.client.reset();
    call.reply(|replies| replies.simple("RESET"))
}

fn select(call: &mut Call<'_>) -> Result<Plan, String> {
    let number = integer(call.args[1])?;
    let number = usize::try_from(number).ok().filter(|it| *it < call.shared.databases());
    call.client.database = number.ok_or("ERR DB index is out of range")?;
    call.reply(|replies| replies.simple("OK"))
}

fn hello(call: &mut Call<'_>) -> Result<Plan, String> {
    let mut rest = call.args[1..].iter();
    let mut protocol = call.client.protocol;
    if let Some(version) = rest.next() {
        protocol = match crate::resp::number(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
            None => {
                return Err("ERR Protocol version is not an integer or out of range".to_owned());
            }
        };
    }
    let mut name = None;
    while let Some(word) = rest.next() {
        match lower(word).as_str() {
            "auth" => {
                let _user = rest.next().ok_or(SYNTAX)?;
                let _token = rest.next().ok_or(SYNTAX)?;
                return Err(NO_PASSWORD.to_owned());
            }
            "setname" => name = Some(checked_name(rest.next().ok_or(SYNTAX)?)?),
            _ => return Err(format!("ERR Syntax error in HELLO option '{}'", lower(word))),
        }
    }
    call.client.protocol = protocol;
    if let Some(name) = name {
        call.client.name = name;
    }
    let (id, version) = (call.client.id, if protocol == Protocol::Resp3 { 3 } else { 2 });
    call.reply(|replies| {
        replies.map(7);
        text(replies, "server", "redis");
        text(replies, "version", REDIS_VERSION);
        replies.bulk(b"proto");
        replies.integer(version);
        replies.bulk(b"id");
        replies.integer(id as i64);
        text(replies, "mode", "standalone");
        text(replies, "role", "master");
        replies.bulk(b"modules");
        replies.array(0);
    })
}

fn text(replies: &mut Replies, key: &str, value: &str) {
    replies.bulk(key.as_bytes());
    replies.bulk(value.as_bytes());
}

fn auth(_: &mut Call<'_>) -> Result<Plan, String> {
    Err(NO_PASSWORD.to_owned())
}

fn checked_name(name: &[u8]) -> Result<Vec<u8>, String> {
    if name.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
        let text = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(text.to_owned());
    }
    Ok(name.to_vec())
}

const HELP: [&str; 10] = [
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ID",
    "    Returns the number of the connection.",
    "GETNAME",
    "    Returns the name of the connection.",
    "SETNAME <name>",
    "    Names the connection.",
    "INFO",
    "    Tells of the connection.",
    "HELP",
];

fn client(call: &mut Call<'_>) -> Result<Plan, String> {
    let args = call.args.len();
    match (call.word().as_str(), args) {
        ("id", 2) => call.reply(|replies| replies.integer(call.client.id as i64)),
        ("getname", 2) => {
            let name = Some(call.client.name.as_slice()).filter(|name| !name.is_empty());
            call.reply(|replies| replies.value(name))
        }
        ("setname", 3) => {
            call.client.name = checked_name(call.args[2])?;
            call.reply(|replies| replies.simple("OK"))
        }
        ("setinfo", 4) => {
            let value = checked_name(call.args[3]).map_err(|_| {
                format!(
                    "ERR {} cannot contain spaces, newlines or special characters.",
                    lower(call.args[2])
                )
            })?;
            match lower(call.args[2]).as_str() {
                "lib-name" => call.client.library[0] = value,
                "lib-ver" => call.client.library[1] = value,
                other => return Err(format!("ERR Unrecognized option '{other}'")),
            }
            call.reply(|replies| replies.simple("OK"))
        }
        ("info", 2) => call.reply(|replies| replies.verbatim(&format!("{}\n", call.client.line()))),
        ("list", _) => call.reply(|replies| replies.verbatim(&format!("{}\n", call.client.line()))),
        ("no-evict" | "no-touch", 3) => match lower(call.args[2]).as_str() {
            "on" | "off" => call.reply(|replies| replies.simple("OK")),
            _ => Err(SYNTAX.to_owned()),
        },
        ("help", 2) => call.reply(|replies| {
            replies.array(HELP.len());
            HELP.iter().for_each(|line| replies.simple(line));
        }),
        (
            "id" | "getname" | "setname" | "setinfo" | "info" | "no-evict" | "no-touch" | "help",
            _,
        ) => Err(format!("ERR wrong number of arguments for 'client|{}' command", call.word())),
        ("tracking", _) => {
            Err("ERR CLIENT TRACKING is not supported: farleaf does not tell clients of changes"
                .to_owned())
        }
        _ => Err(unknown_subcommand(call)),
    }
}
