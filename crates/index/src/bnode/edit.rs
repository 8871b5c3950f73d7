//! Node edits: change a node in place, in a private copy or as the one writer of a shared frame.

use super::dense::key_word;
use super::encode::seal;
use super::header::{Kind, META_WORD, RIGHT_WORD, set_count};
use super::layout::Layout;
use super::slotted::child_at;
use super::view::{Cover, Node, Value};
use super::words::{HEAD_WORDS, Image, Word};
use super::{Head, LeafEntry};

/// Why a node was not changed, or not built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// It does not fit, not even after closing all holes: split first.
    #[error("no room in the node")]
    NoRoom,
    /// The key is in the leaf already.
    #[error("the key is already there, at index {index}")]
    Exists {
        /// Its index.
        index: usize,
    },
    /// Keys of this length do not belong to the layout.
    #[error("a key of {len} bytes does not belong to the layout")]
    BadKey {
        /// The key's length.
        len: usize,
    },
    /// Values of this length do not belong to the layout, or must be records, or must not.
    #[error("a value of {len} bytes cannot be put into a leaf like this")]
    BadValue {
        /// The value's length.
        len: usize,
    },
    /// The node does not cover the key, or fences are not in order.
    #[error("the key is outside the node's fences")]
    OutsideFences,
    /// Entries to be encoded are not in ascending order.
    #[error("entry {index} is not above the one before it")]
    Unsorted {
        /// Index of the later one.
        index: usize,
    },
    /// There is no such entry, separator or child.
    #[error("there is nothing at index {index}")]
    BadIndex {
        /// The index asked for.
        index: usize,
    },
    /// A separator is there, but leads to another child.
    #[error("separator {index} is there and leads to another child")]
    OtherChild {
        /// Index of the separator.
        index: usize,
    },
    /// A leaf was wanted and this is an inner node, or the other way round, or it is neither.
    #[error("the node is not of the kind that this change is for")]
    WrongKind,
    /// The node has nothing to divide: it is empty, or its only key is the one asked about.
    #[error("the node cannot be split for this key")]
    NothingToSplit,
    /// The two nodes are not neighbours on one level.
    #[error("the nodes are not neighbours")]
    NotNeighbours,
    /// The image contradicts itself; [`super::verify_image`] says where.
    #[error("the node is damaged")]
    Damaged,
}

/// The result of inserting a separator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// It is now there, at this index.
    Added(usize),
    /// It was there, at this index, leading to the same child.
    AlreadyThere(usize),
}

/// A node that is changed.
///
/// Every change leaves version and sum as they were: [`NodeMut::seal`] ends a series of changes. A
/// change that returns an error has changed nothing that can be read (compaction may have moved bytes).
/// The lock word is never touched, except by [`NodeMut::init_leaf`] and [`NodeMut::init_inner`].
pub struct NodeMut<'l, I: Image> {
    pub(super) layout: &'l Layout,
    pub(super) image: I,
}

impl<'l, I: Image> NodeMut<'l, I> {
    /// Takes a private image (`&mut [u64]`) or a frame (`&[AtomicU64]`) whose only writer is the caller.
    ///
    /// # Panics
    /// If it has not exactly [`Layout::node_words`] words, which is a programmer's error.
    #[inline]
    pub fn new(layout: &'l Layout, image: I) -> Self {
        let words = image.words().len();
        assert!(words == layout.node_words, "an image has the length of the layout's nodes");
        Self { layout, image }
    }

