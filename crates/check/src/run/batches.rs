//! Batches: operations of one client that travel to the owner of their keys in one message.

use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_fabric::Incarnation;
use farleaf_index::Index;
use farleaf_index::compute::messages::OpReply;

use super::client::{Client, CutOff};
use crate::history::{Answer, Op};
use crate::world::ask;

impl Client {
    /// Does operations on several keys. Those whose keys another compute server owns go to it together: into the history
    /// goes each as the call of a client of its own, because they overlap. What the owner left undone, and all else, is
    /// done by itself.
    pub(super) async fn batch(
        &mut self,
        at: Option<(usize, u32)>,
        calls: Vec<Op>,
    ) -> Result<(), CutOff> {
        let mut of_owners = BTreeMap::<u64, Vec<Op>>::new();
        let mut alone = Vec::new();
        for call in calls {
            let owned = self.index.owned();
            match owned.and_then(|owned| owned.owner_to_call(key_of(&call)?)) {
                Some(owner) => of_owners.entry(owner.0).or_default().push(call),
                None => alone.push(call),
            }
        }
        for (owner, calls) in of_owners {
            self.batch_at(at, Incarnation(owner), calls).await?;
        }
        for call in alone {
            self.run(at, call).await?;
            // An answer and the next call are never of the same moment.
            self.pause().await;
        }
        Ok(())
    }

    async fn batch_at(
        &mut self,
        at: Option<(usize, u32)>,
        owner: Incarnation,
        calls: Vec<Op>,
    ) -> Result<(), CutOff> {
        let shared = Rc::clone(&self.shared);
        let begin = |call: &Op| shared.call(shared.new_client(), at, call.clone());
        let places: Vec<usize> = calls.iter().map(begin).collect();
        let Some(owned) = self.index.owned() else { return Ok(()) };
        let answers = owned.run_at(&self.session, owner, calls.clone()).await;
        for ((call, place), answer) in calls.iter().zip(places).zip(answers) {
            let done = match answer {
                Some(told) => {
                    shared.count(|stats| stats.batched += 1);
                    told.map(|reply| answer_of(&reply))
                }
                None => ask(&self.session, &self.index, call).await,
            };
            let answer = match done {
                Ok(answer) => Some(answer),
                Err(error) => self.failed(call, error)?,
            };
            self.forget(call);
            if let Some(answer) = answer {
                shared.answer(place, answer);
            }
        }
        Ok(())
    }
}

fn key_of(call: &Op) -> Option<&[u8]> {
    match call {
        Op::Get { key } => Some(key),
        call => call.change().map(|change| change.key),
    }
}

fn answer_of(reply: &OpReply) -> Answer {
    match reply {
        OpReply::Value(value) => Answer::Value(value.clone()),
        OpReply::Done(done) => Answer::Flag(*done),
        OpReply::Exchanged(exchange, held) => Answer::Exchanged {
            done: *exchange == farleaf_index::Exchange::Done,
            held: held.clone(),
        },
        // No operation of a key has such a reply: the checker of histories refuses it.
        _ => Answer::Pairs(Vec::new()),
    }
}
