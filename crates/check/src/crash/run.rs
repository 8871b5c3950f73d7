//! Crash run: a compute server dies in its action, others take over, and the lab checks everything.
//!
//! Compute server 0 survives and has three sessions, 1 acts, 2 dies in set-ups or lives beside the action. Up to the action
//! all runs of a case are the same, bit by bit, so that operation `k` of one run is that of all.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::{AnyIndex, recover, recover_within};
use farleaf_fabric::sim::{CountedOp, CrashPlan, CrashWay, Sim, SimFabric};
use farleaf_fabric::{Client, Endpoint, OpKind, ServerId};
use farleaf_harness::{HarnessError, ensure, expose, join, settle};
use farleaf_index::lab::{Action, CrashState, CrashStep, INITIAL, Setup, settings};
use farleaf_index::{Index, IndexError, ScanRange};
use farleaf_pool::{Audit, MemoryUse, Session};

use super::CrashFault;
use super::action::{Actor, OTHER, TABLE, begin_ticking, bulk_pairs, call_of};
use super::formats::Format;
use super::point::CrashPoint;
use super::state::{
    FillStep, Found, NUMBERS_MAX, Start, TASKS_NS, TrialRuns, apply, is_reached, look, rest,
};
use super::survivors::{self, EventLog, Survivor};
use crate::history::{Answer, Event, History};
use crate::linear::{Limits, check};
use crate::world::{Pairs, check_all, create, open, open_with, scan, small_world, sweep};

const SURVIVOR: usize = 0;
const ACTOR: usize = 1;
const THIRD: usize = 2;
/// Sessions of the survivor, beside that of its regular work.
const SURVIVORS: usize = 3;
/// Client numbers in histories.
const ACTOR_CLIENT: u32 = 0;
const THIRD_CLIENT: u32 = 9;
/// Virtual time that everything after the death may take.
const TAKEOVER_NS_MAX: u64 = 2_000_000_000;
/// Virtual time that a recovery waits for the actor where that does not tick.
const LAG_NS: u64 = 200_000_000;
/// Virtual time that an action may take.
const ACTION_NS_MAX: u64 = 1_000_000_000;
/// Attempts to leave, of a compute server beside whose move another one dies.
const LEAVES_MAX: usize = 20;

/// A case up to its action.
struct CaseRun {
    sim: Sim,
    format: Format,
    /// Sessions of the survivor.
    survivors: [Session; 3],
    index: AnyIndex,
    /// The table with what one survivor cached before the action, if the state is watched: the first one, or the third
    /// compute server, as those that expose memory open a table once.
    watched: Option<(Session, AnyIndex)>,
    watcher: Option<Actor>,
    actor: Actor,
    /// The third compute server, if it lives.
    beside: Option<Actor>,
    /// The regular work of the survivor goes on.
    ticks: Rc<Cell<bool>>,
    /// Content of the table.
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Numbers of its keys.
    numbers: Vec<u32>,
    /// The call that the third compute server has begun.
    pending: Option<Event>,
    members: usize,
}

/// The actor's result.
#[derive(Default)]
struct ActorOutcome {
    /// The actor after its action, if it stays.
    stayed: Option<Actor>,
    /// End and result of the action.
    ended: Option<(u64, Result<Answer, IndexError>)>,
    /// Results of its operations afterwards.
    later: Option<(Result<(), IndexError>, Result<(), IndexError>)>,
}

fn seed_model(format: &Format, steps: &[FillStep]) -> BTreeMap<u32, Vec<u8>> {
    let mut model = BTreeMap::new();
    for step in steps {
        match step {
            FillStep::Put(key) => drop(model.insert(*key, format.value(*key, INITIAL))),
            FillStep::Remove(key) => drop(model.remove(key)),
            FillStep::Watch | FillStep::Rest => {}
        }
    }
    model
}

impl CaseRun {
    fn prepare(start: &Start, found: &Found) -> Result<CaseRun, HarnessError> {
        let mut run = CaseRun::prepare_alive(start, found, found.setup.is_some())?;
        if let Some((action, plan)) = found.setup {
            run.kill_third(action, plan, &start.state)?;
        }
        if start.state.setup == Setup::Beside {
            run.beside = Some(run.enter_third(&start.state)?);
            run.members += 1;
        }
        if start.state.is_watched && start.format.exposes() {
            let third = run.enter_third(&start.state)?;
            run.watched.clone_from(&third.member);
            run.watcher = Some(third);
        }
        if start.format.exposes()
            && let Some(table) = run.index.partitions()
        {
            let map = table.known_partitions();
            let owned = map.entries.iter().filter(|entry| entry.owner.is_some()).count();
            ensure(owned == map.entries.len(), || format!("{owned} partitions have an owner"))?;
        }
        Ok(run)
    }

