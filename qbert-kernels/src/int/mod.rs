//! Integer inference: linear layers and attention on 8-bit activation codes and packed low-bit weight codes.
mod attention;
mod codes;
mod embedding;
mod epilogue;
mod layout;
mod linear;
mod norm;
mod params;
mod portable;
mod softmax;
mod tile;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub use attention::AttentionInput;
pub use codes::{Codes, Quantizer};
pub use embedding::{EmbeddingRows, EmbeddingTable};
pub use layout::{BLOCK_INPUTS, LayoutError, MOST_INPUTS, PackedWeights, TILE_NEURONS, pack, packed_len};
pub use linear::{LinearInput, LinearLayer, LinearOutput};
pub use norm::NormOutput;
pub use params::LinearParams;

/// Which multiplier runs with an instruction set: `avx512-vnni`, `avx2` or `portable`.
pub fn multiplier_name(kernels: crate::Kernels) -> &'static str {
    tile::Multiplier::of(kernels).name()
}
