//! Products of bf16: every set that multiplies them gives the bits of plain loops, in one of two orders.

use super::same_bits::Numbers;
use crate::int::Multiplier;
use crate::simd::Bf16Set;
use crate::{Compute, Kernels, MatMut, MatRef, ProductPrecision, Start, Threads};

/// Terms that are summed before they are added to what is there.
const BLOCK: usize = 512;

fn without_subnormals(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// To bf16 by the definition: of the two neighbours the nearer one, of two equally near ones the even one.
fn rounded(x: f32) -> f32 {
    let x = without_subnormals(x);
    if x.is_nan() {
        return x;
    }
    let below = f32::from_bits(x.to_bits() & 0xffff_0000);
    let above = f32::from_bits((x.to_bits() & 0xffff_0000).wrapping_add(0x1_0000));
    let even = below.to_bits() >> 16 & 1 == 0;
    // Beyond the largest number the next one would be 2^128.
    let size = |y: f32| if y.is_infinite() { 2.0_f64.powi(128) } else { f64::from(y).abs() };
    match (size(x) - size(below)).total_cmp(&(size(above) - size(x))) {
        _ if below == x => x,
        std::cmp::Ordering::Less => below,
        std::cmp::Ordering::Equal if even => below,
        _ => above,
    }
}

/// In which order products are added.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// Two at a time, the second one first: `vdpbf16ps`, and all sets without tiles.
    Pairs,
    /// The even ones and the odd ones of 32 depths, apart from each other and from what was there: `tdpbf16ps`.
    Tiles,
}

impl Order {
    const ALL: [Self; 2] = [Self::Pairs, Self::Tiles];

    fn of(set: Bf16Set) -> Self {
        if set.name().starts_with("amx") { Self::Tiles } else { Self::Pairs }
    }

    /// The sum of the products of a block. Beyond its end are zeros.
    fn sum(self, product: impl Fn(usize, f32) -> f32, depths: std::ops::Range<usize>) -> f32 {
        let mut sum = 0.0;
        match self {
            Self::Pairs => {
                for k in depths.step_by(2) {
                    sum = without_subnormals(product(k + 1, sum));
                    sum = without_subnormals(product(k, sum));
                }
            }
            Self::Tiles => {
                for from in depths.step_by(32) {
                    let [even, odd] = [0, 1].map(|first| {
                        let terms = (from + first..from + 32).step_by(2);
                        terms.fold(0.0, |sum, k| without_subnormals(product(k, sum)))
                    });
                    sum = without_subnormals(sum + without_subnormals(even + odd));
                }
            }
        }
        sum
    }
}

/// One element of a product of rounded numbers; `start` has the sum of the first block and gives the element.
fn element(
    order: Order,
    a: impl Fn(usize) -> f32,
    b: impl Fn(usize) -> f32,
    depth: usize,
    start: impl Fn(f32) -> f32,
) -> f32 {
    let product = |k: usize, sum: f32| if k < depth { a(k).mul_add(b(k), sum) } else { 0.0_f32.mul_add(0.0, sum) };
    let mut total = start(order.sum(product, 0..depth.min(BLOCK)));
    for from in (BLOCK..depth).step_by(BLOCK) {
        total += order.sum(product, from..depth.min(from + BLOCK));
    }
    total
}

fn compute(set: Bf16Set, threads: usize) -> Compute {
    let kernels = Kernels::best().with_bf16(set);
    Compute::new(kernels, Threads::new(threads).expect("threads")).with_products(ProductPrecision::Bf16)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
}

/// What is multiplied, and what the products must be.
struct Case {
    shape: (usize, usize, usize),
    a: Vec<f32>,
    b: Vec<f32>,
    bias: Vec<f32>,
    before: Vec<f32>,
}

const FORMS: [&str; 4] = ["nt with a bias", "nn", "tn added", "nn with a factor"];
const FACTOR: f32 = -0.75;

impl Case {
    fn new(shape: (usize, usize, usize), numbers: Numbers) -> Self {
        let (m, n, k) = shape;
        let [a, b, bias, before] =
            [(m * k, 1), (n * k, 2), (n, 3), (m * n, 4)].map(|(length, seed)| numbers.take(length, seed));
        Self { shape, a, b, bias, before }
    }

