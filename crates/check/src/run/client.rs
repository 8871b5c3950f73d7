//! Simulated client: does its steps and records the answers.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use farleaf_engines::AnyIndex;
use farleaf_fabric::AnyEndpoint;
use farleaf_fabric::Endpoint;
use farleaf_index::{Entries, Index, IndexError};
use farleaf_pool::{PoolError, Session};

use super::outcome::Failure;
use super::record::RunShared;
use super::steps::{Step, Steps, count_of};
use crate::history::{Answer, Op};
use crate::world::ask;

/// Steps between two ticks.
const TICK_STEPS: u32 = 8;
/// Attempts to count a number up.
const COUNT_ATTEMPTS: usize = 6;

/// This life has been cut off: it must begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutOff;

/// One client of one life.
pub(super) struct Client {
    pub(super) shared: Rc<RunShared>,
    /// Number of the client in the scenario.
    pub(super) number: usize,
    /// Number of the client in the history.
    pub(super) id: u32,
    pub(super) session: Session,
    pub(super) index: AnyIndex,
    /// Content of keys as it last saw them.
    pub(super) known: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Client {
    /// Does the steps that are left.
    ///
    /// # Errors
    /// [`CutOff`]; the operation under way has an unknown outcome.
    pub(super) async fn work(mut self) -> Result<(), CutOff> {
        let shared = Rc::clone(&self.shared);
        let mut done = 0;
        loop {
            let next = shared.left[self.number].borrow_mut().pop_front();
            let Some(index) = next.filter(|_| !shared.stop.get()) else { return Ok(()) };
            let think_ns = shared.scenario.think_ns * 2;
            let random = self.session.endpoint().random();
            // At least 1: an answer and the next call are never of the same moment.
            self.session.endpoint().sleep(1 + random % (think_ns + 1)).await;
            self.step(index).await?;
            done += 1;
            if done % TICK_STEPS == 0 {
                tick(&shared, &self.session).await?;
            }
        }
    }

    async fn step(&mut self, index: u32) -> Result<(), CutOff> {
        let shared = Rc::clone(&self.shared);
        let steps = Steps::new(&shared.scenario);
        let at = Some((self.number, index));
        match steps.step(self.number, index) {
            Step::Do(call) => self.run(at, call).await.map(drop),
            Step::Exchange { key, of_absent, new } => {
                let known = self.known.get(&key).cloned().flatten();
                let expected = known.filter(|_| !of_absent);
                self.run(at, Op::CompareExchange { key, expected, new }).await.map(drop)
            }
            Step::Count(key) => self.count(at, &steps, key).await,
            Step::LongestPrefix(key) => self.longest_prefix(at, &steps, &key).await,
            Step::Batch(calls) => self.batch(at, calls).await,
        }
    }

    /// Adds one to a number, or gives up after some attempts.
    async fn count(
        &mut self,
        at: Option<(usize, u32)>,
        steps: &Steps<'_>,
        key: Vec<u8>,
    ) -> Result<(), CutOff> {
        let mut expected = self.known.get(&key).cloned().flatten();
        for _ in 0..COUNT_ATTEMPTS {
            let next = expected.as_deref().map_or(0, count_of).wrapping_add(1);
            let new = Some(steps.count_value(next));
            let call = Op::CompareExchange { key: key.clone(), expected, new };
            match self.run(at, call).await? {
                Some(Answer::Exchanged { done: false, held }) => expected = held,
                _ => return Ok(()),
            }
            self.session.endpoint().sleep(1).await;
        }
        Ok(())
    }

    /// Looks for the longest key that `key` begins with. Into the history go the looks that its answer stands for: the
    /// key that it found had that value, each longer prefix was absent.
    async fn longest_prefix(
        &self,
        at: Option<(usize, u32)>,
        steps: &Steps<'_>,
        key: &[u8],
    ) -> Result<(), CutOff> {
        let (shared, from_ns) = (&self.shared, self.shared.now_ns());
        let mut found = Entries::new();
        if let Err(error) = self.index.longest_prefix(&self.session, key, &mut found).await {
            let call = Op::Get { key: key.to_vec() };
            return self.failed(&call, error).map(drop);
        }
        let found = found.get(0);
        if let Some((prefix, _)) = found.filter(|(prefix, _)| !key.starts_with(prefix)) {
            let (key, prefix) = (key.escape_ascii(), prefix.escape_ascii());
            shared.fail(Failure::Corrupt(format!("\"{prefix}\" is no prefix of \"{key}\"")));
        }
        if let Some((prefix, value)) = found {
            shared.looked(at, prefix, from_ns, Some(value.to_vec()));
        }
        let longer = |it: &Vec<u8>| found.is_none_or(|(prefix, _)| it.len() > prefix.len());
        for absent in steps.keys().iter().filter(|it| key.starts_with(it) && longer(it)) {
            shared.looked(at, absent, from_ns, None);
        }
        Ok(())
    }

    /// One operation. `None` if its outcome is unknown.
    pub(super) async fn run(
        &mut self,
        at: Option<(usize, u32)>,
        call: Op,
    ) -> Result<Option<Answer>, CutOff> {
        let shared = Rc::clone(&self.shared);
        let place = shared.call(self.id, at, call.clone());
        let impatience = shared.scenario.impatience;
        let endpoint = self.session.endpoint();
        let random = endpoint.random();
        let is_impatient = impatience > 0.0
            && at.is_some()
            && ((random >> 11) as f64) * 0.5_f64.powi(53) < impatience;
        let patience_ns = is_impatient.then(|| 200 + endpoint.random() % 14_000);
        let done = within(endpoint, patience_ns, ask(&self.session, &self.index, &call)).await;
        let answer = match done {
            None => {
                shared.count(|stats| stats.unknown += 1);
                self.forget(&call);
                return Ok(None);
            }
            Some(Ok(answer)) => {
                self.learn(&call, &answer);
                answer
            }
            Some(Err(error)) => {
                self.forget(&call);
                match self.failed(&call, error)? {
                    Some(answer) => answer,
                    None => return Ok(None),
                }
            }
        };
        shared.answer(place, answer.clone());
        Ok(Some(answer))
    }

    /// The answer that an error stands for; `None` if the outcome is unknown.
    pub(super) fn failed(&self, call: &Op, error: IndexError) -> Result<Option<Answer>, CutOff> {
        let shared = &self.shared;
        *shared.refusal.borrow_mut() = error.to_string();
        match error {
            IndexError::Full(_) => shared.count(|stats| stats.full += 1),
            IndexError::Unavailable(_) => shared.count(|stats| stats.unavailable += 1),
            IndexError::OutcomeUnknown(_) => {
                shared.count(|stats| stats.unknown += 1);
                return Ok(None);
            }
            IndexError::Closed(_) => {
                shared.count(|stats| stats.unknown += 1);
                return Err(CutOff);
            }
            IndexError::Invalid(why) => shared.fail(Failure::Refused(format!("{call:?}: {why}"))),
            error => {
                let who = self.id;
                shared.fail(Failure::Corrupt(format!("client {who}, {call:?}: {error}")));
            }
        }
        Ok(Some(Answer::Nothing))
    }

    fn learn(&mut self, call: &Op, answer: &Answer) {
        let (key, value) = match (call, answer) {
            (Op::Get { key }, Answer::Value(value)) => (key, value.clone()),
            (Op::Insert { key, value }, Answer::Flag(true))
            | (Op::Update { key, value }, Answer::Flag(true))
            | (Op::Upsert { key, value }, Answer::Flag(_)) => (key, Some(value.clone())),
            (Op::Remove { key }, Answer::Flag(_)) => (key, None),
            (Op::CompareExchange { key, new, .. }, Answer::Exchanged { done: true, .. }) => {
                (key, new.clone())
            }
            (Op::CompareExchange { key, .. }, Answer::Exchanged { held, .. }) => {
                (key, held.clone())
            }
            (call, _) => return self.forget(call),
        };
        self.known.insert(key.clone(), value);
    }

    /// Lets a moment pass.
    pub(super) async fn pause(&self) {
        self.session.endpoint().sleep(1).await;
    }

    pub(super) fn forget(&mut self, call: &Op) {
        if let Some(change) = call.change() {
            self.known.remove(change.key);
        }
    }
}

/// Does maintenance. The next tick makes up for failures of the fabric.
pub(super) async fn tick(shared: &RunShared, session: &Session) -> Result<(), CutOff> {
    match session.tick().await {
        Ok(()) => Ok(()),
        Err(PoolError::Corrupt(why)) => {
            shared.fail(Failure::Corrupt(format!("tick: {why}")));
            Ok(())
        }
        Err(error) => match IndexError::from(error) {
            IndexError::Closed(_) => Err(CutOff),
            _ => Ok(()),
        },
    }
}

/// Polls `work` for at most `ns`, then drops it.
async fn within<T>(
    endpoint: &AnyEndpoint,
    ns: Option<u64>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let Some(ns) = ns else { return Some(work.await) };
    let (mut work, mut sleep) = (pin!(work), pin!(endpoint.sleep(ns)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}
