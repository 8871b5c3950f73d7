//! Image encoding: builds whole images for empty nodes, bulk loads, splits and merges.

use super::builder::{NodeBuilder, prefix_len, value_bytes, value_tail};
use super::dense::{fence_at, key_word};
use super::edit::ChangeError;
use super::header::{Head, Kind, META_WORD, VERSION_WORD, set_count};
use super::layout::{Layout, RECORD_BYTES, VALUE_HEAD_BYTES};
use super::strings::shortest_separator;
use super::view::{Cover, Node, Value};
use super::words::{HEAD_WORDS, Image, SUM_WORD, Word, sum};

/// A key and its value, for bulk loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafEntry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value.
    pub value: Value<'a>,
}

impl Layout {
    /// Writes a sealed leaf of `entries`, which are sorted and inside the fences, into `words`.
    ///
    /// An empty leaf is one of no entries. The lock word becomes 0.
    ///
    /// # Errors
    /// [`ChangeError`] if the entries do not fit, are not sorted or not inside the fences, or do not
    /// belong to the layout; `words` then hold no valid node.
    ///
    /// # Panics
    /// If `words` has not the length of a node.
    pub fn encode_leaf(
        &self,
        words: &mut [u64],
        head: &Head<'_>,
        entries: &[LeafEntry<'_>],
    ) -> Result<(), ChangeError> {
        let done = match (head.level, self.dense) {
            (1.., _) => Err(ChangeError::WrongKind),
            (0, true) => self.dense_leaf(words, head, entries),
            (0, false) => self.slotted_leaf(words, head, entries),
        };
        finish(words, self.tree, done)
    }

    /// Writes a sealed inner node into `words`: `separators[i]` is the inclusive upper bound of
    /// `children[i]`, and the last child, one more, is bounded by the high fence.
    ///
    /// # Errors
    /// [`ChangeError`] as for [`Layout::encode_leaf`], also if the level is 0 or the numbers of
    /// children and separators do not match.
    ///
    /// # Panics
    /// If `words` has not the length of a node.
    pub fn encode_inner<S: AsRef<[u8]>>(
        &self,
        words: &mut [u64],
        head: &Head<'_>,
        children: &[u64],
        separators: &[S],
    ) -> Result<(), ChangeError> {
        let done = if head.level == 0 {
            Err(ChangeError::WrongKind)
        } else if children.len() != separators.len() + 1 {
            Err(ChangeError::BadIndex { index: children.len() })
        } else {
            self.build_inner(words, head, children, separators)
        };
        finish(words, self.tree, done)
    }

    /// Counts the `entries`, at least one if there are any, that a leaf above `low` should take so that it
    /// is full to `fill_percent`. `high` is the fence behind the last of them.
    ///
    /// The leaf's own high fence is then the [`Layout::separator`] of its last entry and the next.
    pub fn fit_leaf(
        &self,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        entries: &[LeafEntry<'_>],
        fill_percent: usize,
    ) -> usize {
        let most = (self.leaf_cap * fill_percent / 100).clamp(1, self.leaf_cap);
        let most = most.min(entries.len());
        if self.dense || most <= 1 {
            return most;
        }
        let budget = self.payload_bytes() * fill_percent.min(100) / 100;
        let mut bytes = low.map_or(0, <[u8]>::len);
        let mut fence = Vec::new();
        for (index, entry) in entries.iter().enumerate().take(most) {
            bytes += 8 + entry.key.len() + VALUE_HEAD_BYTES + value_bytes(&entry.value);
            let high = match entries.get(index + 1) {
                Some(next) => {
                    self.separator(entry.key, next.key, &mut fence);
                    Some(&fence[..])
                }
                None => high,
            };
            let prefix = prefix_len(low, high) * (index + 1);
            if index > 0 && bytes.saturating_sub(prefix) + high.map_or(0, <[u8]>::len) > budget {
                return index;
            }
        }
        most
    }

    /// Counts the children, at least one, that an inner node above `low` should take so that it is full to
    /// `fill_percent`. `bounds` are the upper bounds of the children there are, without the last's,
    /// which is `high`.
    pub fn fit_inner<S: AsRef<[u8]>>(
        &self,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        bounds: &[S],
        fill_percent: usize,
    ) -> usize {
        let most = (self.inner_cap * fill_percent / 100).clamp(1, self.inner_cap);
        let most = most.min(bounds.len());
        if self.dense {
            return most + 1;
        }
        let budget = self.payload_bytes() * fill_percent.min(100) / 100;
        let mut bytes = 8 + low.map_or(0, <[u8]>::len);
        for (index, bound) in bounds.iter().enumerate().take(most) {
            bytes += 16 + bound.as_ref().len();
            let high = bounds.get(index + 1).map_or(high, |bound| Some(bound.as_ref()));
            let prefix = prefix_len(low, high) * (index + 1);
            if index > 0 && bytes.saturating_sub(prefix) + high.map_or(0, <[u8]>::len) > budget {
                return index + 1;
            }
        }
        most + 1
    }

    /// Puts the separator of two neighbouring leaves, of which one ends with `below` and the next
    /// starts with `above`, into `out`: the shortest there is, or when dense `below` itself.
    pub fn separator(&self, below: &[u8], above: &[u8], out: &mut Vec<u8>) {
        out.clear();
        if self.dense || self.exact_cuts {
            out.extend_from_slice(below);
        } else {
            shortest_separator(below, above, out);
        }
    }

    /// Checks that a header's fences belong to the layout and are in order.
    pub(super) fn check_head(&self, head: &Head<'_>) -> Result<(), ChangeError> {
        for fence in [head.low, head.high].into_iter().flatten() {
            if !self.takes_separator(fence.len()) {
                return Err(ChangeError::BadKey { len: fence.len() });
            }
        }
        match (head.low, head.high) {
            (Some(low), Some(high)) if low >= high => Err(ChangeError::OutsideFences),
            _ => Ok(()),
        }
    }

    /// Checks that a value may be put into a leaf.
    pub(super) fn check_value(&self, value: &Value<'_>) -> Result<(), ChangeError> {
        let (len, fits) = match value {
            Value::Inline(bytes) => (bytes.len(), bytes.len() <= self.inline_value_max),
            Value::Record(record) => (record.len as usize, !self.dense),
        };
        if fits && self.takes_value(len) { Ok(()) } else { Err(ChangeError::BadValue { len }) }
    }

    fn dense_leaf(
        &self,
        words: &mut [u64],
        head: &Head<'_>,
        entries: &[LeafEntry<'_>],
    ) -> Result<(), ChangeError> {
        NodeBuilder::start(self, words, Kind::Leaf, head)?;
        if entries.len() > self.leaf_cap {
            return Err(ChangeError::NoRoom);
        }
        let payload = words[HEAD_WORDS..].chunks_exact_mut(self.stride);
        let mut last: &[u64] = &[];
        for (index, (into, entry)) in payload.zip(entries).enumerate() {
            let (key, value) = into.split_at_mut(self.key_words);
            if !self.takes_key(entry.key.len()) {
                return Err(ChangeError::BadKey { len: entry.key.len() });
            }
            set_key(key, entry.key);
            if last >= &*key && index > 0 {
                return Err(ChangeError::Unsorted { index });
            }
            match entry.value {
                Value::Inline(bytes) if bytes.len() == self.inline_value_max => {
                    for (word, bytes) in value.iter_mut().zip(bytes.as_chunks::<8>().0) {
                        *word = u64::from_le_bytes(*bytes);
                    }
                }
                other => self.check_value(&other)?,
            }
            last = key;
        }
        self.finish_leaf(words, entries)
    }

    fn slotted_leaf(
        &self,
        words: &mut [u64],
        head: &Head<'_>,
        entries: &[LeafEntry<'_>],
    ) -> Result<(), ChangeError> {
        let mut builder = NodeBuilder::start(self, words, Kind::Leaf, head)?;
        for (index, entry) in entries.iter().enumerate() {
            if !self.takes_key(entry.key.len()) {
                return Err(ChangeError::BadKey { len: entry.key.len() });
            }
            if index > 0 && entries[index - 1].key >= entry.key {
                return Err(ChangeError::Unsorted { index });
            }
            self.check_value(&entry.value)?;
            let mut record = [0; RECORD_BYTES];
            let tail = value_tail(&entry.value, &mut record);
            builder.push([entry.key, &[]], [&tail.0, tail.1], 0)?;
        }
        builder.finish(0);
        self.finish_leaf(words, entries)
    }

    /// Checks the outermost keys against the fences and stores the count.
    fn finish_leaf(&self, words: &mut [u64], entries: &[LeafEntry<'_>]) -> Result<(), ChangeError> {
        let mut image = words;
        set_count(&mut image, entries.len());
        let node = Node::new(self, image);
        for entry in entries.first().into_iter().chain(entries.last()) {
            if node.covers(entry.key) != Cover::Inside {
                return Err(ChangeError::OutsideFences);
            }
        }
        Ok(())
    }

    fn build_inner<S: AsRef<[u8]>>(
        &self,
        words: &mut [u64],
        head: &Head<'_>,
        children: &[u64],
        separators: &[S],
    ) -> Result<(), ChangeError> {
        let mut builder = NodeBuilder::start(self, words, Kind::Inner, head)?;
        self.check_separators(head, separators)?;
        for (separator, &child) in separators.iter().zip(children) {
            builder.push_separator(separator.as_ref(), child)?;
        }
        builder.finish(children[separators.len()]);
        Ok(())
    }

    /// Checks lengths, order and fences of an inner node's separators.
    fn check_separators<S: AsRef<[u8]>>(
        &self,
        head: &Head<'_>,
        separators: &[S],
    ) -> Result<(), ChangeError> {
        let mut below = head.low;
        for (index, separator) in separators.iter().enumerate() {
            let separator = separator.as_ref();
            if !self.takes_separator(separator.len()) {
                return Err(ChangeError::BadKey { len: separator.len() });
            }
            if below.is_some_and(|below| below >= separator) {
                return Err(match index {
                    0 => ChangeError::OutsideFences,
                    _ => ChangeError::Unsorted { index },
                });
            }
            below = Some(separator);
        }
        match (below, head.high) {
            (Some(last), Some(high)) if last >= high => Err(ChangeError::OutsideFences),
            _ => Ok(()),
        }
    }
}

/// Seals what was built, or makes sure that nobody takes it for a node.
fn finish(words: &mut [u64], tree: u64, done: Result<(), ChangeError>) -> Result<(), ChangeError> {
    match done {
        Ok(()) => words[SUM_WORD] = sum(words, tree),
        Err(_) => words[META_WORD] = 0,
    }
    done
}

/// Stores a dense key; `bytes` are as long as the words.
#[inline(always)]
pub(super) fn set_key(words: &mut [u64], bytes: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_be_bytes(*bytes);
    }
}

/// Stores a dense fence; an infinite one is zeros. The flags are the header's business.
pub(super) fn set_dense_fence<I: Image>(
    layout: &Layout,
    image: &mut I,
    high: bool,
    fence: Option<&[u8]>,
) {
    let at = fence_at(layout, high);
    for index in 0..layout.key_words {
        let bytes = fence.and_then(|fence| fence.get(index * 8..)).unwrap_or(&[]);
        image.set(at + index, key_word(bytes));
    }
}

/// Fences copied out of a node.
pub(super) struct Fences {
    pub(super) low: Option<Vec<u8>>,
    pub(super) high: Option<Vec<u8>>,
}

impl<W: Word> Node<'_, W> {
    pub(super) fn fences(&self) -> Fences {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        let (has_low, has_high) = (self.low_fence(&mut low), self.high_fence(&mut high));
        Fences { low: has_low.then_some(low), high: has_high.then_some(high) }
    }

    /// The node's header with `fences` for its fences.
    pub(super) fn head<'f>(&self, fences: &'f Fences) -> Head<'f> {
        Head {
            addr: self.self_addr(),
            right: self.right(),
            level: self.level(),
            incarnation: self.incarnation(),
            version: self.version(),
            low: fences.low.as_deref(),
            high: fences.high.as_deref(),
        }
    }
}

/// Stores version and sum.
pub(super) fn seal<I: Image>(image: &mut I, version: u64, tree: u64) {
    image.set(VERSION_WORD, version);
    let sum = sum(image.words(), tree);
    image.set(SUM_WORD, sum);
}
