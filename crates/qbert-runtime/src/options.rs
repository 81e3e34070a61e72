//! How a session works: threads, lengths, instruction set, where the file's bytes are.

use qbert_kernels::{Compute, Kernels, Threads};
use qbert_model::Storage;

use crate::error::Result;

/// Settings of a [`Session`](crate::Session). Start from the default and change what you need.
///
/// ```
/// use qbert_runtime::SessionOptions;
///
/// let options = SessionOptions::default().threads(2).max_len(128);
/// assert_eq!((options.threads, options.max_len), (2, Some(128)));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The number of threads that work on one request, including the calling thread. Concurrent requests share the
    /// helper threads: while one request uses them, the others run on their calling threads.
    pub threads: usize,
    /// The longest sequence in tokens, including special tokens. `None` means the model's own limit, or 384 for
    /// question answering if the model allows more. Longer texts are cut or split into windows.
    pub max_len: Option<usize>,
    /// The longest input in bytes, all its texts together, for entities and questions: 1 MiB by default. Longer ones are
    /// refused, because every part of them would be computed. Texts to classify or embed are cut instead, and may be longer.
    pub max_input_bytes: usize,
    /// The instruction set. `None` picks the best one of this CPU.
    pub kernels: Option<Kernels>,
    /// Threads, instruction set and scratch memory to share with other sessions. Takes precedence over `threads` and
    /// `kernels`.
    pub compute: Option<Compute>,
    /// Where [`Session::open`](crate::Session::open) puts the file's bytes: in memory, or mapped if the file is large.
    pub storage: Storage,
}

impl Default for SessionOptions {
    /// One thread per core, the model's own length limit, inputs of up to 1 MiB, the best instruction set, the file in memory
    /// unless it is large.
    fn default() -> Self {
        Self {
            threads: Threads::available(),
            max_len: None,
            max_input_bytes: Self::MAX_INPUT_BYTES,
            kernels: None,
            compute: None,
            storage: Storage::Auto,
        }
    }
}

impl SessionOptions {
    /// The default of [`SessionOptions::max_input_bytes`]: 1 MiB.
    pub const MAX_INPUT_BYTES: usize = 1 << 20;

    /// Sets the number of threads that work on one request.
    ///
    /// For many small concurrent requests, use 1 and one request per core.
    ///
    /// ```
    /// # use qbert_runtime::SessionOptions;
    /// assert_eq!(SessionOptions::default().threads(1).threads, 1);
    /// ```
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the longest sequence in tokens, including special tokens. `None` restores the default.
    ///
    /// ```
    /// # use qbert_runtime::SessionOptions;
    /// assert_eq!(SessionOptions::default().max_len(64).max_len, Some(64));
    /// assert_eq!(SessionOptions::default().max_len(None).max_len, None);
    /// ```
    #[must_use]
    pub fn max_len(mut self, max_len: impl Into<Option<usize>>) -> Self {
        self.max_len = max_len.into();
        self
    }

    /// Sets the longest input in bytes for entities and questions.
    ///
    /// ```
    /// # use qbert_runtime::SessionOptions;
    /// assert_eq!(SessionOptions::default().max_input_bytes, 1 << 20);
    /// assert_eq!(SessionOptions::default().max_input_bytes(4096).max_input_bytes, 4096);
    /// ```
    #[must_use]
    pub fn max_input_bytes(mut self, bytes: usize) -> Self {
        self.max_input_bytes = bytes;
        self
    }

    /// Sets the instruction set, for tests and comparisons.
    ///
    /// ```
    /// use qbert_runtime::{Kernels, SessionOptions};
    ///
    /// let options = SessionOptions::default().kernels(Kernels::by_name("portable")?);
    /// assert_eq!(options.kernels.map(Kernels::name), Some("portable"));
    /// # Ok::<(), qbert_runtime::KernelError>(())
    /// ```
    #[must_use]
    pub fn kernels(mut self, kernels: Kernels) -> Self {
        self.kernels = Some(kernels);
        self
    }

    /// Shares threads, instruction set and scratch memory with other sessions.
    ///
    /// ```
    /// use qbert_runtime::{Compute, SessionOptions};
    ///
    /// let compute = Compute::detect(2)?;
    /// let (first, second) = (SessionOptions::default().compute(compute.clone()), SessionOptions::default().compute(compute));
    /// # Ok::<(), qbert_runtime::KernelError>(())
    /// ```
    #[must_use]
    pub fn compute(mut self, compute: Compute) -> Self {
        self.compute = Some(compute);
        self
    }

    /// Sets where the file's bytes are while the model is open.
    ///
    /// ```
    /// use qbert_runtime::{SessionOptions, Storage};
    ///
    /// assert_eq!(SessionOptions::default().storage, Storage::Auto);
    /// assert_eq!(SessionOptions::default().storage(Storage::Mapped).storage, Storage::Mapped);
    /// ```
    #[must_use]
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// What the session computes with.
    pub(crate) fn to_compute(&self) -> Result<Compute> {
        if let Some(compute) = &self.compute {
            return Ok(compute.clone());
        }
        let kernels = self.kernels.map_or_else(Kernels::detect, Ok)?;
        Ok(Compute::new(kernels, Threads::new(self.threads)?))
    }
}
