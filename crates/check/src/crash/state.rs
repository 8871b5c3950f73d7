//! Crash states: the states from which actions start, and the search for them.
//!
//! Fixed keys would reach a structural change in one layout of nodes only. So the lab searches for the
//! state: it adds or removes keys one by one and walks the table after each. The first step that makes
//! the change is the action; the table before it is the state.

use std::collections::BTreeSet;

use farleaf_engines::{AnyIndex, Engine};
use farleaf_fabric::Endpoint;
use farleaf_fabric::sim::{CountedOp, CrashPlan, CrashWay, Landing, Verb};
use farleaf_harness::HarnessError;
use farleaf_index::lab::{Action, CrashState, CrashStep, INITIAL, Order, Script, Setup};
use farleaf_index::{Index, TableReport};
use farleaf_pool::{Audit, Session};

use super::action::TABLE;
use super::formats::Format;
use crate::world::{create, small_world};

/// Time after which an operation's tasks have ended, if nothing is held up.
pub(super) const TASKS_NS: u64 = 1_000_000;
/// Most keys that a hunt adds.
const HUNT_KEYS: u32 = 120;
/// Keys are tens up to this many.
pub(super) const NUMBERS_MAX: u32 = 127;

/// One change of the table on the way to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FillStep {
    Put(u32),
    Remove(u32),
    /// A watcher caches the table.
    Watch,
    /// Memory that was retired becomes free.
    Rest,
}

/// Ticks of each member after which what it has retired is free.
const REST_TICKS: usize = 8;

/// Returns whether the change that the script is for, if any, lies between two walks of a table of `engine`.
pub(super) fn is_reached(
    script: Script,
    engine: Engine,
    before: &TableReport,
    after: &TableReport,
) -> bool {
    match script {
        Script::Keys(_) | Script::Without(..) => true,
        Script::Grow(change, _) | Script::Shrink(_, change, _) | Script::Regrow(_, _, change) => {
            engine.is_change(change, before, after)
        }
    }
}

/// The beginning of a case: its seed, its table's format, and the state to find.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) seed: u64,
    pub(super) format: Format,
    pub(super) state: CrashState,
}

/// A state that has been found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) steps: Vec<FillStep>,
    /// A last step, which the actor makes itself.
    pub(super) own_step: Option<FillStep>,
    pub(super) action: Action,
    /// The third compute server's action, and the point at which it dies.
    pub(super) setup: Option<(Action, CrashPlan)>,
    /// The operation of the action that is lost.
    pub(super) lost: Option<u64>,
}

fn ordered(count: u32, order: Order) -> Vec<u32> {
    let up = (1..=count).map(|index| 10 * index);
    match order {
        Order::Up => up.collect(),
        Order::Down => up.rev().collect(),
        Order::Mixed => (1..=count).map(|index| 10 * (index * 37 % NUMBERS_MAX + 1)).collect(),
    }
}

/// Makes a step of filling.
pub(super) async fn apply(
    session: &Session,
    index: &AnyIndex,
    format: &Format,
    step: FillStep,
) -> Result<(), HarnessError> {
    let done = match step {
        FillStep::Put(key) => {
            index.insert(session, &format.key(key), &format.value(key, INITIAL)).await?
        }
        FillStep::Remove(key) => index.remove(session, &format.key(key)).await?,
        FillStep::Watch => true,
        FillStep::Rest => {
            rest(&[session]).await?;
            true
        }
    };
    if done { Ok(()) } else { Err(HarnessError(format!("{step:?} has nothing to do"))) }
}

/// Lets members tick in turns until what they have retired is free.
pub(super) async fn rest(members: &[&Session]) -> Result<(), HarnessError> {
    for _ in 0..REST_TICKS {
        for session in members {
            session.tick().await?;
        }
    }
    Ok(())
}

/// Walks the table alone.
pub(super) async fn look(session: &Session, index: &AnyIndex) -> Result<TableReport, HarnessError> {
    // Tasks in the background end first: an audit knows only blocks that were carved before it.
    session.endpoint().sleep(TASKS_NS).await;
    let mut audit = Audit::new(session).await?;
    let report = index.verify(session, &mut audit).await?;
    match report.problems.first() {
        Some(problem) => Err(HarnessError(format!("verify: {problem}"))),
        None => Ok(report),
    }
}

