//! Products against f64, for every instruction set: random shapes, strides, starts and forms.

mod common;

use common::{for_every_kernel, noise};
use proptest::prelude::*;
use qbert_kernels::{Compute, Kernels, MatMut, MatRef, Start, Threads};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Nt,
    Nn,
    Tn,
}

#[derive(Clone, Copy, Debug)]
enum Beginning {
    Factor(f32),
    Bias,
}

#[derive(Clone, Debug)]
struct Case {
    form: Form,
    m: usize,
    n: usize,
    k: usize,
    /// Added to the row strides of A, B and C.
    gaps: [usize; 3],
    beginning: Beginning,
}

impl Case {
    /// Stored rows and columns of A and of B.
    fn shapes(&self) -> [(usize, usize); 2] {
        let Self { m, n, k, .. } = *self;
        match self.form {
            Form::Nt => [(m, k), (n, k)],
            Form::Nn => [(m, k), (k, n)],
            Form::Tn => [(k, m), (k, n)],
        }
    }

    fn length(&self, which: usize) -> usize {
        let [a, b] = self.shapes();
        let (rows, cols) = [a, b, (self.m, self.n)][which];
        rows * (cols + self.gaps[which])
    }

    /// Runs it and compares with f64: every product of one element is exact there.
    fn check(&self, kernels: Kernels, threads: Option<&Threads>) {
        let (a, b) = (noise(self.length(0), 1, 1.0), noise(self.length(1), 2, 1.0));
        let before = noise(self.length(2), 3, 1.0);
        let bias = noise(self.n, 4, 1.0);
        let got = self.run(kernels, threads, [&a, &b], &before, &bias);
        let [(_, a_cols), (_, b_cols)] = self.shapes();
        let (a_row, b_row) = (a_cols + self.gaps[0], b_cols + self.gaps[1]);
        let c_row = self.n + self.gaps[2];
        for (index, (&got, &before)) in got.iter().zip(&before).enumerate() {
            let (i, j) = (index / c_row, index % c_row);
            if j >= self.n {
                assert_eq!(got.to_bits(), before.to_bits(), "{self:?}: gap at {i},{j} was written");
                continue;
            }
            let start = match self.beginning {
                Beginning::Factor(factor) => f64::from(factor) * f64::from(before),
                Beginning::Bias => f64::from(bias[j]),
            };
            let (mut want, mut size) = (start, start.abs());
            for k in 0..self.k {
                let a = if self.form == Form::Tn { a[k * a_row + i] } else { a[i * a_row + k] };
                let b = if self.form == Form::Nt { b[j * b_row + k] } else { b[k * b_row + j] };
                let product = f64::from(a) * f64::from(b);
                want += product;
                size += product.abs();
            }
            // k roundings, each relative to a partial sum of at most `size`.
            let allowed = (self.k as f64 + 2.0).sqrt() * 4.0 * f64::from(f32::EPSILON) * size;
            let error = (f64::from(got) - want).abs();
            assert!(error <= allowed, "{} {self:?} at {i},{j}: {got} instead of {want}", kernels.name());
        }
    }

    fn run(
        &self,
        kernels: Kernels,
        threads: Option<&Threads>,
        [a, b]: [&[f32]; 2],
        before: &[f32],
        bias: &[f32],
    ) -> Vec<f32> {
        let mut c = before.to_vec();
        let [(a_rows, a_cols), (b_rows, b_cols)] = self.shapes();
        let a = MatRef::with_stride(a, a_rows, a_cols, a_cols + self.gaps[0]);
        let b = MatRef::with_stride(b, b_rows, b_cols, b_cols + self.gaps[1]);
        let target = MatMut::with_stride(&mut c, self.m, self.n, self.n + self.gaps[2]);
        let start = match self.beginning {
            Beginning::Factor(factor) => Start::Scaled(factor),
            Beginning::Bias => Start::Bias(bias),
        };
        match threads {
            None => match self.form {
                Form::Nt => kernels.gemm_nt(a, b, start, target),
                Form::Nn => kernels.gemm_nn(a, b, start, target),
                Form::Tn => kernels.gemm_tn(a, b, start, target),
            },
            Some(threads) => {
                let compute = Compute::new(kernels, threads.clone());
                match self.form {
                    Form::Nt => compute.gemm_nt(a, b, start, target),
                    Form::Nn => compute.gemm_nn(a, b, start, target),
                    Form::Tn => compute.gemm_tn(a, b, start, target),
                }
            }
        }
        c
    }
}

