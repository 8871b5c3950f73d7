//! Checks: compare what the parts of the page cache know about each frame.

use std::collections::BTreeMap;

use super::PageCache;
use super::frames::{FrameState, TOP};
use super::mapping_table::Mapping;

impl PageCache {
    /// Returns what is wrong in the cache, each with its invariant. Meant for a moment without operations.
    pub(crate) fn check(&self) -> Vec<String> {
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
                Mapping::Resident(frame) => {
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
            FrameState::Free => (Some("free"), false),
            FrameState::Cooling => (Some("cooling"), true),
            FrameState::Hot => (None, true),
            FrameState::Loading => return wrong("INV-DEX-FREE-1: is left Loading".into()),
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
        if ctl.latch.sample().is_some() == (state == FrameState::Free) {
            wrong(format!("{state:?} and its latch says otherwise"));
        }
        if state == FrameState::Free {
            return;
        }
        let node = self.frames.node(&self.layout, frame);
        let swizzled: Vec<u32> = self.frames.children(node).map(|(_, child)| child).collect();
        if ctl.swizzled() as usize != swizzled.len() {
            wrong(format!(
                "INV-DEX-PATH: {} swizzled children are {}",
                ctl.swizzled(),
                swizzled.len()
            ));
        }
        for child in swizzled {
            let below = self.frames.ctl(child);
            if below.state() != FrameState::Hot || below.parent() != frame {
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
        if ctl.is_shared() && (state == FrameState::Cooling || !parent_shared) {
            wrong("INV-DEX-SHARED-3: is shared, and Cooling or below an exclusive node".into());
        }
        if state == FrameState::Cooling && (ctl.is_dirty() || ctl.swizzled() > 0) {
            wrong("INV-DEX-CLEAN: is Cooling, and dirty or with swizzled children".into());
        }
        if state == FrameState::Hot {
            let pointer = self.frames.swizzle(frame);
            let led_to = match ctl.parent() {
                TOP => self.frames.root() == pointer,
                parent => {
                    let above = self.frames.ctl(parent);
                    let node = self.frames.node(&self.layout, parent);
                    above.state() == FrameState::Hot && node.find_child(pointer).is_some()
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
}
