//! The sub-interval of \[min, max\] with the least squared error (paper, App. A leaves it open).
//!
//! The error `Σ (x - Q(x))²` is a function of two numbers, the ends `low` and `high`. For fixed codes it is
//! a quadratic in them; for fixed ends the best codes are the nearest levels. So, as in k-means, taking
//! turns never makes it worse. Three sums over the codes `c` determine the quadratic:
//! `Σ c`, `Σ c²` and `Σ c·x`. On sorted values with prefix sums each costs one binary search per level.
//!
//! There are many local optima, so a two-sided grid of ends is tried first, the best few are improved by
//! turns, and the winner is nudged about once more. All of it in f64 on values centred at the middle of
//! \[min, max\], so that no digits are lost to a common offset.
//!
//! Not for activations at run time: the search sorts. Use a range found beforehand.

use super::{Range, Scratch, fill_keys, value_of_key};
use crate::bits::BitWidth;
use crate::error::Error;
use crate::quantizer::Affine;

/// Up to this many values each is an atom of its own.
const MOST_ATOMS: usize = 1 << 16;
/// How many grid points are improved by turns.
const STARTS: usize = 8;
/// Where the grid puts the lower end (and, mirrored, the upper end), as quantiles of the values.
const QUANTILES: [f64; 12] = [0.0003, 0.001, 0.003, 0.008, 0.018, 0.035, 0.06, 0.1, 0.16, 0.24, 0.33, 0.43];
/// The same as fractions of the way from min to max, for values without tails.
const FRACTIONS: [f64; 8] = [0.0, 0.02, 0.06, 0.12, 0.2, 0.29, 0.38, 0.47];
/// Turns stop when the error falls by less than this part: from a start that may yet lose …
const START_GAIN: f64 = 1e-4;
/// … from a range found earlier …
const REFINE_GAIN: f64 = 1e-5;
/// … and from the one that won.
const FINAL_GAIN: f64 = 1e-8;
/// How far beyond the fit a turn may go.
const LONGEST_STRIDE: f64 = 16.0;
/// Far above what is ever needed; only there so that the loop visibly ends.
const MOST_TURNS: usize = 100;

/// Sorted values (or narrow runs of them) with the prefix sums of count and value, centred.
#[derive(Debug, Default)]
pub(super) struct Atoms {
    /// Mean of each atom, ascending.
    position: Vec<f64>,
    /// The first atom of each of equally wide buckets of `[-half, half]`, and the number of atoms: where
    /// to begin looking for a border.
    bucket: Vec<u32>,
    /// Buckets per unit of length.
    buckets_per_unit: f64,
    /// `(count, sum)` of all atoms before this one; one entry more than there are atoms.
    before: Vec<(f64, f64)>,
    /// Σ x² over all values.
    squares: f64,
    /// Half of max - min: centred values lie in `[-half, half]`.
    half: f64,
}

/// What the error of a choice of codes depends on.
#[derive(Clone, Copy, Debug)]
struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
    codes: f64,
    codes_squared: f64,
    codes_times_values: f64,
}

/// A pair of ends with its error.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    low: f64,
    high: f64,
    error: f64,
}

impl Moments {
    /// The squared error when code `c` stands for `low + c·(high - low)/top`.
    fn error(&self, low: f64, high: f64, top: f64) -> f64 {
        let step = (high - low) / top;
        self.squares - 2.0 * (low * self.sum + step * self.codes_times_values)
            + low * low * self.count
            + step * (2.0 * low * self.codes + step * self.codes_squared)
    }

    /// The ends within `[-half, half]` that fit these codes best: least squares with bounds.
    fn fit(&self, half: f64, top: f64) -> Option<Candidate> {
        let determinant = self.count * self.codes_squared - self.codes * self.codes;
        if determinant <= 0.0 {
            return None;
        }
        let step = (self.count * self.codes_times_values - self.codes * self.sum) / determinant;
        let low = (self.sum - step * self.codes) / self.count;
        let high = low + step * top;
        if low >= -half && high <= half {
            return Some(self.candidate(low, high, top));
        }
        // The optimum of a convex function over a square that misses the free optimum is on an edge.
        let from_low = self.fit_high(-half, half, top);
        let from_high = self.fit_low(-half, half, top);
        Some(if from_low.error <= from_high.error { from_low } else { from_high })
    }

