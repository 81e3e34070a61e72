//! The arithmetic of the Q-BERT paper: widths, ranges, groups, codes, sizes and the bit plan.
//!
//! Training with fake quantization, packed files and integer kernels all build on this crate, so every
//! rounding is specified where it happens. It knows nothing about files, tensor names or threads: functions
//! take slices and return values, and the caller may split the work by groups or by rows.
//!
//! Where to look:
//!
//! | question | module | paper |
//! |---|---|---|
//! | how many bits? | [`bits`] | Tab. 1 |
//! | which weights share a range? | [`groups`] | §3.3 |
//! | which sub-interval of \[min, max\]? | [`range`] | App. A |
//! | which code, which value, which gradient? | [`quantizer`], [`matrix`] | App. A, §3.1 |
//! | and of activations? | [`activation`] | Tab. 1 |
//! | and of tables, in a byte for several values? | [`product`] | – |
//! | how is a weight rounded without training? | [`compensate`] | – |
//! | what is each part of the model called? | [`site`] | §3 |
//! | what is quantized how? | [`plan`], [`preset`] | §3.2, Tab. 6, 7 |
//! | how large is the result? | [`size`] | Tab. 1, 5 |
//! | which layer deserves more bits? | [`allocate`] | Eq. 2, App. C.1 |

pub mod activation;
pub mod allocate;
pub mod bits;
pub mod compensate;
mod error;
pub mod groups;
pub mod learned;
pub mod matrix;
mod nearest;
pub mod plan;
pub mod preset;
pub mod product;
pub mod quantized;
pub mod quantizer;
pub mod range;
mod shorten;
pub mod site;
pub mod size;

pub use activation::ActivationParams;
pub use allocate::{LayerSensitivity, Metric, Ranking, SizeBudget, Widths, rank_correlation};
pub use bits::{BitWidth, Precision};
pub use compensate::InputMoments;
pub use error::{Error, PlanProblem};
pub use groups::{GroupSpec, Groups};
pub use learned::RangeGradient;
pub use matrix::{Axis, Layout, QuantParams};
pub use nearest::nearest;
pub use plan::{ActivationPlan, EmbeddingPlan, LayerPlan, Plan, SitePlan};
pub use preset::Preset;
pub use product::{Codebook, ProductWidth, TableWidth};
pub use quantized::{ProductCodes, QuantizedMatrix, RowParams};
pub use quantizer::Affine;
pub use range::{Mask, Percent, Range, RangeMethod, Scratch};
pub use shorten::{shorten, shorten_list};
pub use site::{Embedding, Matrix, Site};
pub use size::{ModelShape, PaperSize, SitedTensor, TransformerDimensions};