    fn expected(&self, order: Order) -> [Vec<f32>; 4] {
        let (m, n, k) = self.shape;
        let [a, b] = [&self.a, &self.b].map(|all| all.iter().map(|&x| rounded(x)).collect::<Vec<f32>>());
        let mut want = [(); 4].map(|()| vec![0.0; m * n]);
        for (place, (i, j)) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).enumerate() {
            let (bias, before) = (self.bias[j], self.before[place]);
            let (row, row_b) = (|d: usize| a[i * k + d], |d: usize| b[d * n + j]);
            want[0][place] = element(order, row, |d| b[j * k + d], k, |sum| sum + bias);
            want[1][place] = element(order, row, row_b, k, |sum| sum);
            want[2][place] = element(order, |d| a[d * m + i], row_b, k, |sum| sum + before);
            want[3][place] = element(order, row, row_b, k, |sum| FACTOR.mul_add(before, sum));
        }
        want
    }

    fn products(&self, compute: &Compute) -> [Vec<f32>; 4] {
        let (m, n, k) = self.shape;
        let (a, b) = (&self.a, &self.b);
        let mut c = [vec![0.0; m * n], vec![f32::NAN; m * n], self.before.clone(), self.before.clone()];
        let [nt, nn, tn, scaled] = &mut c;
        let (row_a, column_a) = (MatRef::new(a, m, k), MatRef::new(a, k, m));
        let (row_b, column_b) = (MatRef::new(b, k, n), MatRef::new(b, n, k));
        compute.gemm_nt(row_a, column_b, Start::Bias(&self.bias), MatMut::new(nt, m, n));
        compute.gemm_nn(row_a, row_b, Start::ZERO, MatMut::new(nn, m, n));
        compute.gemm_tn(column_a, row_b, Start::ACCUMULATE, MatMut::new(tn, m, n));
        compute.gemm_nn(row_a, row_b, Start::Scaled(FACTOR), MatMut::new(scaled, m, n));
        c
    }
}

/// Holds all sets of an order to plain loops.
fn check_sets(order: Order) {
    let sets: Vec<Bf16Set> = Bf16Set::supported().into_iter().filter(|&set| Order::of(set) == order).collect();
    println!("{order:?}: {:?}", sets.iter().map(|set| set.name()).collect::<Vec<_>>());
    // Odd depths, edges of tiles, panels and blocks.
    for (m, n, k) in [(3, 2, 7), (70, 65, 67), (13, 33, 1025), (5, 390, 513), (411, 390, 33), (97, 401, 270)] {
        for numbers in Numbers::ALL {
            let case = Case::new((m, n, k), numbers);
            let want = case.expected(order).map(|values| bits(&values));
            // What may be emulated takes long; its double computes all.
            let long = |set: Bf16Set| set.name().ends_with("-trapped") && m * n * k > 2_000_000;
            let sets = sets.iter().copied().filter(|&set| matches!(numbers, Numbers::Usual) || !long(set));
            for (set, threads) in sets.flat_map(|set| [(set, 1), (set, 2)]) {
                let found = case.products(&compute(set, threads));
                for (form, (got, want)) in FORMS.iter().zip(found.iter().zip(&want)) {
                    let got = bits(got);
                    let differs = (0..got.len()).find(|&index| got[index] != want[index]);
                    let told = differs.map(|index| (index / n, index % n, got[index], want[index]));
                    assert_eq!(told, None, "{} {form} {m}×{n}×{k} {numbers:?} on {threads} threads", set.name());
                }
            }
        }
        println!("{order:?}: {m}×{n}×{k} is right");
    }
}

#[test]
fn every_set_of_vectors_gives_the_bits_of_plain_loops() {
    check_sets(Order::Pairs);
}

#[test]
fn tiles_give_the_bits_of_plain_loops() {
    check_sets(Order::Tiles);
}

