//! Expiry: commands on the moment at which a record expires.

use farleaf::{Operation, Record, RecordChange};
use smallvec::smallvec;

use super::records::{
    ChangeFailure, RecordReply, TimeForm, TimeOption, at, change_record, name_of, need_records,
    string_in,
};
use super::{Call, Command, Plan, SYNTAX, Shape, lower};

const GROUP: &str = "generic";
const ONE: [i32; 3] = [1, 1, 1];

pub(super) const COMMANDS: &[Command] = &[
    Command::new("expire", -3, GROUP, "Lets a key expire after some seconds.", |call| {
        expire(call, TimeForm::Seconds)
    })
    .writes(ONE)
    .needs_records(),
    Command::new("pexpire", -3, GROUP, "Lets a key expire after some milliseconds.", |call| {
        expire(call, TimeForm::Millis)
    })
    .writes(ONE)
    .needs_records(),
    Command::new("expireat", -3, GROUP, "Lets a key expire at a second.", |call| {
        expire(call, TimeForm::MomentSeconds)
    })
    .writes(ONE)
    .needs_records(),
    Command::new("pexpireat", -3, GROUP, "Lets a key expire at a millisecond.", |call| {
        expire(call, TimeForm::MomentMillis)
    })
    .writes(ONE)
    .needs_records(),
    Command::new("ttl", 2, GROUP, "Returns the seconds until a key expires.", |call| {
        told(call, false, false)
    })
    .reads(ONE)
    .needs_records(),
    Command::new("pttl", 2, GROUP, "Returns the milliseconds until a key expires.", |call| {
        told(call, false, true)
    })
    .reads(ONE)
    .needs_records(),
    Command::new("expiretime", 2, GROUP, "Returns the second at which a key expires.", |call| {
        told(call, true, false)
    })
    .reads(ONE)
    .needs_records(),
    Command::new(
        "pexpiretime",
        2,
        GROUP,
        "Returns the millisecond at which a key expires.",
        |call| told(call, true, true),
    )
    .reads(ONE)
    .needs_records(),
    Command::new("persist", 2, GROUP, "Lets a key expire no more.", persist)
        .writes(ONE)
        .needs_records(),
    Command::new("setex", 4, "string", "Sets a value that expires after some seconds.", |call| {
        set_expiring(call, TimeForm::Seconds)
    })
    .writes(ONE)
    .needs_records(),
    Command::new(
        "psetex",
        4,
        "string",
        "Sets a value that expires after some milliseconds.",
        |call| set_expiring(call, TimeForm::Millis),
    )
    .writes(ONE)
    .needs_records(),
    Command::new("getex", -2, "string", "Returns a value and changes when it expires.", getex)
        .writes(ONE)
        .needs_records(),
];

/// The conditions of `EXPIRE` and its like.
#[derive(Clone, Copy, Debug, Default)]
struct Conditions {
    has_none: bool,
    has_one: bool,
    is_later: bool,
    is_earlier: bool,
}

impl Conditions {
    fn parse(words: &[&[u8]]) -> Result<Self, String> {
        let mut conditions = Conditions::default();
        for word in words {
            match lower(word).as_str() {
                "nx" => conditions.has_none = true,
                "xx" => conditions.has_one = true,
                "gt" => conditions.is_later = true,
                "lt" => conditions.is_earlier = true,
                _ => {
                    let word = String::from_utf8_lossy(word);
                    return Err(format!("ERR Unsupported option {word}"));
                }
            }
        }
        let Conditions { has_none, has_one, is_later, is_earlier } = conditions;
        if has_none && (has_one || is_later || is_earlier) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(text.to_owned());
        }
        if is_later && is_earlier {
            return Err("ERR GT and LT options at the same time are not compatible".to_owned());
        }
        Ok(conditions)
    }

    /// Tells whether a record with this moment of expiry gets the moment `new`. One that does not expire counts as the latest.
    fn hold(self, held: Option<u64>, new: u64) -> bool {
        !(self.has_none && held.is_some()
            || self.has_one && held.is_none()
            || self.is_later && held.is_none_or(|held| new <= held)
            || self.is_earlier && held.is_some_and(|held| new >= held))
    }
}

