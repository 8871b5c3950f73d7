//! Batches of mixed operations, and changes that depend on what a key holds.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;

use farleaf_engines::Content;
use farleaf_index::compute::messages::OpReply;
use farleaf_index::{Exchange, Index, IndexError, Op, Update, update_with};
use farleaf_records::{Expiry, Record};

use crate::async_table::{AsyncTable, own};
use crate::error::{Error, ErrorKind, Result};
use crate::many;
use crate::table::{CompareExchange, Table};
use crate::table_core::TableCore;
use crate::thread_context::{Session, ThreadContext};

/// An operation of [`Table::run_batch`]; each does what the method of its name does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation<B = Vec<u8>> {
    /// [`Table::get`]: answers with [`Answer::Value`].
    Get(B),
    /// [`Table::insert`] of a key and a value: answers with [`Answer::Flag`].
    Insert(B, B),
    /// [`Table::insert_new`]: answers with [`Answer::Flag`].
    InsertNew(B, B),
    /// [`Table::update`]: answers with [`Answer::Flag`].
    Update(B, B),
    /// [`Table::remove`]: answers with [`Answer::Flag`].
    Remove(B),
    /// [`Table::record`]: answers with [`Answer::Record`].
    Record(B),
    /// [`Table::insert_with`] of a key, a string and its expiry: answers with [`Answer::Flag`].
    InsertWith(B, B, Expiry),
    /// [`Table::compare_exchange`]: answers with [`Answer::Exchange`].
    CompareExchange {
        /// The key.
        key: B,
        /// The value that it must hold; `None`: is absent.
        expected: Option<B>,
        /// The value that it gets; `None`: is removed.
        new: Option<B>,
    },
}

/// The result of an [`Operation`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The value of the key, if it is present.
    Value(Option<Vec<u8>>),
    /// The answer of the method of the operation's name: the key was absent (insert), was added, changed, removed.
    Flag(bool),
    /// The outcome of a compare-exchange.
    Exchange(CompareExchange),
    /// The record of the key, if it is present.
    Record(Option<Record>),
}

impl Answer {
    /// Bytes of the values in it; about so many if it is a hash.
    pub fn bytes(&self) -> usize {
        match self {
            Answer::Flag(_) | Answer::Exchange(CompareExchange::Exchanged) => 0,
            Answer::Value(value) | Answer::Exchange(CompareExchange::Found(value)) => {
                value.as_ref().map_or(0, Vec::len)
            }
            Answer::Record(record) => record.as_ref().map_or(0, Record::bytes),
        }
    }
}

impl<B: AsRef<[u8]>> Operation<B> {
    /// The key.
    pub fn key(&self) -> &[u8] {
        match self {
            Operation::Get(key)
            | Operation::Insert(key, _)
            | Operation::InsertNew(key, _)
            | Operation::Update(key, _)
            | Operation::Remove(key)
            | Operation::Record(key)
            | Operation::InsertWith(key, ..)
            | Operation::CompareExchange { key, .. } => key.as_ref(),
        }
    }

    /// The same operation on the bytes of this one.
    ///
    /// [`Table::run_batch`] takes operations by value; a caller who needs them afterwards hands in these.
    pub fn borrowed(&self) -> Operation<&[u8]> {
        match self {
            Operation::Get(key) => Operation::Get(key.as_ref()),
            Operation::Insert(key, value) => Operation::Insert(key.as_ref(), value.as_ref()),
            Operation::InsertNew(key, value) => Operation::InsertNew(key.as_ref(), value.as_ref()),
            Operation::Update(key, value) => Operation::Update(key.as_ref(), value.as_ref()),
            Operation::Remove(key) => Operation::Remove(key.as_ref()),
            Operation::Record(key) => Operation::Record(key.as_ref()),
            Operation::InsertWith(key, value, expiry) => {
                Operation::InsertWith(key.as_ref(), value.as_ref(), *expiry)
            }
            Operation::CompareExchange { key, expected, new } => Operation::CompareExchange {
                key: key.as_ref(),
                expected: expected.as_ref().map(B::as_ref),
                new: new.as_ref().map(B::as_ref),
            },
        }
    }