    /// The same up to the third compute server's life, if there is one.
    fn prepare_alive(
        start: &Start,
        found: &Found,
        has_third: bool,
    ) -> Result<CaseRun, HarnessError> {
        let Start { seed, format, state } = start;
        let (sim, first) = small_world(*seed, 3, format.table.engine)?;
        let mut steps = found.steps.clone();
        let ticks = Rc::new(Cell::new(true));
        let (survivors, index, watched, actor) = sim.block_on(async {
            // All on one thread, to share its buffers as well.
            let second = first.pool().session(first.endpoint().clone()).await?;
            let third = first.pool().session(first.endpoint().clone()).await?;
            if format.exposes() {
                expose(&sim.fabric(SURVIVOR), &first, format.expose_bytes).await?;
            }
            AnyIndex::create(&first, TABLE, &format.table).await?;
            let of_survivor = settings(state.others_settings[0]);
            let mut index = open_with(&first, TABLE, &of_survivor).await?;
            if format.exposes() {
                let ticks = Rc::clone(&ticks);
                begin_ticking(&first, &index, move || ticks.get()).await?;
            }
            let mut actor = Actor::new(&sim, ACTOR, format, state.settings)?;
            if found.action != Action::Join {
                actor.enter().await?;
            }
            let (filler, filled) = match &actor.member {
                Some((session, index)) if state.by_actor => (session, index),
                _ => (&first, &index),
            };
            let mut watched = None;
            for (count, next) in steps.iter().enumerate() {
                match next {
                    FillStep::Watch if state.is_watched => {
                        watched = Some(watch(&first, format).await?)
                    }
                    FillStep::Rest => rest(&[&first, filler]).await?,
                    step => apply(filler, filled, format, *step).await?,
                }
                if count % 8 == 0 {
                    filler.tick().await?;
                }
            }
            if state.has_other {
                let other = create(filler, OTHER, &format.table).await?;
                for number in 1..=9 {
                    apply(filler, &other, format, FillStep::Put(10 * number)).await?;
                }
                other.close(filler).await?;
            }
            if !format.exposes() {
                // From here on the actor owns what a single owner may have to itself.
                index.close(&first).await?;
                index = open_with(&first, TABLE, &of_survivor).await?;
            }
            if let Some((session, index)) = &actor.member {
                if !state.is_cold {
                    warm_up(session, index, format, state.is_exhausted).await?;
                }
                if let Some(own) = found.own_step {
                    apply(session, index, format, own).await?;
                    steps.push(own);
                }
                if found.action == Action::Recover {
                    // Give up its own share, so that it works for others only.
                    settle(session).await?;
                }
            }
            let reopens = has_third && !format.exposes();
            if let (Some((session, index)), true) = (&mut actor.member, reopens) {
                // The third's share, in its set-up.
                index.close(session).await?;
                *index = open_with(session, TABLE, &settings(state.settings)).await?;
            }
            if state.is_watched && watched.is_none() && !format.exposes() {
                watched = Some(watch(&first, format).await?);
            }
            // Sessions that do nothing are to be idle.
            settle(&first).await?;
            Ok::<_, HarnessError>(([first, second, third], index, watched, actor))
        })??;
        let model = seed_model(format, &steps);
        let members = usize::from(actor.member.is_some());
        Ok(CaseRun {
            sim,
            format: *format,
            survivors,
            index,
            watched,
            watcher: None,
            actor,
            beside: None,
            ticks,
            numbers: model.keys().copied().collect(),
            model: model.into_iter().map(|(key, value)| (format.key(key), value)).collect(),
            pending: None,
            members,
        })
    }

    /// Lets the third compute server enter.
    fn enter_third(&mut self, state: &CrashState) -> Result<Actor, HarnessError> {
        let format = self.format;
        let mut actor = Actor::new(&self.sim, THIRD, &format, state.others_settings[1])?;
        self.sim.block_on(async {
            actor.enter().await?;
            if let Some((session, index)) = &actor.member {
                warm_up(session, index, &format, false).await?;
            }
            Ok::<_, HarnessError>(actor)
        })?
    }