    /// The best upper end for a given lower end.
    fn fit_high(&self, low: f64, most: f64, top: f64) -> Candidate {
        let step = (self.codes_times_values - low * self.codes) / self.codes_squared;
        self.candidate(low, (low + step * top).clamp(low, most), top)
    }

    /// The best lower end for a given upper end: the same, with codes counted from the top.
    fn fit_low(&self, least: f64, high: f64, top: f64) -> Candidate {
        let down = top * self.count - self.codes;
        let down_squared = top * (top * self.count - 2.0 * self.codes) + self.codes_squared;
        let down_times_values = top * self.sum - self.codes_times_values;
        let low =
            if down_squared > 0.0 { high - top * (high * down - down_times_values) / down_squared } else { least };
        self.candidate(low.clamp(least, high), high, top)
    }

    fn candidate(&self, low: f64, high: f64, top: f64) -> Candidate {
        Candidate { low, high, error: self.error(low, high, top) }
    }
}

impl Atoms {
    fn fill(&mut self, keys: &[i32], range: Range) {
        let (low, high) = (f64::from(range.low), f64::from(range.high));
        let middle = (low + high) / 2.0;
        self.half = (high - low) / 2.0;
        self.squares = 0.0;
        self.position.clear();
        self.before.clear();
        // Beyond the limit values are merged, but never so many, nor over so wide a span, that it shows.
        let most_values = keys.len() / MOST_ATOMS;
        let most_span = if keys.len() > MOST_ATOMS { (high - low) / MOST_ATOMS as f64 } else { -1.0 };
        let (mut count, mut sum, mut first) = (0.0, 0.0, f64::NEG_INFINITY);
        let mut inside = 0;
        for &key in keys {
            let value = f64::from(value_of_key(key)) - middle;
            self.squares += value * value;
            if inside == 0 || inside >= most_values || value - first > most_span {
                self.close(count, sum);
                (first, inside) = (value, 0);
            }
            inside += 1;
            count += 1.0;
            sum += value;
        }
        self.close(count, sum);
        self.fill_buckets();
    }

    fn fill_buckets(&mut self) {
        let buckets = self.position.len().next_power_of_two();
        self.buckets_per_unit = buckets as f64 / (2.0 * self.half);
        self.bucket.clear();
        self.bucket.resize(buckets + 1, 0);
        self.bucket[buckets] = self.position.len() as u32;
        let mut next = 0;
        for (atom, &position) in self.position.iter().enumerate() {
            let bucket = self.bucket_of(position);
            while next <= bucket {
                self.bucket[next] = atom as u32;
                next += 1;
            }
        }
        self.bucket[next..buckets].fill(self.position.len() as u32);
    }

    /// Never falls as the position rises, so atoms of earlier buckets lie before, of later ones behind.
    fn bucket_of(&self, position: f64) -> usize {
        (((position + self.half) * self.buckets_per_unit) as usize).min(self.bucket.len() - 2)
    }

    /// The first atom that does not lie before the border.
    fn first_from(&self, border: f64) -> usize {
        let bucket = self.bucket_of(border);
        let (from, to) = (self.bucket[bucket] as usize, self.bucket[bucket + 1] as usize);
        from + self.position[from..to].partition_point(|&position| position < border)
    }

    /// Ends the atom that was being filled, given the sums up to here; the first call only starts.
    fn close(&mut self, count: f64, sum: f64) {
        if let Some(&(count_before, sum_before)) = self.before.last() {
            self.position.push((sum - sum_before) / (count - count_before));
        }
        self.before.push((count, sum));
    }

    fn total(&self) -> (f64, f64) {
        self.before.last().copied().unwrap_or_default()
    }

