//! Queue: commands between `MULTI` and `EXEC`, which then run in order, one after the other.
//!
//! This is no transaction: each command is atomic, and other clients' commands may run in between. A client gets it
//! with [`Multi::Sequence`](crate::Multi::Sequence) only.

use crate::commands::{self, Call, Command, lower, wrong_arity};
use farleaf_resp::replies::Replies;
use farleaf_resp::request::Limits;

/// The commands that a client has queued.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// As they came.
    bytes: Vec<u8>,
    commands: usize,
    /// One was refused: `EXEC` runs none.
    is_refused: bool,
}

/// The outcome of a command for the queue.
pub(crate) struct Step {
    pub(crate) reply: Vec<u8>,
    /// Bytes of commands that run now.
    pub(crate) runs: Vec<u8>,
}

impl Queue {
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes a command whose bytes are `raw`; `None` if it has nothing to do with a queue.
    pub(crate) fn step(
        queue: &mut Option<Box<Queue>>,
        call: &Call<'_>,
        command: Option<&'static Command>,
        raw: &[u8],
    ) -> Option<Step> {
        if !call.shared.knows(call.client) {
            return None;
        }
        let mut replies = Replies { protocol: call.client.protocol, ..Replies::default() };
        let mut runs = Vec::new();
        let name = lower(call.args[0]);
        let is_bare = call.args.len() == 1;
        match (name.as_str(), &mut *queue) {
            ("exec", Some(_)) if !is_bare => {
                *queue = None;
                let refusal = wrong_arity("exec");
                let refusal = refusal.trim_start_matches("ERR ");
                replies.error(&format!("EXECABORT Transaction discarded because of: {refusal}"));
            }
            ("multi" | "exec" | "discard" | "unwatch", _) if !is_bare => {
                if let Some(queue) = queue {
                    queue.is_refused = true;
                }
                replies.error(&wrong_arity(&name));
            }
            ("multi", None) => {
                *queue = Some(Box::default());
                replies.simple("OK");
            }
            ("multi", Some(_)) => replies.error("ERR MULTI calls can not be nested"),
            ("watch", Some(_)) => replies.error("ERR WATCH inside MULTI is not allowed"),
            // Nothing is ever watched.
            ("unwatch", None) => replies.simple("OK"),
            ("discard", Some(_)) => {
                *queue = None;
                replies.simple("OK");
            }
            ("exec", Some(_)) => match queue.take() {
                Some(queue) if !queue.is_refused => {
                    replies.array(queue.commands);
                    runs = queue.bytes;
                }
                _ => replies.error("EXECABORT Transaction discarded because of previous errors."),
            },
            ("quit" | "reset", _) => {
                *queue = None;
                return None;
            }
            (_, None) => return None,
            (_, Some(queue)) => {
                let limit = Limits::OPEN.request_bytes;
                let refused = match commands::check(call, command) {
                    Err(text) if name != "unwatch" => Some(text),
                    _ if queue.bytes.len() + raw.len() > limit => {
                        Some(format!("ERR commands behind MULTI take more than {limit} bytes"))
                    }
                    _ => None,
                };
                match refused {
                    Some(text) => {
                        queue.is_refused = true;
                        replies.error(&text);
                    }
                    None => {
                        queue.bytes.extend_from_slice(raw);
                        queue.commands += 1;
                        replies.simple("QUEUED");
                    }
                }
            }
        }
        Some(Step { reply: replies.bytes, runs })
    }
}
