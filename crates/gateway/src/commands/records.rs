//! Records: shared parts of the commands on hashes and on moments of expiry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farleaf::{
    Answer, Content, Expiry, Hash, Record, RecordChange, RecordError, RecordValue, Table,
};

use super::{Call, Failure, Plan, SYNTAX, integer, lower};
use crate::pattern;
use crate::shared::Shared;
use farleaf_resp::replies::Replies;

/// Redis's text for a key of another kind than the command is for.
pub(crate) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Refuses a command for records if the selected table is there and holds raw values.
pub(super) fn need_records(call: &Call<'_>, command: &str) -> Result<(), String> {
    match call.shared.table(call.client.table) {
        Ok(table) if table.info().content == Content::Raw => Err(format!(
            "ERR {command} needs a table of records: \"{}\" holds raw values (make it with --content records)",
            table.name()
        )),
        // The command itself meets what is wrong, if something is.
        _ => Ok(()),
    }
}

/// Tells whether the selected table is there and holds records.
pub(super) fn holds_records(call: &Call<'_>) -> bool {
    let table = call.shared.table(call.client.table);
    table.is_ok_and(|table| table.info().content == Content::Records)
}

/// The gateway's clock in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The unit and the beginning of a time that a client gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeForm {
    Seconds,
    Millis,
    MomentSeconds,
    MomentMillis,
}

impl TimeForm {
    /// By the word of an option of `SET` and `GETEX`.
    fn of(word: &str) -> Option<TimeForm> {
        Some(match word {
            "ex" => TimeForm::Seconds,
            "px" => TimeForm::Millis,
            "exat" => TimeForm::MomentSeconds,
            "pxat" => TimeForm::MomentMillis,
            _ => return None,
        })
    }

    /// The moment in milliseconds since 1970. It may lie in the past; before 1970 it is negative.
    pub(super) fn moment(self, text: &[u8], command: &str) -> Result<i64, String> {
        let time = integer(text)?;
        let invalid = || format!("ERR invalid expire time in '{command}' command");
        let millis = match self {
            TimeForm::Seconds | TimeForm::MomentSeconds => time.checked_mul(1_000),
            TimeForm::Millis | TimeForm::MomentMillis => Some(time),
        };
        let from = match self {
            TimeForm::Seconds | TimeForm::Millis => i64::try_from(now_ms()).unwrap_or(i64::MAX),
            TimeForm::MomentSeconds | TimeForm::MomentMillis => 0,
        };
        millis.and_then(|millis| millis.checked_add(from)).ok_or_else(invalid)
    }

    /// As [`TimeForm::moment`], of a time that must be above 0.
    pub(super) fn later(self, text: &[u8], command: &str) -> Result<u64, String> {
        let is_positive = integer(text)? > 0;
        let moment = self.moment(text, command)?;
        match u64::try_from(moment) {
            Ok(moment) if is_positive => Ok(moment),
            _ => Err(format!("ERR invalid expire time in '{command}' command")),
        }
    }
}

/// The time among the options of a command. As in Redis, the same unit may come again, of which the last time counts, and
/// another may not.
#[derive(Clone, Copy, Default)]
pub(super) struct TimeOption<'a>(Option<(TimeForm, &'a [u8])>);

impl<'a> TimeOption<'a> {
    /// Takes the option `word`, whose time is the next of `rest`.
    ///
    /// # Errors
    /// Syntax: no such option, no time, or a second unit.
    pub(super) fn take(
        &mut self,
        word: &str,
        rest: &mut std::slice::Iter<'_, &'a [u8]>,
    ) -> Result<(), String> {
        let form = TimeForm::of(word);
        let form = form.filter(|form| self.0.is_none_or(|(held, _)| held == *form));
        self.0 = Some((form.ok_or(SYNTAX)?, *rest.next().ok_or(SYNTAX)?));
        Ok(())
    }

    pub(super) fn is_given(self) -> bool {
        self.0.is_some()
    }

    /// The moment, as [`TimeForm::later`]; `None` if no time was given.
    pub(super) fn later(self, command: &str) -> Result<Option<u64>, String> {
        self.0.map(|(form, time)| form.later(time, command)).transpose()
    }
}

