//! Index of DEX: runs operations on own keys here, and forwards all others.

use farleaf_fabric::OpKind;
use farleaf_index::compute::OwnedTable;
use farleaf_index::compute::ownership::{forward_change, forward_get, scan_all};
use farleaf_index::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, Outcome, ScanRange, Seek,
    SortedPairs, TableReport, Work,
};
use farleaf_pool::{Audit, Session};

use super::Dex;

impl Index for Dex {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.remote.check_key(key)?;
        let Ok(_inside) = self.0.ownership.acquire(session, Seek::At(key)).await? else {
            return Box::pin(forward_get(self, session, key, value)).await;
        };
        if let Some(found) = self.0.get_cached(key, value)? {
            session.count_local(OpKind::Get)?;
            return Ok(found);
        }
        let _pin = session.begin(OpKind::Get).await?;
        let found = self.0.get(session, key, value).await?;
        session.vouch()?;
        Ok(found)
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        let Ok(_inside) = self.0.ownership.acquire(session, Seek::At(change.key)).await? else {
            return Box::pin(forward_change(self, session, change, held)).await;
        };
        let outcome = self.0.modify(session, change, held).await?;
        session.vouch()?;
        Ok(outcome)
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        scan_all(self, session, range, limit, out).await?;
        Ok(session.vouch()?)
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        Box::pin(self.bulk_load_now(session, pairs)).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.0.verify(session, audit).await
    }

    async fn close(&self, session: &Session) -> Result<(), IndexError> {
        Dex::close(self, session).await
    }

    fn owned(&self) -> Option<&dyn OwnedTable> {
        Some(self)
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        Some(self)
    }

    fn counters(&self, counters: &mut CounterSet) {
        let stats = self.stats();
        stats.named().for_each(|(name, count)| counters.add(name, count));
        counters.add_misses(stats.leaf_misses());
    }
}

impl CacheControl for Dex {
    fn flush<'a>(&'a self, session: &'a Session) -> Work<'a, Result<(), IndexError>> {
        Box::pin(Dex::flush(self, session))
    }

    fn check(&self) -> Vec<String> {
        self.check_cache()
    }

    fn resident_bytes(&self) -> u64 {
        self.0.pages.resident_bytes()
    }
}
