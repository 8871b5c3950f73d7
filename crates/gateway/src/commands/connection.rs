//! Connection: what a client says of itself, and of the protocol.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Call, Command, Plan, SYNTAX, check_admin, integer, lower, unknown_subcommand};
use crate::client::ClientCard;
use crate::shared::lock;
use farleaf_resp::replies::{Protocol, Replies};

const GROUP: &str = "connection";
/// The level of commands that clients look for.
pub(super) const REDIS_VERSION: &str = "7.4.0";
const WRONG_TOKEN: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_FIRST: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                           <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
                           RESP protocol version at the same time";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you \
                           sure your configuration is correct?";

pub(super) const COMMANDS: &[Command] = &[
    Command::new("ping", -1, GROUP, "Answers.", ping),
    Command::new("echo", 2, GROUP, "Returns its argument.", echo),
    Command::new("quit", -1, GROUP, "Ends the connection.", quit),
    Command::new("reset", 1, GROUP, "Forgets what the client has chosen.", reset),
    Command::new("select", 2, GROUP, "Chooses the table.", select),
    Command::new("hello", -1, GROUP, "Chooses the protocol.", hello),
    Command::new("auth", -2, GROUP, "Says who the client is.", auth),
    Command::new("client", -2, GROUP, "Names the client, and tells of clients.", client)
        .differs("ID, GETNAME, SETNAME, SETINFO, INFO, LIST, KILL, NO-EVICT, NO-TOUCH and HELP"),
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
    let number = usize::try_from(number).map_err(|_| "ERR DB index is out of range")?;
    let place = call.shared.place(call.client.user.as_deref(), number);
    call.client.table = place.ok_or("ERR DB index is out of range")?;
    call.client.tell(|told| told.database = number);
    call.reply(|replies| replies.simple("OK"))
}

fn hello(call: &mut Call<'_>) -> Result<Plan, String> {
    let mut rest = call.args[1..].iter();
    let mut protocol = call.client.protocol;
    if let Some(version) = rest.next() {
        protocol = match farleaf_resp::number(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
            None => {
                return Err("ERR Protocol version is not an integer or out of range".to_owned());
            }
        };
    }
    let (mut name, mut proof) = (None, None);
    while let Some(word) = rest.next() {
        match lower(word).as_str() {
            "auth" => {
                let user = rest.next().ok_or(SYNTAX)?;
                proof = Some((*user, *rest.next().ok_or(SYNTAX)?));
            }
            "setname" => name = Some(checked_name(rest.next().ok_or(SYNTAX)?)?),
            _ => return Err(format!("ERR Syntax error in HELLO option '{}'", lower(word))),
        }
    }
    if let Some((user, token)) = proof {
        prove(call, Some(user), token)?;
    }
    if !call.shared.knows(call.client) {
        return Err(HELLO_FIRST.to_owned());
    }
    call.client.set_protocol(protocol);
    if let Some(name) = name {
        call.client.tell(|told| told.name = name);
    }
    let (id, version) = (call.client.card.id, if protocol == Protocol::Resp3 { 3 } else { 2 });
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

fn auth(call: &mut Call<'_>) -> Result<Plan, String> {
    match *call.args {
        [_, token] => prove(call, None, token)?,
        [_, user, token] => prove(call, Some(user), token)?,
        _ => return Err(SYNTAX.to_owned()),
    }
    call.reply(|replies| replies.simple("OK"))
}

/// Makes the client the user of that token.
fn prove(call: &mut Call<'_>, name: Option<&[u8]>, token: &[u8]) -> Result<(), String> {
    if call.shared.options.users.is_none() {
        return Err(NO_PASSWORD.to_owned());
    }
    // Clients that know nothing of users send this name.
    let name = name.filter(|name| *name != b"default");
    let users = call.shared.users();
    let Some(user) = users.find(name, token) else {
        let address = &call.client.card.address;
        tracing::warn!(%address, "refuses a token");
        return Err(WRONG_TOKEN.to_owned());
    };
    let place = call.shared.place(Some(user.as_ref()), 0).ok_or(WRONG_TOKEN)?;
    call.client.set_user(Arc::clone(user), place);
    Ok(())
}

fn checked_name(name: &[u8]) -> Result<Vec<u8>, String> {
    if name.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
        let text = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(text.to_owned());
    }
    Ok(name.to_vec())
}

