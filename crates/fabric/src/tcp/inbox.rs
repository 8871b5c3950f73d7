//! Answers of one connection, without its socket: bytes come in, and are handed to whoever waits.

use std::collections::VecDeque;

use super::wire::{ANSWER_BYTES, Status, decode_answer};
use crate::OpError;

/// Room for answers, at first.
const INPUT_BYTES: usize = 128 << 10;

/// What an answer belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// The post, and which part of it.
    pub(super) slot: u32,
    pub(super) part: u32,
}

/// Where answers go.
pub(super) trait Sink {
    /// The answer to one part of a post; false if it is not what was asked for.
    fn answer(&mut self, waiting: Waiting, status: Status, content: &[u8]) -> bool;
    /// One part of a post failed.
    fn fail(&mut self, waiting: Waiting, error: OpError);
    /// A reconnect has come to its end.
    fn reconnected(&mut self, slot: u32, result: Result<(), OpError>);
}

/// Why a connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The other side has gone, or does not keep to the protocol.
    Lost,
    Fenced,
}

/// What has come, and who waits for it.
#[derive(Debug)]
pub(super) struct Inbox {
    input: Vec<u8>,
    taken: usize,
    filled: usize,
    waiting: VecDeque<Waiting>,
    /// How many of those that wait were posted together, and when.
    posted: VecDeque<(usize, u64)>,
    unmarked: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Inbox {
            input: Vec::new(),
            taken: 0,
            filled: 0,
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            unmarked: 0,
        }
    }

    /// An answer is to come.
    #[inline]
    pub(super) fn expect(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
        self.unmarked += 1;
    }

    /// What was posted since the last call was posted at `now_ns`.
    pub(super) fn mark(&mut self, now_ns: impl FnOnce() -> u64) {
        let count = std::mem::take(&mut self.unmarked);
        if count > 0 {
            self.posted.push_back((count, now_ns()));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many wait whose requests have not been sent; 0 if others wait, too.
    pub(super) fn unsent(&self) -> usize {
        if self.posted.is_empty() { self.unmarked } else { 0 }
    }

    /// When the oldest of those that wait was posted.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.posted.front().map(|(_, posted_ns)| *posted_ns)
    }

    /// Where what comes next goes. Never empty.
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
        let wanted = wanted.max(INPUT_BYTES).max(self.filled + 1);
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
        &mut self.input[self.filled..]
    }

    /// `count` bytes have come; hands out what is whole, and says how many that was.
    pub(super) fn came(&mut self, count: usize, sink: &mut impl Sink) -> Result<usize, Ended> {
        self.filled += count;
        let mut answered = 0;
        let mut input = &self.input[self.taken..self.filled];
        let result = loop {
            let Some((head, rest)) = input.split_first_chunk::<ANSWER_BYTES>() else {
                break Ok(answered);
            };
            let Ok((status, length)) = decode_answer(head) else { break Err(Ended::Lost) };
            if status == Status::Fenced {
                break Err(Ended::Fenced);
            }
            let Some((content, behind)) = rest.split_at_checked(length) else {
                break Ok(answered);
            };
            // An answer that nobody waits for is not of this protocol.
            let Some(waiting) = self.waiting.pop_front() else { break Err(Ended::Lost) };
            answered += 1;
            if !sink.answer(waiting, status, content) {
                break Err(Ended::Lost);
            }
            input = behind;
        };
        self.taken = self.filled - input.len();
        self.forget(answered);
        result
    }

    fn forget(&mut self, mut answered: usize) {
        while let Some((count, _)) = self.posted.front_mut() {
            if *count > answered {
                *count -= answered;
                return;
            }
            answered -= *count;
            self.posted.pop_front();
        }
        self.unmarked -= answered.min(self.unmarked);
    }

    /// No more answers come: all that wait fail.
    pub(super) fn lose(&mut self, error: OpError, sink: &mut impl Sink) {
        (self.taken, self.filled, self.unmarked) = (0, 0, 0);
        self.posted.clear();
        for waiting in std::mem::take(&mut self.waiting) {
            sink.fail(waiting, error);
        }
    }
}
