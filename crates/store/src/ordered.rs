//! Ordered operations: find the pairs nearest to a key, count ranges and remove them.

use std::future::Future;
use std::ops::Bound;

use farleaf_index::Entries;

use crate::KeyFormat;
use crate::async_table::{AsyncTable, own};
use crate::bounds::Interval;
use crate::error::Result;
use crate::local::LocalTable;
use crate::range::{CHUNK_FIRST, KeyRange, next_chunk, set_excluded};
use crate::table::Table;
use crate::table_core::TableCore;
use crate::thread_context::ThreadContext;

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// The pair that is looked for near a key.
#[derive(Clone, Copy, Debug)]
enum Near {
    Lower,
    Floor,
    Ceiling,
    Higher,
}

impl Near {
    /// The keys among which the pair is the nearest, and whether it is the last of them.
    fn range(self, key: Vec<u8>, format: KeyFormat) -> (Interval, bool) {
        let (from, to, reverse) = match self {
            Near::Lower => (Bound::Unbounded, Bound::Excluded(key), true),
            Near::Floor => (Bound::Unbounded, Bound::Included(key), true),
            Near::Ceiling => (Bound::Included(key), Bound::Unbounded, false),
            Near::Higher => (Bound::Excluded(key), Bound::Unbounded, false),
        };
        (Interval::of(from, to, format), reverse)
    }
}

/// The rest of a range that is met in chunks.
struct Rest {
    range: Interval,
    /// Pairs to fetch next.
    chunk: usize,
    is_over: bool,
}

impl Rest {
    fn new(range: impl KeyRange, format: KeyFormat) -> Self {
        let (from, to) = range.ends();
        let range = Interval::of(from, to, format);
        let is_over = range.is_empty();
        Rest { range, chunk: CHUNK_FIRST, is_over }
    }

    /// Fetches the next chunk and takes it off the range.
    async fn fetch(&mut self, core: &TableCore, context: &ThreadContext) -> Result<Entries> {
        let mut entries = Entries::new();
        let session = context.session().await?;
        core.scan_keys(&session, self.range.scan(false), self.chunk, &mut entries).await?;
        if let Some((key, _)) = entries.iter().last() {
            set_excluded(&mut self.range.from, key);
        }
        self.is_over = entries.len() < self.chunk || self.range.is_empty();
        self.chunk = next_chunk(self.chunk, &entries);
        Ok(entries)
    }

    /// Counts the next chunk.
    async fn count(&mut self, core: &TableCore, context: &ThreadContext) -> Result<u64> {
        Ok(self.fetch(core, context).await?.len() as u64)
    }

    /// Removes the next chunk; returns how many keys were present.
    async fn remove(&mut self, core: &TableCore, context: &ThreadContext) -> Result<u64> {
        let entries = self.fetch(core, context).await?;
        let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| key).collect();
        core.remove_many(context, &keys).await
    }
}

impl TableCore {
    async fn near(
        &self,
        context: &ThreadContext,
        near: Near,
        key: Vec<u8>,
    ) -> Result<Option<Pair>> {
        let (range, reverse) = near.range(key, self.info().keys);
        if range.is_empty() {
            return Ok(None);
        }
        let mut entries = Entries::new();
        let session = context.session().await?;
        self.scan(&session, range.scan(reverse), 1, &mut entries).await?;
        Ok(first(&entries))
    }

    /// See [`Table::longest_prefix`].
    async fn longest_prefix(&self, context: &ThreadContext, key: &[u8]) -> Result<Option<Pair>> {
        let session = context.session().await?;
        let most = match self.info().keys {
            KeyFormat::Bytes { max } => max,
            KeyFormat::Fixed(len) => {
                // Only one length can be a prefix.
                let Some(prefix) = key.get(..len) else { return Ok(None) };
                let value = self.value(&session, prefix).await?;
                return Ok(value.map(|value| (prefix.to_vec(), value)));
            }
        };
        let mut entries = Entries::new();
        let key = &key[..key.len().min(most)];
        self.prefix_of(&session, key, &mut entries).await?;
        Ok(first(&entries))
    }
}

fn first(entries: &Entries) -> Option<Pair> {
    entries.get(0).map(|(key, value)| (key.to_vec(), value.to_vec()))
}

