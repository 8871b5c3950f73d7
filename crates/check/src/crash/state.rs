//! Crash states: the states from which actions start, and the search for them.
//!
//! Fixed keys would reach a structural change in one layout of nodes only. So the lab searches for the
//! state: it adds or removes keys one by one and walks the table after each. The first step that makes
//! the change is the action; the table before it is the state.

use farleaf_engines::AnyIndex;
use farleaf_fabric::Endpoint;
use farleaf_fabric::sim::{CountedOp, CrashPlan, CrashWay, Landing, Verb};
use farleaf_harness::HarnessError;
use farleaf_index::{Index, TableReport};
use farleaf_pool::{Audit, Session};

use super::action::{Action, INITIAL, TABLE};
use super::formats::Format;
use crate::world::{create, small_world};

/// Time after which an operation's tasks have ended, if nothing is held up.
pub(super) const TASKS_NS: u64 = 1_000_000;
/// Most keys that a hunt adds.
const HUNT_KEYS: u32 = 120;
/// Keys are tens up to this many.
pub(super) const NUMBERS_MAX: u32 = 127;

/// The order in which keys are added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Up,
    Down,
    /// A fixed shuffle.
    Mixed,
}

/// The change that the action makes to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing, in a tree of two levels or more.
    None,
    /// A leaf is split and its parent takes the separator.
    LeafSplit,
    /// The only leaf is split and gets a parent.
    FirstGrowth,
    /// A leaf and its parent, which is not the root, are split.
    InnerSplit,
    /// Everything up to the root is split, in a tree of this many levels before.
    Growth(usize),
    /// A leaf is merged away.
    LeafMerge,
    /// A leaf and its parent are merged away.
    InnerMerge,
    /// The tree loses a level, of this many before.
    Shrink(usize),
    /// A leaf of a radix tree is added to a node with room.
    LeafAdded,
    /// A leaf of a radix tree is added with a new inner node.
    NodeAdded,
    /// A leaf of a radix tree is added to a node that is replaced by a larger one.
    NodeGrows,
    /// A leaf of a radix tree is added to a node with reserved room, which grows in place.
    NodeGrowsInPlace,
    /// A leaf of a radix tree leaves a node that is replaced by a smaller one.
    NodeShrinks,
    /// A leaf of a radix tree leaves a node that then leaves the tree.
    NodeCollapses,
}

impl Change {
    /// Returns whether this change lies between two walks.
    fn is_between(self, before: &TableReport, after: &TableReport) -> bool {
        let (b, a) = (&before.nodes_per_level, &after.nodes_per_level);
        let (from, to) = (b.len(), a.len());
        // Differences of the numbers of leaves and of their parents.
        let by = |level: usize| -> i64 {
            let count = |nodes: &[u64]| nodes.get(level).map_or(0, |count| *count as i64);
            count(a) - count(b)
        };
        let whole = before.unfinished_splits + after.unfinished_splits == 0;
        let grows = to == from + 1;
        // Of a radix tree.
        let inner = |report: &TableReport| report.nodes_per_level.iter().skip(1).sum::<u64>();
        let (nodes, added) = (inner(before), inner(after).wrapping_sub(inner(before)));
        let larger = after.inner_bytes > before.inner_bytes;
        let smaller = after.inner_bytes < before.inner_bytes;
        let in_place = after.reserved_bytes < before.reserved_bytes;
        whole
            && match self {
                Change::None => a == b && from >= 2,
                Change::LeafSplit => from == to && from >= 2 && by(0) == 1 && by(1) == 0,
                Change::FirstGrowth => from == 1 && grows,
                Change::InnerSplit => from == to && from >= 3 && by(0) == 1 && by(1) == 1,
                Change::Growth(levels) => from == levels && grows && by(0) == 1,
                Change::LeafMerge => from == to && by(0) == -1 && by(1) == 0,
                Change::InnerMerge => from == to && by(0) == -1 && by(1) == -1,
                Change::Shrink(levels) => from == levels && to + 1 == from,
                Change::LeafAdded => nodes > 1 && added == 0 && !larger && !in_place && by(0) == 1,
                Change::NodeAdded => nodes > 1 && added == 1 && by(0) == 1,
                Change::NodeGrows => nodes > 1 && added == 0 && larger && by(0) == 1,
                Change::NodeGrowsInPlace => {
                    nodes > 1 && added == 0 && !larger && in_place && by(0) == 1
                }
                Change::NodeShrinks => added == 0 && smaller && by(0) == -1,
                Change::NodeCollapses => added == u64::MAX && by(0) == -1,
            }
    }
}

/// One change of the table on the way to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FillStep {
    Put(u32),
    Remove(u32),
}

/// The way to fill the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// This many keys: 10, 20 and so on.
    Keys(u32),
    /// Keys are added until the next one makes the change.
    Grow(Change, Order),
    /// This many keys, of which the compute server under test removes one itself.
    Without(u32, u32),
    /// This many keys; they are removed until the next removal makes the change.
    Shrink(u32, Change, Order),
}

impl Script {
    /// Returns whether the change that the hunt is for, if any, lies between two walks.
    pub(super) fn is_reached(self, before: &TableReport, after: &TableReport) -> bool {
        match self {
            Script::Keys(_) | Script::Without(..) => true,
            Script::Grow(change, _) | Script::Shrink(_, change, _) => {
                change.is_between(before, after)
            }
        }
    }
}

/// The step of the compute server under test, in terms of the hunt's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrashStep {
    /// A fixed action.
    Do(Action),
    /// The action that makes the change.
    Found,
    /// Another action, on the key that the hunt has found, or on the existing one before it.
    Get,
    InsertBeside,
    RemoveBefore,
}

