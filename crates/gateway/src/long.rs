//! Long commands: run in parts, so that neither their operations nor their replies take much memory at a time.

use farleaf::{Answer, Operation};

use crate::commands::{Operations, Shape, error_text, is_done, is_hash, write_value};
use farleaf_resp::replies::Replies;

/// A command of many keys under way.
#[derive(Debug)]
pub(crate) struct Long {
    name: &'static str,
    shape: Shape,
    rest: smallvec::IntoIter<[Operation; 1]>,
    /// Its operations, those that are answered, and those that found or changed something.
    all: usize,
    answered: usize,
    done: usize,
}

impl Long {
    pub(crate) fn new(name: &'static str, shape: Shape, operations: Operations) -> Self {
        let all = operations.len();
        Long { name, shape, rest: operations.into_iter(), all, answered: 0, done: 0 }
    }

    /// The next operations.
    pub(crate) fn next(&mut self, most: usize) -> Vec<Operation> {
        self.rest.by_ref().take(most).collect()
    }

    /// Takes their answers, and writes the reply or the next piece of it; true if that was the last.
    ///
    /// The first failure ends the command, but for one that returns values: there it stands in the value's place,
    /// because the head of the array is sent.
    pub(crate) fn answer(
        &mut self,
        operations: &[Operation],
        answers: &[farleaf::Result<Answer>],
        replies: &mut Replies,
    ) -> bool {
        if self.shape == Shape::Values && self.answered == 0 {
            replies.array(self.all);
        }
        let mut failure = None;
        for (operation, answer) in operations.iter().zip(answers) {
            match (answer, &self.shape) {
                (Ok(answer), shape) => {
                    self.done += usize::from(is_done(answer));
                    self.answered += 1;
                    if *shape == Shape::Values {
                        write_value(answer, replies);
                    }
                }
                // A hash is there, and is no string.
                (Err(error), shape) if shape.takes_hashes() && is_hash(error) => {
                    self.done += 1;
                    self.answered += 1;
                    if *shape == Shape::Values {
                        replies.null();
                    }
                }
                (Err(error), Shape::Values) => {
                    self.answered += 1;
                    replies.error(&error_text(self.name, Some(operation.key()), error));
                }
                (Err(error), _) if failure.is_none() => {
                    failure = Some(error_text(self.name, Some(operation.key()), error));
                }
                (Err(_), _) => {}
            }
        }
        if let Some(text) = failure {
            let (answered, all) = (self.answered, self.all);
            replies.error(&format!("{text} (after {answered} of {all} keys)"));
            return true;
        }
        let is_last = self.answered == self.all;
        match self.shape {
            Shape::Values => {}
            _ if !is_last => {}
            Shape::Count | Shape::CountDone => replies.integer(self.done as i64),
            _ => replies.simple("OK"),
        }
        is_last
    }
}