    /// Lets the third compute server die in `action`, and recovers it unless that is the actor's
    /// work.
    fn kill_third(
        &mut self,
        action: Action,
        plan: CrashPlan,
        state: &CrashState,
    ) -> Result<(), HarnessError> {
        let actor = self.enter_third(state)?;
        let (format, fabric) = (self.format, actor.fabric.clone());
        let from_ns = self.sim.now_ns();
        fabric.plan(plan);
        let outcome = begin(&self.sim, THIRD, actor, action, false);
        wait_for_death(&self.sim, &fabric, &outcome)?;
        if let Some(call) = call_of(action, &format) {
            let event = Event { client: THIRD_CLIENT, call, from_ns, answer: None };
            self.pending = Some(event);
        }
        if state.setup == Setup::Unfinished {
            let (session, index) = (&self.survivors[0], &mut self.index);
            let (pairs, is_complete) = self.sim.block_on(async {
                let recovered = recover_within(session, Some(LAG_NS)).await?;
                let recovered = recovered
                    .ok_or_else(|| HarnessError("nobody is dead after the setup".to_string()))?;
                settle(session).await?;
                let pairs = scan(session, index, ScanRange::ALL, usize::MAX).await?;
                index.close(session).await?;
                *index = open(session, TABLE).await?;
                Ok::<_, HarnessError>((pairs, recovered.complete))
            })??;
            self.model = pairs.into_iter().collect();
            self.pending = None;
            // The actor does not tick meanwhile: the dead then stays dead, for the next recovery.
            self.members += usize::from(!is_complete);
        } else {
            self.members += 1;
        }
        Ok(())
    }
}

/// Opens the table once more, with a cache of its own, and caches it.
async fn watch(session: &Session, format: &Format) -> Result<(Session, AnyIndex), HarnessError> {
    let watched = open(session, TABLE).await?;
    warm_up(session, &watched, format, false).await?;
    Ok((session.clone(), watched))
}

/// Makes the actor ready for steady work: it has blocks, knows the root, and is live.
async fn warm_up(
    session: &Session,
    index: &AnyIndex,
    format: &Format,
    exhaust: bool,
) -> Result<(), HarnessError> {
    let pin = session.begin(OpKind::Other).await?;
    let servers = session.endpoint().server_count() as u16;
    for server in (0..servers).map(ServerId) {
        for bytes in format.object_bytes() {
            let addr = session.alloc(server, bytes).await?;
            session.free_unpublished(addr, bytes);
        }
    }
    // Objects that are never given back, until there is none left.
    let bytes = format.node_bytes;
    // From all servers in turn, so that they run out together.
    let mut turns = (0..servers).map(ServerId).cycle();
    while exhaust && session.pool().memory().free_bytes >= bytes as u64 {
        let before = session.pool().memory().block_bytes_owned;
        session.alloc(turns.next().unwrap_or(ServerId(0)), bytes).await?;
        let is_same = session.pool().memory().block_bytes_owned <= before;
        ensure(is_same, || "a block was taken while one had room".to_owned())?;
    }
    drop(pin);
    index.get(session, &format.key(1), &mut Vec::new()).await?;
    // An engine with a cache merges cached leaves only: cache all of them, empty ones included.
    for key in (1..=NUMBERS_MAX).filter(|_| index.engine().traits().cached) {
        index.get(session, &format.key(10 * key), &mut Vec::new()).await?;
    }
    Ok(())
}

/// The third compute server at work beside the action.
struct Beside {
    fabric: SimFabric,
    log: EventLog,
    goes_on: Rc<Cell<bool>>,
    ended: Rc<RefCell<Option<EndedBeside>>>,
}

/// The third compute server after its work, and the outcome.
type EndedBeside = (Actor, Result<(), HarnessError>);

impl Beside {
    /// Lets `actor` change keys around `number`.
    fn begin(sim: &Sim, actor: Actor, number: u32) -> Beside {
        let goes_on = Rc::new(Cell::new(true));
        let (log, ended) = Default::default();
        let beside = Beside { fabric: actor.fabric.clone(), log, goes_on, ended };
        let (log, goes_on) = (beside.log.clone(), Rc::clone(&beside.goes_on));
        let ended = Rc::clone(&beside.ended);
        sim.spawn(THIRD, async move {
            let mut done = Ok(());
            if let Some((session, index)) = &actor.member {
                let client = Survivor { format: actor.format, index: index.clone(), log };
                let goes_on = || goes_on.get();
                done = client.change_beside(session, THIRD_CLIENT, number, goes_on).await;
            }
            *ended.borrow_mut() = Some((actor, done));
        });
        beside
    }

