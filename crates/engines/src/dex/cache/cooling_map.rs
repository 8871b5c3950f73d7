//! Cooling map: holds eviction candidates in small FIFO buckets.
//!
//! A *Cooling* frame is clean, no pointer is swizzled to it, and nobody reads it. The thread that takes
//! it out of its bucket owns it and decides: a descent swizzles it again (its second chance), eviction
//! frees it. So `INV-DEX-COOL-1`: a frame is Cooling from when it is put into a bucket until it is
//! taken out, and exactly one thread takes it out.

use std::ops::DerefMut;

use super::cooling_queue::CoolingQueue;
use crate::sync::{AtomicUsize, Mutex, Ordering, SharedLines, lock};

/// Frames of a bucket.
const SLOTS: usize = 6;

/// Frames from the oldest to the youngest.
#[derive(Debug)]
struct Fifo {
    frames: [u32; SLOTS],
    tags: [u16; SLOTS],
    count: u8,
}

/// A line of the processor's cache.
#[derive(Debug)]
#[repr(align(64))]
struct Bucket {
    fifo: Mutex<Fifo>,
    /// 1 if there are frames, else 0; changes under the lock. Read without it, it is a hint: who looks for any frame passes
    /// an empty bucket, and leaves its line where it is.
    has_frames: AtomicUsize,
}

impl Bucket {
    /// Takes out the frame of `place`, if that finds one.
    fn take(&self, place: impl FnOnce(&Fifo) -> Option<usize>) -> Option<u32> {
        let mut fifo = lock(&self.fifo);
        let out = place(&fifo).and_then(|at| fifo.take(at));
        self.has_frames.store(usize::from(fifo.count > 0), Ordering::Relaxed);
        out
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is one line");

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct CoolingMap {
    stage: Stage,
    /// A line for each lock.
    lines: SharedLines,
}

#[derive(Debug)]
enum Stage {
    Buckets(Box<[Bucket]>),
    /// The alternative for comparison: all frames in one queue behind one lock.
    Queue(Mutex<CoolingQueue>),
}

impl CoolingMap {
    /// Makes a map with room for `ratio` of `frames`, in buckets, or in a single queue.
    pub(crate) fn new(frames: usize, ratio: f64, single_queue: bool) -> Self {
        let room = (frames as f64 * ratio).ceil() as usize;
        let count = if single_queue { 1 } else { room.div_ceil(SLOTS).max(1) };
        let fifo = || Fifo { frames: [0; SLOTS], tags: [0; SLOTS], count: 0 };
        let stage = match single_queue {
            true => Stage::Queue(Mutex::new(CoolingQueue::new(frames, room))),
            false => {
                let bucket =
                    || Bucket { fifo: Mutex::new(fifo()), has_frames: AtomicUsize::new(0) };
                Stage::Buckets((0..count).map(|_| bucket()).collect())
            }
        };
        CoolingMap { stage, lines: SharedLines::new(count) }
    }

    /// Number of buckets.
    pub(crate) fn buckets(&self) -> usize {
        match &self.stage {
            Stage::Buckets(buckets) => buckets.len(),
            Stage::Queue(_) => 1,
        }
    }

    /// Returns the bucket of an address, and its tag there.
    fn place<'a>(&self, buckets: &'a [Bucket], addr: u64) -> (&'a Bucket, u16) {
        let hash = (addr >> 6).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let bucket = ((u128::from(hash) * buckets.len() as u128) >> 64) as usize;
        (self.bucket(buckets, bucket), hash as u16)
    }

    /// A bucket, which the caller locks.
    fn bucket<'a>(&self, buckets: &'a [Bucket], index: usize) -> &'a Bucket {
        self.lines.change(index);
        &buckets[index]
    }

    /// The queue, locked.
    fn locked<'a>(
        &self,
        queue: &'a Mutex<CoolingQueue>,
    ) -> impl DerefMut<Target = CoolingQueue> + 'a {
        self.lines.change(0);
        lock(queue)
    }

    /// Inserts a frame as the youngest of its bucket. A full bucket gives up its oldest frame to the
    /// caller.
    #[must_use = "a frame that comes out is the caller's to evict"]
    pub(crate) fn insert(&self, addr: u64, frame: u32) -> Option<u32> {
        let buckets = match &self.stage {
            Stage::Buckets(buckets) => buckets,
            Stage::Queue(queue) => return self.locked(queue).insert(addr, frame),
        };
        let (bucket, tag) = self.place(buckets, addr);
        let mut fifo = lock(&bucket.fifo);
        let out = if usize::from(fifo.count) == SLOTS { fifo.take(0) } else { None };
        let at = usize::from(fifo.count);
        (fifo.frames[at], fifo.tags[at]) = (frame, tag);
        fifo.count += 1;
        bucket.has_frames.store(1, Ordering::Relaxed);
        out
    }

    /// Takes out the frame that holds `addr`; returns whether it was there.
    pub(crate) fn remove(&self, addr: u64, frame: u32) -> bool {
        let buckets = match &self.stage {
            Stage::Buckets(buckets) => buckets,
            Stage::Queue(queue) => return self.locked(queue).remove(addr, frame),
        };
        let (bucket, tag) = self.place(buckets, addr);
        let found = bucket.take(|fifo| {
            let mut taken = 0..usize::from(fifo.count);
            taken.find(|&at| fifo.tags[at] == tag && fifo.frames[at] == frame)
        });
        found.is_some()
    }

    /// Takes out the oldest frame of bucket `index`. It may miss one that another thread puts there at the same time.
    pub(crate) fn take_oldest(&self, index: usize) -> Option<u32> {
        match &self.stage {
            Stage::Buckets(buckets) if buckets[index].has_frames.load(Ordering::Relaxed) > 0 => {
                self.bucket(buckets, index).take(|_| Some(0))
            }
            Stage::Buckets(_) => None,
            Stage::Queue(queue) => self.locked(queue).take_oldest(),
        }
    }

    /// Returns all Cooling frames.
    pub(crate) fn frames(&self) -> Vec<u32> {
        let buckets = match &self.stage {
            Stage::Buckets(buckets) => buckets,
            Stage::Queue(queue) => return lock(queue).frames(),
        };
        let mut frames = Vec::new();
        for bucket in buckets {
            let fifo = lock(&bucket.fifo);
            frames.extend_from_slice(&fifo.frames[..usize::from(fifo.count)]);
        }
        frames
    }
}

