//! Region files: hold the memory that the compute servers of a pool folder expose (F11).
//!
//! ```text
//! <folder>/exposed/<life>    the memory that the compute server of that life exposes; its length is the region's
//! ```
//!
//! The owner makes the file, zeroed and with its space reserved, and removes it when its life ends. If it was killed, the
//! next compute server that exposes memory removes the file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::calls::remove_dead;
use crate::space;
use crate::{FabricError, Incarnation, Peer, Words};

fn path_of(folder: &Path, who: Incarnation) -> PathBuf {
    folder.join("exposed").join(who.to_string())
}

/// Returns whether a compute server has exposed memory in that pool folder.
pub(super) fn may_exist(folder: &Path) -> bool {
    folder.join("exposed").exists()
}

/// Makes the region of the life `me`.
pub(super) fn create(
    folder: &Path,
    me: Incarnation,
    bytes: u64,
) -> Result<Arc<Words>, FabricError> {
    let exposed = folder.join("exposed");
    fs::create_dir_all(&exposed).map_err(FabricError::io("make folder", &exposed))?;
    remove_dead(folder, &exposed);
    let path = path_of(folder, me);
    let make = || {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(FabricError::io("make", &path))?;
        file.set_len(bytes).map_err(FabricError::io("size", &path))?;
        space::reserve(&file, &path, bytes)?;
        Words::map(&file, (bytes / 8) as usize).map_err(FabricError::io("map", &path))
    };
    let made = make();
    if made.is_err() {
        remove(folder, me);
    }
    made.map(Arc::new)
}

/// Maps the region of a peer; `None` if it has none, or another one than it has said.
pub(super) fn open(folder: &Path, peer: Peer) -> Option<Arc<Words>> {
    let path = path_of(folder, peer.incarnation);
    let file = File::options().read(true).write(true).open(path).ok()?;
    let bytes = file.metadata().ok()?.len();
    if bytes != peer.region_bytes {
        return None;
    }
    Words::map(&file, (bytes / 8) as usize).ok().map(Arc::new)
}

/// Removes the region of a life that ends. If that fails, the next one that exposes memory does it.
pub(super) fn remove(folder: &Path, me: Incarnation) {
    let _ = fs::remove_file(path_of(folder, me));
}
