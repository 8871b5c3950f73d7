//! Free frames: a short list of empty frames for each worker, one for all, and the reserve.

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// Lists that workers share by their number.
const LOCAL_LISTS: usize = 64;
/// Frames of a worker's own list.
const LOCAL_CAP: usize = 16;

/// `INV-DEX-FREE-1`: a frame is in one list at most, once, and only while its latch is dead.
#[derive(Debug)]
pub(crate) struct FreeFrames {
    local: Box<[Mutex<Vec<u32>>]>,
    global: Mutex<Vec<u32>>,
    /// Frames in all lists, or on their way there: a look into each costs more than most of a miss.
    listed: AtomicUsize,
    /// Frames from here on were never used.
    fresh: AtomicUsize,
    frames: usize,
    /// Free frames beyond these, for the one operation that may take them.
    reserve: Mutex<Vec<u32>>,
    /// Frames of the reserve that are in use.
    reserve_used: AtomicUsize,
}

impl FreeFrames {
    /// Makes the lists of `frames` frames that were never used, and of `reserve` more.
    pub(crate) fn new(frames: usize, reserve: usize) -> Self {
        FreeFrames {
            local: (0..LOCAL_LISTS).map(|_| Mutex::new(Vec::new())).collect(),
            global: Mutex::new(Vec::new()),
            listed: AtomicUsize::new(0),
            fresh: AtomicUsize::new(0),
            frames,
            reserve: Mutex::new((frames as u32..(frames + reserve) as u32).rev().collect()),
            reserve_used: AtomicUsize::new(0),
        }
    }

    /// Returns the number of frames in use at about this moment.
    pub(crate) fn used_count(&self) -> usize {
        let fresh = self.fresh.load(Ordering::Relaxed).min(self.frames);
        let reserve = self.reserve_used.load(Ordering::Relaxed);
        fresh.saturating_sub(self.listed.load(Ordering::Relaxed)) + reserve
    }

    /// Returns the number of frames that may be in use: without the reserve, if nothing of it is.
    pub(crate) fn bound(&self, all: usize) -> usize {
        if self.reserve_used.load(Ordering::Relaxed) == 0 { self.frames } else { all }
    }

    /// Takes a frame of the reserve.
    pub(crate) fn pop_reserve(&self) -> Option<u32> {
        let frame = lock(&self.reserve).pop();
        self.reserve_used.fetch_add(frame.is_some().into(), Ordering::Relaxed);
        frame
    }

    /// Returns whether there are frames that were never used.
    pub(crate) fn has_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) < self.frames
    }

    /// Takes a free frame for `worker`: from its own list, a fresh one, from the common list, or from
    /// another's.
    pub(crate) fn pop(&self, worker: u32) -> Option<u32> {
        let listed = |frame: u32| {
            self.listed.fetch_sub(1, Ordering::Relaxed);
            frame
        };
        let is_any_listed = self.listed.load(Ordering::Relaxed) > 0;
        if is_any_listed && let Some(frame) = lock(&self.local[worker as usize % LOCAL_LISTS]).pop()
        {
            return Some(listed(frame));
        }
        if self.has_fresh() {
            let frame = self.fresh.fetch_add(1, Ordering::Relaxed);
            if frame < self.frames {
                return Some(frame as u32);
            }
        }
        if !is_any_listed {
            return None;
        }
        if let Some(frame) = lock(&self.global).pop() {
            return Some(listed(frame));
        }
        // A worker that sleeps must not keep what others need.
        self.local.iter().find_map(|list| lock(list).pop()).map(listed)
    }

    /// Takes back a frame that `worker` has freed.
    pub(crate) fn push(&self, worker: u32, frame: u32) {
        if frame as usize >= self.frames {
            lock(&self.reserve).push(frame);
            self.reserve_used.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.listed.fetch_add(1, Ordering::Relaxed);
        let mut local = lock(&self.local[worker as usize % LOCAL_LISTS]);
        if local.len() < LOCAL_CAP {
            local.push(frame);
        } else {
            drop(local);
            lock(&self.global).push(frame);
        }
    }

    /// Returns every free frame.
    pub(crate) fn frames(&self) -> Vec<u32> {
        let fresh = self.fresh.load(Ordering::Relaxed).min(self.frames);
        let mut frames: Vec<u32> = (fresh as u32..self.frames as u32).collect();
        frames.extend_from_slice(&lock(&self.global));
        frames.extend_from_slice(&lock(&self.reserve));
        for list in &self.local {
            frames.extend_from_slice(&lock(list));
        }
        frames
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_frame_comes_out_once_and_goes_back() {
        let free = FreeFrames::new(40, 2);
        let mut taken: Vec<u32> = (0..40).map(|_| free.pop(1).expect("free")).collect();
        assert_eq!((free.pop(1), free.pop(2), free.has_fresh()), (None, None, false));
        taken.sort_unstable();
        assert_eq!(taken, (0..40).collect::<Vec<_>>());
        for frame in 0..40 {
            free.push(1, frame);
        }
        assert_eq!(lock(&free.global).len(), 24);
        let mut others: Vec<u32> = std::iter::from_fn(|| free.pop(2)).collect();
        others.sort_unstable();
        assert_eq!(others, taken, "also those of the first one's own list");
        assert_eq!((free.used_count(), free.bound(42)), (40, 40));
        let reserve = [(); 3].map(|()| free.pop_reserve());
        assert_eq!(reserve, [Some(40), Some(41), None]);
        assert_eq!((free.used_count(), free.bound(42)), (42, 42));
        (40..42).for_each(|frame| free.push(2, frame));
        assert_eq!((free.pop(2), free.used_count(), free.bound(42)), (None, 40, 40));
    }
}