    /// Ends the work, if it lives: it leaves the pool. Returns its calls.
    fn end(self, sim: &Sim, by: &Session) -> Result<Vec<Event>, HarnessError> {
        self.goes_on.set(false);
        let who = self.fabric.incarnation();
        if sim.block_on(by.endpoint().is_dead(who))? {
            return Ok(self.log.events_and_begun());
        }
        let is_over = || Ok(self.ended.borrow().is_some());
        let late = || "the work beside the action does not end".to_owned();
        run_until(sim, 10_000, ACTION_NS_MAX, is_over, late)?;
        if let Some((actor, done)) = self.ended.take() {
            done.map_err(|fault| fault.within("beside the action"))?;
            leave(sim, actor)?;
        }
        Ok(self.log.events())
    }
}

/// Lets a compute server leave. Its moves may be called off, as others die.
fn leave(sim: &Sim, actor: Actor) -> Result<(), HarnessError> {
    let left = sim.block_on(async {
        let mut left = actor.act(Action::Leave).await;
        for _ in 0..LEAVES_MAX {
            let Err(IndexError::Unavailable(_)) = &left else { break };
            actor.endpoint.sleep(TASKS_NS).await;
            left = actor.act(Action::Leave).await;
        }
        left
    })?;
    left.map(drop).map_err(|error| HarnessError::from(error).within("leaving"))
}

/// Waits for the end of the action of an actor that stays, which must not fail because another died. It leaves the pool.
fn end_of_stayed(
    sim: &Sim,
    outcome: &RefCell<ActorOutcome>,
    action: Action,
) -> Result<(), HarnessError> {
    wait_for_end(sim, outcome, false)?;
    let ActorOutcome { ended, stayed, .. } = &mut *outcome.borrow_mut();
    let has_left = match ended {
        Some((_, Ok(_))) => action == Action::Leave,
        // A move that is called off is tried again.
        Some((_, Err(IndexError::Unavailable(_)))) if action == Action::Leave => false,
        Some((_, Err(error))) => {
            let error = HarnessError::from(error.clone());
            return Err(error.within("the action ended, as another compute server died, with"));
        }
        None => false,
    };
    stayed.take().filter(|_| !has_left).map(|actor| leave(sim, actor)).transpose().map(drop)
}

/// Ends the regular work of the survivor, so that its other sessions are alone.
fn end_ticks(sim: &Sim, ticks: &Cell<bool>, survivor: &Session) -> Result<(), HarnessError> {
    ticks.set(false);
    let is_over = || Ok(survivor.pool().sessions() <= SURVIVORS);
    run_until(sim, 10_000, ACTION_NS_MAX, is_over, || "regular work does not end".to_owned())?;
    // A tick gives back the entry of the session that has ended.
    Ok(sim.block_on(settle(survivor))??)
}

/// Starts the actor. If it `stays`, the outcome holds it after its action.
fn begin(
    sim: &Sim,
    compute: usize,
    actor: Actor,
    action: Action,
    stays: bool,
) -> Rc<RefCell<ActorOutcome>> {
    let outcome = Rc::<RefCell<ActorOutcome>>::default();
    let result = Rc::clone(&outcome);
    sim.spawn(compute, async move {
        let ended = actor.act(action).await;
        result.borrow_mut().ended = Some((actor.endpoint.now_ns(), ended));
        if stays {
            result.borrow_mut().stayed = Some(actor);
            return;
        }
        if let Some((session, index)) = &actor.member {
            let key = actor.format.key(10);
            let got = index.get(session, &key, &mut Vec::new()).await.map(drop);
            let ticked = session.tick().await.map_err(IndexError::from);
            result.borrow_mut().later = Some((got, ticked));
        }
    });
    outcome
}

/// Runs in steps of `step_ns` until it `is_over`, for at most `limit_ns`; `late` tells why it is too late then.
pub(super) fn run_until(
    sim: &Sim,
    step_ns: u64,
    limit_ns: u64,
    is_over: impl Fn() -> Result<bool, HarnessError>,
    late: impl Fn() -> String,
) -> Result<(), HarnessError> {
    let limit_ns = sim.now_ns() + limit_ns;
    while !is_over()? {
        sim.run_until(sim.now_ns() + step_ns)?;
        ensure(sim.now_ns() <= limit_ns, &late)?;
    }
    Ok(())
}

/// Runs until the plan is carried out, and all operations that it lets land have landed.
fn wait_for_death(
    sim: &Sim,
    fabric: &SimFabric,
    outcome: &RefCell<ActorOutcome>,
) -> Result<(), HarnessError> {
    let is_over = || {
        if let (Some((_, ended)), false) = (&outcome.borrow().ended, fabric.has_fired()) {
            return Err(HarnessError(format!("the action ended before its death: {ended:?}")));
        }
        Ok(fabric.has_fired() && !fabric.has_in_flight())
    };
    let late = || "the action does not come to its death".to_owned();
    run_until(sim, 2_000, ACTION_NS_MAX, is_over, late)
}