    fn moments(&self, low: f64, high: f64, top: f64) -> Moments {
        let (count, sum) = self.total();
        let mut moments =
            Moments { count, sum, squares: self.squares, codes: 0.0, codes_squared: 0.0, codes_times_values: 0.0 };
        if self.position.len() <= top as usize + 1 {
            self.add_atom_codes(low, high, top, &mut moments);
        } else {
            self.add_level_borders(low, high, top, &mut moments);
        }
        moments
    }

    /// Few atoms: give each its code.
    fn add_atom_codes(&self, low: f64, high: f64, top: f64, moments: &mut Moments) {
        let inverse = top / (high - low);
        for (position, pair) in self.position.iter().zip(self.before.windows(2)) {
            let code = round(((position - low) * inverse).clamp(0.0, top));
            let count = pair[1].0 - pair[0].0;
            moments.codes += count * code;
            moments.codes_squared += count * code * code;
            moments.codes_times_values += code * (pair[1].1 - pair[0].1);
        }
    }

    /// Many atoms: find where each code begins. `Σ c` is the sum over `c >= 1` of how many values have at
    /// least code `c`, and likewise for the other two.
    fn add_level_borders(&self, low: f64, high: f64, top: f64, moments: &mut Moments) {
        let step = (high - low) / top;
        for code in 1..=top as usize {
            let (count, sum) = self.before[self.first_from(low + (code as f64 - 0.5) * step)];
            let above = moments.count - count;
            moments.codes += above;
            moments.codes_squared += (2 * code - 1) as f64 * above;
            moments.codes_times_values += moments.sum - sum;
        }
    }

    /// Codes for these ends, then the best ends for these codes.
    fn turn(&self, low: f64, high: f64, top: f64) -> Option<Candidate> {
        if low >= high {
            return None;
        }
        self.moments(low, high, top).fit(self.half, top)
    }

    fn descend(&self, start: Candidate, top: f64, gain: f64) -> Candidate {
        descend(start, (self.half, top), gain, |low, high| self.moments(low, high, top))
    }

    /// The lower ends to try; upper ends are the same seen from the other side.
    fn lower_ends(&self, mirrored: bool, top: f64) -> Vec<f64> {
        let mut ends: Vec<f64> = match self.position.len() {
            // With so few values an even, dense grid is cheap and the landscape rugged.
            0..=16 => (0..72).map(|step| self.half * (f64::from(step) / 36.0 - 1.0)).collect(),
            17..=128 => (0..32).map(|step| self.half * (f64::from(step) / 20.0 - 1.0)).collect(),
            atoms => {
                // The finer the steps, the fewer values are worth clipping.
                let useful = QUANTILES.iter().filter(|&&quantile| quantile < 2.0 / top);
                let quantiles = useful.map(|quantile| {
                    let index = (quantile * atoms as f64) as usize;
                    if mirrored { -self.position[atoms - 1 - index] } else { self.position[index] }
                });
                FRACTIONS.iter().map(|fraction| self.half * (2.0 * fraction - 1.0)).chain(quantiles).collect()
            }
        };
        ends.sort_unstable_by(f64::total_cmp);
        ends.dedup();
        ends
    }

    /// The best few points of the grid, each after one turn.
    fn grid(&self, top: f64) -> Vec<Candidate> {
        let mut best: Vec<Candidate> = Vec::with_capacity(STARTS + 1);
        let upper = self.lower_ends(true, top);
        for &low in &self.lower_ends(false, top) {
            for &mirrored in &upper {
                let Some(candidate) = self.turn(low, -mirrored, top) else { continue };
                let place = best.partition_point(|other| other.error <= candidate.error);
                // Neighbours on the grid often lead to one and the same fit.
                let known = place > 0 && best[place - 1].error == candidate.error;
                if place < STARTS && !known {
                    best.truncate(STARTS - 1);
                    best.insert(place, candidate);
                }
            }
        }
        best
    }

