//! Owners: deals the operations of a call to the owners of their keys, one message for each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use farleaf_fabric::Incarnation;
use farleaf_index::compute::OwnedTable;
use farleaf_index::compute::messages::OpReply;
use farleaf_index::{Index, IndexError, Op};

use crate::error::Result;
use crate::many;
use crate::table_core::TableCore;
use crate::thread_context::{Session, ThreadContext};

/// Operations of one call that travel in one message, at most.
const MESSAGE_OPS_MAX: usize = 256;

impl TableCore {
    /// Does what `single` does for every number below `count`, several at a time. Where other compute servers own the
    /// keys `key_of` the numbers, each of them gets one message with all of its operations `op_of`, and `told` takes their
    /// answers. `single` does what no operation stands for, and what a message left undone. If a key comes
    /// twice, its operations take effect in any order.
    pub(crate) async fn for_each_key<'k>(
        &self,
        context: &ThreadContext,
        count: usize,
        key_of: impl Fn(usize) -> &'k [u8],
        op_of: impl Fn(usize) -> Option<Op>,
        told: impl Fn(usize, std::result::Result<OpReply, IndexError>) -> Result<()>,
        single: impl AsyncFn(&Session, usize) -> Result<()>,
    ) -> Result<()> {
        let Some(owned) = self.index().owned() else {
            return many::for_each(context, count, single).await;
        };
        let Dealt { messages, alone } = deal(owned, count, key_of, op_of);
        // Each is taken once.
        let messages: Vec<_> =
            messages.into_iter().map(|message| Cell::new(Some(message))).collect();
        let left = RefCell::new(Vec::new());
        many::for_each(context, messages.len() + alone.len(), async |session, at| {
            let Some(message) = messages.get(at) else {
                return single(session, alone[at - messages.len()]).await;
            };
            let Some((owner, parts)) = message.take() else { return Ok(()) };
            let (numbers, ops): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            let answers = owned.run_at(session, owner, ops).await;
            for (number, answer) in numbers.into_iter().zip(answers) {
                match answer {
                    Some(answer) => told(number, answer)?,
                    None => left.borrow_mut().push(number),
                }
            }
            Ok(())
        })
        .await?;
        let left = left.into_inner();
        many::for_each(context, left.len(), async |session, at| single(session, left[at]).await)
            .await
    }
}

/// Operations of a call by the compute servers that do them.
struct Dealt {
    /// Two operations at least for each message, with their numbers.
    messages: Vec<(Incarnation, Vec<(usize, Op)>)>,
    /// The numbers of all others.
    alone: Vec<usize>,
}

fn deal<'k>(
    owned: &dyn OwnedTable,
    count: usize,
    key_of: impl Fn(usize) -> &'k [u8],
    op_of: impl Fn(usize) -> Option<Op>,
) -> Dealt {
    let (mut of_owners, mut alone) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    for number in 0..count {
        let owner = owned.owner_to_call(key_of(number));
        match owner.and_then(|owner| Some((owner, op_of(number)?))) {
            Some((owner, op)) => of_owners.entry(owner.0).or_default().push((number, op)),
            None => alone.push(number),
        }
    }
    let mut messages = Vec::new();
    for (owner, mut parts) in of_owners {
        while parts.len() > 1 {
            let rest = parts.split_off(parts.len().min(MESSAGE_OPS_MAX));
            messages.push((Incarnation(owner), std::mem::replace(&mut parts, rest)));
        }
        alone.extend(parts.into_iter().map(|(number, _)| number));
    }
    Dealt { messages, alone }
}
