//! Verification: checks the cache, and the remote memory under it.

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_pool::{Audit, Session};

use super::Cache;
use super::frames::{State, TOP};
use super::mapping_table::Entry;
use super::stored::walk_stored;
use crate::IndexError;
use crate::bnode::{Kind, Node, verify_image};
use crate::index::TableReport;
use crate::walk::Marker;

impl Cache {
    /// Writes everything back, checks the cache, then walks the tree in remote memory.
    ///
    /// Cost: that of a flush, then a READ for each level of each node.
    pub(super) async fn verify(
        self: &Arc<Self>,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        let mut problems = Vec::new();
        if self.ownership.is_owned() {
            self.flush(session).await?;
            problems = self.check_cache();
            if problems.is_empty() {
                problems = self.check_images(session).await?;
            }
        }
        self.remote.forget_root();
        let (mut marker, mut report) = (Marker::new(audit, None), TableReport::default());
        let walked = walk_stored(&self.remote, session, &mut marker, &mut report).await;
        let mut report = marker.finish(walked, report)?;
        problems.append(&mut report.problems);
        report.problems = problems;
        Ok(report)
    }

    /// Checks what the cache knows about itself; see [`super::Dex::check_cache`].
    pub(super) fn check_cache(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut holders: BTreeMap<u32, &str> = BTreeMap::new();
        let free = self.free.frames();
        let cooling = self.cooling.frames();
        let lists = free.iter().map(|frame| (*frame, "free"));
        for (frame, list) in lists.chain(cooling.iter().map(|frame| (*frame, "cooling"))) {
            if let Some(other) = holders.insert(frame, list) {
                problems.push(format!("INV-DEX-FREE-1: frame {frame} is in {list} and in {other}"));
            }
        }
        let mut mapped: BTreeMap<u32, u64> = BTreeMap::new();
        for (addr, entry) in self.map.entries() {
            match entry {
                Entry::Resident(frame) => {
                    if let Some(other) = mapped.insert(frame, addr) {
                        problems.push(format!(
                            "INV-DEX-MAP-1: frame {frame} holds {addr:#x} and {other:#x}"
                        ));
                    }
                }
                mark => problems.push(format!("INV-DEX-MAP-2: {addr:#x} is left marked {mark:?}")),
            }
        }
        for frame in 0..self.frames.count() as u32 {
            let list = holders.get(&frame).copied();
            self.check_frame(frame, list, mapped.get(&frame).copied(), &mut problems);
        }
        if self.frames.ctl(TOP).latch.is_held() || self.frames.ctl(TOP).pins() > 0 {
            problems.push("INV-DEX-PIN: the top is held or pinned".into());
        }
        problems
    }

    fn check_frame(
        &self,
        frame: u32,
        list: Option<&str>,
        mapped: Option<u64>,
        problems: &mut Vec<String>,
    ) {
        let ctl = self.frames.ctl(frame);
        let mut wrong = |what: String| problems.push(format!("frame {frame}: {what}"));
        let state = ctl.state();
        let expected = match state {
            State::Free => (Some("free"), false),
            State::Cooling => (Some("cooling"), true),
            State::Hot => (None, true),
            State::Loading => return wrong("INV-DEX-FREE-1: is left Loading".into()),
        };
        if (list, mapped.is_some()) != expected {
            wrong(format!("INV-DEX-MAP-1: {state:?}, in list {list:?}, mapped {mapped:x?}"));
        }
        if mapped.is_some_and(|addr| addr != ctl.addr_word()) {
            wrong(format!("INV-DEX-MAP-1: holds {:#x}, mapped {mapped:x?}", ctl.addr_word()));
        }
        if ctl.latch.is_held() || ctl.pins() > 0 {
            wrong(format!("INV-DEX-PIN: held, or {} pins", ctl.pins()));
        }
        if ctl.latch.sample().is_some() == (state == State::Free) {
            wrong(format!("{state:?} and its latch says otherwise"));
        }
        if state == State::Free {
            return;
        }
        let node = self.frames.node(self.layout(), frame);
        let mut swizzled = Vec::new();
        if node.kind() == Kind::Inner {
            let children = (0..=node.count()).filter_map(|index| node.child(index));
            swizzled.extend(children.filter_map(|pointer| self.frames.unswizzle(pointer)));
        }
        if ctl.swizzled() as usize != swizzled.len() {
            wrong(format!(
                "INV-DEX-PATH: {} swizzled children are {}",
                ctl.swizzled(),
                swizzled.len()
            ));
        }
        for child in swizzled {
            let below = self.frames.ctl(child);
            if below.state() != State::Hot || below.parent() != frame {
                wrong(format!(
                    "INV-DEX-PATH: its child {child} is {:?} below {}",
                    below.state(),
                    below.parent()
                ));
            }
        }
        if ctl.is_shared() && ctl.is_dirty() {
            wrong("INV-DEX-SHARED-1: is shared and dirty".into());
        }
        let parent_shared = ctl.parent() == TOP || self.frames.ctl(ctl.parent()).is_shared();
        if ctl.is_shared() && (state == State::Cooling || !parent_shared) {
            wrong("INV-DEX-SHARED-3: is shared, and Cooling or below an exclusive node".into());
        }
        if state == State::Cooling && (ctl.is_dirty() || ctl.swizzled() > 0) {
            wrong("INV-DEX-CLEAN: is Cooling, and dirty or with swizzled children".into());
        }
        if state == State::Hot {
            let pointer = self.frames.swizzle(frame);
            let led_to = match ctl.parent() {
                TOP => self.frames.root() == pointer,
                parent => {
                    let above = self.frames.ctl(parent);
                    let node = self.frames.node(self.layout(), parent);
                    above.state() == State::Hot && node.find_child(pointer).is_some()
                }
            };
            if !led_to {
                wrong(format!("INV-DEX-PATH: is Hot and its parent {} is not", ctl.parent()));
            }
        }
        if node.self_addr() != ctl.addr_word() || node.level() != ctl.level() {
            wrong("its image is of another node".into());
        }
    }

    /// Compares every cached image, all of them clean, with remote memory.
    ///
    /// Cost: 1 READ for each.
    async fn check_images(&self, session: &Session) -> Result<Vec<String>, IndexError> {
        let mut problems = Vec::new();
        for frame in 0..self.frames.count() as u32 {
            let ctl = self.frames.ctl(frame);
            let Some(latch_version) = ctl.latch.sample() else { continue };
            let skipped = ctl.is_dirty() || ctl.is_shared();
            if !matches!(ctl.state(), State::Hot | State::Cooling) || skipped {
                continue;
            }
            let mut cached = session.client().buf(self.layout().node_bytes());
            self.frames.copy(frame, cached.words_mut());
            let (addr, level, version) = (self.frames.addr(frame), ctl.level(), ctl.version());
            let cached = self.make_remote(cached, version);
            let remote = self.read_node(session, addr, level).await?;
            if !ctl.latch.validate(latch_version) || ctl.is_dirty() {
                // Somebody goes on changing things; the comparison is for a quiet table.
                continue;
            }
            if let Err(error) = verify_image(self.layout(), cached.words(), addr.word()) {
                problems.push(format!("frame {frame}: node {addr}: {error}"));
            }
            let same = Node::new(self.layout(), remote.words()).version() == version
                && cached.words()[1..] == remote.words()[1..];
            if !same {
                problems.push(format!(
                    "INV-DEX-CLEAN: frame {frame} is clean and differs from node {addr}"
                ));
            }
        }
        Ok(problems)
    }
}
