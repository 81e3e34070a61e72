//! `mpirun -n N qbert …`: the processes that MPI started, and what each of them may do.
//!
//! `run`, `finetune`, `quantize` and `analyze` share their work between the ranks; rank 0 alone writes, prints and shows
//! progress. Other verbs do not know about ranks. A binary without the feature `mpi` refuses to be one of several copies of
//! such a job, which would write the same files.
//!
//! A rank that fails ends all of them, after a moment in which rank 0, which most often fails for the same reason, can say
//! so alone. A rank that is killed is noticed by `mpirun`, which ends the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use qbert_kernels::Ranks;
use qbert_pipeline::{Error, ErrorKind, Result};

/// What `mpirun` of Open MPI, and that of MPICH, tell a process about the number of processes.
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

static RANKS: OnceLock<Arc<dyn Ranks>> = OnceLock::new();

/// The ranks of this job, if there are others.
pub(crate) fn current() -> Option<&'static Arc<dyn Ranks>> {
    RANKS.get()
}

/// The number of this rank, if it is not the one that writes and prints.
pub(crate) fn helper() -> Option<usize> {
    current().map(|ranks| ranks.rank()).filter(|&rank| rank > 0)
}

/// The number of processes that were started together, if any were.
fn started() -> Option<usize> {
    SIZES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// MPI, as long as the command runs.
pub(crate) struct World {
    #[cfg(feature = "mpi")]
    _universe: Option<mpi::environment::Universe>,
}

/// Joins the others, if MPI has started this process for a job that ranks share.
///
/// # Errors
/// Several processes of a binary that was built without MPI; an MPI that cannot be initialized.
pub(crate) fn join(is_shared: bool) -> Result<World> {
    let started = started().filter(|_| is_shared);
    #[cfg(feature = "mpi")]
    {
        let mut universe = None;
        if started.is_some() {
            let refused = || {
                let hint = "does `mpirun` belong to the MPI that qbert was built with?".to_owned();
                Error::new(ErrorKind::Environment, "MPI cannot be initialized".to_owned(), hint)
            };
            let (own, _) = mpi::initialize_with_threading(mpi::Threading::Serialized).ok_or_else(refused)?;
            universe = Some(own);
            let ranks: Arc<dyn Ranks> = Arc::new(through_mpi::Mpi::new());
            if ranks.size() > 1 {
                let _ = RANKS.set(ranks);
            }
        }
        Ok(World { _universe: universe })
    }
    #[cfg(not(feature = "mpi"))]
    match started.filter(|&size| size > 1) {
        None => Ok(World {}),
        Some(size) => {
            let message = format!(
                "MPI has started {size} processes, but this qbert was built without MPI: each would do the whole job, in the same directory"
            );
            let hint = "build it with `cargo build --release --features mpi`, or start one process".to_owned();
            Err(Error::new(ErrorKind::BadInput, message, hint))
        }
    }
}

/// Refuses what only one process does.
///
/// # Errors
/// More than one rank.
pub(crate) fn refuse(what: &str) -> Result<()> {
    match current() {
        None => Ok(()),
        Some(ranks) => {
            let message = format!("{what} is not shared between ranks, and there are {}", ranks.size());
            Err(Error::new(ErrorKind::BadInput, message, "start one process".to_owned()))
        }
    }
}

/// How long a rank leaves it to rank 0 to report an error that both may have.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);

/// Called before an error is reported. All ranks know of some: then rank 0 alone reports it.
pub(crate) fn before_complaint(error: &Error) -> Complaint {
    if helper().is_none() {
        return Complaint::Report;
    }
    if is_known_to_all(error) {
        return Complaint::Silence;
    }
    std::thread::sleep(PATIENCE);
    Complaint::Report
}

/// Whether a rank reports an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complaint {
    Report,
    Silence,
}

static LEADS_ALONE: AtomicBool = AtomicBool::new(false);

/// Says that rank 0 decides what is done next: it may be interrupted where the others only wait.
pub(crate) fn lead_alone() {
    LEADS_ALONE.store(true, Ordering::Relaxed);
}

