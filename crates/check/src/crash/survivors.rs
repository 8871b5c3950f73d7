//! Survivors: the clients that take over after the death.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;

use farleaf_engines::{AnyIndex, recover};
use farleaf_fabric::Endpoint;
use farleaf_fabric::sim::Sim;
use farleaf_harness::{HarnessError, ensure};
use farleaf_index::lab::{Action, CrashState};
use farleaf_index::{Index, IndexError, ScanRange};
use farleaf_pool::{PoolError, Recovered, Session};

use super::action::OTHER;
use super::formats::Format;
use super::run::run_until;
use crate::history::{Answer, Event, Op};
use crate::world::{Pairs, ask, create, open, scan};

/// Looks of a survivor at a key that another may insert meanwhile, and the time between them.
const LOOKS: usize = 40;
const LOOK_NS: u64 = 2_000;
/// Virtual time in which the survivors must finish.
const LIMIT_NS: u64 = 1_000_000_000;

/// The events of a run, in the order in which they ended.
#[derive(Clone, Default)]
pub(super) struct EventLog {
    events: Rc<RefCell<Vec<Event>>>,
    /// The call that was begun last.
    begun: Rc<RefCell<Option<Event>>>,
}

impl EventLog {
    pub(super) fn events(&self) -> Vec<Event> {
        self.events.borrow().clone()
    }

    /// The events of a client that may be dead: the call under way has no answer.
    pub(super) fn events_and_begun(&self) -> Vec<Event> {
        let mut events = self.events();
        events.extend(self.begun.borrow().clone());
        events
    }
}

/// Makes calls and records them.
#[derive(Clone)]
pub(super) struct Survivor {
    pub(super) format: Format,
    pub(super) index: AnyIndex,
    pub(super) log: EventLog,
}

impl Survivor {
    async fn call(&self, session: &Session, client: u32, call: Op) -> Result<Answer, HarnessError> {
        let from_ns = session.endpoint().now_ns();
        let begun = Event { client, call: call.clone(), from_ns, answer: None };
        self.log.begun.replace(Some(begun));
        let answered = ask(session, &self.index, &call).await;
        self.log.begun.take();
        let given =
            answered.map_err(|error| HarnessError::from(error).within(format!("{call:?}")))?;
        let answer = Some((session.endpoint().now_ns(), given.clone()));
        self.log.events.borrow_mut().push(Event { client, call, from_ns, answer });
        Ok(given)
    }

    pub(super) async fn get(
        &self,
        session: &Session,
        client: u32,
        number: u32,
    ) -> Result<Option<Vec<u8>>, HarnessError> {
        let key = self.format.key(number);
        match self.call(session, client, Op::Get { key }).await? {
            Answer::Value(held) => Ok(held),
            other => Err(HarnessError(format!("a get is answered by {other:?}"))),
        }
    }

    /// All pairs, in the order of the keys.
    pub(super) async fn scan(
        &self,
        session: &Session,
        client: u32,
        reverse: bool,
    ) -> Result<Pairs, HarnessError> {
        let (from, to) = (Bound::Unbounded, Bound::Unbounded);
        let call = Op::Scan { from, to, reverse, limit: usize::MAX };
        match self.call(session, client, call).await? {
            Answer::Pairs(mut pairs) => {
                if reverse {
                    pairs.reverse();
                }
                Ok(pairs)
            }
            other => Err(HarnessError(format!("a scan is answered by {other:?}"))),
        }
    }

    /// Reads and changes every key, upwards.
    async fn first(&self, session: &Session, keys: &[u32]) -> Result<(), HarnessError> {
        for number in keys {
            self.get(session, 1, *number).await?;
        }
        for number in keys {
            let (key, value) = (self.format.key(*number), self.format.value(*number, 1_001));
            self.call(session, 1, Op::Upsert { key, value }).await?;
            session.tick().await?;
            self.get(session, 1, *number).await?;
        }
        Ok(())
    }

    /// Reads and changes every key, downwards, and removes some.
    async fn second(&self, session: &Session, keys: &[u32]) -> Result<(), HarnessError> {
        for (index, number) in keys.iter().rev().enumerate() {
            let expected = self.get(session, 2, *number).await?;
            let (key, value) = (self.format.key(*number), self.format.value(*number, 2_001));
            let new = Some(value.clone());
            self.call(session, 2, Op::CompareExchange { key: key.clone(), expected, new }).await?;
            if index % 2 == 0 {
                self.call(session, 2, Op::Remove { key: key.clone() }).await?;
            }
            if index % 4 == 0 {
                self.call(session, 2, Op::Insert { key, value }).await?;
            }
        }
        Ok(())
    }

    /// Changes the key `number` and inserts and removes the next one, again and again while it `goes_on`.
    pub(super) async fn change_beside(
        &self,
        session: &Session,
        client: u32,
        number: u32,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), HarnessError> {
        for version in (3_001..).take_while(|_| goes_on()) {
            for number in [number + 1, number] {
                let (key, value) = (self.format.key(number), self.format.value(number, version));
                self.call(session, client, Op::Upsert { key, value }).await?;
                self.get(session, client, number).await?;
            }
            let key = self.format.key(number + 1);
            self.call(session, client, Op::Remove { key }).await?;
        }
        Ok(())
    }

