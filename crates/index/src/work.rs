//! Work: boxed futures, for calls on a table of any engine.

use std::future::Future;
use std::pin::Pin;

/// Work that is boxed, so that a table of any engine can be asked for it. None of it is on an operation's way.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
