//! Answer parser: takes the bytes of one connection and hands each answer to its waiter.

use std::collections::{BTreeMap, VecDeque};

use super::wire::{ANSWER_BYTES, Status, decode_answer, decode_reply};
use crate::calls::{ALL_OTHERS, Outcome};
use crate::{CallError, OpError, OpErrorKind};

/// Room for answers, at first.
const INPUT_BYTES: usize = 128 << 10;

/// Post and part that an answer belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// The post, and which part of it.
    pub(super) slot: u32,
    pub(super) part: u32,
}

/// Destination of answers.
pub(super) trait Sink {
    /// Takes the answer to one part of a post; false if it does not fit the request.
    fn answer(&mut self, waiting: Waiting, status: Status, content: &[u8]) -> bool;
    /// One part of a post failed.
    fn fail(&mut self, waiting: Waiting, error: OpError);
    /// A call has come to its end.
    fn reply(&mut self, waiting: Waiting, outcome: Result<&[u8], CallError>);
    /// A reconnect has come to its end.
    fn reconnected(&mut self, slot: u32, result: Result<(), OpError>);
}

/// Reason for which a connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The other side has gone, or breaks the protocol.
    Lost,
    Fenced,
}

impl Ended {
    /// The error of what was under way.
    pub(super) fn kind(self) -> OpErrorKind {
        match self {
            Ended::Lost => OpErrorKind::Unavailable,
            Ended::Fenced => OpErrorKind::Fenced,
        }
    }
}

/// Received bytes, and the posts that wait for answers.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    input: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Waiting requests, behind those that have been answered.
    waiting: Vec<Waiting>,
    answered: usize,
    /// Groups of waiting requests that were posted together: their number and the time of the post.
    posted: VecDeque<(usize, u64)>,
    /// End of the last such group in `waiting`.
    marked: usize,
    /// Calls whose replies are to come, by their numbers, and the last number.
    calls: BTreeMap<u64, Waiting>,
    last_call: u64,
    /// The receiver of the calls has left.
    has_left: bool,
}

impl Inbox {
    /// Expects a reply; returns the number of its call.
    pub(super) fn expect_reply(&mut self, waiting: Waiting) -> u64 {
        self.last_call += 1;
        self.calls.insert(self.last_call, waiting);
        self.last_call
    }

    /// Calls whose replies are to come.
    pub(super) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// True once the receiver of the calls has left: it begins no more of them.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// No more replies come.
    pub(super) fn lose_calls(&mut self, error: CallError, sink: &mut impl Sink) {
        for waiting in std::mem::take(&mut self.calls).into_values() {
            sink.reply(waiting, Err(error));
        }
    }

