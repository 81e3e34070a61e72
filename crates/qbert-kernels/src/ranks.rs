//! Ranks: several processes, perhaps on several machines, that compute one job together.
//!
//! [`Ranks`] is all that the rest of the code knows about them: who am I, how many are we, and four ways to pass numbers
//! on. Nothing here adds numbers: sums are formed by the code that knows their order, so that the number of ranks
//! changes no bit. A [`Compute`](crate::Compute) without ranks is a process alone, and costs nothing.
//!
//! All ranks call the same functions in the same order. A rank that cannot go on must end the others; how, is a matter
//! of what started them. [`LocalRanks`] are threads of one process, for tests.

use std::fmt;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

/// The processes that compute a job together, as one of them sees them.
pub trait Ranks: Send + Sync + fmt::Debug {
    /// The number of this one, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// Gives everybody everybody's values, one rank's after the other's. `counts` has the length of each rank's values.
    fn gather(&self, own: &[f32], counts: &[usize], all: &mut [f32]);

    /// Sends each rank its part of `own`, `sent` values each, and receives this rank's part of everybody's, `received`
    /// values each, one rank's after the other's.
    fn exchange(&self, own: &[f32], sent: &[usize], received: &[usize], all: &mut [f32]);

    /// Gives everybody everybody's bytes, whatever their number.
    fn gather_bytes(&self, own: &[u8]) -> Vec<Vec<u8>>;

    /// Gives everybody the values of rank 0.
    fn broadcast(&self, values: &mut [f32]);

    /// Whether this is the rank that writes files.
    fn writes(&self) -> bool {
        self.rank() == 0
    }
}

/// Ranks that are threads of one process, for tests.
#[derive(Debug, Clone)]
pub struct LocalRanks {
    rank: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    slots: Vec<Mutex<Vec<u8>>>,
    barrier: Barrier,
}

impl LocalRanks {
    /// So many ranks, one for each thread.
    pub fn team(size: usize) -> Vec<Self> {
        let slots = (0..size).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { slots, barrier: Barrier::new(size) });
        (0..size).map(|rank| Self { rank, shared: Arc::clone(&shared) }).collect()
    }

    /// Shows everybody these bytes and returns what `read` makes of all.
    fn meet<T>(&self, own: Vec<u8>, read: impl Fn(usize, &[u8]) -> T) -> Vec<T> {
        let lock = |rank: usize| self.shared.slots[rank].lock().unwrap_or_else(PoisonError::into_inner);
        *lock(self.rank) = own;
        self.shared.barrier.wait();
        let all = (0..self.size()).map(|rank| read(rank, &lock(rank))).collect();
        self.shared.barrier.wait();
        all
    }
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn to_values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

impl Ranks for LocalRanks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.slots.len()
    }

    fn gather(&self, own: &[f32], counts: &[usize], all: &mut [f32]) {
        let found = self.meet(to_bytes(own), |rank, bytes| {
            assert_eq!(bytes.len(), 4 * counts[rank], "rank {rank} has another number of values");
            to_values(bytes)
        });
        all.copy_from_slice(&found.concat());
    }

    fn exchange(&self, own: &[f32], sent: &[usize], received: &[usize], all: &mut [f32]) {
        let mut message = Vec::new();
        for count in sent {
            message.extend((*count as u64).to_le_bytes());
        }
        message.extend(to_bytes(own));
        let found = self.meet(message, |rank, bytes| {
            let (counts, values) = bytes.split_at(8 * self.size());
            let counts: Vec<usize> =
                counts.as_chunks::<8>().0.iter().map(|count| u64::from_le_bytes(*count) as usize).collect();
            assert_eq!(counts[self.rank], received[rank], "rank {rank} sends another number of values");
            let start: usize = counts[..self.rank].iter().sum();
            to_values(&values[4 * start..4 * (start + counts[self.rank])])
        });
        all.copy_from_slice(&found.concat());
    }

    fn gather_bytes(&self, own: &[u8]) -> Vec<Vec<u8>> {
        self.meet(own.to_vec(), |_, bytes| bytes.to_vec())
    }

    fn broadcast(&self, values: &mut [f32]) {
        let found = self.meet(to_bytes(values), |rank, bytes| if rank == 0 { to_values(bytes) } else { Vec::new() });
        values.copy_from_slice(&found[0]);
    }
}
