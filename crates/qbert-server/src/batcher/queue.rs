//! What waits to be computed, and in which order it is taken.
//!
//! The order is that of self-clocked fair queueing: a sequence's tag is the clock at its request's arrival plus the tokens of
//! the request up to and including it, the smallest tag goes first, and the clock is the tag that was taken last. A short
//! request therefore overtakes the rest of a long one that came before, but nothing waits forever: new tags grow with the
//! clock. Sequences of one batch belong to one lane, which is a model and a scope.

use std::collections::BTreeMap;

/// The model's generation and how far its passes go.
pub(super) type LaneKey = (u64, u8);

/// A sequence's place: tag, and order of arrival among equal tags.
pub(super) type Place = (u64, u64);

/// Sequences of type `T` in the order in which they are computed.
#[derive(Debug)]
pub(super) struct Queue<T> {
    lanes: BTreeMap<LaneKey, BTreeMap<Place, Unit<T>>>,
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
            tag += tokens as u64;
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
            self.clock = self.clock.max(entry.key().0);
            let unit = entry.remove();
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
    use super::Queue;

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

    #[test]
    fn a_long_request_is_not_starved_by_short_ones() {
        let mut queue = Queue::new();
        queue.push(LANE, [("long", 500)]);
        let mut rounds = 0;
        loop {
            queue.push(LANE, [("short", 10), ("short", 10)]);
            rounds += 1;
            if taken(&mut queue, 20).contains(&"long") {
                break;
            }
            assert!(rounds < 1000, "starved");
        }
        assert!(rounds > 10, "the short ones went first for a while: {rounds}");
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
