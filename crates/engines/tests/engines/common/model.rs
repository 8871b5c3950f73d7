//! Model: runs random operations of one session on an index and on a `BTreeMap`.

use std::collections::BTreeMap;
use std::ops::Bound;

use farleaf_engines::TableFormat;
use farleaf_index::{Entries, Exchange, Index, IndexError, ScanRange};
use farleaf_pool::Session;

use super::{Pairs, check, key, value};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub struct Run<I> {
    session: Session,
    pub index: I,
    format: TableFormat,
    model: Model,
    rng: fastrand::Rng,
    space: u64,
    /// Faults of the index that `verify` does not see.
    look: fn(&I) -> Vec<String>,
}

impl<I: Index> Run<I> {
    /// Of an empty table, with keys out of a space of this size.
    pub fn new(
        session: Session,
        index: I,
        format: TableFormat,
        seed: u64,
        space: u64,
        look: fn(&I) -> Vec<String>,
    ) -> Self {
        let (model, rng) = (Model::new(), fastrand::Rng::with_seed(seed));
        Run { session, index, format, model, rng, space, look }
    }

    async fn steps(&mut self, steps: usize, grow: bool) {
        for step in 0..steps {
            if step % 64 == 0 {
                self.session.tick().await.expect("tick");
            }
            self.step(grow).await;
        }
    }

    async fn step(&mut self, grow: bool) {
        let key = key(&self.format, &mut self.rng, self.space);
        let value = value(&self.format, &mut self.rng);
        let (session, index) = (&self.session, &self.index);
        let present = self.model.contains_key(&key);
        match self.rng.u8(..if grow { 12 } else { 20 }) {
            0..4 => {
                let done = index.upsert(session, &key, &value).await.expect("upsert");
                assert_eq!(done, !present);
                self.model.insert(key, value);
            }
            4..6 => {
                let done = index.insert(session, &key, &value).await.expect("insert");
                assert_eq!(done, !present);
                self.model.entry(key).or_insert(value);
            }
            6 => {
                let done = index.update(session, &key, &value).await.expect("update");
                assert_eq!(done, present);
                self.model.entry(key).and_modify(|held| *held = value);
            }
            7 => self.exchange(key, value).await,
            8 | 9 => {
                let mut found = vec![1, 2, 3];
                let has = index.get(session, &key, &mut found).await.expect("get");
                assert_eq!(has.then_some(&found), self.model.get(&key));
            }
            10 => self.scan().await,
            _ => {
                let done = index.remove(session, &key).await.expect("remove");
                assert_eq!(done, self.model.remove(&key).is_some());
            }
        }
    }

    async fn exchange(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let held = self.model.get(&key).cloned();
        let expected = match self.rng.u8(..4) {
            0 => None,
            1 => Some(value.clone()),
            _ => held.clone(),
        };
        let new = self.rng.bool().then_some(value);
        let mut found = Vec::new();
        let (exchange, had) = self
            .index
            .compare_exchange(&self.session, &key, expected.as_deref(), new.as_deref(), &mut found)
            .await
            .expect("compare_exchange");
        assert_eq!(had.then_some(found), held);
        assert_eq!(exchange == Exchange::Done, expected == held);
        if exchange == Exchange::Done {
            match new {
                Some(new) => self.model.insert(key, new),
                None => self.model.remove(&key),
            };
        }
    }

    async fn scan(&mut self) {
        let ends = [0, 1].map(|_| key(&self.format, &mut self.rng, self.space));
        let mut bound = |key| match self.rng.u8(..4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(key),
            _ => Bound::Included(key),
        };
        let range =
            ScanRange { from: bound(&ends[0][..]), to: bound(&ends[1][..]), reverse: false };
        let range = ScanRange { reverse: self.rng.bool(), ..range };
        let limit = self.rng.usize(..30);
        let mut out = Entries::new();
        self.index.scan(&self.session, range, limit, &mut out).await.expect("scan");
        let inside = |key: &Vec<u8>| {
            let above = match range.from {
                Bound::Unbounded => true,
                Bound::Included(from) => key.as_slice() >= from,
                Bound::Excluded(from) => key.as_slice() > from,
            };
            let below = match range.to {
                Bound::Unbounded => true,
                Bound::Included(to) => key.as_slice() <= to,
                Bound::Excluded(to) => key.as_slice() < to,
            };
            above && below
        };
        let hits = self.model.iter().filter(|(key, _)| inside(key));
        let expected: Vec<_> = if range.reverse {
            hits.rev().take(limit).collect()
        } else {
            hits.take(limit).collect()
        };
        let got: Vec<_> = out.iter().collect();
        assert_eq!(got.len(), expected.len(), "{range:?}, limit {limit}");
        for ((key, value), expected) in got.into_iter().zip(expected) {
            assert_eq!((key, value), (expected.0.as_slice(), expected.1.as_slice()));
        }
    }

    /// The whole content, the structure, and the pool's accounts.
    async fn check(&self) {
        let mut out = Entries::new();
        self.index.scan(&self.session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        let model: Vec<_> =
            self.model.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        assert_eq!(out.iter().collect::<Vec<_>>(), model);
        assert_eq!((self.look)(&self.index), Vec::<String>::new());
        let report = check(&self.session, &[&self.index]).await;
        assert_eq!(report.keys, self.model.len() as u64);
        assert_eq!(report.unfinished_splits, 0);
    }

    /// The table grows and shrinks, three times, and is emptied in the end.
    pub async fn random_operations(&mut self, steps: usize) {
        self.check().await;
        for _ in 0..3 {
            self.steps(steps / 6, true).await;
            self.check().await;
            self.steps(steps / 6, false).await;
            self.check().await;
        }
        // Everything goes; a lone leaf is left.
        for key in std::mem::take(&mut self.model).into_keys() {
            assert!(self.index.remove(&self.session, &key).await.expect("remove"));
            self.session.tick().await.expect("tick");
        }
        self.check().await;
    }

    /// The table is filled at once, which works once, and then used.
    pub async fn bulk_then_random(&mut self, pairs: usize, steps: usize) {
        while self.model.len() < pairs {
            let key = key(&self.format, &mut self.rng, 1 << 40);
            self.model.insert(key, value(&self.format, &mut self.rng));
        }
        let pairs: Vec<_> = self.model.clone().into_iter().collect();
        let loaded = self.index.bulk_load(&self.session, &mut Pairs(pairs.iter())).await;
        assert_eq!(loaded, Ok(pairs.len() as u64));
        let again = self.index.bulk_load(&self.session, &mut Pairs(pairs.iter())).await;
        assert!(matches!(again, Err(IndexError::Invalid(_))), "{again:?}");
        self.check().await;
        self.steps(steps, false).await;
        self.check().await;
    }
}
