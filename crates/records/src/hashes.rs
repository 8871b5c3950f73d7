//! Hash operations: the fields of a hash, all of them seen and changed as one.

use farleaf_index::Index;

use crate::error::RecordError;
use crate::format::{Hash, HashView, Record, RecordValue, RecordView, ValueView};
use crate::ops::{RecordChange, Records, wrong_kind};

/// A key without a record is a hash without fields. Each change keeps the moment of expiry, and leaves no hash without
/// fields.
impl<I: Index, C: Fn() -> u64> Records<'_, I, C> {
    /// The fields of the hash at `key`.
    ///
    /// Cost: a get.
    ///
    /// # Errors
    /// `WrongKind` for a string, here and in the methods beside it; as [`Index::get`].
    pub async fn hash(&self, key: &[u8]) -> Result<Hash, RecordError> {
        self.look(key, |hash| hash.map(|hash| hash.to_hash()).unwrap_or_default()).await
    }

    /// The values of `fields`, in their order.
    ///
    /// Cost: a get.
    ///
    /// # Errors
    /// As [`Records::hash`].
    pub async fn hash_get<F: AsRef<[u8]>>(
        &self,
        key: &[u8],
        fields: &[F],
    ) -> Result<Vec<Option<Vec<u8>>>, RecordError> {
        self.look(key, |hash| {
            let value = |name: &F| hash?.get(name.as_ref()).map(<[u8]>::to_vec);
            fields.iter().map(value).collect()
        })
        .await
    }

    /// The number of fields.
    ///
    /// Cost: a get.
    ///
    /// # Errors
    /// As [`Records::hash`].
    pub async fn hash_len(&self, key: &[u8]) -> Result<usize, RecordError> {
        self.look(key, |hash| hash.map_or(0, |hash| hash.len())).await
    }

    /// Gives fields values, all at one moment; returns how many of the fields were new. Of a field that comes twice the
    /// last value counts.
    ///
    /// Cost: a get and a compare-exchange; a compare-exchange more for each change by another meanwhile.
    ///
    /// # Errors
    /// As [`Records::hash`] and [`Records::update`]; `TooLong` if the hash would have more than 1 MiB.
    pub async fn hash_set<F: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        key: &[u8],
        fields: &[(F, V)],
    ) -> Result<usize, RecordError> {
        self.hash_change(key, |hash| {
            let mut is_new = 0;
            for (name, value) in fields {
                let before = hash.insert(name.as_ref().to_vec(), value.as_ref().to_vec());
                is_new += usize::from(before.is_none());
            }
            Ok(is_new)
        })
        .await
    }

    /// Removes fields, all at one moment; returns how many were there.
    ///
    /// Cost: as [`Records::hash_set`].
    ///
    /// # Errors
    /// As [`Records::hash_set`].
    pub async fn hash_remove<F: AsRef<[u8]>>(
        &self,
        key: &[u8],
        fields: &[F],
    ) -> Result<usize, RecordError> {
        let is_there = |hash: &mut Hash, name: &F| hash.remove(name.as_ref()).is_some();
        self.hash_change(key, |hash| Ok(fields.iter().filter(|name| is_there(hash, name)).count()))
            .await
    }

    /// Changes the fields of the hash at `key` by `change`, as one step; returns what `change` returned last. It runs
    /// again each time that another client has changed the key meanwhile.
    ///
    /// Cost: a get, and a compare-exchange unless nothing changes; a compare-exchange more for each change by another.
    ///
    /// # Errors
    /// Those of `change`; as [`Records::hash_set`].
    pub async fn hash_change<T: Default>(
        &self,
        key: &[u8],
        mut change: impl FnMut(&mut Hash) -> Result<T, RecordError>,
    ) -> Result<T, RecordError> {
        let mut result = T::default();
        self.update(key, |held| {
            let mut hash = match held.map(|record| &record.value) {
                None => Hash::new(),
                Some(RecordValue::Hash(hash)) => hash.clone(),
                Some(RecordValue::String(_)) => return Err(wrong_kind(key, "string", "hash")),
            };
            result = change(&mut hash)?;
            let expires_ms = held.and_then(|record| record.expires_ms);
            Ok(RecordChange::Put(Record { value: RecordValue::Hash(hash), expires_ms }))
        })
        .await?;
        Ok(result)
    }

    async fn look<T>(
        &self,
        key: &[u8],
        look: impl Fn(Option<HashView<'_>>) -> T,
    ) -> Result<T, RecordError> {
        let found = self
            .with_record(key, |record: &RecordView<'_>| match record.value {
                ValueView::Hash(hash) => Ok(look(Some(hash))),
                ValueView::String(_) => Err(wrong_kind(key, "string", "hash")),
            })
            .await?;
        Ok(found.unwrap_or_else(|| look(None)))
    }
}