/// Runs until the outcome says that the action, and what comes after it, has ended.
fn wait_for_end(
    sim: &Sim,
    outcome: &RefCell<ActorOutcome>,
    has_later: bool,
) -> Result<(), HarnessError> {
    let is_over = || {
        let outcome = outcome.borrow();
        Ok(outcome.ended.is_some() && (!has_later || outcome.later.is_some()))
    };
    run_until(sim, 10_000, ACTION_NS_MAX, is_over, || "the action does not end".to_owned())
}

/// The runs for the search of states.
pub(super) const TRIALS: TrialRuns = TrialRuns {
    without_death: |start, found| without_death(start, found).map_err(CrashFault::into_error),
    of_third,
    unfinished_after,
};

/// Runs the third compute server's action to its end; returns the remote operations that it consists of.
fn of_third(start: &Start, found: &Found, before: Action) -> Result<Vec<CountedOp>, HarnessError> {
    let mut run = CaseRun::prepare_alive(start, found, true)?;
    let actor = run.enter_third(&start.state)?;
    let fabric = actor.fabric.clone();
    fabric.record_ops();
    let ended = Rc::<RefCell<Option<Result<Vec<CountedOp>, HarnessError>>>>::default();
    let (ops, own) = (Rc::clone(&ended), fabric.clone());
    run.sim.spawn(THIRD, async move {
        let answer = actor.act(before).await.map_err(HarnessError::from);
        *ops.borrow_mut() = Some(answer.map(|_| own.recorded_ops()));
    });
    let is_over = || Ok(ended.borrow().is_some());
    run_until(&run.sim, 2_000, ACTION_NS_MAX, is_over, || format!("{before:?} does not end"))?;
    ended.take().unwrap_or_else(|| Ok(Vec::new()))
}

/// Runs the action to its end; returns the remote operations that it consists of.
///
/// # Errors
/// `Missed` if the action does not make the change that the state is there for.
pub(super) fn without_death(start: &Start, found: &Found) -> Result<Vec<CountedOp>, CrashFault> {
    let state = start.state;
    // In a run of its own: looking would change the later operations.
    let before = match found.setup {
        Some(_) => None,
        None => {
            let CaseRun { sim, survivors: [session, ..], index, actor, .. } =
                CaseRun::prepare(start, found).map_err(CrashFault::missed)?;
            let report = sim.block_on(async {
                if let Some((session, index)) = &actor.member {
                    index.close(session).await?;
                }
                look(&session, &index).await
            })??;
            Some(report)
        }
    };
    let CaseRun { sim, survivors, index, actor, beside, watcher, ticks, numbers, .. } =
        CaseRun::prepare(start, found).map_err(CrashFault::missed)?;
    let [session, ..] = &survivors;
    let fabric = sim.fabric(ACTOR);
    let center = survivors::center_of(&numbers, found.action);
    let beside = beside.map(|third| Beside::begin(&sim, third, center));
    let pool = actor.member.as_ref().map(|(session, _)| Arc::clone(session.pool()));
    let memory_before = pool.as_ref().map(|pool| pool.memory()).unwrap_or_default();
    fabric.record_ops();
    found.lost.into_iter().for_each(|op| fabric.lose(op));
    type Ended = (Result<Answer, IndexError>, Vec<CountedOp>, MemoryUse);
    let outcome = Rc::<RefCell<Option<Ended>>>::default();
    let (ended, action, own) = (Rc::clone(&outcome), found.action, fabric.clone());
    sim.spawn(ACTOR, async move {
        let answer = actor.act(action).await;
        let ops = own.recorded_ops();
        // To close a table retires its log.
        let memory = pool.as_ref().map(|pool| pool.memory()).unwrap_or_default();
        // Others look at what it has to itself.
        let closed = match &actor.member {
            Some((session, index)) if action != Action::Leave => index.close(session).await,
            _ => Ok(()),
        };
        *ended.borrow_mut() = Some((closed.and(answer), ops, memory));
    });
    if start.format.exposes() {
        let is_over = || Ok(outcome.borrow().is_some());
        run_until(&sim, 2_000, ACTION_NS_MAX, is_over, || format!("{action:?} does not end"))?;
        beside.map(|third| third.end(&sim, session)).transpose()?;
        watcher.map(|third| leave(&sim, third)).transpose()?;
        end_ticks(&sim, &ticks, session)?;
    }
    sim.run()?;
    let (answer, ops, memory_after) =
        outcome.take().ok_or_else(|| HarnessError(format!("{action:?} does not end")))?;
    answer
        .map_err(|error| HarnessError::from(error).within(format!("{action:?} without a death")))?;
    let after = sim.block_on(look(session, &index))??;
    let misses = |what: &str| {
        Err(CrashFault::Missed(format!(
            "{action:?} does not {what}: {memory_before:?}, {memory_after:?}, {after:?}"
        )))
    };
    match (action, state.step) {
        _ if state.is_exhausted
            && memory_after.block_bytes_owned <= memory_before.block_bytes_owned =>
        {
            misses("take a block")
        }
        (Action::Ticks(_), _) if memory_before.retired_objects <= memory_after.retired_objects => {
            misses("reclaim what is retired")
        }
        (_, CrashStep::InsertBeside) if after.unfinished_splits > 0 => misses("finish the split"),
        (_, CrashStep::Found)
            if before.is_some_and(|before| {
                !is_reached(state.script, start.format.table.engine, &before, &after)
            }) =>
        {
            misses("make its change")
        }
        _ => Ok(ops),
    }
}