    /// Moves the ends a little, ever less, and descends wherever that helps.
    fn nudge(&self, mut best: Candidate, top: f64) -> Candidate {
        const MOVES: [(f64, f64); 8] =
            [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0), (1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0)];
        let mut reach = (best.high - best.low) / top;
        for _ in 0..6 {
            reach /= 2.0;
            for (low, high) in MOVES {
                let low = (best.low + low * reach).max(-self.half);
                let high = (best.high + high * reach).min(self.half);
                if let Some(next) = self.turn(low, high, top)
                    && next.error < best.error
                {
                    best = self.descend(next, top, START_GAIN);
                }
            }
        }
        best
    }

    /// One bit: the levels are the means of the two parts, so every split can be tried.
    fn two_means(&self) -> Option<Candidate> {
        let (count, sum) = self.total();
        let gain = |&(count_below, sum_below): &(f64, f64)| {
            let (count_above, sum_above) = (count - count_below, sum - sum_below);
            sum_below * sum_below / count_below + sum_above * sum_above / count_above
        };
        let inner = self.before.get(1..self.before.len().checked_sub(1)?)?;
        let best = inner.iter().max_by(|one, other| gain(one).total_cmp(&gain(other)))?;
        let (low, high) = (best.1 / best.0, (sum - best.1) / (count - best.0));
        Some(Candidate { low, high, error: self.squares - gain(best) })
    }

    fn search(&self, bits: BitWidth) -> Option<Candidate> {
        if bits == BitWidth::ONE {
            return self.two_means();
        }
        let top = f64::from(bits.max_code());
        let descended = self.grid(top).into_iter().map(|start| self.descend(start, top, START_GAIN));
        let best = descended.min_by(|one, other| one.error.total_cmp(&other.error))?;
        Some(self.descend(self.nudge(best, top), top, FINAL_GAIN))
    }
}

pub(super) fn search(values: &[f32], full: Range, bits: BitWidth, scratch: &mut Scratch) -> Result<Range, Error> {
    if full.low == full.high {
        return Ok(full);
    }
    fill_keys(values, &mut scratch.keys);
    scratch.keys.sort_unstable();
    scratch.atoms.fill(&scratch.keys, full);
    match scratch.atoms.search(bits) {
        Some(found) => Ok(better(values, full, rounded(found.low, found.high, full)?, bits)),
        None => Ok(full),
    }
}

/// Improves a range that was good for slightly other values or another width: the codes ↔ ends
/// alternation of the `mse` method from this start alone, without sorting.
///
/// The start is first clamped into \[min, max\] of the values (or replaced by it when nothing of
/// it is left); the result lies within \[min, max\] and its error ([`squared_error`]) is not
/// larger than that of the clamped start. Costs a few passes over the values and no memory.
///
/// # Errors
/// As [`Range::min_max`].
pub fn refine(range: Range, values: &[f32], bits: BitWidth) -> Result<Range, Error> {
    let full = Range::min_max(values)?;
    let (low, high) = (range.low.max(full.low), range.high.min(full.high));
    let start = if low < high { Range { low, high } } else { full };
    if full.low == full.high {
        return Ok(full);
    }
    let middle = (f64::from(full.low) + f64::from(full.high)) / 2.0;
    let half = (f64::from(full.high) - f64::from(full.low)) / 2.0;
    let top = f64::from(bits.max_code());
    let (count, (sum, squares)) = (values.len() as f64, plain_sums(values, middle));
    let moments = |low: f64, high: f64| {
        let (codes, codes_squared, codes_times_values) = plain_code_sums(values, middle, (low, high), top);
        Moments { count, sum, squares, codes, codes_squared, codes_times_values }
    };
    let (low, high) = (f64::from(start.low) - middle, f64::from(start.high) - middle);
    let start_here = Candidate { low, high, error: f64::INFINITY };
    let found = descend(start_here, (half, top), REFINE_GAIN, moments);
    Ok(better(values, start, rounded(found.low, found.high, full)?, bits))
}