const HELP: [&str; 14] = [
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ID",
    "    Returns the number of the connection.",
    "GETNAME",
    "    Returns the name of the connection.",
    "SETNAME <name>",
    "    Names the connection.",
    "INFO",
    "    Tells of the connection.",
    "KILL <ip:port> | [ID <id>] [ADDR <ip:port>] [USER <name>] [SKIPME <yes|no>]",
    "    Ends connections.",
    "LIST",
    "    Tells of all connections.",
    "HELP",
];

/// `CLIENT KILL`: ends the connections that all conditions meet.
fn kill(call: &mut Call<'_>) -> Result<Plan, String> {
    check_admin(call, "CLIENT KILL")?;
    let (mut id, mut address, mut user) = (None, None, None);
    let (mut skips_own, is_old) = (true, call.args.len() == 3);
    if is_old {
        (address, skips_own) = (Some(call.args[2]), false);
    }
    let mut rest = if is_old { [].iter() } else { call.args[2..].iter() };
    while let Some(word) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        match lower(word).as_str() {
            "id" => id = Some(integer(value)?),
            "addr" => address = Some(*value),
            "user" => user = Some(String::from_utf8_lossy(value).into_owned()),
            "skipme" => match lower(value).as_str() {
                "yes" => skips_own = true,
                "no" => skips_own = false,
                _ => return Err(SYNTAX.to_owned()),
            },
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let own = call.client.card.id;
    let meets = |card: &&Arc<ClientCard>| {
        id.is_none_or(|id| u64::try_from(id) == Ok(card.id))
            && address.is_none_or(|address| address == card.address.as_bytes())
            && user.as_ref().is_none_or(|user| lock(&card.told).user.as_ref() == Some(user))
            && !(skips_own && card.id == own)
    };
    let met: Vec<_> = lock(&call.shared.clients).values().filter(meets).cloned().collect();
    for card in &met {
        if card.id == own {
            // It gets its reply first.
            call.client.ends = true;
        } else {
            card.is_killed.store(true, Ordering::Relaxed);
        }
    }
    call.shared.wake_all();
    match (is_old, met.len()) {
        (true, 0) => Err("ERR No such client".to_owned()),
        (true, _) => call.reply(|replies| replies.simple("OK")),
        (false, count) => call.reply(|replies| replies.integer(count as i64)),
    }
}

fn client(call: &mut Call<'_>) -> Result<Plan, String> {
    let args = call.args.len();
    match (call.word().as_str(), args) {
        ("id", 2) => call.reply(|replies| replies.integer(call.client.card.id as i64)),
        ("getname", 2) => {
            let name = lock(&call.client.card.told).name.clone();
            call.reply(|replies| replies.value(Some(name.as_slice()).filter(|it| !it.is_empty())))
        }
        ("setname", 3) => {
            let name = checked_name(call.args[2])?;
            call.client.tell(|told| told.name = name);
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
                "lib-name" => call.client.tell(|told| told.library[0] = value),
                "lib-ver" => call.client.tell(|told| told.library[1] = value),
                other => return Err(format!("ERR Unrecognized option '{other}'")),
            }
            call.reply(|replies| replies.simple("OK"))
        }
        ("info", 2) => {
            let line = format!("{}\n", call.client.card.line());
            call.reply(|replies| replies.verbatim(&line))
        }
        ("list", 2) => {
            check_admin(call, "CLIENT LIST")?;
            let clients: Vec<_> = lock(&call.shared.clients).values().cloned().collect();
            let lines: String = clients.iter().map(|card| card.line() + "\n").collect();
            call.reply(|replies| replies.verbatim(&lines))
        }
        ("kill", 3..) => kill(call),
        ("no-evict" | "no-touch", 3) => match lower(call.args[2]).as_str() {
            "on" | "off" => call.reply(|replies| replies.simple("OK")),
            _ => Err(SYNTAX.to_owned()),
        },
        ("help", 2) => call.reply(|replies| {
            replies.array(HELP.len());
            HELP.iter().for_each(|line| replies.simple(line));
        }),
        (
            "id" | "getname" | "setname" | "setinfo" | "info" | "kill" | "no-evict" | "no-touch"
            | "help",
            _,
        ) => Err(format!("ERR wrong number of arguments for 'client|{}' command", call.word())),
        ("tracking", _) => {
            Err("ERR CLIENT TRACKING is not supported: farleaf does not tell clients of changes"
                .to_owned())
        }
        _ => Err(unknown_subcommand(call)),
    }
}
