//! Bulk load: builds a tree beside an empty one, bottom up, and puts it in its place by one CAS of the root word.

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, Ops, ServerId};
use farleaf_index::{Change, Entries, IndexError, ScanRange, SortedPairs};
use farleaf_pool::{Placement, Session, Unlinked};

use super::layout::{Edge, NodeType, Slot, fill_node, slot_addr};
use super::leaf::{NewValue, class_for, fill_leaf};
use super::relocate::{Dying, live_slots};
use super::tree::{Fail, Tree};

/// Objects that are written in one round trip.
const BATCH: usize = 16;

/// A node whose children are not all known: the position of the byte that it dispatches on, and those it has.
struct Open {
    at: usize,
    children: Vec<Slot>,
    /// Its own address, if its children name their slots in it.
    addr: Option<GlobalAddr>,
}

impl Open {
    /// The address of the slot of its next child.
    fn next_slot(&self) -> Option<GlobalAddr> {
        self.addr.map(|addr| slot_addr(addr, self.children.len()))
    }
}

/// A leaf whose place is not known.
struct LoadedLeaf {
    slot: Slot,
    content: Buf,
}

/// A subtree that is built: a leaf, or a node that dispatches at a position.
enum Subtree {
    Leaf(LoadedLeaf),
    Node(Open),
}

/// New objects that nothing leads to, by their bytes: 8 bytes of memory for each. Dropped, they are freed.
struct Built {
    session: Session,
    objects: BTreeMap<usize, Vec<GlobalAddr>>,
}

impl Built {
    fn add(&mut self, addr: GlobalAddr, bytes: usize) {
        self.objects.entry(bytes).or_default().push(addr);
    }
}

fn free_all(session: &Session, objects: BTreeMap<usize, Vec<GlobalAddr>>) {
    for (bytes, addrs) in objects {
        addrs.into_iter().for_each(|addr| session.free_unpublished(addr, bytes));
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let objects = std::mem::take(&mut self.objects);
        if !self.session.endpoint().is_lossy() {
            free_all(&self.session, objects);
            return;
        }
        if objects.is_empty() {
            return;
        }
        self.session.spawn(async move |session| {
            // WRITEs to them may be under way.
            for server in (0..session.endpoint().server_count()).map(|it| ServerId(it as u16)) {
                if session.maintenance().settle(server).await.is_err() {
                    return;
                }
            }
            free_all(&session, objects);
        });
    }
}

struct Builder<'a> {
    tree: &'a Tree,
    session: &'a Session,
    built: Built,
    batch: Ops,
    open: Vec<Open>,
    last: Vec<u8>,
    /// The leaf of the last key.
    leaf: Option<LoadedLeaf>,
    /// The first token of all leaves.
    token: u64,
    count: u64,
}

impl Tree {
    /// Fills an empty table; see [`farleaf_index::Index::bulk_load`]. A table that had keys once is filled one by one.
    ///
    /// Cost: 1 WRITE for each leaf, node and record, 16 in a round trip; 257 CASes at the end.
    pub(super) async fn bulk_load(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let root = match self.root_node(session).await {
            Ok(root) => root,
            Err(Fail::Again) => return Err(not_empty()),
            Err(Fail::Error(error)) => return Err(error),
        };
        if root.node(self).live() > 0 {
            return self.load_one_by_one(session, pairs).await;
        }
        let object = session.alloc_unlinked(session.place(), NodeType::TOP.bytes()).await?;
        let addr = self.shape.mode.needs_parents().then(|| object.addr());
        let mut builder = Builder {
            tree: self,
            session,
            built: Built { session: session.clone(), objects: BTreeMap::new() },
            batch: session.client().ops(),
            open: vec![Open { at: 0, children: Vec::new(), addr }],
            last: Vec::new(),
            leaf: None,
            token: session.lock_token(),
            count: 0,
        };
        while let Some((key, value)) = pairs.next() {
            builder.add(key, value).await?;
        }
        let (slots, built, count) = builder.end().await?;
        if count == 0 {
            return Ok(0);
        }
        let Some(dying) = Dying::of(&root) else { return Err(not_empty()) };
        let tree = Arc::clone(self);
        let done = self.finish(session, async move |session| {
            tree.publish(&session, dying, (object, slots.as_slice()), built).await
        });
        if done.await? { Ok(count) } else { Err(not_empty()) }
    }

