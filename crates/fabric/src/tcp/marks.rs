//! Connection marks: let one thread of a compute server end the connection of another one (F13).
//!
//! A *line* is what one thread has to one server: connections, each in the place of the one before it. While a line
//! has none, its posts wait. A mark of a line stands for the posts before it, wherever they are:
//!
//! - **TCP-14** Marked posts that were sent are on the line's present connection, or on earlier ones, which the server
//!   closed when it let the present one in. Marked posts that wait when their mark is ended are never sent.
//! - **TCP-15** A line's thread decides on its waiting posts, and publishes the number of the connection that will
//!   carry them, in one step. So the thread that ends a mark either finds that number or makes the posts void.
//!
//! Marks count the marks before them on their line, and a post the marks before it. A mark stands for the posts that
//! count less. A line is listed from its first mark on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;

use super::{TcpShared, Use, take_place};
use crate::calls::promise;
use crate::sync::lock;
use crate::{CallError, ConnectionMark, OpError, OpErrorKind};

/// Marked lines of a compute server's threads.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<ListedLines>);

#[derive(Debug, Default)]
struct ListedLines {
    last: u64,
    list: BTreeMap<u64, Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// The server's number of the present connection; 0 before the first one.
    number: u64,
    /// Count of the oldest post that may be on it.
    oldest: u64,
    /// The last mark that was ended.
    ended: u64,
    /// A mark stands for posts on the present connection, and was taken before that had a number.
    is_named: bool,
    /// The last connection that another thread has ended.
    cut: u64,
}

impl Lines {
    /// Lists a line without marks, whose present connection has that number.
    pub(super) fn add(self: &Arc<Self>, number: u64) -> LineMarks {
        let mut lines = lock(&self.0);
        lines.last += 1;
        let line = lines.last;
        lines.list.insert(line, Line { number, ..Line::default() });
        LineMarks { lines: Arc::clone(self), line, taken: 0, waiting: None }
    }

    /// Makes the waiting posts of a mark void. Returns the number of the connection that may carry the others; `None`
    /// if there are none.
    fn end(&self, mark: &ConnectionMark) -> Option<u64> {
        let mut lines = lock(&self.0);
        let Some(line) = lines.list.get_mut(&mark.line) else {
            // Its thread has ended. What waited then was never sent.
            return (mark.number != 0).then_some(mark.number);
        };
        line.ended = line.ended.max(mark.posts);
        (line.number != 0 && line.oldest < mark.posts).then_some(line.number)
    }

    /// The server has closed a connection for good, because another thread asked.
    fn cut(&self, line: u64, number: u64) {
        if let Some(line) = lock(&self.0).list.get_mut(&line) {
            line.cut = line.cut.max(number);
        }
    }

    /// Operations since `oldest` that waited will go another way of the line's present connection. False if they are
    /// void (TCP-15), or the line has ended.
    #[cfg(feature = "verbs")]
    pub(super) fn carry(&self, line: u64, oldest: u64) -> bool {
        let mut lines = lock(&self.0);
        let Some(line) = lines.list.get_mut(&line) else { return false };
        let is_void = oldest < line.ended;
        if !is_void && oldest < line.oldest {
            (line.oldest, line.is_named) = (oldest, true);
        }
        !is_void
    }
}

/// One line, as its own thread holds it.
#[derive(Debug)]
pub(super) struct LineMarks {
    lines: Arc<Lines>,
    line: u64,
    /// Marks so far.
    taken: u64,
    /// Count of the oldest marked post that waits, if any does.
    waiting: Option<u64>,
}

impl LineMarks {
    /// One more mark: its line and count. `waits` if posts wait for a connection.
    pub(super) fn take(&mut self, waits: bool) -> (u64, u64) {
        if waits {
            self.waiting.get_or_insert(self.taken);
        }
        self.taken += 1;
        (self.line, self.taken)
    }

    /// The server has let in connection `number`. False if the waiting posts are void (TCP-15).
    pub(super) fn let_in(&mut self, number: u64) -> bool {
        let waiting = self.waiting.take();
        let mut lines = lock(&self.lines.0);
        let line = lines.list.entry(self.line).or_default();
        let is_void = waiting.is_some_and(|oldest| oldest < line.ended);
        line.number = number;
        line.oldest = waiting.filter(|_| !is_void).unwrap_or(self.taken);
        line.is_named = line.oldest < self.taken;
        !is_void
    }

    /// The waiting posts have failed.
    pub(super) fn nothing_waits(&mut self) {
        self.waiting = None;
    }

    /// Returns whether another thread has ended connection `number`.
    pub(super) fn is_cut(&self, number: u64) -> bool {
        let lines = lock(&self.lines.0);
        lines.list.get(&self.line).is_some_and(|line| line.cut == number && number != 0)
    }
}

impl Drop for LineMarks {
    /// A mark without the number of its connection needs the list also when the thread has gone.
    fn drop(&mut self) {
        let mut lines = lock(&self.lines.0);
        if lines.list.get(&self.line).is_some_and(|line| !line.is_named) {
            lines.list.remove(&self.line);
        }
    }
}

