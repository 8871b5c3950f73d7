//! Translation: has the compiler generate the code of the engines' futures in this crate.
//!
//! The body of an async function is generated where it is polled first, so every program that uses an engine
//! would generate all of it. A crate uses what one below it has generated if both are built with an
//! optimisation level of at most 1, as programs of tests are.

use std::pin::Pin;

use farleaf_index::{Entries, Index, IndexError, OpenOptions, ScanRange};
use farleaf_pool::{Audit, Root, Session};

use crate::{AnyIndex, TableFormat};

/// Polls every operation, if it is ever polled itself.
pub fn every_operation<'a>(
    session: &'a Session,
    root: &'a Root,
) -> Pin<Box<dyn Future<Output = Result<(), IndexError>> + 'a>> {
    Box::pin(async move {
        AnyIndex::create(session, "", &TableFormat::default()).await?;
        let index = AnyIndex::open(session, root, &OpenOptions::default()).await?;
        let (mut value, mut entries) = (Vec::new(), Entries::new());
        index.get(session, &[], &mut value).await?;
        index.insert(session, &[], &[]).await?;
        index.update(session, &[], &[]).await?;
        index.upsert(session, &[], &[]).await?;
        index.remove(session, &[]).await?;
        index.compare_exchange(session, &[], None, None, &mut value).await?;
        index.scan(session, ScanRange::ALL, 0, &mut entries).await?;
        index.verify(session, &mut Audit::new(session).await?).await?;
        index.close(session).await?;
        AnyIndex::drop_table(session, "").await?;
        crate::recover(session).await?;
        session.tick().await?;
        session.leave().await?;
        Ok(())
    })
}