/// Pairs near a key, and whole ranges.
impl Table {
    /// The pair with the largest key below `key`.
    ///
    /// `key` may be any byte string, here and in the methods beside it. While others write, the pair was in the table
    /// at a moment of the call, and no nearer key was present throughout it.
    ///
    /// Cost: that of a scan of one pair.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn lower(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.near(Near::Lower, own(key))
    }

    /// The pair of `key`, or else that with the largest key below it.
    ///
    /// ```
    /// # let table = farleaf::Farleaf::open("mem:")?.create_table("t", Default::default())?;
    /// table.insert_many([("10:00", "tea"), ("12:00", "lunch")])?;
    /// let (since, what) = table.floor("11:15")?.expect("tea");
    /// assert_eq!((&since[..], &what[..]), (&b"10:00"[..], &b"tea"[..]));
    /// assert_eq!(table.floor("09:00")?, None);
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    ///
    /// See [`Table::lower`] for cost, errors, and what holds while others write.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn floor(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.near(Near::Floor, own(key))
    }

    /// The pair of `key`, or else that with the smallest key above it; see [`Table::lower`].
    ///
    /// # Errors
    /// See [`Table`].
    pub fn ceiling(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.near(Near::Ceiling, own(key))
    }

    /// The pair with the smallest key above `key`; see [`Table::lower`].
    ///
    /// # Errors
    /// See [`Table`].
    pub fn higher(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.near(Near::Higher, own(key))
    }

    /// The pair with the longest key that `key` starts with, `key` itself included.
    ///
    /// ```
    /// # let table = farleaf::Farleaf::open("mem:")?.create_table("t", Default::default())?;
    /// table.insert_many([("/usr", "a"), ("/usr/lib", "b"), ("/usr/lib64", "c")])?;
    /// let (mount, _) = table.longest_prefix("/usr/lib/x/y")?.expect("a prefix");
    /// assert_eq!(mount, b"/usr/lib");
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    ///
    /// While others write, the pair was in the table at a moment of the call, and no longer prefix was present
    /// throughout it.
    ///
    /// Cost: on radix trees the round trips of a get, for own keys where keys have owners; with a skip table those of a get
    /// if the prefix ends at or below the node that it leads to, and else those of a get from the root as well. A get if keys
    /// have a fixed length. Elsewhere [`Table::floor`] once, and once more for each time that the floor of what is left of
    /// `key` is no prefix of it: at most once for each byte of `key`, one to three times as a rule.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn longest_prefix(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let key = key.as_ref();
        self.run(async |core, context| core.longest_prefix(context, key).await)
    }

    /// Counts the keys in `range`. It is no snapshot: see [`Range`](crate::Range) for what it promises while others write.
    ///
    /// Cost: that of a scan of the range, values included; memory for one chunk of it.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn count(&self, range: impl KeyRange) -> Result<u64> {
        let (mut rest, mut count) = (Rest::new(range, self.info().keys), 0);
        while !rest.is_over {
            count += self.run(async |core, context| rest.count(core, context).await)?;
        }
        Ok(count)
    }

    /// Removes the keys in `range`; returns how many it removed. It is no transaction: others see some of the keys gone
    /// before the rest, and keys that they add meanwhile may stay.
    ///
    /// Cost: that of a scan of the range and of a remove of each key, of which up to 32 are in flight at once.
    ///
    /// # Errors
    /// As [`Table::remove`]; the message says how many keys are certainly gone.
    pub fn remove_range(&self, range: impl KeyRange) -> Result<u64> {
        let (mut rest, mut removed) = (Rest::new(range, self.info().keys), 0);
        while !rest.is_over {
            let chunk = self.run(async |core, context| rest.remove(core, context).await);
            removed += chunk.map_err(|error| error.within(after(removed)))?;
        }
        Ok(removed)
    }

    fn near(&self, near: Near, key: Vec<u8>) -> Result<Option<Pair>> {
        self.run(async |core, context| core.near(context, near, key).await)
    }
}

fn after(removed: u64) -> String {
    format!("after {removed} keys were removed")
}