impl TcpShared {
    /// See [`crate::Endpoint::end_connection`]. Greets the server in the place of that connection, and closes at once.
    pub(super) async fn end_connection(
        self: &Arc<Self>,
        mark: ConnectionMark,
    ) -> Result<(), OpError> {
        let failed = |kind| OpError { server: mark.server, kind };
        if self.has_given_up() {
            return Err(failed(OpErrorKind::Fenced));
        }
        let is_memory = mark.life == ConnectionMark::MEMORY;
        let peer = || self.calls.peer(mark.server).filter(|peer| peer.incarnation == mark.life);
        let gone = failed(OpErrorKind::Gone { who: mark.life });
        let to = peer();
        if to.is_none() && !is_memory {
            return Err(gone);
        }
        let Some(number) = self.lines.end(&mark) else { return Ok(()) };
        let (answer, waiting) = promise();
        let (shared, given) = (Arc::clone(self), answer.clone());
        let greets = move || {
            let taken = take_place(&shared, mark.server, to, Use::Control, number);
            if taken.is_ok() {
                shared.lines.cut(mark.line, number);
                // The other thread looks at its connections.
                shared.calls.changed();
            }
            let outcome = taken.map(|_| Vec::new());
            given.give(outcome.map_err(|ended| CallError::Unknown(ended.kind())));
        };
        // Connecting waits, and this thread has other work.
        let begun = thread::Builder::new().name("farleaf-connect".to_owned()).spawn(greets);
        if begun.is_err() {
            answer.give(Err(CallError::NotBegun));
        }
        match waiting.await {
            Ok(_) => Ok(()),
            Err(_) if !is_memory && peer().is_none() => Err(gone),
            Err(CallError::Unknown(kind)) => Err(failed(kind)),
            Err(_) => Err(failed(OpErrorKind::Unavailable)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, ServerId};

    fn mark(line: &mut LineMarks, waits: bool, number: u64) -> ConnectionMark {
        let (line, posts) = line.take(waits);
        ConnectionMark { server: ServerId(0), life: Incarnation(9), line, number, posts }
    }

    /// Posts on the present connection, and posts that wait for the next one while its number is unknown.
    #[test]
    fn a_mark_finds_the_connection_that_carries_its_posts() {
        let lines = Arc::new(Lines::default());
        let mut line = lines.add(3);
        let sent = mark(&mut line, false, 3);
        let waiting = mark(&mut line, true, 3);
        assert_eq!(lines.end(&sent), Some(3));
        assert!(line.let_in(7), "only posts that went on connection 3 are void");
        assert_eq!(lines.end(&sent), None, "connection 7 has closed that one");
        assert_eq!(lines.end(&waiting), Some(7));
        assert!(line.let_in(8));
        assert_eq!(lines.end(&waiting), None, "nothing of it is left");
        let later = mark(&mut line, false, 8);
        assert_eq!((lines.end(&sent), lines.end(&later)), (None, Some(8)));
    }

    #[test]
    fn posts_that_wait_when_their_mark_is_ended_are_void() {
        let lines = Arc::new(Lines::default());
        let mut line = lines.add(0);
        let first = mark(&mut line, true, 0);
        assert_eq!(lines.end(&first), None, "nothing was ever sent");
        assert!(!line.let_in(4));
        assert_eq!(lines.end(&first), None, "connection 4 carries none of it");
        assert!(line.let_in(5), "later posts are not void");
        // Posts that failed while they waited make nothing void.
        let failed = mark(&mut line, true, 5);
        line.nothing_waits();
        assert_eq!(lines.end(&failed), Some(5), "others may be on the present one");
        assert!(line.let_in(6));
        // A mark between other ones.
        let waits = mark(&mut line, true, 6);
        let last = mark(&mut line, true, 6);
        lines.end(&waits);
        assert!(!line.let_in(9), "the oldest decides");
        assert_eq!(lines.end(&last), None);
    }

    /// A mark outlives the thread that took it, and its line the thread only if the mark has no number.
    #[test]
    fn marks_outlive_their_threads() {
        let lines = Arc::new(Lines::default());
        let listed = || lock(&lines.0).list.len();
        let mut line = lines.add(3);
        let sent = mark(&mut line, false, 3);
        drop(line);
        assert_eq!((listed(), lines.end(&sent)), (0, Some(3)));
        let mut line = lines.add(0);
        let never = mark(&mut line, true, 0);
        drop(line);
        assert_eq!((listed(), lines.end(&never)), (0, None), "it was never sent");
        let mut line = lines.add(0);
        let waits = mark(&mut line, true, 0);
        assert!(line.let_in(4));
        drop(line);
        assert_eq!((listed(), lines.end(&waits)), (1, Some(4)));
    }

    #[test]
    fn a_line_learns_that_its_connection_was_ended() {
        let lines = Arc::new(Lines::default());
        let mut line = lines.add(3);
        let sent = mark(&mut line, false, 3);
        assert!(!line.is_cut(3));
        lines.cut(sent.line, 3);
        assert!(line.is_cut(3) && !line.is_cut(4));
    }

    /// Operations that go another way of a connection, as by a card.
    #[cfg(feature = "verbs")]
    #[test]
    fn another_way_carries_what_waited_for_it() {
        let lines = Arc::new(Lines::default());
        let mut line = lines.add(3);
        let waits = mark(&mut line, false, 3);
        assert!(line.let_in(4));
        assert_eq!(lines.end(&ConnectionMark { posts: 0, ..waits }), None);
        assert!(lines.carry(waits.line, waits.posts - 1));
        assert_eq!(lines.end(&waits), Some(4));
        assert!(!lines.carry(waits.line, waits.posts - 1), "void");
        assert!(lines.carry(waits.line, waits.posts), "posted later");
        drop(line);
        assert_eq!(lines.end(&waits), Some(4));
        assert!(!lines.carry(waits.line + 1, 0), "a line that has ended");
    }
}
