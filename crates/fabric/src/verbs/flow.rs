//! RPC flow control: counts, at each end of a queue pair, the RPCs that are under way.
//!
//! Message `n` has place `n` modulo the number of places, at both ends.

use std::collections::VecDeque;

/// Requests that a client has sent, and their answers.
///
/// - **VERBS-11** One of the granted places is in use from when a request is put into it until that has been
///   sent and answered.
#[derive(Debug)]
pub(crate) struct ClientFlow {
    granted: u64,
    put: u64,
    sent: u64,
    answered: u64,
}

impl ClientFlow {
    /// At most `granted` under way.
    pub(crate) fn new(granted: u16) -> ClientFlow {
        ClientFlow { granted: granted.into(), put: 0, sent: 0, answered: 0 }
    }

    /// Returns whether any request may be under way.
    pub(crate) fn is_granted(&self) -> bool {
        self.granted > 0
    }

    /// Returns whether one more request may be put into its place (VERBS-11).
    pub(crate) fn has_room(&self) -> bool {
        self.put - self.answered.min(self.sent) < self.granted
    }

    /// Puts one more request into its place; returns its number.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn put(&mut self) -> u64 {
        assert!(self.has_room(), "VERBS-11");
        self.put += 1;
        self.put - 1
    }

    /// Requests that were put into their places.
    pub(crate) fn all(&self) -> u64 {
        self.put
    }

    /// One more request has been sent.
    pub(crate) fn sent(&mut self) {
        self.sent += 1;
    }

    /// Answers that have come, which is the number of the next.
    pub(crate) fn next_answer(&self) -> u64 {
        self.answered
    }

    /// Counts one more answer; false if none was due.
    pub(crate) fn answered(&mut self) -> bool {
        let is_due = self.answered < self.put;
        self.answered += u64::from(is_due);
        is_due
    }
}

/// Requests that a server has received, and its answers.
///
/// - **VERBS-12** A request is carried out only when the place of its answer has nothing in it that is being
///   sent. There are as many places as requests may be under way.
#[derive(Debug)]
pub(crate) struct ServerFlow {
    places: u64,
    /// Bytes of requests that have arrived and wait.
    waiting: VecDeque<u32>,
    answered: u64,
    sent: u64,
}

impl ServerFlow {
    /// Of as many places each way.
    pub(crate) fn new(places: u16) -> ServerFlow {
        let waiting = VecDeque::with_capacity(places.into());
        ServerFlow { places: places.into(), waiting, answered: 0, sent: 0 }
    }

    /// A request of so many bytes has arrived.
    pub(crate) fn came(&mut self, bytes: u32) {
        self.waiting.push_back(bytes);
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns number and bytes of the request to carry out now, if there is one (VERBS-12).
    pub(crate) fn next(&self) -> Option<(u64, u32)> {
        let has_place = self.answered - self.sent < self.places;
        let bytes = self.waiting.front().filter(|_| has_place)?;
        Some((self.answered, *bytes))
    }

    /// The request has been carried out. Returns its number, which is also its answer's, and the number of
    /// the message that will arrive in its place.
    pub(crate) fn carried_out(&mut self) -> (u64, u64) {
        self.waiting.pop_front();
        self.answered += 1;
        (self.answered - 1, self.answered - 1 + self.places)
    }

    /// One more answer has been sent.
    pub(crate) fn sent(&mut self) {
        self.sent += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue pair between both: messages arrive in their order, some time after their posts, and a
    /// completion comes some time after the arrival.
    #[derive(Default)]
    struct Wire {
        flying: VecDeque<u64>,
        /// Posted receives of the other end.
        receives: u64,
        untold: u64,
        /// Messages in the places, until their ends are reported.
        places: VecDeque<u64>,
    }

    impl Wire {
        fn send(&mut self, number: u64, places: u64) {
            let in_place = self.places.iter().any(|other| other % places == number % places);
            assert!(!in_place, "message {number} was put over one that is being sent");
            self.places.push_back(number);
            assert!(self.places.len() as u64 <= places, "more than the send queue takes");
            self.flying.push_back(number);
        }

        fn deliver(&mut self) -> Option<u64> {
            let number = self.flying.pop_front()?;
            assert!(self.receives > 0, "no receive is posted for message {number}");
            self.receives -= 1;
            self.untold += 1;
            Some(number)
        }

        fn tell(&mut self) -> bool {
            let tells = self.untold > 0;
            if tells {
                self.untold -= 1;
                self.places.pop_front();
            }
            tells
        }
    }

    /// For each interleaving: no message meets an empty receive queue or another's place, and all are
    /// answered once, in order.
    #[test]
    fn a_receive_is_always_there() {
        const ALL: u64 = 200;
        for seed in 0..400 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let places = rng.u16(1..=5);
            let granted = rng.u16(1..=places);
            let (mut asked, mut served) = (ClientFlow::new(granted), ServerFlow::new(granted));
            let of = |receives: u16| Wire { receives: receives.into(), ..Wire::default() };
            // Each end has posted as many as it has places.
            let (mut there, mut back) = (of(granted), of(places));
            let (mut done, mut steps) = (0, 0);
            while done < ALL {
                steps += 1;
                assert!(steps < 100_000, "seed {seed}: it hangs at {done}");
                match rng.u8(..7) {
                    0 | 1 if asked.all() < ALL && asked.has_room() => {
                        there.send(asked.put(), granted.into());
                    }
                    2 => _ = there.deliver().map(|number| served.came(number as u32)),
                    3 if let Some((number, bytes)) = served.next() => {
                        assert_eq!(number, u64::from(bytes), "out of order");
                        let (number, again) = served.carried_out();
                        assert_eq!(again, number + u64::from(granted));
                        there.receives += 1;
                        back.send(number, granted.into());
                    }
                    4 if back.receives > 0 || back.flying.is_empty() => {
                        if let Some(number) = back.deliver() {
                            assert_eq!(number, asked.next_answer());
                            assert!(asked.answered());
                            back.receives += 1;
                            done += 1;
                        }
                    }
                    5 if there.tell() => asked.sent(),
                    6 if back.tell() => served.sent(),
                    _ => {}
                }
            }
            assert!(!asked.answered(), "an answer that nobody waits for");
            assert!(!served.has_waiting());
        }
    }

    #[test]
    fn without_places_nothing_is_sent() {
        let asked = ClientFlow::new(0);
        assert!(!asked.is_granted() && !asked.has_room());
        assert!(ClientFlow::new(1).has_room());
    }
}