impl Fifo {
    fn take(&mut self, at: usize) -> Option<u32> {
        let count = usize::from(self.count);
        if at >= count {
            return None;
        }
        let frame = self.frames[at];
        self.frames.copy_within(at + 1..count, at);
        self.tags.copy_within(at + 1..count, at);
        self.count -= 1;
        Some(frame)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_full_bucket_gives_its_oldest() {
        let map = CoolingMap::new(8, 0.1, false);
        assert_eq!(map.buckets(), 1);
        for frame in 0..6 {
            assert_eq!(map.insert(u64::from(frame + 1) * 64, frame), None);
        }
        assert_eq!(map.insert(700, 6), Some(0));
        assert!(map.remove(3 * 64, 2) && !map.remove(3 * 64, 2));
        assert!(!map.remove(64, 0), "it came out before");
        assert_eq!(map.frames(), [1, 3, 4, 5, 6]);
        assert_eq!(map.insert(64, 0), None);
        assert_eq!(
            (0..7).filter_map(|_| map.take_oldest(0)).collect::<Vec<_>>(),
            [1, 3, 4, 5, 6, 0]
        );
    }

    #[test]
    fn addresses_spread_over_the_buckets() {
        let map = CoolingMap::new(6_000, 0.1, false);
        assert_eq!(map.buckets(), 100);
        let out =
            (0..600).filter_map(|frame| map.insert((u64::from(frame) + 5) << 10, frame)).count();
        assert!(out < 150, "{out} of 600 came out early");
        assert_eq!(map.frames().len() + out, 600);
    }
}
