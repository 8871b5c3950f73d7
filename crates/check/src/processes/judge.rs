//! Judge process: opens the pool after all others have ended, and checks it.
//!
//! It recovers the dead, walks all tables, accounts for the memory, and compares the tables with
//! the history.

use std::ops::Bound;
use std::path::PathBuf;

use farleaf::{ClassReport, Error, ErrorKind, Farleaf, Table};
use serde::{Deserialize, Serialize};

use super::loads;
use super::log::Log;
use super::spec::{ChildFailed, JudgeSpec, LoadSpec};
use crate::history::{Answer, Op};

/// Most problems of a kind in a verdict.
const TOLD_MAX: usize = 20;

/// The judge's findings, apart from the content of the table, which goes into a history file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// The problems.
    pub(super) problems: Vec<String>,
    /// Tables that killed processes had left, and the judge dropped.
    pub(super) dropped: u64,
}

pub(super) fn run(spec: &JudgeSpec) -> Result<(), ChildFailed> {
    let mut verdict = Verdict::default();
    let db = Farleaf::open(&spec.pool).map_err(ChildFailed::cannot("open the pool"))?;
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: Error| {
            ChildFailed::Fault(format!("cannot {what}: {error} ({:?})", error.kind()))
        }
    };
    verify(&db, "after recovery", &mut verdict).map_err(failed("verify the pool"))?;
    let table = db.table(&spec.table).map_err(failed("open the table"))?;
    content(spec, &table, &mut verdict)?;
    for load in &spec.loads {
        check_load(&db, load, &mut verdict).map_err(failed("look at what was loaded"))?;
    }
    for info in db.tables().map_err(failed("list the tables"))? {
        if !spec.stay.contains(&info.name) {
            db.drop_table(&info.name).map_err(failed("drop a table that was left"))?;
            verdict.dropped += 1;
        }
    }
    drop(table);
    verify(&db, "after the rest was dropped", &mut verdict).map_err(failed("verify the pool"))?;
    db.close().map_err(failed("leave the pool"))?;
    ChildFailed::write(&spec.verdict, "write the verdict", &verdict)
}

fn verify(db: &Farleaf, when: &str, verdict: &mut Verdict) -> Result<(), Error> {
    let report = db.verify()?;
    let problems = report.problems().take(TOLD_MAX);
    verdict.problems.extend(problems.map(|problem| format!("{when}: {problem}")));
    if !report.closes() && report.problems().next().is_none() {
        let sum = |class: &ClassReport| class.live + class.free + class.retired;
        let classes = report.memory.classes.iter();
        let wrong: Vec<_> = classes.filter(|class| class.handed_out != sum(class)).collect();
        verdict.problems.push(format!("{when}: memory is not accounted for: {wrong:?}"));
    }
    Ok(())
}

/// All of the table as an operation of the history, and once more from its end.
fn content(spec: &JudgeSpec, table: &Table, verdict: &mut Verdict) -> Result<(), ChildFailed> {
    let mut log = Log::create(&spec.log)?;
    let (from, to) = (Bound::Unbounded, Bound::Unbounded);
    let all = Op::Scan { from, to, reverse: false, limit: usize::MAX };
    let number = log.begin(spec.client, &all)?;
    let fault = |error: Error| ChildFailed::cannot("read the table")(error);
    let up: Vec<_> = table.range(..).collect::<Result<_, _>>().map_err(fault)?;
    let mut down: Vec<_> = table.range(..).rev().collect::<Result<_, _>>().map_err(fault)?;
    down.reverse();
    if up != down {
        let (up, down) = (up.len(), down.len());
        verdict.problems.push(format!("{up} pairs from the front and {down} others from the end"));
    }
    let mut pairs = Vec::new();
    for (key, value) in up {
        match (table.get(&key).map_err(fault)?, spec.shape.stamp_of(&value)) {
            (held, _) if held.as_ref() != Some(&value) => {
                verdict.problems.push(format!("{key:02x?}: get and scan differ"));
            }
            (_, Ok(stamp)) => pairs.push((key, stamp)),
            (_, Err(why)) => verdict.problems.push(format!("{key:02x?}: {why}")),
        }
    }
    Ok(log.end(number, &Answer::Pairs(pairs))?)
}

fn check_load(db: &Farleaf, load: &LoadSpec, verdict: &mut Verdict) -> Result<(), Error> {
    let name = &load.table;
    let table = match db.table(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if load.acknowledged {
                verdict.problems.push(format!("table \"{name}\" was loaded and is not there"));
            }
            return Ok(());
        }
        table => table?,
    };
    let (mut count, mut foreign) = (0, 0);
    for pair in table.range(..) {
        let (key, value) = pair?;
        count += 1;
        foreign += u32::from(!loads::is_record(&key, &value));
    }
    let all = loads::RECORDS;
    if foreign > 0 {
        verdict.problems.push(format!("table \"{name}\": {foreign} records of no input"));
    }
    if load.acknowledged && count != all {
        verdict.problems.push(format!("table \"{name}\": {count} of {all} acknowledged records"));
    } else if load.sorted && count != 0 && count != all {
        verdict.problems.push(format!("table \"{name}\": {count} of {all} records, loaded in one"));
    }
    Ok(())
}

/// Reads a verdict.
///
/// # Errors
/// The reason why there is none.
pub(super) fn read(path: &PathBuf) -> Result<Verdict, String> {
    let text = std::fs::read(path).map_err(|error| format!("no verdict: {error}"))?;
    serde_json::from_slice(&text).map_err(|error| format!("no verdict: {error}"))
}
