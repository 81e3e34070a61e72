//! Search: do the nearest documents answer a query? Measured as `trec_eval` does.

use serde::{Deserialize, Serialize};

use super::Query;
use super::score::cosine;

/// A document that answers a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relevant {
    /// The document.
    pub document: usize,
    /// How well; above 0.
    pub grade: f64,
}

/// How good a search is, as means over queries, from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RetrievalReport {
    /// Discounted gain of the first ten documents, as a share of the best possible.
    pub ndcg_at_10: f64,
    /// Share of the relevant documents that are first.
    pub recall_at_1: f64,
    /// Share of the relevant documents among the first ten.
    pub recall_at_10: f64,
    /// Share of the relevant documents among the first hundred.
    pub recall_at_100: f64,
    /// One divided by the place of the first relevant document among the first ten, or 0.
    pub mrr_at_10: f64,
    /// How many queries were scored.
    pub queries: usize,
    /// How many documents were searched.
    pub documents: usize,
}

/// The report, and the gain of each query.
pub(super) fn score(queries: &[Query], documents: &[usize], vectors: &[Vec<f32>]) -> (RetrievalReport, Vec<f64>) {
    let mut sums = [0.0; 4];
    let mut gains = Vec::with_capacity(queries.len());
    for query in queries {
        let found = nearest(query, documents, vectors);
        let grade = |document: usize| {
            query.relevant.iter().find(|relevant| relevant.document == document).map_or(0.0, |relevant| relevant.grade)
        };
        gains.push(normalized_gain(&found, query, grade));
        let share = |first: usize| {
            let hits = found.iter().take(first).filter(|&&document| grade(document) > 0.0).count();
            hits as f64 / query.relevant.len() as f64
        };
        let first_hit = found.iter().take(10).position(|&document| grade(document) > 0.0);
        let reciprocal = first_hit.map_or(0.0, |place| 1.0 / (place + 1) as f64);
        for (sum, own) in sums.iter_mut().zip([share(1), share(10), share(100), reciprocal]) {
            *sum += own;
        }
    }
    let mean = |sum: f64| if queries.is_empty() { 0.0 } else { sum / queries.len() as f64 };
    let [recall_at_1, recall_at_10, recall_at_100, mrr_at_10] = sums.map(mean);
    let report = RetrievalReport {
        ndcg_at_10: mean(gains.iter().sum()),
        recall_at_1,
        recall_at_10,
        recall_at_100,
        mrr_at_10,
        queries: queries.len(),
        documents: documents.len(),
    };
    (report, gains)
}

/// The hundred nearest documents, the nearest first. The query itself is none.
fn nearest(query: &Query, documents: &[usize], vectors: &[Vec<f32>]) -> Vec<usize> {
    const KEPT: usize = 100;
    let own = &vectors[query.text];
    let others = documents.iter().filter(|&&document| Some(document) != query.itself);
    let mut scored: Vec<(f64, usize)> = others.map(|&document| (cosine(own, &vectors[document]), document)).collect();
    // trec_eval puts the later of two equal documents first.
    let order = |a: &(f64, usize), b: &(f64, usize)| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1));
    if scored.len() > KEPT {
        scored.select_nth_unstable_by(KEPT - 1, order);
        scored.truncate(KEPT);
    }
    scored.sort_by(order);
    scored.into_iter().map(|(_, document)| document).collect()
}

fn normalized_gain(found: &[usize], query: &Query, grade: impl Fn(usize) -> f64) -> f64 {
    let discounted = |grades: &mut dyn Iterator<Item = f64>| -> f64 {
        grades.take(10).enumerate().map(|(place, grade)| grade / ((place + 2) as f64).log2()).sum()
    };
    let mut ideal: Vec<f64> = query.relevant.iter().map(|relevant| relevant.grade).collect();
    ideal.sort_by(|a, b| b.total_cmp(a));
    let best = discounted(&mut ideal.into_iter());
    if best > 0.0 { discounted(&mut found.iter().map(|&document| grade(document))) / best } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two queries over four documents. The figures are those of `pytrec_eval` on the same run.
    #[test]
    fn figures_are_those_of_trec_eval() {
        let at = |angle: f64| vec![angle.cos() as f32, angle.sin() as f32];
        // Documents 0 to 3, queries 4 and 5.
        let vectors = [at(0.0), at(0.3), at(0.6), at(1.5), at(0.1), at(1.2)];
        let relevant = |document, grade| Relevant { document, grade };
        let queries = [
            // Its order is 0, 1, 2, 3.
            Query { text: 4, itself: None, relevant: vec![relevant(1, 2.0), relevant(3, 1.0)] },
            // Its order is 3, 2, 1, 0.
            Query { text: 5, itself: Some(3), relevant: vec![relevant(1, 1.0)] },
        ];
        let (report, gains) = score(&queries, &[0, 1, 2, 3], &vectors);
        let log = |place: f64| (place + 1.0).log2();
        let first = (2.0 / log(2.0) + 1.0 / log(4.0)) / (2.0 / log(1.0) + 1.0 / log(2.0));
        // Without the query itself, document 1 is second.
        let second = 1.0 / log(2.0);
        assert!((gains[0] - first).abs() < 1e-12 && (gains[1] - second).abs() < 1e-12, "{gains:?}");
        assert!((report.ndcg_at_10 - (first + second) / 2.0).abs() < 1e-12);
        assert_eq!((report.recall_at_1, report.recall_at_10, report.mrr_at_10), (0.0, 1.0, 0.5));
    }

    #[test]
    fn only_the_nearest_hundred_count() {
        let mut vectors: Vec<Vec<f32>> = (0..200).map(|i| vec![1.0, i as f32 / 100.0]).collect();
        vectors.push(vec![1.0, 0.0]);
        let relevant = vec![Relevant { document: 150, grade: 1.0 }, Relevant { document: 99, grade: 1.0 }];
        let query = Query { text: 200, itself: None, relevant };
        let documents: Vec<usize> = (0..200).collect();
        let (report, _) = score(&[query], &documents, &vectors);
        assert_eq!((report.recall_at_100, report.recall_at_10), (0.5, 0.0));
    }
}
