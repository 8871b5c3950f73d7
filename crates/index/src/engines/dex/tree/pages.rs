//! Pages: READ and WRITE nodes that this compute server alone may write.
//!
//! `INV-DEX-PTR`: the checks that no word of remote memory points to a frame are here.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::Session;

use super::Tree;
use crate::IndexError;
use crate::bnode::{Kind, Node};

/// READs of one node whose checksum does not fit before it counts as damaged. Nobody writes an
/// exclusive node while it is read, so only a crash makes a second READ necessary.
const READS_MAX: u32 = 3;

impl Tree {
    /// READs a node that this compute server alone may write: 1 READ. It may be dead.
    pub(crate) async fn read_node(
        &self,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Buf, IndexError> {
        let reliable = session.reliable();
        for attempt in 0..READS_MAX {
            if attempt > 0 {
                self.stats.reads_again.add();
            }
            let image = reliable.read(addr, reliable.buf(self.layout().node_bytes())).await?;
            let node = Node::new(self.layout(), image.words());
            let dead = node.kind() == Kind::Dead && node.self_addr() == addr.word();
            if self.remote.is_current(&image, addr, level) || dead && node.sum_ok() {
                if Self::has_swizzled(&node, level) {
                    return Err(IndexError::Corrupt(format!(
                        "INV-DEX-PTR: node {addr} of the table at {} holds a pointer to a frame",
                        self.remote.meta()
                    )));
                }
                return Ok(image);
            }
        }
        Err(IndexError::Corrupt(format!(
            "node {addr} (level {level}) of the table at {} does not hold what it must, and nobody \
             writes it",
            self.remote.meta()
        )))
    }

    /// Whether others may change a node, by its own fences.
    pub(crate) fn is_shared(&self, node: &Node<'_, u64>) -> bool {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        let low = node.low_fence(&mut low).then_some(low.as_slice());
        let high = node.high_fence(&mut high).then_some(high.as_slice());
        self.crosses_bounds(low, high)
    }

    /// Whether a node of `level`, dead or alive, points to a frame.
    fn has_swizzled(node: &Node<'_, u64>, level: u8) -> bool {
        level > 0 && (0..=node.count()).filter_map(|at| node.child(at)).any(|word| word >> 63 != 0)
    }

    /// WRITEs a page, of one that exists all but its lock word (others may hold the lock), and waits until it
    /// has landed; sends it again until it has, as nobody else writes the page. Where such a WRITE can be cut
    /// short, an image of it is in the journal first.
    ///
    /// Cost: 1 WRITE; with a journal 2 for a page that exists.
    pub(crate) async fn write_page(
        &self,
        session: &Session,
        addr: GlobalAddr,
        image: Buf,
        from: usize,
    ) -> Result<(), IndexError> {
        let node = Node::new(self.layout(), image.words());
        debug_assert_eq!(node.self_addr(), addr.word());
        assert!(!Self::has_swizzled(&node, node.level()), "INV-DEX-PTR: about to write {addr}");
        // A page that is written in whole is new: nothing leads to it.
        let _kept = match from {
            0 => None,
            _ => self.log.journal(session, &[&image]).await?,
        };
        write_surely(session, addr, image, from).await
    }

    /// As [`Tree::write_page`] of pages that exist, together. 1 WRITE each, and 1 for all with a journal.
    pub(crate) async fn write_pages(
        &self,
        session: &Session,
        mut pages: Vec<(GlobalAddr, Buf)>,
    ) -> Result<(), IndexError> {
        if pages.len() == 1
            && let Some((addr, image)) = pages.pop()
        {
            return self.write_page(session, addr, image, 8).await;
        }
        let images: Vec<&Buf> = pages.iter().map(|(_, image)| image).collect();
        let _kept = self.log.journal(session, &images).await?;
        let session = session.without_deadline();
        let mut ops = session.client().ops();
        let is_any = !pages.is_empty();
        for (addr, image) in pages {
            let node = Node::new(self.layout(), image.words());
            assert!(!Self::has_swizzled(&node, node.level()), "INV-DEX-PTR: about to write {addr}");
            let written = 8..image.len();
            ops.write(addr.plus(8), image.window(written));
        }
        if is_any {
            session.reliable().post_many(ops).await?;
        }
        Ok(())
    }

    /// Names `root` in the root word. 1 WRITE.
    pub(super) async fn publish_root(
        &self,
        session: &Session,
        root: GlobalAddr,
        level: u8,
    ) -> Result<(), IndexError> {
        let (at, word) = self.remote.root_word(root, level);
        let mut buf = session.client().buf(8);
        buf.words_mut()[0] = word;
        write_surely(session, at, buf, 0).await?;
        self.remote.forget_root();
        Ok(())
    }
}

/// WRITEs `image` from byte `from` on to a place where nobody else writes, until it has landed. 1 WRITE.
///
/// # Errors
/// This compute server has been cut off.
pub(super) async fn write_surely(
    session: &Session,
    addr: GlobalAddr,
    image: Buf,
    from: usize,
) -> Result<(), IndexError> {
    let session = session.without_deadline();
    let written = from..image.len();
    Ok(session.reliable().write(addr.plus(from as u64), image.window(written)).await?)
}