    /// Freezes the root, which must have no children, and puts one with `slots` in its place; returns whether it did.
    async fn publish(
        self: &Arc<Self>,
        session: &Session,
        mut dying: Dying,
        (object, slots): (Unlinked, &[Slot]),
        mut built: Built,
    ) -> Result<bool, IndexError> {
        let mut buf = session.client().buf(NodeType::TOP.bytes());
        let (addr, birth) = (object.addr(), session.epoch());
        let first_word = self.shape.first_word(addr, birth, dying.up.at);
        let slots = slots.iter().copied();
        fill_node(&self.shape, buf.words_mut(), first_word, NodeType::TOP, (0, b""), slots);
        object.write(buf).await?;
        let retiring = session.prepare_retire(dying.addr).await?;
        let _changing = self.changing(dying.addr).await;
        self.freeze(session, &mut dying).await?;
        if live_slots(&dying.words).next().is_some() {
            session.cancel_retire(retiring);
            self.relocate(session, dying, b"").await?;
            return Ok(false);
        }
        let objects = std::mem::take(&mut built.objects);
        let won = self.replace(session, &dying, b"", addr.word(), (object, retiring)).await?;
        if !won {
            built.objects = objects;
        }
        Ok(won)
    }

    /// Adds the pairs to a table that has no keys, but leaves of some that it had.
    async fn load_one_by_one(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let mut found = Entries::new();
        self.scan(session, ScanRange::ALL, 1, &mut found).await?;
        if !found.is_empty() {
            return Err(not_empty());
        }
        let mut all = Entries::new();
        while let Some((key, value)) = pairs.next() {
            self.spec.check_key(key)?;
            self.spec.check_value(value)?;
            check_order(all.last().map(|(last, _)| last), key, all.len() as u64)?;
            all.push(key, value);
        }
        for (key, value) in all.iter() {
            self.change(session, &Change::insert(key, value), &mut Vec::new(), None).await?;
        }
        Ok(all.len() as u64)
    }
}

