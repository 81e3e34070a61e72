//! From values to pixels, and the round numbers to write along the way.

/// How values are spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Linear,
    /// Positive values by their logarithm.
    Log,
    /// Linear within the threshold, logarithmic beyond it, on both sides of zero.
    Symmetric(f64),
}

/// A scale: an interval of values laid on an interval of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    kind: Kind,
    domain: (f64, f64),
    range: (f64, f64),
    /// The distance of ticks that the ends were rounded to.
    step: Option<f64>,
}

/// The smallest and largest number among the values, if there is one.
pub(crate) fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let numbers = values.into_iter().filter(|value| value.is_finite());
    numbers.fold(None, |known, value| {
        let (low, high) = known.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// An interval that is not a point: one without width gets some on both sides.
fn opened((low, high): (f64, f64)) -> (f64, f64) {
    if high - low > f64::EPSILON * low.abs().max(high.abs()) {
        return (low, high);
    }
    let half = if low == 0.0 { 0.5 } else { low.abs() * 0.05 };
    (low - half, high + half)
}

impl Scale {
    /// Ends rounded outwards to whole ticks.
    pub(crate) fn linear(domain: (f64, f64), range: (f64, f64), ticks: usize) -> Self {
        let (low, high) = opened(domain);
        let step = nice_step(high - low, ticks);
        let domain = ((low / step).floor() * step, (high / step).ceil() * step);
        Self { kind: Kind::Linear, domain, range, step: Some(step) }
    }

    /// Ends exactly as given.
    pub(crate) fn exact(domain: (f64, f64), range: (f64, f64)) -> Self {
        Self { kind: Kind::Linear, domain: opened(domain), range, step: None }
    }

    /// Both ends must be above zero; otherwise the scale is linear.
    pub(crate) fn log((low, high): (f64, f64), range: (f64, f64)) -> Self {
        if low <= 0.0 {
            return Self::exact((low, high), range);
        }
        let domain = if high > low { (low, high) } else { (low / 2.0, high * 2.0) };
        Self { kind: Kind::Log, domain, range, step: None }
    }

    pub(crate) fn symmetric(domain: (f64, f64), range: (f64, f64), threshold: f64) -> Self {
        Self { kind: Kind::Symmetric(threshold), domain: opened(domain), range, step: None }
    }

    fn spread(&self, value: f64) -> f64 {
        match self.kind {
            Kind::Linear => value,
            Kind::Log => value.max(f64::MIN_POSITIVE).ln(),
            Kind::Symmetric(threshold) => value.signum() * (value.abs() / threshold).ln_1p(),
        }
    }

    pub(crate) fn is_log(&self) -> bool {
        self.kind == Kind::Log
    }

    /// The pixel of a value.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let (low, high) = (self.spread(self.domain.0), self.spread(self.domain.1));
        let share = (self.spread(value) - low) / (high - low);
        self.range.0 + share * (self.range.1 - self.range.0)
    }

    /// Round numbers within the domain, about as many as wanted.
    pub(crate) fn ticks(&self, wanted: usize) -> Vec<f64> {
        let (low, high) = self.domain;
        match self.kind {
            Kind::Linear => linear_ticks(low, high, self.step.unwrap_or_else(|| nice_step(high - low, wanted))),
            Kind::Log => {
                let ticks = log_ticks(low, high, wanted);
                if ticks.len() < 2 { linear_ticks(low, high, nice_step(high - low, wanted)) } else { ticks }
            }
            Kind::Symmetric(threshold) => {
                let side = |end: f64| if end > threshold { log_ticks(threshold, end, wanted / 2) } else { Vec::new() };
                let mut ticks: Vec<f64> = side(-low).into_iter().rev().map(|value| -value).collect();
                ticks.push(0.0);
                ticks.extend(side(high));
                ticks
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, such that `width` has about `wanted` of it.
fn nice_step(width: f64, wanted: usize) -> f64 {
    let rough = width / wanted.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
    (factor * power).max(f64::MIN_POSITIVE)
}

fn linear_ticks(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step - 1e-9).ceil();
    let count = ((high / step + 1e-9).floor() - first).clamp(0.0, 100.0) as usize;
    (0..=count).map(|index| (first + index as f64) * step).map(|value| rounded(value, step)).collect()
}

/// Takes away what multiplication by a decimal step leaves behind.
fn rounded(value: f64, step: f64) -> f64 {
    let decimals = (-step.log10().floor()).clamp(0.0, 15.0) as usize;
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

/// Powers of ten, thinned out when there are too many, with round multiples of them when there are too few.
fn log_ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let wanted = wanted.max(2);
    let exponents = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let within = |value: &f64| *value >= low * 0.999_999 && *value <= high * 1.000_001;
    let power = |exponent: i32| format!("1e{exponent}").parse::<f64>().unwrap_or(1.0);
    let powers: Vec<f64> = exponents.clone().map(power).filter(within).collect();
    if powers.len() > wanted {
        let stride = powers.len().div_ceil(wanted);
        return powers.into_iter().step_by(stride).collect();
    }
    for factors in [&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0, 3.0]] {
        let all = exponents.clone().flat_map(|e| factors.iter().map(move |factor| factor * power(e)));
        let all: Vec<f64> = all.filter(within).collect();
        if all.len() <= wanted + 1 {
            return all;
        }
    }
    powers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(Scale::linear((0.0, 75.4), (0.0, 1.0), 5).ticks(5), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(Scale::linear((0.1, 0.69), (0.0, 1.0), 5).ticks(5), [0.0, 0.2, 0.4, 0.6, 0.8]);
        assert_eq!(Scale::log((8.0, 120.0), (0.0, 1.0)).ticks(5), [10.0, 20.0, 50.0, 100.0]);
        let symmetric = Scale::symmetric((-10.0, 100.0), (0.0, 1.0), 0.1).ticks(8);
        assert!(symmetric.contains(&0.0) && symmetric.contains(&-1.0) && symmetric.contains(&10.0), "{symmetric:?}");
        assert!(symmetric.is_sorted());
    }

    #[test]
    fn degenerate_domains_have_a_place_for_their_value() {
        for value in [0.0, 1.0, -3.5, 1e-300, 1e300] {
            for scale in [
                Scale::linear((value, value), (0.0, 100.0), 4),
                Scale::exact((value, value), (0.0, 100.0)),
                Scale::log((value, value), (0.0, 100.0)),
                Scale::symmetric((value, value), (0.0, 100.0), 1.0),
            ] {
                let pixel = scale.place(value);
                assert!(pixel.is_finite() && (-1.0..=101.0).contains(&pixel), "{scale:?}: {pixel}");
                assert!(scale.ticks(5).len() <= 101);
            }
        }
        assert_eq!(extent([f64::NAN, f64::INFINITY]), None);
        assert_eq!(extent([f64::NAN, 2.0, -1.0]), Some((-1.0, 2.0)));
    }

    #[test]
    fn symmetric_scales_keep_sign_and_order() {
        let scale = Scale::symmetric((-50.0, 50.0), (0.0, 100.0), 1.0);
        let pixels: Vec<f64> = [-50.0, -5.0, 0.0, 5.0, 50.0].map(|value| scale.place(value)).to_vec();
        assert!(pixels.is_sorted() && (pixels[2] - 50.0).abs() < 1e-9, "{pixels:?}");
    }
}
