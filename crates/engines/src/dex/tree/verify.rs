//! Verification: checks the cache, and the remote memory under it.

use std::sync::Arc;

use farleaf_fabric::OpKind;
use farleaf_index::bnode::{BnodeShape, Node, verify_image};
use farleaf_index::{IndexError, Stored, TableReport};
use farleaf_pool::{Audit, Session};

use super::DexTree;
use crate::dex::Dex;
use crate::dex::cache::FrameState;

impl DexTree {
    /// Writes everything back, checks the cache, then walks the tree in remote memory.
    ///
    /// Cost: that of a flush, then that of [`farleaf_index::blink::BlinkTree::walk`].
    pub(crate) async fn verify_all(
        self: &Arc<Self>,
        session: &Session,
        stored: &Stored<BnodeShape>,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        let mut problems = Vec::new();
        if self.ownership.is_owned() {
            self.flush(session).await?;
            problems = self.pages.check();
            if problems.is_empty() {
                problems = self.check_images(session).await?;
            }
        }
        self.remote.forget_root();
        let mut report = stored.mark::<Dex>(session, audit, None).await?;
        problems.append(&mut report.problems);
        report.problems = problems;
        Ok(report)
    }

    /// Compares every cached image, all of them clean, with remote memory.
    ///
    /// Cost: 1 READ for each.
    async fn check_images(&self, session: &Session) -> Result<Vec<String>, IndexError> {
        let mut problems = Vec::new();
        for frame in 0..self.pages.frames.count() as u32 {
            let ctl = self.pages.frames.ctl(frame);
            let Some(latch_version) = ctl.latch.sample() else { continue };
            let skipped = ctl.is_dirty() || ctl.is_shared();
            if !matches!(ctl.state(), FrameState::Hot | FrameState::Cooling) || skipped {
                continue;
            }
            let mut cached = session.client().buf(self.layout().node_bytes());
            self.pages.frames.copy(frame, cached.words_mut());
            let (addr, level, version) =
                (self.pages.frames.addr(frame), ctl.level(), ctl.version());
            let cached = self.pages.remote_image(cached, version);
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
