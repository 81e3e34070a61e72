//! Matrices of activation codes: sizes that wrap around are refused before anything reads them.

use qbert_kernels::int::Codes;

/// `rows · stride + 64` is 64 here when it wraps.
#[test]
#[should_panic(expected = "do not fit in memory")]
fn point_25_rows_that_wrap_around_are_refused() {
    Codes::new(1).resize(1 << 58);
}

#[test]
#[should_panic(expected = "do not fit in memory")]
fn point_25_rows_that_wrap_around_at_the_very_end_are_refused() {
    Codes::new(64).resize(usize::MAX / 64);
}

#[test]
#[should_panic(expected = "do not fit in memory")]
fn point_25_columns_that_wrap_around_are_refused() {
    Codes::new(usize::MAX);
}

#[test]
fn a_refused_size_leaves_the_matrix_as_it_was() {
    let mut codes = Codes::from_codes(&[1, 2, 3, 4, 5, 6], 3);
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| codes.resize(1 << 60)));
    assert!(refused.is_err());
    assert_eq!((codes.rows(), codes.to_codes()), (2, vec![1, 2, 3, 4, 5, 6]));
}
