//! Placement: chooses the memory server of each node.
//!
//! A table's nodes are spread evenly, unless operations are offloaded: the first compute server that opens it
//! with offloading has it *placed*.
//!
//! `INV-DEX-PLACE`: of a table that is *placed*, all nodes of a subtree whose top is of the table's
//! subtree level, or below it, lie on one memory server, unless the table says that some do not: that server
//! was full, or the table was not placed from the beginning. So a memory server that gets an operation at
//! such a node finds the way to the leaf in its own memory. Subtrees, and the nodes above them, are
//! spread.
//!
//! | when | where the new node goes |
//! |---|---|
//! | bulk load | leaves in groups as large as a full subtree, group by group to the next server, and with each group all nodes up to the subtree level: none of them has children of two groups |
//! | bulk load of a table that has been cut | the same, and a group ends with its partition if its top then has two children or more: so subtrees are of one partition. Smaller partitions share a group |
//! | split of a node of the subtree level or below | to that node's server, as its children and its parent are there |
//! | split of a node above | to the next server |
//! | growth, a new root up to the subtree level | to the old root's server; above it to the next one |
//! | merge of inner nodes up to the subtree level | not done if they are on two servers |
//!
//! A server that is full passes its nodes on to others.
//!
//! The meta object's word 216 holds the subtree level plus 1; bit 63 says that some nodes lie elsewhere. 0
//! says that the table is not placed. Where the rule does not hold, a memory server answers that the way
//! leads elsewhere if it does. With the subtree level 0 all nodes are spread; with others, a table that
//! grows by inserts alone spreads only the nodes above, since half a subtree stays where the whole was.

use farleaf_fabric::{GlobalAddr, OpKind, ServerId};
use farleaf_index::IndexError;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::bnode::{Kind, Node};
use farleaf_pool::Session;

use super::DexTree;
use crate::dex::offload::Offload;

/// The subtree level of a table on one memory server.
const SUBTREE_LEVEL: u8 = 3;
/// The highest subtree level that a table may have.
const SUBTREE_LEVEL_MAX: u8 = 30;
/// The most problems that a check reports.
const PROBLEMS_MAX: usize = 20;

/// Writes into the meta object that the table is placed. 1 WRITE.
pub(crate) async fn place_table(
    session: &Session,
    meta: GlobalAddr,
    level: u8,
) -> Result<(), IndexError> {
    let mut word = session.client().buf(8);
    word.words_mut()[0] = u64::from(level) + 1;
    session.reliable().write(RemoteTree::placement_word(meta), word).await?;
    Ok(())
}

/// Returns the subtree level for so many memory servers: with more of them, subtrees are smaller, so that all get some.
fn level_for(servers: usize) -> u8 {
    match servers {
        0 | 1 => SUBTREE_LEVEL,
        2..=4 => SUBTREE_LEVEL - 1,
        _ => SUBTREE_LEVEL - 2,
    }
}

/// Places a table that is not placed, if it is opened with offloading; returns the placement's word.
///
/// Cost: none; 1 CAS for the first one that offloads.
pub(crate) async fn place_for(
    session: &Session,
    meta: GlobalAddr,
    word: u64,
    offload: Offload,
) -> Result<u64, IndexError> {
    if word != 0 || matches!(offload, Offload::Never) {
        return Ok(word);
    }
    let _pin = session.begin(OpKind::Maintenance).await?;
    let level = level_for(session.pool().geometry().servers());
    let new = (u64::from(level) + 1) | RemoteTree::LOOSE;
    let found = session.reliable().cas(RemoteTree::placement_word(meta), 0, new).await?;
    Ok(if found == 0 { new } else { found })
}

/// Refuses a subtree level that no tree has.
pub(crate) fn check_level(level: u8) -> Result<(), IndexError> {
    if level <= SUBTREE_LEVEL_MAX {
        return Ok(());
    }
    Err(IndexError::Invalid(format!(
        "a subtree level of {level}: take 0 to {SUBTREE_LEVEL_MAX}; 1 to {SUBTREE_LEVEL} are usual"
    )))
}

/// Returns the subtree level that a placement's word holds.
fn subtree_level(word: u64) -> Option<u8> {
    let level =
        (word & !RemoteTree::LOOSE).checked_sub(1).and_then(|level| u8::try_from(level).ok());
    level.filter(|level| *level <= SUBTREE_LEVEL_MAX)
}

impl DexTree {
    /// Sets the subtree level from the placement's word.
    pub(crate) fn take_placement(&self, word: u64) {
        self.remote.set_subtree_level(subtree_level(word));
    }

    /// Returns the server that a new node of `level` must go to, beside or above the one at `addr`; `None`
    /// if any server will do.
    pub(crate) fn server_beside(&self, addr: GlobalAddr, level: u8) -> Option<ServerId> {
        match self.remote.subtree_level() {
            // A leaf that is a subtree has no children that it must stay with.
            None | Some(0) => None,
            Some(top) if level > top => None,
            Some(_) => Some(addr.server()),
        }
    }

    /// Returns whether two nodes of `level` may become one.
    pub(crate) fn may_unite(&self, left: GlobalAddr, right: GlobalAddr, level: u8) -> bool {
        let bound = self.remote.subtree_level().is_some_and(|top| (1..=top).contains(&level));
        !bound || left.server() == right.server()
    }
}

/// Returns the nodes that break `INV-DEX-PLACE`, of a table that is placed.
///
/// Cost: 1 READ, and 1 for each inner node.
pub(crate) async fn check_placement(
    remote: &RemoteTree,
    session: &Session,
) -> Result<Vec<String>, IndexError> {
    let mut problems = Vec::new();
    let layout = remote.layout();
    let word = session.reliable().word(RemoteTree::placement_word(remote.meta())).await?;
    let Some(top) = subtree_level(word).filter(|_| word & RemoteTree::LOOSE == 0) else {
        return Ok(problems);
    };
    let (root, root_level) = remote.read_root(session).await?;
    let mut nodes = vec![root];
    for level in (1..=root_level).rev() {
        let mut below = Vec::new();
        for addr in nodes {
            let buf = session.client().buf(layout.node_bytes());
            let image = session.reliable().read(addr, buf).await?;
            let node = Node::new(layout, image.words());
            if !remote.is_current(&image, addr, level) || node.kind() != Kind::Inner {
                // Another task is changing the tree; other checks look at its shape.
                continue;
            }
            for word in (0..=node.count()).filter_map(|index| node.child(index)) {
                let Ok(child) = remote.pointer(word, addr) else { continue };
                if level <= top && child.server() != addr.server() {
                    problems.push(format!(
                        "INV-DEX-PLACE: node {addr} (level {level}) and its child {child} are on \
                         two memory servers, below the subtree level {top}"
                    ));
                }
                below.push(child);
            }
            if problems.len() >= PROBLEMS_MAX {
                return Ok(problems);
            }
        }
        nodes = below;
    }
    Ok(problems)
}
