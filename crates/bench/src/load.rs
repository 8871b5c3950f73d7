//! Load plan: assigns the items of a load to clients, in a shuffled order.

use crate::distribution::Scramble;

/// The items that one client loads, in a seeded shuffle: an iterator in constant memory.
///
/// Invariant: the plans of clients `0..clients` with the same numbers and seed yield every item of
/// `0..items` exactly once between them.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    shuffle: Scramble,
    items: u64,
    next: u64,
    stride: u64,
}

impl LoadPlan {
    /// The share of client `client` of `clients` (0 counts as 1) in loading `items` items.
    ///
    /// Clients take turns: client 1 of 4 loads the items at places 1, 5, 9 and so on of the shuffle.
    pub fn new(items: u64, seed: u64, client: u64, clients: u64) -> Self {
        let shuffle = Scramble::new(items, seed ^ 0x10ad);
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
        Some(self.shuffle.item(turn))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.items.saturating_sub(self.next).div_ceil(self.stride);
        usize::try_from(left).map_or((usize::MAX, None), |left| (left, Some(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_load_everything_once() {
        for items in [0u64, 1, 5, 1000] {
            for clients in [1, 3, 8] {
                let mut loaded = Vec::new();
                for client in 0..clients {
                    let plan = LoadPlan::new(items, 1, client, clients);
                    let hint = plan.size_hint();
                    let share: Vec<u64> = plan.collect();
                    assert_eq!(hint, (share.len(), Some(share.len())));
                    loaded.extend(share);
                }
                loaded.sort_unstable();
                assert!(loaded.iter().copied().eq(0..items), "{items} {clients}");
            }
        }
    }

    #[test]
    fn orders_are_shuffled_and_follow_the_seed() {
        let plan = |seed| LoadPlan::new(1000, seed, 0, 1).collect::<Vec<_>>();
        assert!(!plan(1).iter().copied().eq(0..1000));
        assert_ne!(plan(1), plan(2));
        assert_eq!(plan(1), plan(1));
    }
}
