//! Table core: a table as all handles of this process share it, and its operations on a context.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use farleaf_engines::{AnyIndex, Content};
use farleaf_index::compute::messages::OpReply;
use farleaf_index::{Index, IndexError, Op, OpenOptions};
use farleaf_pool::{Audit, PoolError, Root};
use farleaf_records::Expiry;

use crate::error::{Error, ErrorKind, Result};
use crate::options::TableInfo;
use crate::report::TableReport;
use crate::table::CompareExchange;
use crate::thread_context::{Session, ThreadContext, UnderWay};

/// A table as all handles of this process share it.
pub(crate) struct TableCore {
    index: AnyIndex,
    root: Root,
    info: TableInfo,
    dropped: AtomicBool,
    /// Operations of workers that are under way.
    async_ops: AtomicUsize,
    /// Expired records that operations of this process have removed.
    pub(crate) expired: AtomicU64,
}

/// The operations, on a context of the calling thread.
impl TableCore {
    /// The table that `root` names.
    pub(crate) async fn open(session: &Session, root: Root, options: &OpenOptions) -> Result<Self> {
        let info = TableInfo::of(&root)?;
        let index = AnyIndex::open(session, &root, options).await?;
        Ok(TableCore {
            index,
            root,
            info,
            dropped: false.into(),
            async_ops: 0.into(),
            expired: 0.into(),
        })
    }

    /// Closes the engine's side of it; no operation is under way.
    pub(crate) async fn close(&self, session: &Session) -> Result<()> {
        self.named(self.index.close(session).await)
    }

    pub(crate) fn index(&self) -> &AnyIndex {
        &self.index
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) fn info(&self) -> &TableInfo {
        &self.info
    }

    pub(crate) async fn compare_exchange(
        &self,
        context: &ThreadContext,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareExchange> {
        let session = context.session().await?;
        self.exchange(&session, key, expected, new).await
    }

    /// The value of `key`.
    pub(crate) async fn value(&self, session: &Session, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get(session, key, &mut value).await?.then_some(value))
    }

    pub(crate) async fn get_many<K: AsRef<[u8]>>(
        &self,
        context: &ThreadContext,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let values = RefCell::new(vec![None; keys.len()]);
        let key_of = |at: usize| keys[at].as_ref();
        self.for_each_key(
            context,
            keys.len(),
            key_of,
            |at| Some(Op::Get { key: key_of(at).to_vec() }),
            |at, told| {
                if let OpReply::Value(value) = self.named(told)? {
                    values.borrow_mut()[at] = self.content_of(key_of(at), value)?;
                }
                Ok(())
            },
            async |session, at| {
                let value = self.value(session, key_of(at)).await?;
                values.borrow_mut()[at] = value;
                Ok(())
            },
        )
        .await?;
        Ok(values.into_inner())
    }

    pub(crate) async fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        context: &ThreadContext,
        pairs: &[(K, V)],
    ) -> Result<u64> {
        // Two changes of one key must not be in flight together: the last of them stands for all.
        let last: BTreeMap<&[u8], &[u8]> =
            pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
        let last: Vec<_> = last.into_iter().collect();
        let new = Cell::new(0);
        let count = |is_new: bool| new.set(new.get() + u64::from(is_new));
        let single = async |session: &Session, at: usize| {
            let (key, value) = last[at];
            count(self.upsert(session, key, value).await?);
            Ok(())
        };
        let upsert = |at: usize| self.upsert_op(last[at].0, last[at].1, Expiry::Never);
        let told = |_: usize, told: std::result::Result<OpReply, IndexError>| {
            count(matches!(self.named(told)?, OpReply::Done(true)));
            Ok(())
        };
        self.for_each_key(context, last.len(), |at| last[at].0, upsert, told, single).await?;
        Ok(new.get())
    }

    pub(crate) async fn remove_many<K: AsRef<[u8]>>(
        &self,
        context: &ThreadContext,
        keys: &[K],
    ) -> Result<u64> {
        let removed = Cell::new(0);
        let count = |was_there: bool| removed.set(removed.get() + u64::from(was_there));
        let single = async |session: &Session, at: usize| {
            count(self.remove(session, keys[at].as_ref()).await?);
            Ok(())
        };
        let key_of = |at: usize| keys[at].as_ref();
        let is_raw = self.info.content == Content::Raw;
        let remove = |at: usize| is_raw.then(|| Op::Remove { key: key_of(at).to_vec() });
        let told = |_: usize, told: std::result::Result<OpReply, IndexError>| {
            count(matches!(self.named(told)?, OpReply::Done(true)));
            Ok(())
        };
        self.for_each_key(context, keys.len(), key_of, remove, told, single).await?;
        Ok(removed.get())
    }

    pub(crate) async fn verify(&self, session: &Session, audit: &mut Audit) -> Result<TableReport> {
        let walked = self.named(self.index.verify(session, audit).await)?;
        Ok(TableReport::new(self.info.name.clone(), walked, self.index.parts()))
    }

    /// From here on operations fail; the caller waits for those that have begun. `false` if that was
    /// so already.
    pub(crate) fn set_dropped(&self) -> bool {
        !self.dropped.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn check_present(&self) -> Result<()> {
        if self.dropped.load(Ordering::Relaxed) {
            return Err(self.gone());
        }
        Ok(())
    }

    /// Passes a result on. If another process dropped the table, its operations meet nodes that
    /// are not its own: says so instead.
    #[inline]
    pub(crate) async fn explain<T>(&self, context: &ThreadContext, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable) => {
                let Ok(session) = context.session().await else { return Err(error) };
                match session.open_root(&self.info.name).await {
                    Err(PoolError::NoSuchTable(_)) => {}
                    Ok(root) if root != self.root => {}
                    _ => return Err(error),
                }
                self.set_dropped();
                Err(self.gone())
            }
            result => result,
        }
    }

    #[cold]
    pub(crate) fn gone(&self) -> Error {
        let message = format!("table \"{}\" was dropped", self.info.name);
        Error::new(ErrorKind::NotFound, message)
    }

    /// Marks an operation of a worker as under way.
    ///
    /// # Errors
    /// `NotFound` if the table was dropped.
    pub(crate) fn begin_async(&self) -> Result<UnderWay<'_>> {
        let under_way = UnderWay::begin(&self.async_ops);
        // After the count: whoever drops the table sets the flag first and then looks at the count.
        if self.dropped.load(Ordering::SeqCst) {
            return Err(self.gone());
        }
        Ok(under_way)
    }

    /// Returns whether operations of workers are under way.
    pub(crate) fn has_async_ops(&self) -> bool {
        self.async_ops.load(Ordering::SeqCst) > 0
    }

    /// Puts the table's name in front of an error.
    #[inline]
    pub(crate) fn named<T>(&self, result: Result<T, impl Into<Error>>) -> Result<T> {
        result.map_err(|error| error.into().within(format_args!("table \"{}\"", self.info.name)))
    }
}