/// The expiry at a moment in milliseconds since 1970.
pub(super) fn at(moment_ms: u64) -> Expiry {
    Expiry::At(UNIX_EPOCH + Duration::from_millis(moment_ms))
}

/// Work on one record: `change` tells what becomes of it, and an answer, which `write` writes. It may run several times,
/// the last time counts.
pub(super) fn change_record<T: 'static>(
    key: Vec<u8>,
    change: impl Fn(Option<&Record>) -> Result<(RecordChange, T), ChangeFailure> + 'static,
    write: impl FnOnce(T, &mut Replies) + 'static,
) -> Plan {
    Plan::Alone(Box::new(move |table: &Table, _: &Shared, replies: &mut Replies| {
        let mut outcome = None;
        table.update_record(&key, |held| match change(held) {
            Ok((change, answer)) => {
                outcome = Some(Ok(answer));
                Ok(change)
            }
            Err(ChangeFailure::Text(text)) => {
                outcome = Some(Err(text));
                Ok(RecordChange::Leave)
            }
            Err(ChangeFailure::WrongType) => Err(RecordError::WrongKind {
                key: key.clone(),
                holds: "value",
                wanted: "other kind",
            }),
        })?;
        match outcome {
            Some(Ok(answer)) => write(answer, replies),
            Some(Err(text)) => return Err(Failure::Text(text)),
            None => return Err(Failure::Text("ERR internal: a change has not run".to_owned())),
        }
        Ok(())
    }))
}

/// The reason for which a record is not changed.
pub(super) enum ChangeFailure {
    /// An error reply.
    Text(String),
    /// The key holds another kind of value.
    WrongType,
}

impl From<&str> for ChangeFailure {
    fn from(text: &str) -> Self {
        ChangeFailure::Text(text.to_owned())
    }
}

/// The string that a key holds.
pub(super) fn string_in(held: Option<&Record>) -> Result<Option<&[u8]>, ChangeFailure> {
    match held.map(|record| &record.value) {
        None => Ok(None),
        Some(RecordValue::String(string)) => Ok(Some(string)),
        Some(_) => Err(ChangeFailure::WrongType),
    }
}

/// The fields of the hash that a key holds; `None` if it is absent.
pub(super) fn hash_in(held: Option<&Record>) -> Result<Option<&Hash>, ChangeFailure> {
    match held.map(|record| &record.value) {
        None => Ok(None),
        Some(RecordValue::Hash(hash)) => Ok(Some(hash)),
        Some(_) => Err(ChangeFailure::WrongType),
    }
}

/// The reply that follows from a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordReply {
    /// The time that is left, or the moment of expiry: in milliseconds, or seconds.
    Expiry { is_moment: bool, in_millis: bool },
    /// The value of a field.
    Field(Vec<u8>),
    /// The values of fields.
    Fields(Vec<Vec<u8>>),
    /// All fields and values.
    All,
    /// The names of all fields.
    Names,
    /// The values of all fields.
    Values,
    /// The number of fields.
    Len,
    /// 1 if the hash has the field, 0 if not.
    Has(Vec<u8>),
    /// The length of the value of a field.
    FieldLen(Vec<u8>),
    /// The fields whose names match a pattern, as one part of a scan.
    Scan { pattern: Option<Vec<u8>>, has_values: bool },
}

impl RecordReply {
    /// Writes the reply to the answer of an [`Operation::Record`](farleaf::Operation::Record).
    pub(crate) fn write(&self, answer: Option<&Answer>, replies: &mut Replies) {
        let record = match answer {
            Some(Answer::Record(record)) => record.as_ref(),
            _ => None,
        };
        if let RecordReply::Expiry { is_moment, in_millis } = self {
            return replies.integer(expiry_told(record, *is_moment, *in_millis, now_ms()));
        }
        match hash_in(record) {
            Ok(hash) => self.write_hash(hash.unwrap_or(&Hash::new()), replies),
            Err(_) => replies.error(WRONG_TYPE),
        }
    }