    /// The node for reading.
    #[inline]
    pub fn as_node(&self) -> Node<'_, I::Word> {
        Node::new(self.layout, self.image.words())
    }

    /// Makes this a sealed empty leaf, lock word 0.
    ///
    /// # Errors
    /// [`ChangeError`] if the header is not one of a leaf of this layout.
    pub fn init_leaf(&mut self, head: &Head<'_>) -> Result<(), ChangeError> {
        let mut words = vec![0; self.layout.node_words];
        self.layout.encode_leaf(&mut words, head, &[] as &[LeafEntry<'_>])?;
        self.image.assign(0, &words);
        Ok(())
    }

    /// Makes this a sealed inner node with one child, lock word 0.
    ///
    /// # Errors
    /// [`ChangeError`] if the header is not one of an inner node of this layout.
    pub fn init_inner(&mut self, head: &Head<'_>, child: u64) -> Result<(), ChangeError> {
        let mut words = vec![0; self.layout.node_words];
        self.layout.encode_inner(&mut words, head, &[child], &[] as &[&[u8]])?;
        self.image.assign(0, &words);
        Ok(())
    }

    /// Sets the version that the image is published as, and the checksum.
    pub fn seal(&mut self, version: u64) {
        seal(&mut self.image, version, self.layout.tree);
    }

    /// Marks the node dead; fences and right sibling stay for those who still arrive here.
    pub fn mark_dead(&mut self) {
        let mut meta = self.as_node().meta();
        meta.set_dead();
        self.image.set(META_WORD, meta.pack());
    }

    /// Takes back [`NodeMut::mark_dead`].
    pub fn mark_alive(&mut self) {
        let mut meta = self.as_node().meta();
        meta.set_alive();
        self.image.set(META_WORD, meta.pack());
    }

    /// Sets the right sibling.
    pub fn set_right(&mut self, addr: u64) {
        self.image.set(RIGHT_WORD, addr);
    }

    /// Inner: sets the address of child `index`.
    ///
    /// # Errors
    /// [`ChangeError::BadIndex`] if there is no such child.
    pub fn set_child(&mut self, index: usize, addr: u64) -> Result<(), ChangeError> {
        let count = self.as_node().inner_count();
        if index > count {
            return Err(ChangeError::BadIndex { index });
        }
        let at = if self.layout.dense {
            self.layout.children_at() + index
        } else {
            child_at(count, index)
        };
        self.image.set(at, addr);
        Ok(())
    }

    fn expect(&self, kind: Kind) -> Result<(), ChangeError> {
        if self.as_node().kind() == kind { Ok(()) } else { Err(ChangeError::WrongKind) }
    }

    /// Leaf: inserts a key that is not there yet, and gives its index.
    ///
    /// # Errors
    /// [`ChangeError::Exists`] if it is there, [`ChangeError::NoRoom`] if the leaf must be split first,
    /// others if key or value do not belong here. Nothing was changed.
    pub fn insert(&mut self, key: &[u8], value: Value<'_>) -> Result<usize, ChangeError> {
        self.expect(Kind::Leaf)?;
        let node = self.as_node();
        if !self.layout.takes_key(key.len()) {
            return Err(ChangeError::BadKey { len: key.len() });
        }
        if node.covers(key) != Cover::Inside {
            return Err(ChangeError::OutsideFences);
        }
        self.layout.check_value(&value)?;
        let index = match node.find(key) {
            Ok(index) => return Err(ChangeError::Exists { index }),
            Err(index) => index,
        };
        let count = node.leaf_count();
        if count >= self.layout.leaf_cap {
            return Err(ChangeError::NoRoom);
        }
        if self.layout.dense {
            let stride = self.layout.stride;
            let (at, end) = (HEAD_WORDS + index * stride, HEAD_WORDS + count * stride);
            self.image.shift(at..end, at + stride);
            self.set_dense_key(at, key);
            self.set_dense_value(at, value);
            set_count(&mut self.image, count + 1);
        } else {
            let suffix = key.get(node.heap().prefix()..).unwrap_or(&[]);
            self.insert_cell(Kind::Leaf, index, suffix, Some(value))?;
        }
        Ok(index)
    }

    /// Leaf: replaces value `index`.
    ///
    /// # Errors
    /// [`ChangeError::NoRoom`] if the new value is longer and the leaf must be split first, others if it
    /// does not belong here. Nothing was changed.
    pub fn replace(&mut self, index: usize, value: Value<'_>) -> Result<(), ChangeError> {
        self.expect(Kind::Leaf)?;
        self.layout.check_value(&value)?;
        if index >= self.as_node().leaf_count() {
            return Err(ChangeError::BadIndex { index });
        }
        if self.layout.dense {
            self.set_dense_value(HEAD_WORDS + index * self.layout.stride, value);
            return Ok(());
        }
        self.replace_cell(index, value)
    }

    /// Leaf: removes entry `index`.
    ///
    /// # Errors
    /// [`ChangeError::BadIndex`] if there is no such entry.
    pub fn remove(&mut self, index: usize) -> Result<(), ChangeError> {
        self.expect(Kind::Leaf)?;
        let count = self.as_node().leaf_count();
        if index >= count {
            return Err(ChangeError::BadIndex { index });
        }
        if self.layout.dense {
            let stride = self.layout.stride;
            let (at, end) = (HEAD_WORDS + index * stride, HEAD_WORDS + count * stride);
            self.image.shift(at + stride..end, at);
            self.zero(end - stride, end);
            set_count(&mut self.image, count - 1);
        } else {
            self.remove_cell(Kind::Leaf, index, count);
        }
        Ok(())
    }

    /// Inner: records that the child that covers `separator` was split there, and that `right` covers
    /// what lies above it.
    ///
    /// May be done again: [`Posted::AlreadyThere`] if the separator is there and leads to `right`.
    /// Splits of one child may be posted in any order.
    ///
    /// # Errors
    /// [`ChangeError::NoRoom`] if the node must be split first, [`ChangeError::OutsideFences`] if the
    /// separator is not strictly between the fences, [`ChangeError::OtherChild`] if it is there with
    /// another child. Nothing was changed.
    pub fn insert_separator(
        &mut self,
        separator: &[u8],
        right: u64,
    ) -> Result<Posted, ChangeError> {
        self.expect(Kind::Inner)?;
        let layout = self.layout;
        let node = self.as_node();
        if !layout.takes_separator(separator.len()) {
            return Err(ChangeError::BadKey { len: separator.len() });
        }
        // Strictly below the high fence: the place just above the separator is inside, too.
        if [node.covers(separator), node.covers_after(separator)] != [Cover::Inside; 2] {
            return Err(ChangeError::OutsideFences);
        }
        let (count, index) = (node.inner_count(), node.child_for(separator).0);
        // The separator is there if the place just above it belongs to the next child.
        if node.child_after(separator).0 != index {
            return if node.child(index + 1) == Some(right) {
                Ok(Posted::AlreadyThere(index))
            } else {
                Err(ChangeError::OtherChild { index })
            };
        }
        if count >= layout.inner_cap {
            return Err(ChangeError::NoRoom);
        }
        if layout.dense {
            let (key_words, keys, children) = (layout.key_words, HEAD_WORDS, layout.children_at());
            let at = keys + index * key_words;
            self.image.shift(at..keys + count * key_words, at + key_words);
            self.set_dense_key(at, separator);
            self.image.shift(children + index + 1..children + count + 1, children + index + 2);
            self.image.set(children + index + 1, right);
            set_count(&mut self.image, count + 1);
        } else {
            let left = node.slotted_child(count, index);
            let suffix = separator.get(node.heap().prefix()..).unwrap_or(&[]);
            self.insert_cell(Kind::Inner, index, suffix, None)?;
            self.image.set(child_at(count + 1, index), left);
            self.image.set(child_at(count + 1, index + 1), right);
        }
        Ok(Posted::Added(index))
    }

    /// Inner: removes separator `index` and the child right of it, which child `index` has absorbed.
    ///
    /// # Errors
    /// [`ChangeError::BadIndex`] if there is no such separator.
    pub fn remove_separator(&mut self, index: usize) -> Result<(), ChangeError> {
        self.expect(Kind::Inner)?;
        let layout = self.layout;
        let node = self.as_node();
        let count = node.inner_count();
        if index >= count {
            return Err(ChangeError::BadIndex { index });
        }
        if layout.dense {
            let (key_words, keys, children) = (layout.key_words, HEAD_WORDS, layout.children_at());
            let (at, end) = (keys + index * key_words, keys + count * key_words);
            self.image.shift(at + key_words..end, at);
            self.zero(end - key_words, end);
            self.image.shift(children + index + 2..children + count + 1, children + index + 1);
            self.image.set(children + count, 0);
            set_count(&mut self.image, count - 1);
        } else {
            let left = node.slotted_child(count, index);
            self.remove_cell(Kind::Inner, index, count);
            self.image.set(child_at(count - 1, index), left);
        }
        Ok(())
    }

    /// Inner: removes the child at `addr`, which its left neighbour in this node has absorbed, with the
    /// separator between them; gives that separator's index.
    ///
    /// # Errors
    /// [`ChangeError::BadIndex`] if it is the first child or none.
    pub fn remove_child(&mut self, addr: u64) -> Result<usize, ChangeError> {
        self.expect(Kind::Inner)?;
        match self.as_node().find_child(addr) {
            Some(index) if index > 0 => self.remove_separator(index - 1).map(|()| index - 1),
            _ => Err(ChangeError::BadIndex { index: 0 }),
        }
    }

    pub(super) fn zero(&mut self, from: usize, to: usize) {
        for index in from..to {
            self.image.set(index, 0);
        }
    }

    fn set_dense_key(&mut self, at: usize, key: &[u8]) {
        for (index, chunk) in key.chunks(8).enumerate().take(self.layout.key_words) {
            self.image.set(at + index, key_word(chunk));
        }
    }

    /// Stores the value of the entry at word `at`; it has been checked to be inline.
    fn set_dense_value(&mut self, at: usize, value: Value<'_>) {
        if let Value::Inline(bytes) = value {
            for (index, chunk) in bytes.as_chunks::<8>().0.iter().enumerate() {
                self.image.set(at + self.layout.key_words + index, u64::from_le_bytes(*chunk));
            }
        }
    }

    /// A private copy of the image.
    pub(super) fn copy(&self) -> Vec<u64> {
        self.image.words().iter().map(Word::load).collect()
    }
}