impl Builder<'_> {
    async fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        self.tree.spec.check_key(key)?;
        self.tree.spec.check_value(value)?;
        check_order((self.count > 0).then_some(self.last.as_slice()), key, self.count)?;
        if self.count > 0 {
            let common = super::insert::common_bytes(&self.last, key);
            self.close(common).await?;
        }
        self.leaf = Some(self.new_leaf(key, value).await?);
        self.last.clear();
        self.last.extend_from_slice(key);
        self.count += 1;
        Ok(())
    }

    /// Closes all that lies below position `common`, where the next key leaves the last one.
    async fn close(&mut self, common: usize) -> Result<(), IndexError> {
        let Some(leaf) = self.leaf.take() else { return Ok(()) };
        let mut done = Subtree::Leaf(leaf);
        while let Some(mut open) = self.open.pop_if(|open| open.at > common) {
            let under = self.slot_of(done, open.at, open.next_slot()).await?;
            open.children.push(under);
            done = Subtree::Node(open);
        }
        if self.open.last().is_none_or(|open| open.at < common) {
            let addr = match self.tree.shape.mode.needs_parents() {
                true => Some(self.alloc(self.session.place(), NodeType::TOP.bytes()).await?),
                false => None,
            };
            self.open.push(Open { at: common, children: Vec::new(), addr });
        }
        let parent = self.open.last().and_then(Open::next_slot);
        let under = self.slot_of(done, common, parent).await?;
        if let Some(open) = self.open.last_mut() {
            open.children.push(under);
        }
        Ok(())
    }

    /// The slot that leads to a built subtree of the last key from a node that dispatches at `at`; the subtree's top
    /// is written. `parent` is that slot's address, if objects point back.
    async fn slot_of(
        &mut self,
        subtree: Subtree,
        at: usize,
        parent: Option<GlobalAddr>,
    ) -> Result<Slot, IndexError> {
        let last = std::mem::take(&mut self.last);
        let slot = self.slot_under(&last, subtree, at, parent).await;
        self.last = last;
        slot
    }

    async fn slot_under(
        &mut self,
        key: &[u8],
        subtree: Subtree,
        at: usize,
        parent: Option<GlobalAddr>,
    ) -> Result<Slot, IndexError> {
        let edge = Edge::of(key, at).ok_or_else(not_empty)?;
        let open = match subtree {
            Subtree::Leaf(LoadedLeaf { slot, mut content }) => {
                if let Some(parent) = parent {
                    self.tree.shape.aim(content.words_mut(), slot.addr(), parent);
                }
                self.write(slot.addr(), content).await?;
                return Ok(slot.under(edge));
            }
            Subtree::Node(open) => open,
        };
        // As in a split of a leaf: a chain of nodes with one child, then the rest of the common bytes.
        let (from, link) = (at + 1, self.tree.shape.bytes_max() + 1);
        let links = (open.at - from) / link;
        let mut depth = from + links * link;
        let of = self.tree.holding(open.children.len());
        let single = self.tree.holding(1);
        // The node's own address, and those of the chain in front of it, from the bottom up.
        let mut made = Vec::with_capacity(links + 1);
        made.push(match open.addr {
            Some(addr) => addr,
            None => self.alloc(self.place(Some(&open)), of.object_bytes()).await?,
        });
        for _ in 0..links {
            made.push(self.alloc(self.session.place(), single.object_bytes()).await?);
        }
        // The slot that leads to each: the only one of the node above.
        let above = |at: usize| match made.get(at + 1) {
            Some(addr) => slot_addr(*addr, 0),
            None => parent.unwrap_or(GlobalAddr::NULL),
        };
        let place = (depth, &key[depth..open.at]);
        let mut slot = self.node((made[0], above(0)), of, place, &open.children).await?;
        for (at, addr) in made.iter().copied().enumerate().skip(1) {
            let end = depth - 1;
            depth -= link;
            let child = slot.under(Edge::byte(key[end]));
            let place = (depth, &key[depth..end]);
            slot = self.node((addr, above(at)), single, place, &[child]).await?;
        }
        Ok(slot.under(edge))
    }

    async fn node(
        &mut self,
        (addr, parent): (GlobalAddr, GlobalAddr),
        of: NodeType,
        place: (usize, &[u8]),
        children: &[Slot],
    ) -> Result<Slot, IndexError> {
        let (birth, mut buf) = (self.session.epoch(), self.session.client().buf(of.object_bytes()));
        let first_word = self.tree.shape.first_word(addr, birth, parent);
        fill_node(
            &self.tree.shape,
            buf.words_mut(),
            first_word,
            of,
            place,
            children.iter().copied(),
        );
        self.write(addr, buf).await?;
        Ok(Slot::node(Edge::END, addr, of))
    }

    async fn new_leaf(&mut self, key: &[u8], value: &[u8]) -> Result<LoadedLeaf, IndexError> {
        let fits = value.len() <= self.tree.inline_max(self.session);
        let lead = self.tree.shape.mode.lead();
        let (class, value) = match class_for(lead, key.len(), value.len()).filter(|_| fits) {
            Some(class) => (Some(class), NewValue::Inline(value)),
            None => {
                let record = self.tree.write_record(self.session, value).await?;
                let word = record.word();
                let (addr, bytes) = self.tree.record_place(word)?;
                self.built.add(addr, bytes);
                record.keep();
                (class_for(lead, key.len(), 8), NewValue::Record(word))
            }
        };
        let class = class.ok_or_else(|| IndexError::Invalid("the key is too long".into()))?;
        let addr = self.alloc(self.place(self.open.last()), class.bytes()).await?;
        let (birth, token) = (self.session.epoch(), self.token);
        let mut buf = self.session.client().buf(class.bytes());
        let table = self.tree.shape.table;
        let head = addr.plus(8 * lead as u64);
        fill_leaf(table, head, &mut buf.words_mut()[lead..], birth, (key, value), token);
        Ok(LoadedLeaf { slot: Slot::leaf(Edge::END, addr, class), content: buf })
    }

    /// The place of a leaf that is likely to be the next child of a node, or of that node: beside its last leaf. A
    /// cache's entry takes fewer bytes for children that lie together, and an owner links a leaf beside its node in one
    /// round trip.
    fn place(&self, of: Option<&Open>) -> Placement {
        let last = of.and_then(|open| open.children.last()).filter(|slot| slot.is_leaf());
        last.map_or_else(|| self.session.place(), |leaf| Placement::Beside(leaf.addr().server()))
    }

    async fn alloc(&mut self, on: Placement, bytes: usize) -> Result<GlobalAddr, IndexError> {
        let object: Unlinked = self.session.alloc_unlinked(on, bytes).await?;
        self.built.add(object.addr(), bytes);
        object.keep();
        Ok(object.addr())
    }

    async fn write(&mut self, addr: GlobalAddr, content: Buf) -> Result<(), IndexError> {
        self.batch.write(addr, content);
        if self.batch.len() >= BATCH { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), IndexError> {
        let batch = std::mem::replace(&mut self.batch, self.session.client().ops());
        self.session.reliable().post_many(batch).await?;
        Ok(())
    }

    /// The slots of the root, and what leads to no other object yet.
    async fn end(mut self) -> Result<(Vec<Slot>, Built, u64), IndexError> {
        self.close(0).await?;
        self.flush().await?;
        let children = self.open.pop().map(|open| open.children).unwrap_or_default();
        Ok((children, self.built, self.count))
    }
}

fn not_empty() -> IndexError {
    IndexError::Invalid("a bulk load fills an empty table, and this one has keys".into())
}

fn check_order(last: Option<&[u8]>, key: &[u8], number: u64) -> Result<(), IndexError> {
    if last.is_none_or(|last| last < key) {
        return Ok(());
    }
    Err(IndexError::Invalid(format!(
        "key {number} of a bulk load is not larger than the one before"
    )))
}