/// The set-up between filling and the action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    Nothing,
    /// A third compute server begins the action that the hunt has found, leaves the split
    /// unfinished, and dies; the survivor recovers it.
    Unfinished,
    /// A third compute server begins the action that the hunt has found, and dies in a WRITE: the
    /// one this many before the last. Nobody recovers it.
    Died(usize),
    /// As `Died`, in the last WRITE of this action.
    DiedIn(Action),
}

/// A state, and the step from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrashState {
    pub(super) script: Script,
    pub(super) step: CrashStep,
    pub(super) setup: Setup,
    /// The compute server that acts fills the table, so that its blocks hold the nodes.
    pub(super) by_actor: bool,
    /// The compute server has no block yet, and does not know the table's root.
    pub(super) is_cold: bool,
    /// The compute server's blocks are full.
    pub(super) is_exhausted: bool,
    /// There is a second table.
    pub(super) has_other: bool,
    /// Leaves of keys that the compute server removes stay linked.
    pub(super) keeps_removed: bool,
    /// One survivor has cached the table before the action, apart from the others.
    pub(super) is_watched: bool,
}

impl CrashState {
    pub(super) fn new(script: Script, step: CrashStep) -> CrashState {
        CrashState {
            script,
            step,
            setup: Setup::Nothing,
            by_actor: false,
            is_cold: false,
            is_exhausted: false,
            has_other: false,
            keeps_removed: false,
            is_watched: false,
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
    };
    if done { Ok(()) } else { Err(HarnessError(format!("{step:?} has nothing to do"))) }
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
    };
    let mut steps: Vec<FillStep> =
        ordered(base, Order::Up).into_iter().map(FillStep::Put).collect();
    let hunted = match (change, state.script) {
        (Some(change), _) => Some(hunt(start, &mut steps, change, order, grows)?),
        (None, Script::Without(_, key)) => Some(FillStep::Remove(key)),
        (None, _) => None,
    };
    let found = match hunted {
        Some(FillStep::Put(key)) => Some(Action::Insert(key)),
        Some(FillStep::Remove(key)) if engine.traits().radix => Some(Action::RemoveAndClose(key)),
        Some(FillStep::Remove(key)) => Some(Action::Remove(key)),
        None => None,
    };
    let missing = || HarnessError("nothing was hunted for".to_string());
    let key = || found.and_then(Action::key).ok_or_else(missing);
    let action = match state.step {
        CrashStep::Do(action) => action,
        CrashStep::Found => found.ok_or_else(missing)?,
        CrashStep::Get => Action::Get(key()? - 10),
        CrashStep::InsertBeside => Action::Insert(key()? + 1),
        CrashStep::RemoveBefore => Action::Remove(key()? - 10),
    };
    let is_own = matches!(state.step, CrashStep::Do(_)) && state.setup == Setup::Nothing;
    let own_step = hunted.filter(|_| is_own);
    let mut result = Found { steps, own_step, action, setup: None };
    if state.setup != Setup::Nothing {
        let before = match state.setup {
            Setup::DiedIn(action) => action,
            _ => found.ok_or_else(missing)?,
        };
        let plan = setup_plan(start, &result, before, runs)?;
        result.setup = Some((before, plan));
    }
    Ok(result)
}

fn hunt(
    Start { seed, format, .. }: &Start,
    steps: &mut Vec<FillStep>,
    change: Change,
    order: Order,
    grows: bool,
) -> Result<FillStep, HarnessError> {
    let (sim, session) = small_world(*seed, 1, format.table.engine)?;
    sim.block_on(async {
        let index = create(&session, TABLE, &format.table).await?;
        for put in &*steps {
            apply(&session, &index, format, *put).await?;
        }
        let next =
            if grows { ordered(HUNT_KEYS, order) } else { ordered(steps.len() as u32, order) };
        let mut before = look(&session, &index).await?;
        for key in next {
            let next = if grows { FillStep::Put(key) } else { FillStep::Remove(key) };
            apply(&session, &index, format, next).await?;
            let after = look(&session, &index).await?;
            if change.is_between(&before, &after) {
                return Ok(next);
            }
            session.tick().await?;
            steps.push(next);
            before = after;
        }
        Err(HarnessError(format!(
            "{change:?} {order:?} was not found: {:?}",
            before.nodes_per_level
        )))
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
    let alone = CrashState { setup: Setup::Nothing, by_actor: false, ..state };
    let alone = Start { state: alone, ..*start };
    let actor = Found { action: before, ..found.clone() };
    // It makes the change that the state is there for.
    let ops = (runs.without_death)(&alone, &actor)?;
    match state.setup {
        Setup::Nothing => Err(HarnessError("no setup".to_string())),
        Setup::Died(_) | Setup::DiedIn(_) => {
            let from_last = if let Setup::Died(from_last) = state.setup { from_last } else { 0 };
            // One of a single word has no middle.
            let is_write = |op: &CountedOp| op.kind == Verb::Write && op.words > 1;
            // The actor's own may differ: what it has cached was read earlier.
            let ops = (runs.of_third)(start, found, before)?;
            let mut writes = ops.iter().enumerate().filter(|(_, op)| is_write(op));
            let (op, counted) = writes.nth_back(from_last).ok_or_else(|| {
                HarnessError(format!("{before:?} has no WRITE {from_last} from its last"))
            })?;
            let way = CrashWay::Within(Landing::Prefix(counted.words / 2));
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