/// Splits that are unfinished after a death by `plan` and the recovery.
pub(super) fn unfinished_after(
    start: &Start,
    found: &Found,
    plan: CrashPlan,
) -> Result<u64, HarnessError> {
    let CaseRun { sim, survivors, index, actor, .. } = CaseRun::prepare(start, found)?;
    let fabric = sim.fabric(ACTOR);
    fabric.plan(plan);
    let outcome = begin(&sim, ACTOR, actor, found.action, false);
    wait_for_death(&sim, &fabric, &outcome)?;
    let [session, ..] = &survivors;
    sim.block_on(async {
        while recover(session).await?.is_some() {}
        let mut audit = Audit::new(session).await?;
        Ok::<_, HarnessError>(index.verify(session, &mut audit).await?.unfinished_splits)
    })?
}

/// Dies at `point`, takes over, checks. Returns the number of objects that were lost until their
/// blocks had no owner any more, and were swept.
pub(super) fn run(start: &Start, found: &Found, point: CrashPoint) -> Result<u64, CrashFault> {
    let format = &start.format;
    let CaseRun {
        sim,
        survivors,
        index,
        watched,
        watcher,
        actor,
        beside,
        ticks,
        model,
        numbers,
        pending,
        members,
        ..
    } = CaseRun::prepare(start, found).map_err(CrashFault::missed)?;
    let fabric = sim.fabric(ACTOR);
    let center = survivors::center_of(&numbers, found.action);
    let beside = beside.map(|third| Beside::begin(&sim, third, center));
    let from_ns = sim.now_ns();
    let (action, is_member) = (found.action, actor.member.is_some());
    fabric.plan(point.0);
    found.lost.into_iter().for_each(|op| fabric.lose(op));
    let outcome = begin(&sim, ACTOR, actor, action, point.is_of_owner());
    wait_for_death(&sim, &fabric, &outcome).map_err(CrashFault::missed)?;
    if let Some(third) = &beside {
        third.goes_on.set(false);
    }
    let died_ns = sim.now_ns();
    if point.is_pause() {
        fabric.condemn();
    }

    let log = EventLog::default();
    let before = found.setup.map(|(before, _)| before);
    let involved = survivors::involved(&numbers, action, before, start.state.touches_all);
    let takers = Survivor { format: *format, index: index.clone(), log: log.clone() };
    let watched = watched.map(|(session, index)| (session, Survivor { index, ..takers.clone() }));
    // A death after an operation leaves the same state as a death before the next one: so each such
    // state meets both orders.
    let at_once = matches!(point.0.way, CrashWay::After | CrashWay::PauseAfter | CrashWay::Skip)
        || matches!(point.0.way, CrashWay::Within(_) if point.0.op % 2 == 1);
    let recovered = survivors::take_over(
        &sim,
        &survivors,
        (&takers, watched),
        (action, &start.state),
        (&involved, &numbers),
        at_once,
    )
    .map_err(|fault| fault.within("taking over"))?;
    let count = recovered.members;
    let is_right = count <= members + usize::from(!is_member);
    ensure(is_right, || format!("{count} dead members were recovered"))?;
    if let Some(problem) = recovered.problems.first() {
        return Err(HarnessError(format!("recovery: {problem}")).into());
    }

    let mut unknown: Vec<Event> = pending.into_iter().collect();
    if point.is_of_owner() {
        end_of_stayed(&sim, &outcome, action)?;
    }
    if let Some(third) = beside {
        unknown.extend(third.end(&sim, &survivors[0])?);
    }
    watcher.map(|third| leave(&sim, third)).transpose()?;
    if format.exposes() {
        end_ticks(&sim, &ticks, &survivors[0])?;
    }
    if point.is_pause() {
        zombie(&sim, &fabric, &survivors[0], &outcome, action, is_member)?;
    }
    let session = &survivors[0];
    let answer = answer_of(&outcome.borrow())?;
    let done = matches!(&answer, Some((_, Answer::Flag(true))));
    let held = sim.block_on(async {
        survivors::check_others(session, format, action).await?;
        claim_all_entries(session, &survivors).await?;
        let held = takers.scan(session, 3, false).await?;
        let is_same = held == takers.scan(session, 3, true).await?;
        ensure(is_same, || "a scan and a reverse scan differ".to_owned())?;
        for number in &involved {
            takers.get(session, 3, *number).await?;
        }
        Ok::<_, HarnessError>(held)
    })??;
    // An audit beside maintenance would find what is unlinked meanwhile both live and retired.
    survivors_rest(&sim, || 0)?;
    let lost = sim.block_on(async {
        let is_rest = recover(session).await?.is_some();
        ensure(!is_rest, || "somebody dead was left over".to_owned())?;
        let (reports, lost) = check_all(session).await?;
        let is_same = reports.first().is_some_and(|report| report.keys == held.len() as u64);
        ensure(is_same, || format!("verify counts {reports:?}, a scan {} keys", held.len()))?;
        Ok::<_, HarnessError>(lost)
    })??;
    let took_ns = sim.now_ns() - died_ns;
    ensure(took_ns <= TAKEOVER_NS_MAX, || format!("all this took {took_ns} ns"))?;

    let begun =
        call_of(action, format).map(|call| Event { client: ACTOR_CLIENT, call, from_ns, answer });
    if let Action::BulkLoad(count) = action {
        survivors::check_bulk(&log.events(), &bulk_pairs(format, count), &held, done)?;
    } else {
        unknown.extend(begun);
        check_history(&log, format, &involved, model, &held, unknown)?;
    }
    if lost > 0 {
        sim.block_on(sweep_all(survivors, index))?.map_err(|fault| fault.within("sweeping"))?;
    }
    Ok(lost)
}

