//! Switches: the settings of the ladder's steps, in the words of the papers.

use farleaf_index::words;

use super::super::layout::NodeType;

words! {
    /// Gets of one key that share a READ.
    ReadDelegation {
        /// Gets that began before the READ did: linearizable.
        Strict = "strict",
        /// Gets that began before the READ ended, as in the paper: a get may return a value that was replaced before
        /// it began. For figures only.
        Lax = "lax",
        /// None.
        Off = "off",
    }
}

words! {
    /// The way of a new value into a leaf.
    LeafUpdate {
        /// In its place, under its lock.
        InPlace = "in-place",
        /// By another leaf, which takes its place.
        Replaced = "replaced",
    }
}

words! {
    /// The lock that a change of a leaf takes.
    LeafLock {
        /// The one in the leaf; the new content gives it back.
        Rear = "rear",
        /// One in the lock table as well, which an operation of its own gives back.
        Table = "table",
    }
}

words! {
    /// The nodes that an operation locks before it changes a slot.
    NodeLocks {
        /// None: one CAS changes the slot.
        Off = "off",
        /// The node of the slot.
        Node = "node",
        /// Each node that the operation has read on its way, as in the paper's baseline.
        Path = "path",
    }
}

words! {
    /// The sizes that nodes grow through.
    NodeTypes {
        /// The engine's own: 6, 14, 30, 62, 126, 254 and 257 slots.
        Fine = "fine",
        /// Those of ART: at least 4, 16, 48 and 256 slots.
        Art = "4-16-48-256",
        /// One: 257 slots. A node takes as much room in the cache.
        Whole = "whole",
    }
}

words! {
    /// The way to the deepest cached node above a key.
    CacheIndex {
        /// The cached nodes themselves, from the root down.
        Radix = "radix",
        /// A hash table of the bytes that lead to each: one lookup for each length, the longest first.
        Hash = "hash",
    }
}

words! {
    /// Rights of the owner of a range of keys beyond those of a compute server that shares its keys.
    OwnerWrites {
        /// It believes its cache about nodes whose keys it owns, and links and changes leaves by WRITEs.
        Exclusive = "exclusive",
        /// Nothing.
        Shared = "shared",
    }
}

impl NodeTypes {
    /// The type of a node that takes the place of one with `live` children, with room for one more.
    pub(in crate::smart) fn replacing(self, live: usize, first: NodeType) -> NodeType {
        match self {
            NodeTypes::Fine => NodeType::replacing(live, first),
            NodeTypes::Whole => NodeType::TOP,
            NodeTypes::Art => NodeType::holding(match live + 1 {
                ..=4 => 4,
                5..=16 => 16,
                17..=48 => 48,
                _ => NodeType::TOP.capacity(),
            }),
        }
    }

    /// The type of a new node with so many slots.
    pub(in crate::smart) fn holding(self, slots: usize) -> NodeType {
        match self {
            NodeTypes::Fine => NodeType::holding(slots),
            NodeTypes::Whole => NodeType::TOP,
            // One that has room for one child more than `slots` - 1.
            NodeTypes::Art => self.replacing(slots.saturating_sub(1), NodeType::SMALLEST),
        }
    }

    /// The type of a new node, which has two children at most.
    pub(in crate::smart) fn first(self, first: NodeType) -> NodeType {
        match self {
            NodeTypes::Fine => first,
            NodeTypes::Art => NodeType::SMALLEST,
            NodeTypes::Whole => NodeType::TOP,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for word in ReadDelegation::WORDS {
            assert_eq!(word.parse().map(|it: ReadDelegation| it.to_string()), Ok((*word).into()));
        }
        assert_eq!("rear ".parse::<LeafLock>(), Err(()));
    }

    #[test]
    fn nodes_of_art_grow_through_four_types() {
        let grown = |live| NodeTypes::Art.replacing(live, NodeType::SMALLEST).capacity();
        assert_eq!([1, 4, 5, 16, 17, 47, 48, 257].map(grown), [6, 22, 22, 54, 54, 54, 257, 257]);
        assert_eq!(NodeTypes::Fine.replacing(6, NodeType::SMALLEST).capacity(), 14);
    }
}
