//! Suite of the engine `chime`: exact costs, changes that are written together, stale stamps and hints, and
//! bad input.

mod bad_input;
mod combined;
mod costs;
mod stale;

use farleaf_engines::{AnyIndex, Engine};
use farleaf_pool::Session;

use crate::sherman::loaded_as;

/// A table of 8 + 8 bytes with every other number below `2 * keys`, all inner nodes and stamps known.
async fn loaded(session: &Session, keys: u64, list: &[(&str, &str)]) -> AnyIndex {
    loaded_as(session, Engine::Chime, keys, list).await
}
