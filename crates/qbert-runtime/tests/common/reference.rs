//! The arithmetic of a packed model written out plainly: one loop per sum, integers as i64, f32 in the order that
//! `docs/reference/kernels.md` states. Slow, and equal to the runtime to the last bit.
//!
//! LayerNorm, softmax, GELU and f32 products are taken from the training kernels: they are tested on their own, and with them
//! not a bit may differ.

use qbert_kernels::{Kernels, LayerNorm, MatMut, MatRef, NormalizedMut, Start};
use qbert_model::packed::{LayerActivations, PackedModel, PackedSite};
use qbert_model::{Head, Module};
use qbert_quant::{ActivationParams, Embedding, Matrix, Site};
use qbert_runtime::Tokens;

/// Scores and hidden states.
pub(crate) struct Reference<'a> {
    model: &'a PackedModel,
    kernels: Kernels,
    width: usize,
}

/// What goes into a linear layer.
enum Read<'a> {
    Codes(&'a [u8], ActivationParams),
    Floats(&'a [f32]),
}

impl<'a> Reference<'a> {
    pub(crate) fn new(model: &'a PackedModel, kernels: Kernels) -> Self {
        Self { model, kernels, width: model.config().hidden_size }
    }

    /// Hidden states of all tokens, and scores.
    pub(crate) fn forward(&self, tokens: Tokens<'_>) -> (Vec<f32>, Vec<f32>) {
        let mut hidden = self.embed(tokens);
        for layer in 0..self.model.config().layers {
            let params = self.model.activations().map(|all| all[layer]);
            hidden = self.layer(layer, params, tokens.offsets, &hidden);
        }
        let mut source = hidden.clone();
        if self.model.head() == Head::SequenceClassification {
            let starts = &tokens.offsets[..tokens.offsets.len() - 1];
            let first: Vec<f32> =
                starts.iter().flat_map(|&start| &hidden[start * self.width..][..self.width]).copied().collect();
            source = self.dense(Module::Pooler, &first);
            self.kernels.tanh_in_place(&mut source);
        }
        let scores = self.dense(Module::Head, &source);
        (hidden, scores)
    }

    fn embed(&self, tokens: Tokens<'_>) -> Vec<f32> {
        let mut sum = Vec::new();
        for pair in tokens.offsets.windows(2) {
            for (position, token) in (pair[0]..pair[1]).enumerate() {
                let rows = [tokens.ids[token] as usize, position, usize::from(tokens.segments[token])];
                let [word, position, token_type] = [0, 1, 2].map(|table| self.row(Embedding::ALL[table], rows[table]));
                sum.extend((0..self.width).map(|col| (word[col] + position[col]) + token_type[col]));
            }
        }
        self.norm(Module::EmbeddingNorm, sum)
    }

    fn row(&self, table: Embedding, row: usize) -> Vec<f32> {
        match self.model.site(Site::Embedding(table)).unwrap() {
            PackedSite::Full(values, cols) => values[row * cols..(row + 1) * cols].to_vec(),
            PackedSite::Table(rows, groups) => {
                let codes = rows.row_codes(row);
                let groups_of = groups.layout().groups();
                codes.iter().enumerate().map(|(c, &code)| groups.affines()[groups_of.group_of(c)].value(code)).collect()
            }
            PackedSite::Matrix(..) => panic!("a table"),
        }
    }

    fn layer(&self, layer: usize, params: Option<LayerActivations>, offsets: &[usize], hidden: &[f32]) -> Vec<f32> {
        let linear = |matrix, values: &[f32], by: Option<ActivationParams>| match by {
            None => self.linear(layer, matrix, &Read::Floats(values)),
            Some(by) => {
                let codes: Vec<u8> = values.iter().map(|&value| by.code(value)).collect();
                self.linear(layer, matrix, &Read::Codes(&codes, by))
            }
        };
        let [query, key, value] =
            [Matrix::Query, Matrix::Key, Matrix::Value].map(|m| linear(m, hidden, params.map(|p| p.input)));
        let mut context = vec![0.0; hidden.len()];
        for pair in offsets.windows(2) {
            let rows = pair[0] * self.width..pair[1] * self.width;
            let parts = [&query, &key, &value].map(|all| &all[rows.clone()]);
            match params {
                Some(params) => self.attend_codes(parts, params, &mut context[rows]),
                None => self.attend_floats(parts, &mut context[rows]),
            }
        }
        let sum = linear(Matrix::AttentionOutput, &context, params.map(|p| p.context));
        let sum = sum.iter().zip(hidden).map(|(y, x)| x + y).collect();
        let middle = self.norm(Module::AttentionNorm(layer), sum);
        let before = linear(Matrix::Intermediate, &middle, params.map(|p| p.middle));
        let mut inner = vec![0.0; before.len()];
        self.kernels.gelu(&before, &mut inner);
        let sum = linear(Matrix::Output, &inner, params.map(|p| p.inner));
        let sum = sum.iter().zip(&middle).map(|(y, x)| x + y).collect();
        self.norm(Module::OutputNorm(layer), sum)
    }

    fn linear(&self, layer: usize, matrix: Matrix, read: &Read<'_>) -> Vec<f32> {
        let site = Site::Layer(layer, matrix);
        let bias = self.model.float(Module::Site(site).bias()).unwrap();
        let (weights, groups) = match self.model.site(site).unwrap() {
            PackedSite::Full(values, _) => return self.floats(&values, &bias, read),
            PackedSite::Matrix(weights, groups) => (weights, groups),
            PackedSite::Table(..) => panic!("a matrix"),
        };
        let (codes, groups_of, cols) = (weights.codes(), groups.layout().groups(), weights.inputs());
        let affine = |neuron: usize| groups.affines()[groups_of.group_of(neuron)];
        let Read::Codes(read, by) = read else {
            let values: Vec<f32> = codes.iter().enumerate().map(|(i, &code)| affine(i / cols).value(code)).collect();
            return self.floats(&values, &bias, read);
        };
        let zero = i64::from(by.zero_point());
        let mut out = Vec::new();
        for token in read.chunks_exact(cols) {
            let total: i64 = token.iter().map(|&code| i64::from(code) - zero).sum();
            for (neuron, row) in codes.chunks_exact(cols).enumerate() {
                let sum: i64 = token.iter().zip(row).map(|(&a, &w)| (i64::from(a) - zero) * i64::from(w)).sum();
                let affine = affine(neuron);
                let offset = (by.step() * affine.low()).mul_add(total as f32, bias[neuron]);
                out.push((by.step() * affine.step()).mul_add(sum as f32, offset));
            }
        }
        out
    }

    fn floats(&self, weight: &[f32], bias: &[f32], read: &Read<'_>) -> Vec<f32> {
        let values: Vec<f32> = match read {
            Read::Floats(values) => values.to_vec(),
            Read::Codes(codes, by) => codes.iter().map(|&code| by.value(code)).collect(),
        };
        let inputs = weight.len() / bias.len();
        let rows = values.len() / inputs;
        let mut out = vec![0.0; rows * bias.len()];
        let (read, weight) = (MatRef::new(&values, rows, inputs), MatRef::new(weight, bias.len(), inputs));
        self.kernels.gemm_nt(read, weight, Start::Bias(bias), MatMut::new(&mut out, rows, bias.len()));
        out
    }

    fn dense(&self, module: Module, read: &[f32]) -> Vec<f32> {
        let [weight, bias] = [module.weight(), module.bias()].map(|role| self.model.float(role).unwrap());
        self.floats(&weight, &bias, &Read::Floats(read))
    }

    fn attend_codes(&self, [query, key, value]: [&[f32]; 3], params: LayerActivations, context: &mut [f32]) {
        let (heads, length) = (self.model.config().heads, query.len() / self.width);
        let size = self.width / heads;
        let steps = |values: &[f32], by: ActivationParams| -> Vec<i64> {
            values.iter().map(|&value| i64::from(by.code(value)) - i64::from(by.zero_point())).collect()
        };
        let (query, key, value) = (steps(query, params.query), steps(key, params.key), steps(value, params.value));
        let scale = params.query.step() * params.key.step() / (size as f32).sqrt();
        let at = |token: usize, head: usize, d: usize| token * self.width + head * size + d;
        for head in 0..heads {
            for i in 0..length {
                let score = |j| (0..size).map(|d| query[at(i, head, d)] * key[at(j, head, d)]).sum::<i64>() as f32;
                let mut row: Vec<f32> = (0..length).map(score).collect();
                self.kernels.softmax(&mut row, length, scale);
                let codes: Vec<i64> = row.iter().map(|&p| i64::from(ActivationParams::PROBABILITIES.code(p))).collect();
                for d in 0..size {
                    let sum: i64 = (0..length).map(|j| codes[j] * value[at(j, head, d)]).sum();
                    context[at(i, head, d)] = sum as f32 * (params.value.step() / 255.0);
                }
            }
        }
    }

    fn attend_floats(&self, parts: [&[f32]; 3], context: &mut [f32]) {
        let (heads, length) = (self.model.config().heads, context.len() / self.width);
        let size = self.width / heads;
        for head in 0..heads {
            let columns = head * size..(head + 1) * size;
            let [query, key, value] =
                parts.map(|all| MatRef::new(all, length, self.width).block(0..length, columns.clone()));
            let mut scores = vec![0.0; length * length];
            self.kernels.gemm_nt(query, key, Start::ZERO, MatMut::new(&mut scores, length, length));
            self.kernels.softmax(&mut scores, length, 1.0 / (size as f32).sqrt());
            let mut whole = MatMut::new(context, length, self.width);
            let target = whole.block(0..length, columns);
            self.kernels.gemm_nn(MatRef::new(&scores, length, length), value, Start::ZERO, target);
        }
    }

    fn norm(&self, module: Module, mut sum: Vec<f32>) -> Vec<f32> {
        let [gamma, beta] = [module.weight(), module.bias()].map(|role| self.model.float(role).unwrap());
        let epsilon = self.model.config().layer_norm_eps;
        let rows = sum.len() / self.width;
        let (mut mean, mut rstd, mut out) = (vec![0.0; rows], vec![0.0; rows], vec![0.0; sum.len()]);
        let target = NormalizedMut { sum: &mut sum, mean: &mut mean, rstd: &mut rstd, out: &mut out };
        self.kernels.layer_norm_forward(LayerNorm { gamma: &gamma, beta: &beta, epsilon }, None, target);
        out
    }
}