/// Takes turns from a start, until the error falls by less than the part `gain`.
///
/// Plain turns creep when steps are fine, because few values change their codes each time. So as long as
/// it helps, the ends go twice as far beyond the fit as the time before; when it does not, back to the fit.
fn descend(start: Candidate, (half, top): (f64, f64), gain: f64, moments: impl Fn(f64, f64) -> Moments) -> Candidate {
    let mut best = Candidate { error: f64::INFINITY, ..start };
    let mut fit = start;
    let (mut low, mut high, mut stride) = (start.low, start.high, 1.0);
    for _ in 0..MOST_TURNS {
        if low >= high {
            break;
        }
        let sums = moments(low, high);
        let error = sums.error(low, high, top);
        if error < best.error * (1.0 - gain) {
            best = Candidate { low, high, error };
            fit = match sums.fit(half, top) {
                Some(fit) => fit,
                None => break,
            };
            low = (best.low + stride * (fit.low - best.low)).clamp(-half, half);
            high = (best.high + stride * (fit.high - best.high)).clamp(-half, half);
            if low >= high {
                (low, high) = (fit.low, fit.high);
            }
            stride = f64::min(2.0 * stride, LONGEST_STRIDE);
        } else if stride > 2.0 {
            (low, high, stride) = (fit.low, fit.high, 1.0);
        } else {
            break;
        }
    }
    if fit.error <= best.error { fit } else { best }
}

/// `Σ x` and `Σ x²` of unsorted values, centred.
fn plain_sums(values: &[f32], middle: f64) -> (f64, f64) {
    values.iter().fold((0.0, 0.0), |(sum, squares), &value| {
        let value = f64::from(value) - middle;
        (sum + value, squares + value * value)
    })
}

/// `Σ c`, `Σ c²` and `Σ c·x` of unsorted values, centred. Sums of codes are whole numbers, so only the
/// order of the last one matters.
fn plain_code_sums(values: &[f32], middle: f64, (low, high): (f64, f64), top: f64) -> (f64, f64, f64) {
    let inverse = top / (high - low);
    let mut sums = [(0.0, 0.0, 0.0); 4];
    let add = |sums: &mut (f64, f64, f64), value: f32| {
        let value = f64::from(value) - middle;
        let scaled = (value - low) * inverse;
        let scaled = if scaled > 0.0 { scaled } else { 0.0 };
        let code = round(if scaled < top { scaled } else { top });
        sums.0 += code;
        sums.1 += code * code;
        sums.2 += code * value;
    };
    let chunks = values.chunks_exact(4);
    for (sums, &value) in sums.iter_mut().zip(chunks.remainder()) {
        add(sums, value);
    }
    for chunk in chunks {
        for (sums, &value) in sums.iter_mut().zip(chunk) {
            add(sums, value);
        }
    }
    sums.iter().fold((0.0, 0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1, all.2 + one.2))
}

/// Half-to-even for numbers that are small and not negative: adding 2^52 leaves no room for a fraction.
fn round(value: f64) -> f64 {
    const SHIFT: f64 = 4_503_599_627_370_496.0;
    (value + SHIFT) - SHIFT
}

/// Undoes the centring, within \[min, max\].
fn rounded(low: f64, high: f64, full: Range) -> Result<Range, Error> {
    let middle = (f64::from(full.low) + f64::from(full.high)) / 2.0;
    let end = |centred: f64| ((centred + middle) as f32).clamp(full.low, full.high);
    let (low, high) = (end(low), end(high));
    Range::new(low, high.max(low))
}

/// The better of two ranges by the error of the quantizer as it is, roundings included.
fn better(values: &[f32], known: Range, found: Range, bits: BitWidth) -> Range {
    let error = |range: Range| squared_error(values, range, bits);
    if error(found) <= error(known) { found } else { known }
}

/// The squared error `Σ (x - Q(x))²` that a range gives, with the f32 quantizer of
/// [`crate::quantizer`] and summed in f64. NaN among the values gives NaN.
pub fn squared_error(values: &[f32], range: Range, bits: BitWidth) -> f64 {
    let affine = Affine::from_range(range, bits);
    let add = |sum: f64, &value: &f32| {
        let difference = f64::from(value) - f64::from(affine.round_trip(value));
        sum + difference * difference
    };
    // Four running sums in a fixed pattern: faster than one, and the same on every machine.
    let mut sums = [0.0; 4];
    let chunks = values.chunks_exact(4);
    let rest = chunks.remainder().iter().fold(0.0, add);
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = add(*sum, value);
        }
    }
    sums.iter().sum::<f64>() + rest
}
