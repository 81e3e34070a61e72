//! Once its buffers have grown, an encoder layer takes no memory from the heap, with one thread or several.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use qbert_kernels::int::{
    AttentionInput, Codes, LinearInput, LinearLayer, LinearOutput, LinearParams, NormOutput, PackedWeights, Quantizer,
    pack,
};
use qbert_kernels::{Activation, Compute, Kernels, LayerNorm, Threads};

/// Counts what every thread takes.
struct Counting;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work; counting changes nothing about it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(1, Ordering::SeqCst);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WIDTH: usize = 64;

/// One layer's operations over sequences of these lengths; the same matrix serves for all.
struct Layer<'a> {
    compute: Compute,
    weights: PackedWeights<'a>,
    params: &'a LinearParams,
    codes: [Codes; 5],
    hidden: Vec<f32>,
    starts: Vec<usize>,
}

impl Layer<'_> {
    fn run(&mut self, lengths: &[usize]) {
        let tokens = lengths.iter().sum();
        self.starts.clear();
        self.starts.push(0);
        for length in lengths {
            self.starts.push(self.starts.last().map_or(0, |last| last + length));
        }
        for codes in &mut self.codes {
            codes.resize(tokens);
        }
        self.hidden.resize(tokens * WIDTH, 0.5);
        let quantizer = Quantizer::new(0.02, 128);
        let [input, query, key, value, context] = &mut self.codes;
        let (weights, params) = (self.weights, self.params);
        let norm = LayerNorm { gamma: &[1.0; WIDTH], beta: &[0.0; WIDTH], epsilon: 1e-12 };
        let layers = [&mut *query, &mut *key, &mut *value].map(|codes| {
            let output = LinearOutput::Codes(codes, quantizer);
            LinearLayer { weights, params, output }
        });
        self.compute.linear(LinearInput { codes: input, quantizer }, layers);
        let attention = AttentionInput {
            query: (query, quantizer),
            key: (key, quantizer),
            value: (value, quantizer),
            heads: 2,
            starts: &self.starts,
            bias: None,
            window: None,
        };
        self.compute.attention(&attention, context, quantizer);
        let output = NormOutput { norm, hidden: &mut self.hidden, codes: Some((input, quantizer)) };
        self.compute.linear_norm(LinearInput { codes: context, quantizer }, weights, params, output);
        let output = LinearOutput::Activated(Activation::Gelu, query, quantizer);
        self.compute.linear(LinearInput { codes: input, quantizer }, [LinearLayer { weights, params, output }]);
    }
}

#[test]
fn a_layer_takes_no_memory_once_it_has_grown() {
    let packed = pack(&[1; WIDTH * WIDTH], 2, WIDTH, WIDTH).expect("a good matrix");
    let weights = PackedWeights::new(2, WIDTH, WIDTH, &packed).expect("just packed");
    for threads in [1, 3] {
        let compute = Compute::new(Kernels::best(), Threads::new(threads).expect("threads"));
        let params = LinearParams::new(compute.kernels(), &weights, &[0.1; WIDTH], &[0.0; WIDTH], &[0.0; WIDTH]);
        let codes = [(); 5].map(|()| Codes::new(WIDTH));
        let mut layer = Layer { compute, weights, params: &params, codes, hidden: Vec::new(), starts: Vec::new() };
        // Every thread has to have met its largest task: a few rounds, because who takes which task is chance.
        for _ in 0..50 {
            layer.run(&[300, 7, 120]);
        }
        let before = TAKEN.load(Ordering::SeqCst);
        for lengths in [&[300, 7, 120][..], &[1], &[16, 16], &[33, 5], &[200]] {
            layer.run(lengths);
        }
        assert_eq!(TAKEN.load(Ordering::SeqCst) - before, 0, "{threads} threads");
    }
}
