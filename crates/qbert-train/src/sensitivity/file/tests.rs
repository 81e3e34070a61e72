use qbert_hessian::Stop;

use super::*;

fn sensitivity(eigenvalues: &[&[f64]], lowest: &[f64]) -> Sensitivity {
    of_samples(24, eigenvalues, lowest)
}

/// The same with this many sequences in every run.
fn of_samples(examples: usize, eigenvalues: &[&[f64]], lowest: &[f64]) -> Sensitivity {
    let runs = eigenvalues[0].len();
    let settings = Settings { runs, stop: Stop { iterations: 9, tolerance: 0.01 }, ..Settings::default() };
    let layer_parameters = vec![10; eigenvalues.len()];
    let (task, model, data) = ("sst2".to_owned(), "m".to_owned(), serde_json::Value::Null);
    let subject = AnalysisSubject { task, model, layer_parameters, data, max_len: 8 };
    let found = eigenvalues.iter().enumerate().flat_map(|(layer, values)| {
        values.iter().enumerate().map(move |(run, &eigenvalue)| Found {
            run,
            layer,
            eigenvalue,
            residual: 0.0,
            lowest: Some(lowest[layer]),
            iterations: 3,
            converged: eigenvalue < 50.0,
            trace: Some(20.0),
        })
    });
    let looked_at = (0..runs).map(|run| AnalysisRun { run, examples, tokens: 8 * examples, loss: 0.1 });
    sum_up(subject, settings, looked_at.collect(), &found.collect::<Vec<_>>())
}

#[test]
fn omega_is_the_size_of_the_mean_and_the_spread() {
    let found = sensitivity(&[&[1.0, 3.0], &[-4.0, -4.0]], &[0.0, -4.0]);
    let layer = &found.layers[0];
    assert_eq!((layer.mean, layer.std, layer.omega, layer.trace), (2.0, 1.0, 3.0, Some(2.0)));
    assert_eq!(found.layers[1].omega, 4.0);
    assert_eq!(found.ranking, [1, 0]);
    assert_eq!(found.agreement_of_halves, None, "two runs have no halves to speak of");
}

#[test]
fn halves_that_rank_alike_agree() {
    let same = sensitivity(&[&[1.0, 1.1, 1.0, 1.2], &[5.0, 5.0, 6.0, 6.0], &[3.0, 3.0, 3.0, 3.0]], &[0.0; 3]);
    assert_eq!(same.agreement_of_halves, Some(1.0));
    let opposite = sensitivity(&[&[1.0, 1.0, 9.0, 9.0], &[5.0; 4], &[9.0, 9.0, 1.0, 1.0]], &[0.0; 3]);
    assert_eq!(opposite.agreement_of_halves, Some(-1.0));
}

#[test]
fn only_large_negative_curvature_is_warned_of() {
    let calm = sensitivity(&[&[10.0, 12.0]], &[-3.0]);
    assert_eq!(calm.warnings, [""; 0]);
    let steep = sensitivity(&[&[10.0, 12.0], &[1.0, 1.0]], &[-6.0, 0.0]);
    assert!(steep.warnings[0].starts_with("layers [0] have negative curvature"), "{steep:?}");
    assert!(steep.warnings[0].contains("in 0 of 4 runs and layers"), "{steep:?}");
    let dominant = sensitivity(&[&[1.0, 1.0], &[10.0, -12.0]], &[0.0, -12.0]);
    let text = &dominant.warnings[0];
    assert!(text.starts_with("in layer 1 the curvature") && text.contains("1 of 2 runs (down to -12.000)"), "{text}");
    let some = sensitivity(&[&[10.0, 12.0, -9.0], &[1.0, 1.0, 1.0]], &[-1.0, 0.0]);
    assert_eq!(some.warnings.len(), 1, "{some:?}");
    assert!(some.warnings[0].contains("larger one in 1 of 6 runs and layers"), "{some:?}");
    let unfinished = sensitivity(&[&[60.0, 1.0]], &[0.0]);
    assert!(unfinished.warnings[0].contains("limit of 9"), "{unfinished:?}");
}

#[test]
fn convergence_is_judged_by_the_size_of_the_evidence() {
    let negative: &[&[f64]] = &[&[-9.0, -8.0, -9.0, 1.0, -7.0], &[2.0; 5]];
    let few = of_samples(24, negative, &[-9.0, 0.0]).warnings.remove(0);
    assert!(few.contains("5 runs of 24 sequences are too few to tell"), "{few}");
    assert!(!few.contains("does not seem"), "{few}");
    let runs = of_samples(4096, &[&[-9.0, -8.0], &[2.0; 2]], &[-9.0, 0.0]).warnings.remove(0);
    assert!(runs.contains("2 runs of 4096 sequences are too few to tell"), "{runs}");
    let many = of_samples(256, negative, &[-9.0, 0.0]).warnings.remove(0);
    assert!(many.starts_with("the checkpoint does not seem to have converged: in layer 0"), "{many}");
    // Warnings are read in files and reports, too, where no flag would mean anything.
    assert!([few, runs, many].iter().all(|text| !text.contains("--")));
}