fn expire(call: &mut Call<'_>, form: TimeForm) -> Result<Plan, String> {
    let name = name_of(call);
    need_records(call, &name)?;
    let conditions = Conditions::parse(&call.args[3..])?;
    let moment = form.moment(call.args[2], &name.to_lowercase())?;
    // A moment before 1970 has passed as well as the first one.
    let moment = u64::try_from(moment).unwrap_or(0);
    let change = move |held: Option<&Record>| {
        Ok(match held {
            Some(record) if conditions.hold(record.expires_ms, moment) => {
                let expires_ms = Some(moment);
                (RecordChange::Put(Record { expires_ms, ..record.clone() }), 1)
            }
            _ => (RecordChange::Leave, 0),
        })
    };
    Ok(change_record(call.key(), change, |done, replies| replies.integer(done)))
}

fn told(call: &mut Call<'_>, is_moment: bool, in_millis: bool) -> Result<Plan, String> {
    need_records(call, &name_of(call))?;
    let shape = Shape::Record(RecordReply::Expiry { is_moment, in_millis });
    Ok(Plan::Reads(smallvec![Operation::Record(call.key())], shape))
}

fn persist(call: &mut Call<'_>) -> Result<Plan, String> {
    need_records(call, "PERSIST")?;
    let change = |held: Option<&Record>| {
        Ok(match held {
            Some(record) if record.expires_ms.is_some() => {
                (RecordChange::Put(Record { expires_ms: None, ..record.clone() }), 1)
            }
            _ => (RecordChange::Leave, 0),
        })
    };
    Ok(change_record(call.key(), change, |done, replies| replies.integer(done)))
}

fn set_expiring(call: &mut Call<'_>, form: TimeForm) -> Result<Plan, String> {
    let name = name_of(call);
    need_records(call, &name)?;
    let moment = form.later(call.args[2], &name.to_lowercase())?;
    let insert = Operation::InsertWith(call.key(), call.args[3].to_vec(), at(moment));
    Ok(Plan::Writes(smallvec![insert], Shape::Ok))
}

fn getex(call: &mut Call<'_>) -> Result<Plan, String> {
    let (mut time, mut persists) = (TimeOption::default(), false);
    let mut rest = call.args[2..].iter();
    while let Some(word) = rest.next() {
        match lower(word).as_str() {
            "persist" => persists = true,
            word => time.take(word, &mut rest)?,
        }
    }
    match (persists, time.is_given()) {
        (true, true) => return Err(SYNTAX.to_owned()),
        (false, false) => {
            return Ok(Plan::Reads(smallvec![Operation::Get(call.key())], Shape::Value));
        }
        _ => need_records(call, "GETEX")?,
    }
    let new = time.later("getex");
    let change = move |held: Option<&Record>| {
        let value = string_in(held)?.map(<[u8]>::to_vec);
        let Some(record) = held else { return Ok((RecordChange::Leave, None)) };
        // Redis looks at the time behind the key.
        let expires_ms = new.clone().map_err(ChangeFailure::Text)?;
        Ok((RecordChange::Put(Record { expires_ms, ..record.clone() }), value))
    };
    Ok(change_record(call.key(), change, |value, replies| replies.value(value.as_deref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_moments_as_redis_does() {
        let hold = |words: &[&[u8]], held: Option<u64>, new: u64| {
            Conditions::parse(words).expect("words").hold(held, new)
        };
        assert!(hold(&[], None, 5) && hold(&[], Some(9), 5));
        assert!(hold(&[b"NX"], None, 5) && !hold(&[b"nx"], Some(9), 5));
        assert!(!hold(&[b"XX"], None, 5) && hold(&[b"xx"], Some(9), 5));
        assert!(
            !hold(&[b"GT"], None, 5) && !hold(&[b"GT"], Some(5), 5) && hold(&[b"GT"], Some(4), 5)
        );
        assert!(
            hold(&[b"LT"], None, 5) && !hold(&[b"LT"], Some(5), 5) && hold(&[b"LT"], Some(6), 5)
        );
        assert!(!hold(&[b"XX", b"LT"], None, 5));
        for words in [&[&b"NX"[..], b"XX"][..], &[b"GT", b"NX"], &[b"GT", b"LT"]] {
            assert!(Conditions::parse(words).is_err_and(|text| text.contains("not compatible")));
        }
        assert_eq!(
            Conditions::parse(&[b"soon"]).expect_err("a word"),
            "ERR Unsupported option soon"
        );
    }
}