/// The instructions of AMX run, and every task leaves the tiles of its thread free.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn tiles_are_released_after_a_product() {
    use crate::amx::TrappedBf16;
    use crate::int::trap::emulated;

    let products = TrappedBf16::detect().expect("it runs anywhere");
    let (case, before) = (Case::new((40, 70, 100), Numbers::Usual), emulated());
    let found = case.products(&compute(products.into(), 1));
    assert_eq!(found.map(|values| bits(&values)), case.expected(Order::Tiles).map(|values| bits(&values)));
    if Bf16Set::supported()[0].name() == "amx-bf16" {
        println!("amx-bf16: the CPU has executed the instructions");
    } else {
        let count = emulated() - before;
        println!("amx-bf16: {count} instructions emulated meanwhile");
        assert!(count > 0, "nothing was emulated");
    }
    assert_eq!(products.0.unit.stored_configuration(), [0; 64], "nothing is configured after");
}

/// The two orders differ, or the tests above could not tell them apart.
#[test]
fn tiles_have_an_order_of_their_own() {
    let case = Case::new((5, 7, 67), Numbers::Usual);
    let [pairs, tiles] = Order::ALL.map(|order| case.expected(order));
    assert!(pairs.iter().zip(&tiles).all(|(pairs, tiles)| bits(pairs) != bits(tiles)));
}

/// AMX goes with its own float set, and only with the multiplier that uses tiles, too.
#[test]
fn amx_is_preferred_where_it_is_allowed() {
    assert_eq!(Bf16Set::NAMES[..2], ["amx-bf16", "avx512-bf16"], "the best one is first");
    for (name, set, tiles, expected) in [
        ("amx-bf16", "avx512", true, true),
        ("amx-bf16", "avx512", false, false),
        ("amx-bf16", "avx2", true, false),
        ("avx512-bf16", "avx512", false, true),
        ("avx512-bf16", "avx2", false, false),
        ("avx2", "avx2", true, true),
        ("amx-bf16-software", "avx512", true, false),
        ("amx-bf16-trapped", "avx512", true, false),
    ] {
        assert_eq!(Bf16Set::goes_with(name, set, tiles), expected, "{name} with {set}, tiles {tiles}");
    }
    // A multiplier without tiles gives the products that CPUs without AMX have.
    for kernels in Kernels::supported() {
        let plain = kernels.with_multiplier(Multiplier::by_name("portable").expect("it runs anywhere"));
        assert_ne!(plain.bf16().name(), "amx-bf16");
        assert_eq!(kernels.has_bf16(), ["amx-bf16", "avx512-bf16"].contains(&kernels.bf16().name()));
    }
}

/// Ranks that share a batch have some rows of a product each, or some columns of a gradient.
#[test]
fn a_part_of_a_product_has_the_bits_of_the_whole() {
    let (m, n, k) = (40, 70, 600);
    let case = Case::new((m, n, k), Numbers::Usual);
    let (a, b) = (MatRef::new(&case.a, m, k), MatRef::new(&case.b, k, n));
    let transposed = MatRef::new(&case.a, k, m);
    for set in Bf16Set::supported() {
        let compute = compute(set, 1);
        let [mut rows, mut columns] = [(); 2].map(|()| vec![0.0; m * n]);
        compute.gemm_nn(a, b, Start::ZERO, MatMut::new(&mut rows, m, n));
        compute.gemm_tn(transposed, b, Start::ZERO, MatMut::new(&mut columns, m, n));
        let mut row = vec![0.0; n];
        compute.gemm_nn(MatRef::new(&case.a[7 * k..8 * k], 1, k), b, Start::ZERO, MatMut::new(&mut row, 1, n));
        assert_eq!(bits(&row), bits(&rows[7 * n..8 * n]), "{}", set.name());
        let mut column = vec![0.0; m];
        let own: Vec<f32> = case.b.iter().skip(5).step_by(n).copied().collect();
        compute.gemm_tn(transposed, MatRef::new(&own, k, 1), Start::ZERO, MatMut::new(&mut column, m, 1));
        let whole: Vec<f32> = columns.iter().skip(5).step_by(n).copied().collect();
        assert_eq!(bits(&column), bits(&whole), "{}", set.name());
    }
}