    /// The same with bytes of its own.
    fn into_owned(self) -> Operation {
        match self {
            Operation::Get(key) => Operation::Get(own(key)),
            Operation::Insert(key, value) => Operation::Insert(own(key), own(value)),
            Operation::InsertNew(key, value) => Operation::InsertNew(own(key), own(value)),
            Operation::Update(key, value) => Operation::Update(own(key), own(value)),
            Operation::Remove(key) => Operation::Remove(own(key)),
            Operation::Record(key) => Operation::Record(own(key)),
            Operation::InsertWith(key, value, expiry) => {
                Operation::InsertWith(own(key), own(value), expiry)
            }
            Operation::CompareExchange { key, expected, new } => Operation::CompareExchange {
                key: own(key),
                expected: expected.map(own),
                new: new.map(own),
            },
        }
    }
}

/// The numbers of a batch's operations by their keys, which come in the order in which they come first; those of one
/// key are a chain, in their order.
struct Chains {
    numbers: Vec<usize>,
    /// Begin of each chain among the numbers, and their end.
    begins: Vec<usize>,
}

impl Chains {
    fn of<B: AsRef<[u8]>>(operations: &[Operation<B>]) -> Chains {
        let mut chain_of: HashMap<&[u8], usize> = HashMap::with_capacity(operations.len());
        let chain = |operation| {
            let next = chain_of.len();
            *chain_of.entry(Operation::key(operation)).or_insert(next)
        };
        let chains: Vec<usize> = operations.iter().map(chain).collect();
        let mut numbers: Vec<usize> = (0..operations.len()).collect();
        numbers.sort_by_key(|number| chains[*number]);
        let mut begins = Vec::with_capacity(chain_of.len() + 1);
        for (at, number) in numbers.iter().enumerate() {
            if begins.len() == chains[*number] {
                begins.push(at);
            }
        }
        begins.push(operations.len());
        Chains { numbers, begins }
    }

    fn len(&self) -> usize {
        self.begins.len() - 1
    }

    fn at(&self, chain: usize) -> &[usize] {
        &self.numbers[self.begins[chain]..self.begins[chain + 1]]
    }
}

