//! Bulk load: builds a tree bottom up from sorted pairs, and publishes it by one CAS of R.

use std::sync::Arc;

use farleaf_fabric::OpKind;
use farleaf_index::{IndexError, SortedPairs};
use farleaf_pool::{Session, Unlinked};

use super::DartTree;
use super::changing::attempt_at;
use super::descent::SlotPlace;
use super::leaf::{self, Before};
use super::meta;
use super::node_split::chain;
use super::outcome::{Attempt, PublishedKind};
use super::publish::{Publication, Published};
use super::word::{DartNodeType, LEN_MAX, SlotContent, SlotWord, Step};

/// Bytes and objects that are written at once.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_OBJECTS: usize = 64;

/// A node whose last child is not known yet.
struct OpenNode {
    plen: usize,
    children: Vec<SlotWord>,
}

/// A tree that is being built: nobody else sees it.
struct DartBuilder<'a> {
    tree: &'a DartTree,
    session: &'a Session,
    /// Nodes from the root down, each with a smaller plen than the next.
    open: Vec<OpenNode>,
    /// The word whose place the next key decides: a word, and its plen if it leads to a node.
    pending: Option<(SlotWord, usize)>,
    last: Vec<u8>,
    count: u64,
    /// The number of the first leaf's writing.
    number: u32,
    objects: Vec<Unlinked>,
    ops: farleaf_fabric::Ops,
    batch_bytes: usize,
    /// Objects in front of this one are written.
    written: usize,
}

impl DartTree {
    /// Fills an empty table; returns the number of pairs.
    pub(super) async fn bulk_load(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let pin = session.begin(OpKind::BulkLoad).await?;
        let io = session.reliable();
        let filled = || IndexError::Invalid("a bulk load fills an empty table".into());
        let line = meta::read_line(io, self.meta).await?;
        if line.root.is_live() {
            return Err(filled());
        }
        let mut builder = DartBuilder {
            tree: self,
            session,
            open: Vec::new(),
            pending: None,
            last: Vec::new(),
            count: 0,
            number: leaf::writing(session),
            objects: Vec::new(),
            ops: session.client().ops(),
            batch_bytes: 0,
            written: 0,
        };
        while let Some((key, value)) = pairs.next() {
            self.stored.spec.check_key(key)?;
            self.stored.spec.check_value(value)?;
            builder.add(key, value).await?;
        }
        let Some(root) = builder.end().await? else { return Ok(0) };
        let removed =
            if line.root.is_tomb() { Some(io.word(line.root.addr()).await?) } else { None };
        let place = self.root_place(line.root);
        let mine = if matches!(root.child(), SlotContent::Node(..)) {
            PublishedKind::Node
        } else {
            PublishedKind::Leaf
        };
        let attempt = Attempt { removed, ..attempt_at(&place, root, mine) };
        let (last, count) = (std::mem::take(&mut builder.last), builder.count);
        let mut objects = std::mem::take(&mut builder.objects);
        loop {
            let publication = Publication::new(self, session, &last, attempt, objects, None);
            objects = match publication.run().await? {
                Published::Done => break,
                // A completion was lost, and the CAS has not come.
                Published::Lost(None, objects) => objects,
                Published::Lost(Some(_), _) => return Err(filled()),
            };
        }
        drop(pin);
        self.table_loaded(session).await;
        Ok(count)
    }
}

