//! Refused commands: those of Redis that the gateway does not have, and why.

use super::lower;

/// Names of commands, in lower case, and the reason why they are not there.
pub const REFUSED: &[(&[&str], &str)] = &[
    (
        &[
            "lpush",
            "rpush",
            "lpushx",
            "rpushx",
            "lpop",
            "rpop",
            "lrange",
            "llen",
            "lindex",
            "linsert",
            "lset",
            "lrem",
            "ltrim",
            "lpos",
            "lmove",
            "lmpop",
            "rpoplpush",
        ],
        "farleaf has no lists",
    ),
    (
        &[
            "blpop",
            "brpop",
            "blmove",
            "blmpop",
            "brpoplpush",
            "bzpopmin",
            "bzpopmax",
            "bzmpop",
            "wait",
            "waitaof",
        ],
        "farleaf has no commands that wait",
    ),
    (
        &[
            "sadd",
            "srem",
            "smembers",
            "sismember",
            "smismember",
            "scard",
            "sinter",
            "sintercard",
            "sinterstore",
            "sunion",
            "sunionstore",
            "sdiff",
            "sdiffstore",
            "spop",
            "srandmember",
            "smove",
            "sscan",
        ],
        "farleaf has no sets",
    ),
    (
        &[
            "zadd",
            "zrem",
            "zscore",
            "zmscore",
            "zcard",
            "zcount",
            "zincrby",
            "zrank",
            "zrevrank",
            "zrangebyscore",
            "zrevrangebyscore",
            "zrevrange",
            "zrangestore",
            "zremrangebyscore",
            "zremrangebyrank",
            "zpopmin",
            "zpopmax",
            "zmpop",
            "zrandmember",
            "zscan",
            "zinter",
            "zintercard",
            "zinterstore",
            "zunion",
            "zunionstore",
            "zdiff",
            "zdiffstore",
        ],
        "farleaf has no sorted sets with scores; ZRANGE with BYLEX ranges over the keys of a table",
    ),
    (
        &[
            "hrandfield",
            "hgetdel",
            "hgetex",
            "hsetex",
            "hexpire",
            "hpexpire",
            "httl",
            "hpttl",
            "hpersist",
            "hexpireat",
            "hpexpireat",
            "hexpiretime",
            "hpexpiretime",
        ],
        "the fields of a hash do not expire by themselves, and none is taken at random",
    ),
    (
        &[
            "xadd",
            "xread",
            "xrange",
            "xrevrange",
            "xlen",
            "xdel",
            "xtrim",
            "xgroup",
            "xreadgroup",
            "xack",
            "xpending",
            "xclaim",
            "xautoclaim",
            "xinfo",
            "xsetid",
        ],
        "farleaf has no streams",
    ),
    (
        &[
            "geoadd",
            "geodist",
            "geohash",
            "geopos",
            "georadius",
            "georadiusbymember",
            "geosearch",
            "geosearchstore",
        ],
        "farleaf has no places",
    ),
    (
        &["setbit", "getbit", "bitcount", "bitpos", "bitop", "bitfield", "bitfield_ro"],
        "farleaf has no bitmaps",
    ),
    (&["pfadd", "pfcount", "pfmerge"], "farleaf has no HyperLogLog"),
    (
        &[
            "subscribe",
            "psubscribe",
            "ssubscribe",
            "unsubscribe",
            "punsubscribe",
            "sunsubscribe",
            "publish",
            "spublish",
            "pubsub",
        ],
        "farleaf has no messages between clients",
    ),
    (
        &["eval", "evalsha", "eval_ro", "evalsha_ro", "script", "function", "fcall", "fcall_ro"],
        "farleaf runs no scripts",
    ),
    (
        &["cluster", "asking", "readonly", "readwrite"],
        "any number of gateways serve one pool, without Redis's cluster",
    ),
    (
        &["replicaof", "slaveof", "psync", "sync", "replconf", "failover"],
        "farleaf does not replicate as Redis does",
    ),
    (
        &[
            "save",
            "bgsave",
            "bgrewriteaof",
            "lastsave",
            "shutdown",
            "debug",
            "monitor",
            "swapdb",
            "lolwut",
            "migrate",
            "restore",
            "dump",
        ],
        "the pool is not kept in files of Redis",
    ),
    (
        &["rename", "renamenx", "copy", "move", "sort", "sort_ro", "randomkey", "msetnx", "lcs"],
        "farleaf has no steps over several keys",
    ),
    (&["flushall"], "a gateway removes the keys of one table at a time: use FLUSHDB"),
    (
        &["multi", "exec", "discard", "watch", "unwatch"],
        "there are no transactions. Use a pipeline without one (redis-py: pipeline(transaction=False)) or start the \
         gateway with --multi sequence",
    ),
];

/// The reply to a command that is not there. The first words are Redis's, because clients look for them.
pub(super) fn text(args: &[&[u8]]) -> String {
    let name = lower(args[0]);
    let reason = REFUSED.iter().find(|(names, _)| names.contains(&name.as_str()));
    if let Some((_, reason)) = reason {
        if ["multi", "watch"].contains(&name.as_str()) {
            return format!("ERR {} is not supported: {reason}", name.to_uppercase());
        }
        if name == "exec" || name == "discard" {
            return format!("ERR {} without MULTI", name.to_uppercase());
        }
        if name == "cluster" {
            return "ERR This instance has cluster support disabled".to_owned();
        }
        let name = name.to_uppercase();
        return format!(
            "ERR unknown command '{name}': {reason}; docs/redis-commands.md has what it has"
        );
    }
    let told = |word: &[u8]| -> String {
        String::from_utf8_lossy(&word[..word.len().min(128)]).into_owned()
    };
    let begin: String = args[1..].iter().take(8).map(|word| format!("'{}' ", told(word))).collect();
    format!("ERR unknown command '{}', with args beginning with: {begin}", told(args[0]))
}