    /// Removes every key, and looks whether it is gone.
    async fn remove_all(
        &self,
        session: &Session,
        client: u32,
        keys: impl Iterator<Item = u32>,
    ) -> Result<(), HarnessError> {
        for number in keys {
            let key = self.format.key(number);
            self.call(session, client, Op::Remove { key }).await?;
            self.get(session, client, number).await?;
        }
        Ok(())
    }

    /// Looks at the last key again and again, while the other client inserts it.
    async fn watch(&self, session: &Session, keys: &[u32]) -> Result<(), HarnessError> {
        for _ in 0..LOOKS {
            self.look(session, 1, &keys[keys.len().saturating_sub(1)..]).await?;
            session.endpoint().sleep(LOOK_NS).await;
        }
        Ok(())
    }

    /// Reads, and then changes, keys that are there.
    async fn change(&self, session: &Session, keys: &[u32]) -> Result<(), HarnessError> {
        self.look(session, 2, keys).await?;
        for number in keys {
            let (key, value) = (self.format.key(*number), self.format.value(*number, 3_001));
            self.call(session, 2, Op::Update { key, value }).await?;
        }
        Ok(())
    }

    /// Reads every key and changes none.
    async fn look(&self, session: &Session, client: u32, keys: &[u32]) -> Result<(), HarnessError> {
        for number in keys {
            self.get(session, client, *number).await?;
        }
        Ok(())
    }
}

/// The action's key, or one in the middle.
pub(super) fn center_of(numbers: &[u32], action: Action) -> u32 {
    let middle = numbers.get(numbers.len() / 2).copied().unwrap_or(10);
    action.key().unwrap_or(middle)
}