    fn write_hash(&self, hash: &Hash, replies: &mut Replies) {
        let value = |name: &Vec<u8>| hash.get(name).map(Vec::as_slice);
        match self {
            RecordReply::Expiry { .. } => {}
            RecordReply::Field(name) => replies.value(value(name)),
            RecordReply::Fields(names) => {
                replies.array(names.len());
                names.iter().for_each(|name| replies.value(value(name)));
            }
            RecordReply::All => {
                replies.map(hash.len());
                hash.iter().for_each(|(name, value)| {
                    replies.bulk(name);
                    replies.bulk(value);
                });
            }
            RecordReply::Names => {
                replies.array(hash.len());
                hash.keys().for_each(|name| replies.bulk(name));
            }
            RecordReply::Values => {
                replies.array(hash.len());
                hash.values().for_each(|value| replies.bulk(value));
            }
            RecordReply::Len => replies.integer(hash.len() as i64),
            RecordReply::Has(name) => replies.integer(hash.contains_key(name).into()),
            RecordReply::FieldLen(name) => {
                replies.integer(value(name).map_or(0, |value| value.len() as i64));
            }
            RecordReply::Scan { pattern, has_values } => {
                let is_wanted = |name: &&Vec<u8>| {
                    pattern.as_deref().is_none_or(|pattern| pattern::matches(pattern, name))
                };
                let names: Vec<_> = hash.keys().filter(is_wanted).collect();
                replies.array(2);
                replies.bulk(b"0");
                replies.array(names.len() * if *has_values { 2 } else { 1 });
                for name in names {
                    replies.bulk(name);
                    if *has_values {
                        replies.bulk(&hash[name]);
                    }
                }
            }
        }
    }
}

/// As `TTL` and its like answer: -2 for an absent key, -1 for one that does not expire. Seconds are rounded.
fn expiry_told(record: Option<&Record>, is_moment: bool, in_millis: bool, now_ms: u64) -> i64 {
    let Some(record) = record else { return -2 };
    let Some(at_ms) = record.expires_ms else { return -1 };
    let millis = if is_moment { at_ms } else { at_ms.saturating_sub(now_ms) };
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    if in_millis { millis } else { millis.saturating_add(500) / 1_000 }
}

/// The content of a key: a string, or a hash.
pub(super) enum Held {
    String(Vec<u8>),
    Hash(Hash),
}

/// The content of `key`, in a table of any content; `None` if it is absent.
pub(super) fn held(table: &Table, key: &[u8]) -> farleaf::Result<Option<Held>> {
    if table.info().content == Content::Raw {
        return Ok(table.get(key)?.map(Held::String));
    }
    Ok(table.record(key)?.map(|record| match record.value {
        RecordValue::String(string) => Held::String(string),
        RecordValue::Hash(hash) => Held::Hash(hash),
        _ => Held::Hash(Hash::new()),
    }))
}

/// The first word of a command, in upper case, for texts.
pub(super) fn name_of(call: &Call<'_>) -> String {
    lower(call.args[0]).to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_left_are_told_as_redis_does() {
        let record = |at: Option<u64>| Record { expires_ms: at, ..Record::string("x") };
        let told =
            |at, is_moment, in_millis| expiry_told(Some(&record(at)), is_moment, in_millis, 10_000);
        assert_eq!(expiry_told(None, false, false, 0), -2);
        assert_eq!(told(None, false, true), -1);
        assert_eq!(told(Some(12_400), false, true), 2_400);
        assert_eq!(told(Some(12_400), false, false), 2);
        assert_eq!(told(Some(12_500), false, false), 3);
        assert_eq!(told(Some(12_499), true, false), 12);
        assert_eq!(told(Some(9_000), false, true), 0);
    }

    #[test]
    fn times_that_no_moment_has_are_refused() {
        let invalid = "ERR invalid expire time in 'set' command".to_owned();
        let later = |form: TimeForm, text: &[u8]| form.later(text, "set");
        for text in [&b"0"[..], b"-1", b"9223372036854775807"] {
            assert_eq!(later(TimeForm::Seconds, text), Err(invalid.clone()));
        }
        assert_eq!(later(TimeForm::Millis, b"9223372036854775807"), Err(invalid));
        assert_eq!(later(TimeForm::MomentSeconds, b"7"), Ok(7_000));
        assert_eq!(later(TimeForm::MomentMillis, b"7"), Ok(7));
        assert!(
            later(TimeForm::Seconds, b"1.5").is_err_and(|text| text.contains("not an integer"))
        );
        assert_eq!(TimeForm::MomentMillis.moment(b"-5", "expire"), Ok(-5));
    }
}