/// The same as futures.
impl AsyncTable {
    /// See [`Table::lower`].
    pub fn lower<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<Option<(Vec<u8>, Vec<u8>)>>> + Send + 'static + use<K> {
        self.near(Near::Lower, own(key))
    }

    /// See [`Table::floor`].
    pub fn floor<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<Option<(Vec<u8>, Vec<u8>)>>> + Send + 'static + use<K> {
        self.near(Near::Floor, own(key))
    }

    /// See [`Table::ceiling`].
    pub fn ceiling<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<Option<(Vec<u8>, Vec<u8>)>>> + Send + 'static + use<K> {
        self.near(Near::Ceiling, own(key))
    }

    /// See [`Table::higher`].
    pub fn higher<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<Option<(Vec<u8>, Vec<u8>)>>> + Send + 'static + use<K> {
        self.near(Near::Higher, own(key))
    }

    /// See [`Table::longest_prefix`].
    pub fn longest_prefix<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<Option<(Vec<u8>, Vec<u8>)>>> + Send + 'static + use<K> {
        let key = own(key);
        self.run(async move |core, context| core.longest_prefix(context, &key).await)
    }

    /// See [`Table::count`].
    pub fn count<R: KeyRange>(
        &self,
        range: R,
    ) -> impl Future<Output = Result<u64>> + Send + 'static + use<R> {
        let (table, mut rest) = (self.clone(), Rest::new(range, self.info().keys));
        async move {
            let mut count = 0;
            while !rest.is_over {
                let chunk = async move |core: &TableCore, context: &ThreadContext| {
                    let counted = rest.count(core, context).await?;
                    Ok((rest, counted))
                };
                let counted;
                (rest, counted) = table.run(chunk).await?;
                count += counted;
            }
            Ok(count)
        }
    }

    /// See [`Table::remove_range`].
    pub fn remove_range<R: KeyRange>(
        &self,
        range: R,
    ) -> impl Future<Output = Result<u64>> + Send + 'static + use<R> {
        let (table, mut rest) = (self.clone(), Rest::new(range, self.info().keys));
        async move {
            let mut all_removed = 0;
            while !rest.is_over {
                let chunk = async move |core: &TableCore, context: &ThreadContext| {
                    let removed = rest.remove(core, context).await?;
                    Ok((rest, removed))
                };
                let removed;
                (rest, removed) =
                    table.run(chunk).await.map_err(|error| error.within(after(all_removed)))?;
                all_removed += removed;
            }
            Ok(all_removed)
        }
    }

    fn near(
        &self,
        near: Near,
        key: Vec<u8>,
    ) -> impl Future<Output = Result<Option<Pair>>> + Send + 'static + use<> {
        self.run(async move |core, context| core.near(context, near, key).await)
    }
}

/// The same on this thread's own executor.
impl LocalTable {
    /// See [`Table::lower`].
    ///
    /// # Errors
    /// As there, here and in the methods below.
    pub async fn lower(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.near(Near::Lower, own(key)).await
    }

    /// See [`Table::floor`].
    pub async fn floor(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.near(Near::Floor, own(key)).await
    }

    /// See [`Table::ceiling`].
    pub async fn ceiling(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.near(Near::Ceiling, own(key)).await
    }

    /// See [`Table::higher`].
    pub async fn higher(&self, key: impl AsRef<[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.near(Near::Higher, own(key)).await
    }

    /// See [`Table::longest_prefix`].
    pub async fn longest_prefix(
        &self,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let key = key.as_ref();
        self.run(async |core, context| core.longest_prefix(context, key).await).await
    }

    /// See [`Table::count`].
    pub async fn count(&self, range: impl KeyRange) -> Result<u64> {
        let (mut rest, mut count) = (Rest::new(range, self.info().keys), 0);
        while !rest.is_over {
            count += self.run(async |core, context| rest.count(core, context).await).await?;
        }
        Ok(count)
    }

    /// See [`Table::remove_range`].
    pub async fn remove_range(&self, range: impl KeyRange) -> Result<u64> {
        let (mut rest, mut removed) = (Rest::new(range, self.info().keys), 0);
        while !rest.is_over {
            let chunk = self.run(async |core, context| rest.remove(core, context).await).await;
            removed += chunk.map_err(|error| error.within(after(removed)))?;
        }
        Ok(removed)
    }

    async fn near(&self, near: Near, key: Vec<u8>) -> Result<Option<Pair>> {
        self.run(async |core, context| core.near(context, near, key).await).await
    }
}