/// The keys that survivors read and change: the action's key, its neighbours, and an absent one
/// between them; or all, if the state says so.
pub(super) fn involved(
    numbers: &[u32],
    action: Action,
    before: Option<Action>,
    touches_all: bool,
) -> Vec<u32> {
    if let Action::BulkLoad(count) = action {
        return vec![10, 10 * (count / 2), 10 * count];
    }
    let center = center_of(numbers, action);
    let at = numbers.partition_point(|number| *number < center);
    let around = match touches_all {
        true => 0..numbers.len(),
        false => at.saturating_sub(2)..(at + 3).min(numbers.len()),
    };
    let mut keys = numbers[around].to_vec();
    keys.extend([center, center + 1]);
    keys.extend(before.and_then(Action::key));
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Reads the key of the action from one cache. Then a client with another one changes all other keys, which makes it take
/// over what the dead had locked, and reads the key. The first one reads it once more.
fn approach(
    sim: &Sim,
    second: &Session,
    (takers, (first, watcher)): (&Survivor, &(Session, Survivor)),
    key: u32,
    numbers: &[u32],
) -> Result<(), HarnessError> {
    // A get of an absent key would mend the leaf.
    let others: Vec<u32> = numbers.iter().copied().filter(|other| *other != key).collect();
    sim.block_on(async {
        watcher.get(first, 1, key).await?;
        takers.change(second, &others).await?;
        takers.get(second, 2, key).await?;
        // Calls that touch in time count as overlapping.
        first.endpoint().sleep(LOOK_NS).await;
        watcher.get(first, 1, key).await.map(drop)
    })?
}

/// Two clients go on with the table, a third recovers the dead: at once, or when they are done. If there is a watcher, it
/// is the first client, with a session of its own. If they touch all, both begin with removes. `numbers` are the keys of the
/// table before the action.
pub(super) fn take_over(
    sim: &Sim,
    sessions: &[Session; 3],
    (takers, watcher): (&Survivor, Option<(Session, Survivor)>),
    (action, state): (Action, &CrashState),
    (keys, numbers): (&[u32], &[u32]),
    at_once: bool,
) -> Result<Recovered, HarnessError> {
    let touches_all = state.touches_all;
    if let (Some(watcher), Some(key), true) = (&watcher, action.key(), state.changes_others_first) {
        approach(sim, &sessions[1], (takers, watcher), key, numbers)?;
    }
    let ended = Rc::new(RefCell::new(Vec::new()));
    let total = Rc::new(RefCell::new(Recovered { complete: true, ..Recovered::default() }));
    for (number, session) in sessions.iter().enumerate() {
        let (session, takers, keys) = (session.clone(), takers.clone(), keys.to_vec());
        let watcher = watcher.clone().filter(|_| number == 0);
        let (ended, total) = (Rc::clone(&ended), Rc::clone(&total));
        sim.spawn(0, async move {
            let result = match (number, action) {
                (0 | 1, Action::BulkLoad(_)) => {
                    takers.look(&session, 1 + number as u32, &keys).await
                }
                (0 | 1, _) => {
                    let mut first = use_other_table(&session, &takers.format, action, number).await;
                    // Before anything is inserted, which rewrites what the dead have left.
                    if touches_all && first.is_ok() {
                        let keys = keys.iter().copied();
                        first = match number {
                            0 => takers.remove_all(&session, 1, keys).await,
                            _ => takers.remove_all(&session, 2, keys.rev()).await,
                        };
                    }
                    match (first, number) {
                        (Err(fault), _) => Err(fault),
                        (_, 0) => match &watcher {
                            Some((session, watcher)) => match watcher.watch(session, &keys).await {
                                Ok(()) => watcher.first(session, &keys).await,
                                Err(fault) => Err(fault),
                            },
                            None => takers.first(&session, &keys).await,
                        },
                        _ => takers.second(&session, &keys).await,
                    }
                }
                _ => {
                    while !at_once && ended.borrow().len() < 2 {
                        session.endpoint().sleep(20_000).await;
                    }
                    recover_all(&session, &total).await
                }
            };
            ended.borrow_mut().push(result);
        });
    }
    let is_over = || Ok(ended.borrow().len() == sessions.len());
    run_until(sim, 50_000, LIMIT_NS, is_over, || {
        let clients: Vec<u32> =
            takers.log.events.borrow().iter().map(|event| event.client).collect();
        format!(
            "not done after {LIMIT_NS} ns: {} of {} have ended; calls by client: {clients:?}",
            ended.borrow().len(),
            sessions.len()
        )
    })?;
    ended.take().into_iter().collect::<Result<Vec<()>, HarnessError>>()?;
    Ok(total.take())
}

async fn recover_all(session: &Session, total: &RefCell<Recovered>) -> Result<(), HarnessError> {
    while let Some(done) =
        recover(session).await.map_err(|error| HarnessError::from(error).within("recover"))?
    {
        let mut total = total.borrow_mut();
        total.members += done.members;
        total.blocks += done.blocks;
        total.objects_freed += done.objects_freed;
        total.complete &= done.complete;
        total.problems.extend(done.problems);
    }
    Ok(())
}

/// Two survivors meet the table that the dead was making or dropping.
async fn use_other_table(
    session: &Session,
    format: &Format,
    action: Action,
    number: usize,
) -> Result<(), HarnessError> {
    match (action, number) {
        (Action::CreateTable, _) => {
            // One of them, or the dead, makes it.
            let index = match create(session, OTHER, &format.table).await {
                Ok(index) => index,
                Err(IndexError::Invalid(_)) => open(session, OTHER).await?,
                Err(error) => {
                    return Err(HarnessError::from(error).within("making the other table"));
                }
            };
            let key = format.key(number as u32);
            let is_new = index.insert(session, &key, &format.value(1, 1)).await?;
            ensure(is_new, || "a new table is not empty".to_owned())
        }
        (Action::DropTable, 0) => {
            match session.open_root(OTHER).await {
                Ok(_) => {}
                Err(PoolError::NoSuchTable(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            // Still there: then all of it.
            let index = open(session, OTHER).await?;
            let held = scan(session, &index, ScanRange::ALL, usize::MAX).await?;
            let count = held.len();
            ensure(count == 9, || format!("the table is there with {count} of 9 keys"))?;
            index.close(session).await?;
            Ok(AnyIndex::drop_table(session, OTHER).await?)
        }
        _ => Ok(()),
    }
}

/// Checks the second table at the end.
pub(super) async fn check_others(
    session: &Session,
    format: &Format,
    action: Action,
) -> Result<(), HarnessError> {
    match action {
        Action::CreateTable => {
            let index = open(session, OTHER).await?;
            let held = scan(session, &index, ScanRange::ALL, usize::MAX).await?;
            let count = held.len();
            ensure(count == 2, || format!("the new table has {count} keys, not 2"))?;
            index.close(session).await?;
            AnyIndex::drop_table(session, OTHER).await?;
        }
        Action::DropTable => {
            let is_there = session.open_root(OTHER).await.is_ok();
            ensure(!is_there, || "the table that was dropped is there".to_owned())?;
        }
        _ => return Ok(()),
    }
    // Every entry of the root table can be claimed.
    let tables = session.pool().geometry().options().tables_max;
    let names: Vec<String> = (1..tables).map(|number| format!("more {number}")).collect();
    for name in &names {
        AnyIndex::create(session, name, &format.table).await?;
    }
    for name in &names {
        AnyIndex::drop_table(session, name).await?;
    }
    Ok(())
}

/// A bulk load has happened for all survivors or for none.
pub(super) fn check_bulk(
    events: &[Event],
    pairs: &Pairs,
    held: &Pairs,
    done: bool,
) -> Result<(), HarnessError> {
    let is_whole = held.is_empty() || held == pairs;
    ensure(is_whole, || format!("{} of {} pairs are there", held.len(), pairs.len()))?;
    let is_kept = !done || !held.is_empty();
    ensure(is_kept, || "it was told that all was loaded, and there is nothing".to_owned())?;
    for event in events {
        let (Op::Get { key }, Some((_, Answer::Value(value)))) = (&event.call, &event.answer)
        else {
            continue;
        };
        let now = held.iter().find(|(other, _)| other == key).map(|(_, value)| value);
        let is_same = now == value.as_ref();
        ensure(is_same, || "a key was there and is not, or the reverse".to_owned())?;
    }
    Ok(())
}
