//! Rows of f32 in one buffer: what embeddings and hidden states are handed out as.

use std::ops::Index;

/// Vectors of equal length, one after the other in one buffer: a row-major matrix.
///
/// ```
/// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
/// use qbert_runtime::Pooling;
///
/// # let session = tiny::classifier();
/// let vectors = session.embed(&["the owl", "two owls"], Pooling::Mean)?.vectors;
/// assert_eq!(vectors.shape(), [2, session.config().hidden_size]);
/// for vector in &vectors {
///     println!("{vector:?}");
/// }
/// assert_eq!(&vectors[1], &vectors.as_slice()[vectors.width()..]);
/// # Ok::<(), qbert_runtime::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Vectors {
    values: Vec<f32>,
    width: usize,
}

impl Vectors {
    /// No vectors yet, with room for `count` vectors of `width` numbers.
    pub(crate) fn with_capacity(count: usize, width: usize) -> Self {
        Self { values: Vec::with_capacity(count * width), width }
    }

    /// Appends one or more vectors.
    pub(crate) fn extend(&mut self, vectors: &[f32]) {
        self.values.extend_from_slice(vectors);
    }

    /// Appends a vector of zeros and returns it.
    pub(crate) fn push_zeros(&mut self) -> &mut [f32] {
        let start = self.values.len();
        self.values.resize(start + self.width, 0.0);
        &mut self.values[start..]
    }

    /// The number of vectors.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # use qbert_runtime::Pooling;
    /// # let session = tiny::classifier();
    /// assert_eq!(session.embed(&["the owl", "two owls"], Pooling::Mean)?.vectors.len(), 2);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there are no vectors.
    ///
    /// ```
    /// assert!(qbert_runtime::Vectors::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The length of each vector.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # use qbert_runtime::Pooling;
    /// # let session = tiny::classifier();
    /// let width = session.embed(&["the owl"], Pooling::Mean)?.vectors.width();
    /// assert_eq!(width, session.config().hidden_size);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    pub fn width(&self) -> usize {
        self.width
    }

    /// The number of vectors and the length of each, as array libraries want it.
    ///
    /// ```
    /// assert_eq!(qbert_runtime::Vectors::default().shape(), [0, 0]);
    /// ```
    pub fn shape(&self) -> [usize; 2] {
        [self.len(), self.width]
    }

    /// One vector, or `None` if there are not as many.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # use qbert_runtime::Pooling;
    /// # let session = tiny::classifier();
    /// let vectors = session.embed(&["the owl"], Pooling::Mean)?.vectors;
    /// assert_eq!(vectors.get(0), Some(&vectors[0]));
    /// assert_eq!(vectors.get(1), None);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    pub fn get(&self, index: usize) -> Option<&[f32]> {
        self.rows().nth(index)
    }

    /// The vectors in order.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # use qbert_runtime::Pooling;
    /// # let session = tiny::classifier();
    /// let vectors = session.embed(&["the owl", "two owls"], Pooling::Mean)?.vectors;
    /// let lengths: Vec<f32> = vectors.rows().map(|row| row.iter().map(|x| x * x).sum::<f32>().sqrt()).collect();
    /// # assert_eq!(lengths.len(), 2);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.width.max(1))
    }

    /// All numbers, row by row.
    ///
    /// ```
    /// assert!(qbert_runtime::Vectors::default().as_slice().is_empty());
    /// ```
    pub fn as_slice(&self) -> &[f32] {
        &self.values
    }

    /// The buffer itself, row by row, without a copy.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # use qbert_runtime::Pooling;
    /// # let session = tiny::classifier();
    /// let vectors = session.embed(&["the owl", "two owls"], Pooling::Mean)?.vectors;
    /// let [count, width] = vectors.shape();
    /// assert_eq!(vectors.into_vec().len(), count * width);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    pub fn into_vec(self) -> Vec<f32> {
        self.values
    }
}

impl Index<usize> for Vectors {
    type Output = [f32];

    /// # Panics
    /// If there are not as many vectors.
    fn index(&self, index: usize) -> &[f32] {
        &self.values[index * self.width..(index + 1) * self.width]
    }
}

impl<'a> IntoIterator for &'a Vectors {
    type Item = &'a [f32];
    type IntoIter = std::slice::ChunksExact<'a, f32>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows()
    }
}
