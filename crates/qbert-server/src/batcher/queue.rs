//! What waits to be computed, and in which order it is taken.
//!
//! The clock counts the tokens that were taken. A sequence's tag is the clock at its request's arrival plus [`PATIENCE`] times
//! the tokens of the request up to and including it, and the smallest tag goes first. So a short request overtakes a long one
//! that came before, but only while the clock is below the long one's tag. The bound, however many requests come: from its
//! arrival on, a sequence waits for no more than `PATIENCE` times the tokens of its request up to and including it, and once
//! the tokens that may wait. (A clock that advances by tags instead, as in self-clocked fair queueing, stands nearly still
//! when hundreds of short requests wait, and a long one then waits for hundreds of times its tokens.)
//!
//! Sequences of one batch belong to one lane, which is a model and a scope.

use std::collections::BTreeMap;

/// The model's generation and how far its passes go.
pub(super) type LaneKey = (u64, u8);

/// A sequence's place: tag, and order of arrival among equal tags.
pub(super) type Place = (u64, u64);

/// How many times its own tokens a request lets later and shorter ones go first. A single long request among others has at
/// least this part of the machine; with less patience, short requests would wait for long ones even when few of them wait.
const PATIENCE: u64 = 8;

/// Sequences of type `T` in the order in which they are computed.
#[derive(Debug)]
pub(super) struct Queue<T> {
    lanes: BTreeMap<LaneKey, BTreeMap<Place, Unit<T>>>,
    /// Tokens that were taken.
    clock: u64,
    arrivals: u64,
    tokens: usize,
}

#[derive(Debug)]
struct Unit<T> {
    value: T,
    tokens: usize,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { lanes: BTreeMap::new(), clock: 0, arrivals: 0, tokens: 0 }
    }

    /// Appends a request's sequences with their tokens and returns their places.
    pub(super) fn push(&mut self, lane: LaneKey, sequences: impl IntoIterator<Item = (T, usize)>) -> Vec<Place> {
        let mut tag = self.clock;
        let units = self.lanes.entry(lane).or_default();
        let mut places = Vec::new();
        for (value, tokens) in sequences {
            tag += PATIENCE * tokens as u64;
            self.arrivals += 1;
            self.tokens += tokens;
            units.insert((tag, self.arrivals), Unit { value, tokens });
            places.push((tag, self.arrivals));
        }
        places
    }

    /// Takes out a sequence whose client has gone; `None` if it is being computed already.
    pub(super) fn remove(&mut self, lane: LaneKey, place: Place) -> Option<T> {
        let unit = self.lanes.get_mut(&lane)?.remove(&place)?;
        self.tokens -= unit.tokens;
        self.drop_if_empty(lane);
        Some(unit.value)
    }

    /// The next batch: sequences of the lane whose turn it is, of at most `most` tokens together, but at least one. Several
    /// workers share what waits, but no part is smaller than `least`.
    pub(super) fn take(&mut self, workers: usize, least: usize, most: usize) -> Option<Batch<T>> {
        let first =
            |(key, units): (&LaneKey, &BTreeMap<Place, Unit<T>>)| units.keys().next().map(|place| (*place, *key));
        let (_, lane) = self.lanes.iter().filter_map(first).min()?;
        let units = self.lanes.get_mut(&lane)?;
        let waiting: usize = units.values().map(|unit| unit.tokens).take(most).sum();
        let limit = waiting.div_ceil(workers.max(1)).max(least).min(most);
        let mut batch = Batch { values: Vec::new(), tokens: 0 };
        while let Some(entry) = units.first_entry() {
            if !batch.values.is_empty() && batch.tokens + entry.get().tokens > limit {
                break;
            }
            let unit = entry.remove();
            self.clock += unit.tokens as u64;
            self.tokens -= unit.tokens;
            batch.tokens += unit.tokens;
            batch.values.push(unit.value);
        }
        self.drop_if_empty(lane);
        Some(batch)
    }

    /// The tokens that wait.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    fn drop_if_empty(&mut self, lane: LaneKey) {
        if self.lanes.get(&lane).is_some_and(BTreeMap::is_empty) {
            self.lanes.remove(&lane);
        }
    }
}

/// Sequences to compute together.
#[derive(Debug)]
pub(super) struct Batch<T> {
    pub(super) values: Vec<T>,
    pub(super) tokens: usize,
}

#[cfg(test)]
mod tests {
    use super::{PATIENCE, Queue};

    const LANE: (u64, u8) = (0, 0);