impl DartBuilder<'_> {
    async fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        if self.count > 0 {
            if self.last.as_slice() == key {
                return Err(IndexError::Invalid(format!(
                    "pair {} of the load repeats the key before it",
                    self.count + 1
                )));
            }
            if self.last.as_slice() > key {
                return Err(IndexError::Invalid(format!(
                    "pair {} of the load is out of order: keys must rise",
                    self.count + 1
                )));
            }
            let common = self.last.iter().zip(key).take_while(|(a, b)| a == b).count();
            self.close_down_to(common).await?;
        }
        let object = self
            .session
            .alloc_unlinked(self.session.place(), leaf::object_bytes(key.len(), value.len()))
            .await?;
        let buf = self.session.client().buf(object.bytes());
        // A load has more leaves than an operation has tokens.
        let ids = (self.tree.table, self.number.wrapping_add(self.count as u32));
        let content = leaf::encode(buf, (key, value), (Before::Nothing, false), ids);
        let word = SlotWord::leaf(Step::ROOT, leaf::code_of(key.len(), value.len()), object.addr());
        object.write_in(&mut self.ops, content);
        self.pending = Some((word, 0));
        self.last.clear();
        self.last.extend_from_slice(key);
        self.count += 1;
        self.keep(object).await
    }

    /// The next key leaves the last one at `plen`: nodes below that are complete.
    async fn close_down_to(&mut self, plen: usize) -> Result<(), IndexError> {
        while self.open.last().is_some_and(|open| open.plen > plen) {
            self.close().await?;
        }
        if self.open.last().is_none_or(|open| open.plen < plen) {
            self.open.push(OpenNode { plen, children: Vec::new() });
        }
        self.attach().await
    }

    /// Puts what is pending into the lowest open node.
    async fn attach(&mut self) -> Result<(), IndexError> {
        let Some((word, plen)) = self.pending.take() else { return Ok(()) };
        let Some(open) = self.open.last() else { return Ok(()) };
        let at = open.plen;
        let word = self.edge(word, Step::at(&self.last, at), at + 1, plen).await?;
        if let Some(open) = self.open.last_mut() {
            open.children.push(word);
        }
        Ok(())
    }

    /// The word behind `step` for what stands at `plen`, with a chain if that is far.
    async fn edge(
        &mut self,
        word: SlotWord,
        step: Step,
        base: usize,
        plen: usize,
    ) -> Result<SlotWord, IndexError> {
        if !matches!(word.child(), SlotContent::Node(..)) {
            return Ok(word.moved(step, 0));
        }
        let (positions, mut len) = chain(base, plen);
        let mut word = word;
        for position in positions.into_iter().rev() {
            let child = word.moved(Step::at(&self.last, position), len);
            let addr = self.node(DartNodeType::N8, &[child]).await?;
            word = SlotWord::node(step, 0, DartNodeType::N8, addr);
            len = LEN_MAX;
        }
        Ok(word.moved(step, len))
    }

    /// Writes the lowest open node, which is pending then.
    async fn close(&mut self) -> Result<(), IndexError> {
        self.attach().await?;
        let Some(open) = self.open.pop() else { return Ok(()) };
        let kind = self.tree.shape.fit(&open.children);
        let addr = self.node(kind, &open.children).await?;
        self.pending = Some((SlotWord::node(Step::ROOT, 0, kind, addr), open.plen));
        Ok(())
    }

    async fn node(
        &mut self,
        kind: DartNodeType,
        children: &[SlotWord],
    ) -> Result<farleaf_fabric::GlobalAddr, IndexError> {
        let node = self.tree.new_node(self.session, &mut self.ops, kind, children).await?;
        let addr = node.addr();
        self.keep(node).await?;
        Ok(addr)
    }

    /// Notes an object whose WRITE is in the list, and posts the list if it is long.
    async fn keep(&mut self, object: Unlinked) -> Result<(), IndexError> {
        self.batch_bytes += object.bytes();
        self.objects.push(object);
        if self.batch_bytes >= BATCH_BYTES || self.ops.len() >= BATCH_OBJECTS {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), IndexError> {
        if self.ops.is_empty() {
            return Ok(());
        }
        let ops = std::mem::replace(&mut self.ops, self.session.client().ops());
        self.session.reliable().post_many(ops).await?;
        self.objects[self.written..].iter().for_each(Unlinked::written);
        self.written = self.objects.len();
        self.batch_bytes = 0;
        Ok(())
    }

    /// Completes the tree; the word for R. `None` if there was no pair.
    async fn end(&mut self) -> Result<Option<SlotWord>, IndexError> {
        while !self.open.is_empty() {
            self.close().await?;
        }
        let Some((word, plen)) = self.pending.take() else { return Ok(None) };
        let root: SlotPlace = self.tree.root_place(SlotWord::EMPTY);
        let word = self.edge(word, root.step, root.bytes_before_child(), plen).await?;
        self.flush().await?;
        Ok(Some(word))
    }
}
