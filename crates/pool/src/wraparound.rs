//! Aging: makes a new pool look as if members had used it for a very long time.

use farleaf_fabric::{Client, Endpoint};

use crate::reliable::{PATIENCE_NS, Reconnects, Reliable};
use crate::words::{AnnounceWord, BlockWord, MemberWord};
use crate::{PoolError, root, superblock};

/// Puts the counters of a pool that was just formatted, and that nobody has joined, close before the
/// ends of their words: versions of blocks and of root entries, generations and announcements of
/// members. So tests come by what takes years otherwise (`docs/design/pool.md` has the table of
/// words).
///
/// Cost: 1 READ for each server, 1 WRITE for each block and table and 2 for each member.
///
/// # Errors
/// `Format` if there is no pool; `Fabric`.
pub async fn age(client: &Client) -> Result<(), PoolError> {
    let lines = Reconnects::new(client.endpoint().server_count());
    let client = Reliable::new(client, &lines, PATIENCE_NS);
    let (geometry, _) = superblock::open(client).await?;
    for server in geometry.server_ids() {
        for block in geometry.blocks(server) {
            let at = geometry.block_word_addr(block);
            client.write_word(at, BlockWord::aged().0).await?;
        }
    }
    for slot in 0..geometry.options().members_max {
        let at = geometry.member_addr(slot);
        client.write_word(at, MemberWord::aged().0).await?;
        client.write_word(at.plus(16), AnnounceWord::aged().0).await?;
    }
    for slot in 0..geometry.options().tables_max as usize {
        client.write_word(geometry.root_addr(slot), root::AGED).await?;
    }
    Ok(())
}