impl TableCore {
    /// See [`Table::run_batch`].
    pub(crate) async fn run_batch<B: AsRef<[u8]>>(
        &self,
        context: &ThreadContext,
        operations: &[Operation<B>],
    ) -> Result<Vec<Result<Answer>>> {
        let chains = Chains::of(operations);
        let answers: RefCell<Vec<Option<Result<Answer>>>> =
            RefCell::new(operations.iter().map(|_| None).collect());
        let answer = |number: usize, answer: Result<Answer>| {
            answers.borrow_mut()[number] = Some(answer);
        };
        self.for_each_key(
            context,
            chains.len(),
            |at| operations[chains.at(at)[0]].key(),
            |at| match chains.at(at) {
                [number] => self.op_of(&operations[*number]),
                // The first may be left undone and the second not.
                _ => None,
            },
            |at, told| {
                let number = chains.at(at)[0];
                answer(number, self.answer_of(&operations[number], told));
                Ok(())
            },
            async |session, at| {
                for number in chains.at(at) {
                    answer(*number, self.run_operation(session, &operations[*number]).await);
                }
                Ok(())
            },
        )
        .await?;
        let mut all = Vec::with_capacity(operations.len());
        for answer in answers.into_inner() {
            let answer = answer.unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Internal, "an operation of a batch was left out"))
            });
            all.push(self.explain(context, answer).await);
        }
        Ok(all)
    }

    /// The operation on what is stored that does the same; `None` if none does by itself.
    fn op_of<B: AsRef<[u8]>>(&self, operation: &Operation<B>) -> Option<Op> {
        let key = operation.key();
        let bytes = |value: &B| value.as_ref().to_vec();
        match (operation, self.info().content) {
            (Operation::Get(_), _) | (Operation::Record(_), Content::Records) => {
                Some(Op::Get { key: key.to_vec() })
            }
            (Operation::Insert(_, value), _) => self.upsert_op(key, value.as_ref(), Expiry::Never),
            (Operation::InsertWith(_, value, expiry), Content::Records) => {
                self.upsert_op(key, value.as_ref(), *expiry)
            }
            (Operation::InsertNew(_, value), Content::Raw) => {
                Some(Op::Insert { key: key.to_vec(), value: bytes(value) })
            }
            (Operation::Update(_, value), Content::Raw) => {
                Some(Op::Update { key: key.to_vec(), value: bytes(value) })
            }
            (Operation::Remove(_), Content::Raw) => Some(Op::Remove { key: key.to_vec() }),
            (Operation::CompareExchange { expected, new, .. }, Content::Raw) => {
                Some(Op::CompareExchange {
                    key: key.to_vec(),
                    expected: expected.as_ref().map(bytes),
                    new: new.as_ref().map(bytes),
                })
            }
            _ => None,
        }
    }

    /// The answer to an operation, of the owner's reply to the one of [`TableCore::op_of`].
    fn answer_of<B: AsRef<[u8]>>(
        &self,
        operation: &Operation<B>,
        told: std::result::Result<OpReply, IndexError>,
    ) -> Result<Answer> {
        let key = operation.key();
        Ok(match (self.named(told)?, operation) {
            (OpReply::Value(bytes), Operation::Record(_)) => {
                Answer::Record(self.record_of(key, bytes)?)
            }
            (OpReply::Value(bytes), _) => Answer::Value(self.content_of(key, bytes)?),
            (OpReply::Done(done), _) => Answer::Flag(done),
            (OpReply::Exchanged(Exchange::Done, _), _) => {
                Answer::Exchange(CompareExchange::Exchanged)
            }
            (OpReply::Exchanged(Exchange::Differs, found), _) => {
                Answer::Exchange(CompareExchange::Found(found))
            }
            _ => {
                let why = "an owner answered another operation than it was sent";
                return Err(Error::new(ErrorKind::Internal, why));
            }
        })
    }

    async fn run_operation<B: AsRef<[u8]>>(
        &self,
        session: &Session,
        operation: &Operation<B>,
    ) -> Result<Answer> {
        let flag = match operation {
            Operation::Get(key) => {
                return Ok(Answer::Value(self.value(session, key.as_ref()).await?));
            }
            Operation::CompareExchange { key, expected, new } => {
                let (key, expected) = (key.as_ref(), expected.as_ref().map(B::as_ref));
                let new = new.as_ref().map(B::as_ref);
                let exchange = self.exchange(session, key, expected, new).await?;
                return Ok(Answer::Exchange(exchange));
            }
            Operation::Record(key) => {
                let record = self.records_of(session)?.record(key.as_ref()).await;
                return Ok(Answer::Record(self.named(record)?));
            }
            Operation::InsertWith(key, value, expiry) => {
                let records = self.records_of(session)?;
                self.named(records.insert(key.as_ref(), value.as_ref(), *expiry).await)
            }
            Operation::Insert(key, value) => {
                self.upsert(session, key.as_ref(), value.as_ref()).await
            }
            Operation::InsertNew(key, value) => {
                self.insert(session, key.as_ref(), value.as_ref()).await
            }
            Operation::Update(key, value) => {
                self.update(session, key.as_ref(), value.as_ref()).await
            }
            Operation::Remove(key) => self.remove(session, key.as_ref()).await,
        };
        Ok(Answer::Flag(flag?))
    }

    /// See [`Table::compare_exchange`].
    pub(crate) async fn exchange(
        &self,
        session: &Session,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareExchange> {
        if let Some(records) = self.records(session) {
            let exchanged = self.named(records.compare_exchange(key, expected, new).await)?;
            return Ok(exchanged.map_or(CompareExchange::Exchanged, CompareExchange::Found));
        }
        let mut found = Vec::new();
        let done = self.index().compare_exchange(session, key, expected, new, &mut found).await;
        Ok(match self.named(done)? {
            (Exchange::Done, _) => CompareExchange::Exchanged,
            (Exchange::Differs, present) => CompareExchange::Found(present.then_some(found)),
        })
    }

    /// See [`Table::update_with`].
    pub(crate) async fn update_with(
        &self,
        context: &ThreadContext,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let session = context.session().await?;
        if let Some(records) = self.records(&session) {
            return self.named(records.update_string(key, change).await);
        }
        let new = |held: Option<&[u8]>| -> Result<Update, IndexError> {
            Ok(change(held).map_or(Update::Remove, Update::Put))
        };
        self.named(update_with(self.index(), &session, key, new).await)
    }

    /// See [`Table::longest_run`].
    pub(crate) async fn longest_run<K: AsRef<[u8]>>(
        &self,
        context: &ThreadContext,
        keys: &[K],
    ) -> Result<usize> {
        let (mut from, mut part) = (0, many::IN_FLIGHT_MAX);
        while from < keys.len() {
            let to = keys.len().min(from + part);
            let absent = Cell::new(to);
            many::for_each(context, to - from, async |session, at| {
                let at = from + at;
                // Those behind an absent key do not count.
                if at < absent.get() && !self.contains(session, keys[at].as_ref()).await? {
                    absent.set(absent.get().min(at));
                }
                Ok(())
            })
            .await?;
            if absent.get() < to {
                return Ok(absent.get());
            }
            (from, part) = (to, part * 2);
        }
        Ok(keys.len())
    }
}

