//! Verdict: judges the history of a run.

use super::outcome::{Failure, Outcome};
use crate::linear::{Limits, Violation, check};

/// Steps for one key, and for one history: a tenth of a second or so.
const LIMITS: Limits = Limits { key_steps_max: 1_000_000, steps_max: 20_000_000 };

/// Checks the history of `outcome`, and puts a violation into it. That tells more than a leak or damage, which
/// follow from it. If the run did not end, the events so far are judged.
pub fn judge(outcome: &mut Outcome) {
    let is_worse = matches!(
        outcome.failure,
        None | Some(Failure::Damaged(_) | Failure::Leaked(_) | Failure::Stuck(_))
    );
    if !is_worse {
        return;
    }
    match check(&outcome.history, &LIMITS) {
        Ok(checked) => outcome.stats.undecided += checked.undecided.len() as u64,
        Err(violation) => {
            let why = violation.to_string();
            let (key, events) = match &violation {
                Violation::Key(found) => {
                    let events = found.rows.iter().map(|row| row.event).collect();
                    (Some(found.key.clone()), events)
                }
                Violation::Scan(found) => (found.key.clone(), vec![found.row.event]),
                Violation::Malformed { event, .. } => (None, event.iter().copied().collect()),
            };
            outcome.failure = Some(Failure::NotLinearizable { key, why, events });
        }
    }
}