/// `CHECK-1` and `CHECK-2`.
fn check_history(
    log: &EventLog,
    format: &Format,
    involved: &[u32],
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    held: &Pairs,
    unknown: Vec<Event>,
) -> Result<(), HarnessError> {
    let mut events = log.events();
    events.extend(unknown);
    let initial: Vec<_> = model.into_iter().collect();
    let is_involved = |key: &[u8]| involved.iter().any(|number| format.key(*number) == key);
    let untouched = |pairs: &[(Vec<u8>, Vec<u8>)]| -> Pairs {
        pairs.iter().filter(|(key, _)| !is_involved(key)).cloned().collect()
    };
    let is_same = untouched(held) == untouched(&initial);
    ensure(is_same, || "keys that nobody has touched have changed".to_owned())?;
    for event in events.iter().filter(|event| event.client == 3) {
        let Some((_, Answer::Value(value))) = &event.answer else { continue };
        let crate::history::Op::Get { key } = &event.call else { continue };
        let scanned = held.iter().find(|(other, _)| other == key).map(|(_, value)| value);
        ensure(scanned == value.as_ref(), || "a scan and a get differ".to_owned())?;
    }
    let history = History { initial, events };
    let checked =
        check(&history, &Limits::default()).map_err(|what| HarnessError(what.to_string()))?;
    match checked.undecided.first() {
        None => Ok(()),
        Some(key) => {
            Err(HarnessError(format!("too many orders of the operations on {:?}", key.key)))
        }
    }
}

/// The actor's answer as it goes into the history.
fn answer_of(outcome: &ActorOutcome) -> Result<Option<(u64, Answer)>, HarnessError> {
    match &outcome.ended {
        None => Ok(None),
        Some((at_ns, Ok(answer))) => Ok(Some((*at_ns, answer.clone()))),
        // Closed tells nothing about the change that was under way.
        Some((_, Err(IndexError::Closed(_) | IndexError::OutcomeUnknown(_)))) => Ok(None),
        Some((at_ns, Err(IndexError::Unavailable(_)))) => Ok(Some((*at_ns, Answer::Nothing))),
        Some((_, Err(error))) => {
            Err(HarnessError::from(error.clone()).within("the zombie's action ended with"))
        }
    }
}

