//! Load order: assigns the items of a load to clients, and orders them.

use std::{fmt, str::FromStr};

use farleaf_index::suggest::{did_you_mean, nearest};
use thiserror::Error;

use crate::distribution::Scramble;

/// The order of the load phase. Reads and prints `sequential`, `shuffled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadOrder {
    /// Item 0 first. In key order only if keys sort by item.
    Sequential,
    /// A seeded shuffle.
    Shuffled,
}

/// There is no such order.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "no load order is named \"{read}\"{}; known: sequential, shuffled",
    did_you_mean(nearest(read, LoadOrder::NAMES))
)]
pub struct LoadOrderError {
    /// The name as it was given.
    pub read: String,
}

impl LoadOrder {
    const NAMES: [&str; 2] = ["sequential", "shuffled"];
}

impl FromStr for LoadOrder {
    type Err = LoadOrderError;

    fn from_str(text: &str) -> Result<Self, LoadOrderError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "sequential" => Ok(Self::Sequential),
            "shuffled" => Ok(Self::Shuffled),
            _ => Err(LoadOrderError { read: text.to_owned() }),
        }
    }
}

impl fmt::Display for LoadOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequential => "sequential",
            Self::Shuffled => "shuffled",
        })
    }
}

/// The items that one client loads: an iterator in constant memory, whatever the order.
///
/// Invariant: the plans of clients `0..clients` with the same numbers and seed yield every item of
/// `0..items` exactly once between them.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    shuffle: Option<Scramble>,
    items: u64,
    next: u64,
    stride: u64,
}

impl LoadPlan {
    /// The share of client `client` of `clients` (0 counts as 1) in loading `items` items.
    ///
    /// Clients take turns: in `sequential` order client 1 of 4 loads items 1, 5, 9 and so on.
    pub fn new(items: u64, order: LoadOrder, seed: u64, client: u64, clients: u64) -> Self {
        let shuffle = match order {
            LoadOrder::Sequential => None,
            LoadOrder::Shuffled => Some(Scramble::new(items, seed ^ 0x10ad)),
        };
        Self { shuffle, items, next: client, stride: clients.max(1) }
    }
}

impl Iterator for LoadPlan {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.next >= self.items {
            return None;
        }
        let turn = self.next;
        self.next = turn.saturating_add(self.stride);
        Some(self.shuffle.as_ref().map_or(turn, |shuffle| shuffle.item(turn)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.items.saturating_sub(self.next).div_ceil(self.stride);
        usize::try_from(left).map_or((usize::MAX, None), |left| (left, Some(left)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn clients_load_everything_once() {
        for order in [LoadOrder::Sequential, LoadOrder::Shuffled] {
            for items in [0u64, 1, 5, 1000] {
                for clients in [1, 3, 8] {
                    let mut loaded = Vec::new();
                    for client in 0..clients {
                        let plan = LoadPlan::new(items, order, 1, client, clients);
                        let hint = plan.size_hint();
                        let share: Vec<u64> = plan.collect();
                        assert_eq!(hint, (share.len(), Some(share.len())));
                        loaded.extend(share);
                    }
                    loaded.sort_unstable();
                    assert!(loaded.iter().copied().eq(0..items), "{order} {items} {clients}");
                }
            }
        }
    }

    #[test]
    fn orders_differ_and_follow_the_seed() {
        let plan = |order, seed| LoadPlan::new(1000, order, seed, 0, 1).collect::<Vec<_>>();
        assert!(plan(LoadOrder::Sequential, 1).iter().copied().eq(0..1000));
        assert_ne!(plan(LoadOrder::Shuffled, 1), plan(LoadOrder::Sequential, 1));
        assert_ne!(plan(LoadOrder::Shuffled, 1), plan(LoadOrder::Shuffled, 2));
        assert_eq!(plan(LoadOrder::Shuffled, 1), plan(LoadOrder::Shuffled, 1));
    }

    #[test]
    fn orders_are_read_and_printed() {
        for order in [LoadOrder::Sequential, LoadOrder::Shuffled] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        let message = "shufled".parse::<LoadOrder>().unwrap_err().to_string();
        assert_eq!(
            message,
            "no load order is named \"shufled\"; did you mean \"shuffled\"?; known: sequential, \
             shuffled"
        );
    }
}
