//! Small vector operations: scaled additions, products, tanh. One element in, one element out, so
//! any split into chunks gives the same bytes.

use crate::cpu::Kernels;
use crate::simd::Simd;
use crate::simd::loops::{Elementwise, Map};
use crate::simd::math;

struct AddScaled(f32);
struct Scale(f32);
struct Sum;
struct AddProduct;
struct Product;
struct Tanh;
struct TanhInPlace;
struct TanhBackward;

impl Elementwise<1, 1> for AddScaled {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [x]: [S::F32; 1], [y]: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul_add(simd.splat(self.0), x, y)]
    }
}

impl Elementwise<0, 1> for Scale {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, []: [S::F32; 0], [y]: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul(simd.splat(self.0), y)]
    }
}

impl Elementwise<2, 1> for Sum {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [a, b]: [S::F32; 2], _: [S::F32; 1]) -> [S::F32; 1] {
        [simd.add(a, b)]
    }
}

impl Elementwise<2, 1> for AddProduct {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [a, b]: [S::F32; 2], [y]: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul_add(a, b, y)]
    }
}

impl Elementwise<1, 1> for Product {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [x]: [S::F32; 1], [y]: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul(x, y)]
    }
}

impl Elementwise<0, 1> for TanhInPlace {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, []: [S::F32; 0], [y]: [S::F32; 1]) -> [S::F32; 1] {
        [math::tanh(simd, y)]
    }
}

impl Elementwise<1, 1> for Tanh {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [x]: [S::F32; 1], _: [S::F32; 1]) -> [S::F32; 1] {
        [math::tanh(simd, x)]
    }
}

impl Elementwise<2, 1> for TanhBackward {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [y, d]: [S::F32; 2], _: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul(d, simd.neg_mul_add(y, y, simd.splat(1.0)))]
    }
}

impl Kernels {
    /// `y += factor · x`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn add_scaled(self, factor: f32, x: &[f32], y: &mut [f32]) {
        self.run(Map { function: AddScaled(factor), inputs: [x], outputs: [y] });
    }

    /// `y *= factor`.
    pub fn scale(self, factor: f32, y: &mut [f32]) {
        self.run(Map { function: Scale(factor), inputs: [], outputs: [y] });
    }

    /// `out = a + b`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn add(self, a: &[f32], b: &[f32], out: &mut [f32]) {
        self.run(Map { function: Sum, inputs: [a, b], outputs: [out] });
    }

    /// `out += a · b`, element by element.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn add_product(self, a: &[f32], b: &[f32], out: &mut [f32]) {
        self.run(Map { function: AddProduct, inputs: [a, b], outputs: [out] });
    }

    /// `y *= x`, element by element.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn multiply(self, x: &[f32], y: &mut [f32]) {
        self.run(Map { function: Product, inputs: [x], outputs: [y] });
    }

    /// `y = tanh(y)`, as accurate as [`Kernels::tanh`].
    pub fn tanh_in_place(self, y: &mut [f32]) {
        self.run(Map { function: TanhInPlace, inputs: [], outputs: [y] });
    }

    /// `out = tanh(x)`, relative error below 5e-7 (tested against f64).
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn tanh(self, x: &[f32], out: &mut [f32]) {
        self.run(Map { function: Tanh, inputs: [x], outputs: [out] });
    }

    /// `out = (1 - y²) · direction` with `y = tanh(x)`: backward pass and forward tangent.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn tanh_backward(self, y: &[f32], direction: &[f32], out: &mut [f32]) {
        self.run(Map { function: TanhBackward, inputs: [y, direction], outputs: [out] });
    }
}