/// The runs of an action that the search asks the runner for.
#[derive(Clone, Copy)]
pub(super) struct TrialRuns {
    /// Lists the remote operations of a run without a death.
    pub(super) without_death: fn(&Start, &Found) -> Result<Vec<CountedOp>, HarnessError>,
    /// Lists those of the third compute server's action, in the state in which it dies there.
    pub(super) of_third: fn(&Start, &Found, Action) -> Result<Vec<CountedOp>, HarnessError>,
    /// Counts the splits that a death at a point leaves unfinished.
    pub(super) unfinished_after: fn(&Start, &Found, CrashPlan) -> Result<u64, HarnessError>,
}

/// Finds the steps to a state and the action that makes the change.
pub(super) fn find(start: &Start, runs: TrialRuns) -> Result<Found, HarnessError> {
    let Start { format, state, .. } = start;
    let engine = format.table.engine;
    let (base, order, change, grows) = match state.script {
        Script::Keys(count) | Script::Without(count, _) => (count, Order::Up, None, true),
        Script::Grow(change, order) => (0, order, Some(change), true),
        Script::Shrink(count, change, order) => (count, order, Some(change), false),
        Script::Regrow(count, _, change) => (count, Order::Up, Some(change), true),
    };
    let mut steps: Vec<FillStep> =
        ordered(base, Order::Up).into_iter().map(FillStep::Put).collect();
    if let Script::Regrow(_, shrinks, _) = state.script {
        steps.push(FillStep::Watch);
        let last = hunt(start, &mut steps, shrinks, Order::Down, false)?;
        steps.extend([last, FillStep::Rest]);
    }
    let hunted = match (change, state.script) {
        (Some(change), _) => Some(hunt(start, &mut steps, change, order, grows)?),
        (None, Script::Without(_, key)) => Some(FillStep::Remove(key)),
        (None, _) => None,
    };
    let found = match hunted {
        Some(FillStep::Put(key)) => Some(Action::Insert(key)),
        Some(FillStep::Remove(key)) if engine.unlinks_later() => Some(Action::RemoveAndClose(key)),
        Some(FillStep::Remove(key)) => Some(Action::Remove(key)),
        Some(FillStep::Watch | FillStep::Rest) | None => None,
    };
    let missing = || HarnessError("nothing was hunted for".to_string());
    let key = || found.and_then(Action::key).ok_or_else(missing);
    let action = match state.step {
        CrashStep::Do(action) => action,
        CrashStep::Found => found.ok_or_else(missing)?,
        CrashStep::Get => Action::Get(key()? - 10),
        CrashStep::InsertBeside => Action::Insert(key()? + 1),
        CrashStep::RemoveBefore => Action::Remove(key()? - 10),
        // Another one takes its place below.
        CrashStep::LongestUpdate => Action::Verify,
    };
    let has_dead = !matches!(state.setup, Setup::Nothing | Setup::Beside);
    let is_own = matches!(state.step, CrashStep::Do(_)) && !has_dead;
    let own_step = hunted.filter(|_| is_own);
    let mut result = Found { steps, own_step, action, setup: None, lost: None };
    if has_dead {
        let before = match state.setup {
            Setup::DiedIn(action) => action,
            _ => found.ok_or_else(missing)?,
        };
        let plan = setup_plan(start, &result, before, runs)?;
        result.setup = Some((before, plan));
    }
    if state.step == CrashStep::LongestUpdate {
        result.action = longest_update(start, &result, runs)?;
    }
    if state.loses_last {
        let ops = (runs.without_death)(start, &result)?.len() as u64;
        result.lost = ops.checked_sub(1);
    }
    Ok(result)
}

/// The keys that are there after the steps.
fn keys_after(steps: &[FillStep]) -> BTreeSet<u32> {
    let mut held = BTreeSet::new();
    for step in steps {
        match step {
            FillStep::Put(key) => drop(held.insert(*key)),
            FillStep::Remove(key) => drop(held.remove(key)),
            FillStep::Watch | FillStep::Rest => {}
        }
    }
    held
}

