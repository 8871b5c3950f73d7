//! The engine's face to the trait: own keys here, others' passed on.

use farleaf_fabric::OpKind;
use farleaf_pool::{Audit, Session};

use super::forward::unexpected;
use super::ops::Intent;
use super::walk::Seek;
use super::{Dex, Reply, Request};
use crate::index::{Exchange, Index, ScanRange, SortedPairs, TableReport};
use crate::{Entries, IndexError};

impl Index for Dex {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.remote.check_key(key)?;
        let Ok(_inside) = self.0.enter(session, Seek::At(key)).await? else {
            let request = Request::Get { key: key.to_vec() };
            return match Box::pin(self.route(session, request)).await? {
                Reply::Value(found) => {
                    let has = found.is_some();
                    *value = found.unwrap_or_default();
                    Ok(has)
                }
                other => Err(unexpected(&other)),
            };
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

    async fn insert(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        let Ok(_inside) = self.0.enter(session, Seek::At(key)).await? else {
            let request = Request::Insert { key: key.to_vec(), value: value.to_vec() };
            return Box::pin(self.route_change(session, key, Some(value), request)).await;
        };
        let intent = Intent { change: false, ..Intent::put(value) };
        let outcome = self.0.modify(session, OpKind::Insert, key, intent, &mut Vec::new()).await?;
        session.vouch()?;
        Ok(!outcome.existed)
    }

    async fn update(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        let Ok(_inside) = self.0.enter(session, Seek::At(key)).await? else {
            let request = Request::Update { key: key.to_vec(), value: value.to_vec() };
            return Box::pin(self.route_change(session, key, Some(value), request)).await;
        };
        let intent = Intent { add: false, ..Intent::put(value) };
        let outcome = self.0.modify(session, OpKind::Update, key, intent, &mut Vec::new()).await?;
        session.vouch()?;
        Ok(outcome.existed)
    }

    async fn upsert(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, IndexError> {
        let Ok(_inside) = self.0.enter(session, Seek::At(key)).await? else {
            let request = Request::Upsert { key: key.to_vec(), value: value.to_vec() };
            return Box::pin(self.route_change(session, key, Some(value), request)).await;
        };
        let intent = Intent::put(value);
        let outcome = self.0.modify(session, OpKind::Upsert, key, intent, &mut Vec::new()).await?;
        session.vouch()?;
        Ok(!outcome.existed)
    }

    async fn remove(&self, session: &Session, key: &[u8]) -> Result<bool, IndexError> {
        let Ok(_inside) = self.0.enter(session, Seek::At(key)).await? else {
            let request = Request::Remove { key: key.to_vec() };
            return Box::pin(self.route_change(session, key, None, request)).await;
        };
        let intent = Intent::remove();
        let outcome = self.0.modify(session, OpKind::Remove, key, intent, &mut Vec::new()).await?;
        session.vouch()?;
        Ok(outcome.existed)
    }

    async fn compare_exchange(
        &self,
        session: &Session,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        found: &mut Vec<u8>,
    ) -> Result<(Exchange, bool), IndexError> {
        let Ok(_inside) = self.0.enter(session, Seek::At(key)).await? else {
            self.0.remote.check_key(key)?;
            new.map_or(Ok(()), |value| self.0.remote.check_value(value))?;
            let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
            let (expected, new) = (owned(expected), owned(new));
            let request = Request::CompareExchange { key: key.to_vec(), expected, new };
            return match Box::pin(self.route(session, request)).await? {
                Reply::Exchanged(exchange, held) => {
                    let had = held.is_some();
                    *found = held.unwrap_or_default();
                    Ok((exchange, had))
                }
                other => Err(unexpected(&other)),
            };
        };
        let intent = new.map_or(Intent::remove(), Intent::put);
        let intent = Intent { expected: Some(expected), ..intent };
        let outcome = self.0.modify(session, OpKind::CompareExchange, key, intent, found).await?;
        session.vouch()?;
        let exchange = if outcome.differs { Exchange::Differs } else { Exchange::Done };
        Ok((exchange, outcome.existed))
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        self.scan_all(session, range, limit, out).await?;
        Ok(session.vouch()?)
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        if self.has_been_cut(session).await? {
            return Box::pin(self.bulk_load_parts(session, pairs)).await;
        }
        let _alone = self.enter_whole(session).await?;
        let _pin = session.begin(OpKind::BulkLoad).await?;
        self.0.bulk_load(session, pairs).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        self.0.verify(session, audit).await
    }
}