/// Runs until no tasks are left but as many as `others` says.
fn survivors_rest(sim: &Sim, others: impl Fn() -> usize) -> Result<(), HarnessError> {
    sim.run_until(sim.now_ns() + TASKS_NS)?;
    let is_over = || Ok(sim.live_tasks() <= others());
    let late = || "a task of the survivors never ends".to_owned();
    run_until(sim, TASKS_NS, ACTION_NS_MAX - TASKS_NS, is_over, late)
}

/// The stopped actor goes on, cut off: no word changes any more, and its operations report so.
fn zombie(
    sim: &Sim,
    fabric: &SimFabric,
    session: &Session,
    outcome: &RefCell<ActorOutcome>,
    action: Action,
    is_member: bool,
) -> Result<(), HarnessError> {
    if matches!(action, Action::Join | Action::Leave) {
        // The others need not cut off a compute server that is not a member.
        let client = Client::new(session.endpoint().clone());
        sim.block_on(async { client.fence_everywhere(fabric.incarnation()).await })??;
    }
    // Changes by tasks of the survivors are not the zombie's. One may wait for a lock of the dead.
    survivors_rest(sim, || fabric.live_tasks())?;
    let before = snapshot(sim);
    fabric.resume();
    wait_for_end(sim, outcome, is_member)?;
    // Tasks of the actor, and their last operations.
    let is_over = || Ok(sim.live_tasks() == 0 && !fabric.has_in_flight());
    let late = || "the zombie never rests".to_owned();
    run_until(sim, 100_000, ACTION_NS_MAX, is_over, late)?;
    for (server, (before, after)) in before.iter().zip(snapshot(sim)).enumerate() {
        if let Some(word) = (0..after.len()).find(|word| before[*word] != after[*word]) {
            return Err(HarnessError(format!(
                "the zombie has changed the word at {:#x} of server {server} from {:#x} to {:#x}",
                word * 8,
                before[word],
                after[word]
            )));
        }
    }
    let closed = |result: &Result<(), IndexError>| matches!(result, Err(IndexError::Closed(_)));
    match &outcome.borrow().later {
        Some((got, ticked)) if !closed(got) || !closed(ticked) => {
            Err(HarnessError(format!("the zombie can still read ({got:?}) or tick ({ticked:?})")))
        }
        _ => Ok(()),
    }
}

/// The survivor leaves, and the next member sweeps its blocks: then every object is there again.
async fn sweep_all(sessions: [Session; 3], index: AnyIndex) -> Result<(), HarnessError> {
    let [first, second, third] = sessions;
    index.close(&first).await?;
    drop((second, third, index));
    let endpoint = first.endpoint().clone();
    first.leave().await?;
    drop(first);
    let session = join(endpoint).await?;
    sweep(&session).await?;
    let (_, lost) = check_all(&session).await?;
    ensure(lost == 0, || format!("{lost} objects are lost for good"))
}

/// Every word of every memory server, and of the memory that compute servers beside the actor expose.
fn snapshot(sim: &Sim) -> Vec<Vec<u64>> {
    let servers = (0..sim.config().memory_servers as u16).map(ServerId);
    let regions = [SURVIVOR, THIRD].map(|compute| sim.fabric(compute).region());
    servers
        .filter_map(|server| sim.memory(server))
        .chain(regions.into_iter().flatten())
        .map(|memory| {
            let mut words = vec![0; (memory.bytes() / 8) as usize];
            memory.load(0, &mut words);
            words
        })
        .collect()
}

/// Every entry of the member and client tables without a living owner can be claimed again.
async fn claim_all_entries(session: &Session, living: &[Session]) -> Result<(), HarnessError> {
    let options = *session.pool().geometry().options();
    let mut members = Vec::new();
    for count in 1..options.members_max {
        let joined = join(session.endpoint().clone()).await;
        members.push(joined.map_err(|error| {
            HarnessError::from(error).within(format!("joining as number {count}"))
        })?);
    }
    let mut clients = Vec::new();
    for _ in living.len() + members.len()..options.clients_max as usize {
        clients.push(members[0].pool().session(session.endpoint().clone()).await?);
    }
    let one_more = members[0].pool().session(session.endpoint().clone()).await;
    ensure(one_more.is_err(), || "there are more clients than there may be".to_owned())?;
    drop(clients);
    for member in members {
        member.leave().await?;
    }
    Ok(())
}