fn is_known_to_all(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Interrupted => helper().is_some() || !LEADS_ALONE.load(Ordering::Relaxed),
        kind => kind == ErrorKind::MissedLimit,
    }
}

/// Called after an error was reported: ends all ranks unless they all know of it.
pub(crate) fn after_complaint(error: &Error, code: u8) {
    #[cfg(feature = "mpi")]
    if current().is_some() && !is_known_to_all(error) {
        through_mpi::abort(code);
    }
    let _ = (error, code);
}

#[cfg(feature = "mpi")]
mod through_mpi {
    //! [`Ranks`] over MPI. Communicators are made where they are needed: they are addresses, which no other thread may have.

    use mpi::Count;
    use mpi::datatype::{Partition, PartitionMut};
    use mpi::topology::SimpleCommunicator;
    use mpi::traits::{Communicator as _, CommunicatorCollectives as _, Root as _};
    use qbert_kernels::Ranks;

    /// MPI counts in 32 bits; longer messages go in pieces.
    const PIECE: usize = 1 << 28;

    #[derive(Debug)]
    pub(super) struct Mpi {
        rank: usize,
        size: usize,
    }

    fn world() -> SimpleCommunicator {
        SimpleCommunicator::world()
    }

    pub(super) fn abort(code: u8) {
        world().abort(i32::from(code));
    }

    /// Numbers of values, and where they begin.
    fn places(counts: &[usize]) -> (Vec<Count>, Vec<Count>) {
        let count = |value: usize| Count::try_from(value).unwrap_or(Count::MAX);
        let starts = counts.iter().scan(0, |end, own| {
            *end += own;
            Some(count(*end - own))
        });
        let starts = starts.collect();
        (counts.iter().map(|&own| count(own)).collect(), starts)
    }

    impl Mpi {
        pub(super) fn new() -> Self {
            let number = |value: i32| usize::try_from(value).unwrap_or(0);
            Self { rank: number(world().rank()), size: number(world().size()) }
        }
    }

    impl Ranks for Mpi {
        fn rank(&self) -> usize {
            self.rank
        }

        fn size(&self) -> usize {
            self.size
        }

        fn gather(&self, own: &[f32], counts: &[usize], all: &mut [f32]) {
            let (counts, starts) = places(counts);
            world().all_gather_varcount_into(own, &mut PartitionMut::new(all, counts, starts));
        }

        fn exchange(&self, own: &[f32], sent: &[usize], received: &[usize], all: &mut [f32]) {
            let ((sent, sent_from), (received, received_at)) = (places(sent), places(received));
            let own = Partition::new(own, sent, sent_from);
            world().all_to_all_varcount_into(&own, &mut PartitionMut::new(all, received, received_at));
        }

        fn gather_bytes(&self, own: &[u8]) -> Vec<Vec<u8>> {
            let mut lengths = vec![0_u64; self.size];
            world().all_gather_into(&(own.len() as u64), &mut lengths[..]);
            let mut all = vec![Vec::new(); self.size];
            let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
            let piece = PIECE / self.size;
            for start in (0..longest).step_by(piece) {
                let of = |length: usize| length.saturating_sub(start).min(piece);
                let counts: Vec<usize> = lengths.iter().map(|&length| of(length as usize)).collect();
                let mut bytes = vec![0_u8; counts.iter().sum()];
                let (numbers, starts) = places(&counts);
                let own = &own[start.min(own.len())..start.min(own.len()) + of(own.len())];
                world().all_gather_varcount_into(own, &mut PartitionMut::new(&mut bytes[..], numbers, starts));
                let mut rest = &bytes[..];
                for (target, count) in all.iter_mut().zip(counts) {
                    let (part, after) = rest.split_at(count);
                    target.extend_from_slice(part);
                    rest = after;
                }
            }
            all
        }

        fn broadcast(&self, values: &mut [f32]) {
            let root = world();
            values.chunks_mut(PIECE).for_each(|part| root.process_at_rank(0).broadcast_into(part));
        }
    }
}
