"""BERT written out, one sequence at a time, with a place for a quantizer at each of its activation tensors.

transformers offers no such places inside its attention; that this model without quantizers is transformers' own is
checked before anything is written.
"""
import math

import torch
import torch.nn.functional as functional

LEARNED = ("input", "query", "key", "value", "context", "middle", "inner")


class Bert:
    """`weights`: name to tensor, in transformers' names. `quantize(layer, tensor, x)` returns what a product reads."""

    def __init__(self, config, weights, quantize=None):
        self.config, self.weights = config, weights
        self.quantize = quantize or (lambda _layer, _tensor, x: x)

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(x, (x.shape[-1],), weight, bias, self.config.layer_norm_eps)

    def layer(self, index, x):
        name = f"bert.encoder.layer.{index}"
        read = self.quantize(index, "input", x)
        count, width = self.config.num_attention_heads, x.shape[-1] // self.config.num_attention_heads
        parts = []
        for part in ("query", "key", "value"):
            projected = self.quantize(index, part, self.linear(f"{name}.attention.self.{part}", read))
            parts.append(projected.view(len(x), count, width).transpose(0, 1))
        query, key, value = parts
        probabilities = torch.softmax(query @ key.transpose(1, 2) / math.sqrt(width), dim=-1)
        context = self.quantize(index, "probabilities", probabilities) @ value
        context = self.quantize(index, "context", context.transpose(0, 1).reshape(x.shape))
        middle = self.norm(f"{name}.attention.output.LayerNorm", self.linear(f"{name}.attention.output.dense", context) + x)
        inner = functional.gelu(self.linear(f"{name}.intermediate.dense", self.quantize(index, "middle", middle)))
        inner = self.quantize(index, "inner", inner)
        return self.norm(f"{name}.output.LayerNorm", self.linear(f"{name}.output.dense", inner) + middle), probabilities

    def sequence(self, ids, segments):
        """Hidden states (embeddings first), probabilities per layer, and the rows of logits."""
        embeddings = "bert.embeddings"
        tables = [self.weights[f"{embeddings}.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
        x = tables[0][ids] + tables[1][: len(ids)] + tables[2][segments]
        hidden, attention = [self.norm(f"{embeddings}.LayerNorm", x)], []
        for index in range(self.config.num_hidden_layers):
            x, probabilities = self.layer(index, hidden[-1])
            hidden.append(x)
            attention.append(probabilities)
        if "bert.pooler.dense.weight" in self.weights:
            x = torch.tanh(self.linear("bert.pooler.dense", x[:1]))
        head = "qa_outputs" if "qa_outputs.weight" in self.weights else "classifier"
        return hidden, attention, self.linear(head, x)

    def run(self, batch):
        """The same for a batch: rows of all sequences one after the other, attention per layer as a list."""
        parts = [self.sequence(batch.input_ids[a:b], batch.segments[a:b]) for a, b in batch.spans()]
        hidden = [torch.cat(states) for states in zip(*(part[0] for part in parts))]
        attention = [list(layer) for layer in zip(*(part[1] for part in parts))]
        return hidden, attention, torch.cat([part[2] for part in parts])
