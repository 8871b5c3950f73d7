//! Batches: one message for all operations of a call on keys of one other compute server.
//!
//! The receiver does them in their order, each as a request of its own, and stops at the first one that it does not
//! serve: what comes behind it may be on the same key. The sender does what was not done one by one.

use farleaf_fabric::Incarnation;
use farleaf_pool::Session;

use super::refresh_map;
use super::routing::{serve_own, unexpected};
use crate::IndexError;
use crate::compute::messages::{OpReply, Patience, Request, send};
use crate::compute::{Owned, OwnedTable, RangeOwner};
use crate::op::Op;

/// Bytes of values in a reply after which the receiver does no more of a batch.
const REPLY_BYTES: usize = 4 << 20;

/// The answers to the operations of a batch; `None` for one that is to be done by itself.
pub type BatchAnswers = Vec<Option<Result<OpReply, IndexError>>>;

/// Does the operations of a batch that another compute server has sent.
pub(super) async fn serve_batch<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    ops: &[Op],
) -> Result<OpReply, IndexError> {
    let (mut replies, mut bytes) = (Vec::with_capacity(ops.len().min(1024)), 0);
    for op in ops {
        if bytes > REPLY_BYTES {
            break;
        }
        let reply = match serve_own(table, session, op).await {
            Ok(None) => {
                // For the next batch. A failure to read the map says nothing of what was done.
                let _ = refresh_map(table.tree(), session).await;
                break;
            }
            Ok(Some(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        if let Ok(OpReply::Value(Some(value)) | OpReply::Exchanged(_, Some(value))) = &reply {
            bytes += value.len();
        }
        replies.push(reply);
    }
    session.vouch()?;
    let epoch = table.ownership().view().map.epoch;
    replies.resize_with(ops.len(), || Ok(OpReply::WrongOwner { epoch }));
    Ok(OpReply::Batch(replies))
}

/// Sends operations on keys of the compute server `owner`, none of them a scan, in one message.
///
/// Cost: 1 call, and what the owner does.
pub(crate) async fn run_at<T: OwnedTable + ?Sized>(
    table: &T,
    session: &Session,
    owner: Incarnation,
    ops: Vec<Op>,
) -> BatchAnswers {
    let are_reads: Vec<bool> = ops.iter().map(Op::is_read).collect();
    let until_ns = Patience::new(session.endpoint()).until_ns;
    let sent = send(session, table.meta(), owner, &Request::Batch(ops), until_ns).await;
    let replies = match sent {
        Ok(Some(OpReply::Batch(replies))) if replies.len() == are_reads.len() => replies,
        // Not begun, or too long to travel.
        Ok(None | Some(OpReply::WrongOwner { .. })) | Err(IndexError::Invalid(_)) => {
            return are_reads.iter().map(|_| None).collect();
        }
        Ok(Some(other)) => are_reads.iter().map(|_| Err(unexpected(&other))).collect(),
        Err(error) => are_reads.iter().map(|_| Err(error.clone())).collect(),
    };
    let answer =
        |(reply, is_read): (Result<OpReply, IndexError>, bool)| match reply {
            Ok(OpReply::WrongOwner { .. }) => None,
            Err(
                IndexError::OutcomeUnknown(_) | IndexError::Unavailable(_) | IndexError::Closed(_),
            ) if is_read => None,
            // Of the owner's, not of this compute server.
            Err(IndexError::Closed(why)) => Some(Err(IndexError::OutcomeUnknown(why))),
            reply => Some(reply),
        };
    replies.into_iter().zip(are_reads).map(answer).collect()
}
