//! Pages: WRITE nodes that this compute server alone may write.
//!
//! `INV-DEX-PTR`: the checks that no word of remote memory points to a frame are here.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::bnode::Node;
use farleaf_pool::Session;

use super::DexTree;

impl DexTree {
    /// WRITEs a page, without the lock word if it exists (others may hold the lock), and waits until it has
    /// landed. Sends it again until it has, as nobody else writes the page. If a death can cut such a WRITE
    /// short, the journal gets the image first.
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
        assert!(!has_swizzled(&node, node.level()), "INV-DEX-PTR: about to write {addr}");
        // A page that is written in whole is new: nothing leads to it.
        let _kept = match from {
            0 => None,
            _ => self.log.journal(session, &[&image]).await?,
        };
        write_surely(session, addr, image, from).await
    }

    /// WRITEs pages that exist, together. 1 WRITE each, and 1 for all with a journal.
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
            assert!(!has_swizzled(&node, node.level()), "INV-DEX-PTR: about to write {addr}");
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

/// Returns whether a node of `level`, dead or alive, points to a frame.
pub(super) fn has_swizzled(node: &Node<'_, u64>, level: u8) -> bool {
    level > 0 && (0..=node.count()).filter_map(|at| node.child(at)).any(|word| word >> 63 != 0)
}