fn case(largest: usize) -> impl Strategy<Value = Case> {
    let beginning = prop_oneof![
        Just(Beginning::Factor(0.0)),
        Just(Beginning::Factor(1.0)),
        Just(Beginning::Factor(-0.5)),
        Just(Beginning::Bias)
    ];
    let form = prop_oneof![Just(Form::Nt), Just(Form::Nn), Just(Form::Tn)];
    let sizes = [1..=largest, 1..=largest, 0..=largest];
    (form, sizes, [0..9_usize, 0..9, 0..9], beginning).prop_map(|(form, [m, n, k], gaps, beginning)| Case {
        form,
        m,
        n,
        k,
        gaps,
        beginning,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn small_products_agree_with_f64(case in case(70)) {
        for_every_kernel(|kernels| case.check(kernels, None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 25, failure_persistence: None, ..Default::default() })]

    #[test]
    fn large_products_agree_with_f64(case in case(200)) {
        let threads = Threads::new(2).expect("threads");
        for_every_kernel(|kernels| case.check(kernels, Some(&threads)));
    }
}

/// Sizes around tiles, panels, depth blocks, column blocks and tasks.
#[test]
fn block_edges_agree_with_f64() {
    let threads = Threads::new(2).expect("threads");
    let shapes = [
        (12, 32, 256),
        (13, 33, 257),
        (11, 31, 255),
        (385, 33, 64),
        (97, 385, 20),
        (96, 384, 21),
        (1, 400, 769),
        (193, 1, 770),
        (25, 416, 48),
    ];
    for (m, n, k) in shapes {
        for form in [Form::Nt, Form::Nn, Form::Tn] {
            for beginning in [Beginning::Bias, Beginning::Factor(1.0)] {
                let case = Case { form, m, n, k, gaps: [3, 0, 1], beginning };
                for_every_kernel(|kernels| {
                    case.check(kernels, None);
                    case.check(kernels, Some(&threads));
                });
            }
        }
    }
}

#[test]
fn empty_products_write_the_start_only() {
    for_every_kernel(|kernels| {
        let mut c = [2.0; 6];
        let empty = MatRef::new(&[], 2, 0);
        kernels.gemm_nt(empty, MatRef::new(&[], 3, 0), Start::Scaled(0.5), MatMut::new(&mut c, 2, 3));
        assert_eq!(c, [1.0; 6]);
        let b = [1.0; 6];
        let nothing = MatMut::new(&mut [], 0, 3);
        kernels.gemm_nn(MatRef::new(&[], 0, 2), MatRef::new(&b, 2, 3), Start::ZERO, nothing);
    });
}

/// Old content that is not a number must not reach a product that overwrites.
#[test]
fn overwriting_never_reads_the_old_content() {
    let threads = Threads::single();
    let (a, b) = (noise(70 * 70, 1, 1.0), noise(70 * 70, 2, 1.0));
    for_every_kernel(|kernels| {
        let compute = Compute::new(kernels, threads.clone());
        let (a, b) = (MatRef::new(&a, 70, 70), MatRef::new(&b, 70, 70));
        let mut c = vec![f32::NAN; 70 * 70];
        compute.gemm_nn(a, b, Start::ZERO, MatMut::new(&mut c, 70, 70));
        assert!(c.iter().all(|value| value.is_finite()));
        let mut small = vec![f32::NAN; 70 * 70];
        kernels.gemm_nn(a, b, Start::ZERO, MatMut::new(&mut small, 70, 70));
        assert!(small.iter().all(|value| value.is_finite()));
    });
}

#[test]
#[should_panic(expected = "A is 2×3, B is 4×5, C is 2×4")]
fn shapes_that_do_not_fit_are_named() {
    let (a, b, mut c) = ([0.0; 6], [0.0; 20], [0.0; 8]);
    let (a, b, c) = (MatRef::new(&a, 2, 3), MatRef::new(&b, 4, 5), MatMut::new(&mut c, 2, 4));
    Kernels::best().gemm_nt(a, b, Start::ZERO, c);
}

#[test]
#[should_panic(expected = "a 3×4 matrix with row stride 6 does not fit in 15 elements")]
fn views_reach_no_further_than_their_data() {
    let _ = MatRef::with_stride(&[0.0; 15], 3, 4, 6);
}

#[test]
#[should_panic(expected = "rows 1..3 and columns 0..5 is not inside a 3×4 matrix")]
fn blocks_stay_inside_their_matrix() {
    let _ = MatRef::new(&[0.0; 12], 3, 4).block(1..3, 0..5);
}