    /// Expects an answer.
    #[inline]
    pub(super) fn expect(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    /// Notes that the requests posted since the last call were posted at `now_ns`.
    pub(super) fn mark(&mut self, now_ns: impl FnOnce() -> u64) {
        let count = self.unmarked();
        if count > 0 {
            self.posted.push_back((count, now_ns()));
            self.marked = self.waiting.len();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answered == self.waiting.len() && self.calls.is_empty()
    }

    /// Returns whether a request from before the last [`Inbox::mark`] still waits.
    pub(super) fn is_under_way(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Returns the number of requests posted since then.
    pub(super) fn unmarked(&self) -> usize {
        self.waiting.len() - self.marked
    }

    /// Time at which the oldest waiting request was posted.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.posted.front().map(|(_, posted_ns)| *posted_ns)
    }

    /// Room for the next bytes. Never empty.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.taken > 0 {
            self.input.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        let wanted = match self.input[..self.filled].first_chunk().map(decode_answer) {
            Some(Ok((_, length))) => ANSWER_BYTES + length,
            _ => ANSWER_BYTES,
        };
        // Room grows with what has come, so that a length alone takes no memory.
        let most = INPUT_BYTES.max(2 * self.filled);
        let wanted = wanted.max(INPUT_BYTES).max(self.filled + 1).min(most);
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
        &mut self.input[self.filled..]
    }

    /// Takes `count` more bytes; hands out whole answers, and returns their number.
    pub(super) fn came(&mut self, count: usize, sink: &mut impl Sink) -> Result<usize, Ended> {
        self.filled += count;
        let mut input = &self.input[self.taken..self.filled];
        let waiting = &self.waiting[self.answered..];
        let mut next = waiting.iter();
        let result = loop {
            let Some((head, rest)) = input.split_first_chunk::<ANSWER_BYTES>() else {
                break Ok(());
            };
            let Ok((status, length)) = decode_answer(head) else { break Err(Ended::Lost) };
            if status == Status::Fenced {
                break Err(Ended::Fenced);
            }
            let Some((content, behind)) = rest.split_at_checked(length) else {
                break Ok(());
            };
            if status == Status::Reply {
                match reply(content, &mut self.calls, sink) {
                    Some(has_left) => self.has_left |= has_left,
                    None => break Err(Ended::Lost),
                }
                input = behind;
                continue;
            }
            // An answer that nobody waits for is not of this protocol.
            let Some(waiting) = next.next() else { break Err(Ended::Lost) };
            if !sink.answer(*waiting, status, content) {
                break Err(Ended::Lost);
            }
            input = behind;
        };
        self.taken = self.filled - input.len();
        let answered = waiting.len() - next.len();
        self.forget(answered);
        result.map(|()| answered)
    }

    /// `count` more of the waiting requests have been answered.
    fn forget(&mut self, count: usize) {
        self.answered += count;
        self.marked = self.marked.max(self.answered);
        // Moves no more elements than it drops.
        if self.answered >= self.waiting.len() / 2 {
            self.waiting.drain(..self.answered);
            self.marked -= std::mem::take(&mut self.answered);
        }
        let mut left = count;
        while let Some((count, _)) = self.posted.front_mut() {
            if *count > left {
                *count -= left;
                return;
            }
            left -= *count;
            self.posted.pop_front();
        }
    }

    /// No more answers will come: all waiting requests fail.
    pub(super) fn lose(&mut self, error: OpError, sink: &mut impl Sink) {
        (self.taken, self.filled, self.marked) = (0, 0, 0);
        self.posted.clear();
        let answered = std::mem::take(&mut self.answered);
        for waiting in std::mem::take(&mut self.waiting).into_iter().skip(answered) {
            sink.fail(waiting, error);
        }
    }
}

/// Hands out the reply to a call; whether it says that the receiver leaves. One that nobody waits for is
/// dropped (F12.8). `None` if it is no reply.
#[cold]
fn reply(content: &[u8], calls: &mut BTreeMap<u64, Waiting>, sink: &mut impl Sink) -> Option<bool> {
    let (number, outcome, bytes) = decode_reply(content).ok()?;
    if number == ALL_OTHERS {
        for waiting in std::mem::take(calls).into_values() {
            sink.reply(waiting, Err(CallError::NotBegun));
        }
        return (outcome == Outcome::NotBegun).then_some(true);
    }
    if let Some(waiting) = calls.remove(&number) {
        sink.reply(waiting, outcome.of_call(bytes));
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::wire::encode_answer;

    /// The slots of the answered posts.
    #[derive(Default)]
    struct Answered(Vec<u32>);

    impl Sink for Answered {
        fn answer(&mut self, waiting: Waiting, status: Status, content: &[u8]) -> bool {
            assert_eq!((status, content), (Status::Done, &[][..]));
            self.0.push(waiting.slot);
            true
        }

        fn fail(&mut self, waiting: Waiting, _: OpError) {
            self.0.push(waiting.slot);
        }

        fn reply(&mut self, _: Waiting, _: Result<&[u8], CallError>) {
            unreachable!("nobody calls");
        }

        fn reconnected(&mut self, _: u32, _: Result<(), OpError>) {
            unreachable!("nobody reconnects");
        }
    }

    /// In waves as large as `posts`, of which `answers` at a time are answered.
    #[test]
    fn posts_are_answered_in_order_with_any_number_under_way() {
        let answer = encode_answer(Status::Done, 0);
        for (posts, answers) in [(1, 1), (2, 1), (128, 128), (128, 96), (7, 5), (5, 4)] {
            let (mut inbox, mut sink) = (Inbox::default(), Answered::default());
            let mut posted = 0;
            for wave in 0..50 {
                for _ in 0..posts {
                    inbox.expect(Waiting { slot: posted, part: 0 });
                    posted += 1;
                }
                assert_eq!(inbox.unmarked(), posts);
                inbox.mark(|| wave);
                assert_eq!((inbox.unmarked(), inbox.is_under_way()), (0, true));
                let came = answer.repeat(answers);
                inbox.room()[..came.len()].copy_from_slice(&came);
                assert_eq!(inbox.came(came.len(), &mut sink), Ok(answers));
                let done = sink.0.len() as u64;
                let oldest = (done < u64::from(posted)).then_some(done / posts as u64);
                assert_eq!(inbox.oldest_ns(), oldest);
                assert_eq!(inbox.is_empty(), oldest.is_none());
            }
            let lost =
                OpError { server: crate::ServerId(0), kind: crate::OpErrorKind::Unavailable };
            inbox.lose(lost, &mut sink);
            assert!(inbox.is_empty() && !inbox.is_under_way());
            assert!(sink.0.into_iter().eq(0..posted), "{posts} posts, {answers} answers");
            // An answer that nobody waits for.
            let (room, mut sink) = (inbox.room(), Answered::default());
            room[..answer.len()].copy_from_slice(&answer);
            assert_eq!(inbox.came(answer.len(), &mut sink), Err(Ended::Lost));
            assert!(sink.0.is_empty());
        }
    }
}
