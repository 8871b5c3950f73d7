//! Cooling queue: one FIFO of all Cooling frames, the alternative to the cooling map's buckets.
//!
//! It exists for comparison (`DexOptions::single_queue`). A frame is found by its number, so that each
//! operation takes constant time under the one lock. It compares the address as well: when somebody asks
//! for a frame, the frame may hold another node.

/// No frame.
const NONE: u32 = u32::MAX;

/// Neighbours of a frame in the queue.
#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    younger: u32,
    /// The address of the frame's node; 0 if the frame is not in the queue.
    addr: u64,
}

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct CoolingQueue {
    links: Vec<Link>,
    oldest: u32,
    youngest: u32,
    count: usize,
    room: usize,
}

impl CoolingQueue {
    /// A queue for frames below `frames`, at most `room` of them at a time.
    pub(crate) fn new(frames: usize, room: usize) -> Self {
        let link = Link { older: NONE, younger: NONE, addr: 0 };
        CoolingQueue {
            links: vec![link; frames],
            oldest: NONE,
            youngest: NONE,
            count: 0,
            room: room.max(1),
        }
    }

    /// Puts the frame that holds `addr`, which is not 0, in as the youngest. If there is no room the
    /// oldest comes out.
    pub(crate) fn insert(&mut self, addr: u64, frame: u32) -> Option<u32> {
        debug_assert!(addr != 0 && self.links[frame as usize].addr == 0, "INV-DEX-COOL-1");
        let out = if self.count == self.room { self.take_oldest() } else { None };
        self.links[frame as usize] = Link { older: self.youngest, younger: NONE, addr };
        match self.youngest {
            NONE => self.oldest = frame,
            youngest => self.links[youngest as usize].younger = frame,
        }
        self.youngest = frame;
        self.count += 1;
        out
    }

    /// Takes out the frame that holds `addr`, if it is in.
    pub(crate) fn remove(&mut self, addr: u64, frame: u32) -> bool {
        let Link { older, younger, addr: held } = self.links[frame as usize];
        if held != addr || held == 0 {
            return false;
        }
        match older {
            NONE => self.oldest = younger,
            older => self.links[older as usize].younger = younger,
        }
        match younger {
            NONE => self.youngest = older,
            younger => self.links[younger as usize].older = older,
        }
        self.links[frame as usize].addr = 0;
        self.count -= 1;
        true
    }

    /// Takes the oldest out.
    pub(crate) fn take_oldest(&mut self) -> Option<u32> {
        let oldest = self.oldest;
        let addr = self.links.get(oldest as usize)?.addr;
        self.remove(addr, oldest).then_some(oldest)
    }

    /// All frames, the oldest first.
    pub(crate) fn frames(&self) -> Vec<u32> {
        let mut frames = Vec::with_capacity(self.count);
        let mut at = self.oldest;
        while at != NONE {
            frames.push(at);
            at = self.links[at as usize].younger;
        }
        frames
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn it_is_a_queue_from_which_any_can_go() {
        let mut queue = CoolingQueue::new(20, 5);
        let mut model = VecDeque::new();
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..5_000 {
            let frame = rng.u32(..20);
            let addr = u64::from(frame + 1) << 10;
            match rng.u8(..4) {
                0 => assert_eq!(queue.take_oldest(), model.pop_front()),
                1 => {
                    let place = model.iter().position(|held| *held == frame);
                    assert!(!queue.remove(addr + 64, frame), "it holds another node");
                    assert_eq!(queue.remove(addr, frame), place.is_some());
                    place.and_then(|place| model.remove(place));
                }
                _ if model.contains(&frame) => {}
                _ => {
                    let out = if model.len() == 5 { model.pop_front() } else { None };
                    model.push_back(frame);
                    assert_eq!(queue.insert(addr, frame), out);
                }
            }
            assert!(model.iter().eq(&queue.frames()));
        }
    }
}