/// Batches, and changes that depend on what a key holds.
impl Table {
    /// Runs operations of any kinds; returns their answers, in their order.
    ///
    /// Operations of one key take effect in their order. Those of different keys overlap, up to 32 at once, and take
    /// effect in any order; this is no transaction. One that fails stops none of the others.
    ///
    /// ```
    /// use farleaf::{Answer, Operation};
    ///
    /// # let table = farleaf::Farleaf::open("mem:")?.create_table("t", Default::default())?;
    /// let answers = table.run_batch([
    ///     Operation::Insert("ada", "1815"),
    ///     Operation::Get("ada"),
    ///     Operation::Remove("alan"),
    /// ])?;
    /// assert!(matches!(&answers[1], Ok(Answer::Value(Some(born))) if born == b"1815"));
    /// assert!(matches!(answers[2], Ok(Answer::Flag(false))), "alan was not there");
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    ///
    /// Cost: that of the operations; the waits of operations that overlap are shared. In a table whose keys have owners,
    /// each of the other compute servers gets one message for all operations on keys that come once.
    ///
    /// # Errors
    /// See [`Table`], for all of them; nothing was done then. An operation's own error stands in its place.
    pub fn run_batch<B: AsRef<[u8]>>(
        &self,
        operations: impl IntoIterator<Item = Operation<B>>,
    ) -> Result<Vec<Result<Answer>>> {
        let operations: Vec<_> = operations.into_iter().collect();
        self.run(async |core, context| core.run_batch(context, &operations).await)
    }

    /// Gives `key` the value that `change` makes of what it holds (`None`: is absent, or is to be), as one step;
    /// returns what it held before.
    ///
    /// ```
    /// # let table = farleaf::Farleaf::open("mem:")?.create_table("t", Default::default())?;
    /// let add_one = |held: Option<&[u8]>| {
    ///     let count = held.map_or(0, |held| u64::from_le_bytes(held.try_into().unwrap_or_default()));
    ///     Some((count + 1).to_le_bytes().to_vec())
    /// };
    /// assert_eq!(table.update_with("visits", add_one)?, None);
    /// assert_eq!(table.update_with("visits", add_one)?, Some(1_u64.to_le_bytes().to_vec()));
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    ///
    /// `change` runs once, and again each time that another client has changed the key meanwhile, up to 1,000 times. It
    /// should do nothing else than compute the value. If it returns what the key holds, nothing is written. In a table
    /// of records the new value expires when the old one would have.
    ///
    /// Cost: a get and a compare-exchange; a compare-exchange more for each change by another.
    ///
    /// # Errors
    /// As [`Table::insert`]; `Unavailable` also after 1,000 attempts.
    pub fn update_with(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let key = key.as_ref();
        self.run(async |core, context| core.update_with(context, key, change).await)
    }

    /// Counts the `keys` that are present before the first one that is not, in their order.
    ///
    /// Cost: that of [`Table::get_many`] of 32 keys, then of twice as many, and so on up to the part with the first
    /// absent key.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn longest_run<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<usize> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.run(async |core, context| core.longest_run(context, &keys).await)
    }
}

/// The same as futures.
impl AsyncTable {
    /// See [`Table::run_batch`].
    pub fn run_batch<B: AsRef<[u8]>, I: IntoIterator<Item = Operation<B>>>(
        &self,
        operations: I,
    ) -> impl Future<Output = Result<Vec<Result<Answer>>>> + Send + 'static + use<B, I> {
        let operations: Vec<_> = operations.into_iter().map(Operation::into_owned).collect();
        self.run(async move |core, context| core.run_batch(context, &operations).await)
    }

    /// See [`Table::update_with`].
    pub fn update_with<K: AsRef<[u8]>, F>(
        &self,
        key: K,
        change: F,
    ) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send + 'static + use<K, F>
    where
        F: FnMut(Option<&[u8]>) -> Option<Vec<u8>> + Send + 'static,
    {
        let key = own(key);
        self.run(async move |core, context| core.update_with(context, &key, change).await)
    }

    /// See [`Table::longest_run`].
    pub fn longest_run<K: AsRef<[u8]>, I: IntoIterator<Item = K>>(
        &self,
        keys: I,
    ) -> impl Future<Output = Result<usize>> + Send + 'static + use<K, I> {
        let keys: Vec<_> = keys.into_iter().map(own).collect();
        self.run(async move |core, context| core.longest_run(context, &keys).await)
    }
}