    fn taken(queue: &mut Queue<&'static str>, most: usize) -> Vec<&'static str> {
        queue.take(1, 1, most).map(|batch| batch.values).unwrap_or_default()
    }

    #[test]
    fn a_short_request_overtakes_the_rest_of_a_long_one() {
        let mut queue = Queue::new();
        queue.push(LANE, [("long 1", 100), ("long 2", 100), ("long 3", 100)]);
        assert_eq!(taken(&mut queue, 100), ["long 1"]);
        queue.push(LANE, [("short", 10)]);
        assert_eq!(taken(&mut queue, 50), ["short"]);
        assert_eq!(taken(&mut queue, 200), ["long 2", "long 3"]);
        assert!(queue.take(1, 1, 1).is_none());
        assert_eq!(queue.tokens(), 0);
    }

    /// Tokens that go before the last sequence of `long` while short requests fill the queue again after every batch.
    fn tokens_before(long: &[usize], short: &[usize], room: usize) -> u64 {
        let mut queue = Queue::new();
        let mut shorts = short.iter().copied().cycle().peekable();
        let last = long.len() - 1;
        queue.push(LANE, long.iter().enumerate().map(|(index, &tokens)| ((index == last, tokens), tokens)));
        let mut before = 0;
        loop {
            while let Some(tokens) = shorts.next_if(|tokens| queue.tokens() + tokens <= room) {
                queue.push(LANE, [((false, tokens), tokens)]);
            }
            for (is_last, tokens) in queue.take(2, 128, 1024).expect("something waits").values {
                if is_last {
                    return before;
                }
                before += tokens as u64;
            }
        }
    }

    #[test]
    fn the_wait_is_bounded_by_the_own_tokens_and_the_queue() {
        let room = 1 << 15;
        for long in [&[512][..], &[100], &[512; 8], &[64; 40]] {
            let own: usize = long.iter().sum();
            for short in [&[10][..], &[3, 40, 7], &[100, 5], &[511]] {
                let waited = tokens_before(long, short, room);
                let bound = PATIENCE * own as u64 + room as u64;
                assert!(waited <= bound, "{long:?} waited for {waited} tokens of {short:?}, more than {bound}");
                // Otherwise the bound would hold because everything goes in order of arrival.
                assert!(waited > own as u64 || short[0] >= own, "{short:?} did not overtake {long:?}: {waited}");
            }
        }
    }

    #[test]
    fn a_short_request_does_not_wait_for_a_few_long_ones() {
        let mut queue = Queue::new();
        for _ in 0..4 {
            queue.push(LANE, [("long", 400); 50]);
        }
        for _ in 0..90 {
            assert_eq!(taken(&mut queue, 800), ["long"; 2]);
            queue.push(LANE, [("short", 20)]);
            assert_eq!(taken(&mut queue, 20), ["short"]);
        }
    }

    #[test]
    fn batches_keep_to_the_budget_and_to_one_lane() {
        let mut queue = Queue::new();
        queue.push((0, 0), (0..10).map(|_| ("a", 30)));
        queue.push((1, 0), (0..3).map(|_| ("b", 31)));
        let mut counts = Vec::new();
        while let Some(batch) = queue.take(1, 1, 100) {
            assert!(batch.tokens <= 100);
            assert!(batch.values.windows(2).all(|pair| pair[0] == pair[1]));
            counts.push(batch.values.len());
        }
        assert_eq!(counts.iter().sum::<usize>(), 13);
        queue.push(LANE, [("larger than any batch", 1000)]);
        assert_eq!(taken(&mut queue, 100).len(), 1);
    }

    #[test]
    fn workers_share_what_waits() {
        let mut queue = Queue::new();
        queue.push(LANE, (0..8).map(|_| ("a", 100)));
        assert_eq!(queue.take(2, 100, 1000).map(|batch| batch.tokens), Some(400));
        queue.push(LANE, [("tiny", 5)]);
        assert_eq!(queue.take(4, 300, 1000).map(|batch| batch.tokens), Some(205), "no part is too small");
    }

    #[test]
    fn places_of_clients_that_left_are_free_again() {
        let mut queue = Queue::new();
        let places = queue.push(LANE, [("gone", 10), ("gone", 10)]);
        queue.push(LANE, [("here", 10)]);
        assert_eq!(taken(&mut queue, 10), ["gone"]);
        assert!(queue.remove(LANE, places[0]).is_none(), "it is being computed");
        assert!(queue.remove(LANE, places[1]).is_some());
        assert_eq!(queue.tokens(), 10);
        assert_eq!(taken(&mut queue, 100), ["here"]);
    }
}