/// Finds the update that takes the most operations.
fn longest_update(start: &Start, found: &Found, runs: TrialRuns) -> Result<Action, HarnessError> {
    let mut longest = (0, None);
    for step in &found.steps {
        let FillStep::Put(key) = *step else { continue };
        let action = Action::Update(key);
        let ops = (runs.without_death)(start, &Found { action, ..found.clone() })?.len();
        if ops > longest.0 {
            longest = (ops, Some(action));
        }
    }
    longest.1.ok_or_else(|| HarnessError("no key to update".to_owned()))
}

fn hunt(
    Start { seed, format, .. }: &Start,
    steps: &mut Vec<FillStep>,
    change: &str,
    order: Order,
    grows: bool,
) -> Result<FillStep, HarnessError> {
    let (sim, session) = small_world(*seed, 1, format.table.engine)?;
    sim.block_on(async {
        let index = create(&session, TABLE, &format.table).await?;
        for put in &*steps {
            apply(&session, &index, format, *put).await?;
        }
        let held = keys_after(steps);
        let mut next = ordered(if grows { HUNT_KEYS } else { held.len() as u32 }, order);
        next.retain(|key| held.contains(key) != grows);
        let mut before = look(&session, &index).await?;
        for key in next {
            let next = if grows { FillStep::Put(key) } else { FillStep::Remove(key) };
            apply(&session, &index, format, next).await?;
            let after = look(&session, &index).await?;
            if format.table.engine.is_change(change, &before, &after) {
                return Ok(next);
            }
            session.tick().await?;
            steps.push(next);
            before = after;
        }
        Err(HarnessError(format!("{change} {order:?} was not found: {:?}", before.nodes_per_level)))
    })?
}

/// Finds the point at which the third compute server has to die.
fn setup_plan(
    start: &Start,
    found: &Found,
    before: Action,
    runs: TrialRuns,
) -> Result<CrashPlan, HarnessError> {
    let state = start.state;
    let mut alone = CrashState { setup: Setup::Nothing, by_actor: false, ..state };
    if start.format.exposes() {
        // Nobody else is there to hold lines.
        (alone.settings, alone.others_settings) = ("", [""; 2]);
    }
    let alone = Start { state: alone, ..*start };
    let actor = Found { action: before, ..found.clone() };
    // It makes the change that the state is there for.
    let ops = (runs.without_death)(&alone, &actor)?;
    match state.setup {
        Setup::Nothing | Setup::Beside => Err(HarnessError("no setup".to_string())),
        Setup::Died(_) | Setup::DiedIn(_) | Setup::DiedBefore(_) => {
            let (from_last, is_before) = match state.setup {
                Setup::Died(from_last) => (from_last, false),
                Setup::DiedBefore(from_last) => (from_last, true),
                _ => (0, false),
            };
            // One of a single word has no middle.
            let is_write = |op: &CountedOp| op.kind == Verb::Write && (is_before || op.words > 1);
            // The actor's own may differ: what it has cached was read earlier.
            let ops = (runs.of_third)(start, found, before)?;
            let mut writes = ops.iter().enumerate().filter(|(_, op)| is_write(op));
            let (op, counted) = writes.nth_back(from_last).ok_or_else(|| {
                HarnessError(format!("{before:?} has no WRITE {from_last} from its last"))
            })?;
            let way = match is_before {
                true => CrashWay::Before,
                false => CrashWay::Within(Landing::Prefix(counted.words / 2)),
            };
            Ok(CrashPlan { op: op as u64, way })
        }
        Setup::Unfinished => {
            for op in (0..ops.len() as u64).rev() {
                let plan = CrashPlan { op, way: CrashWay::Before };
                if (runs.unfinished_after)(&alone, &actor, plan)? > 0 {
                    return Ok(plan);
                }
            }
            Err(HarnessError(format!("{before:?} never leaves a split unfinished")))
        }
    }
}
