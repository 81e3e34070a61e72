#!/usr/bin/env python3
"""Sets `qbert analyze --method power` beside power iteration by double backward in PyTorch: the same fine-tuned SST-2
checkpoint, the same sentences, the same starting vectors, the same number of products.

    python reference/hessian/compare_eigenvalues.py --qbert target/release/qbert --model tuned --sst2 train.tsv \
        --out results/eigenvalues-vs-pytorch.json

Exits with an error when a layer's eigenvalue differs by more than a percent.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

GOLDEN, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
SEED = 3
LARGEST_DIFFERENCE = 0.01
# The order of a layer's parameters in qbert's layout.
PARTS = [
    *(f"attention.self.{part}.weight" for part in ("query", "key", "value")),
    *(f"attention.self.{part}.bias" for part in ("query", "key", "value")),
    *(f"{part}.{kind}" for part in ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense",
                                    "output.dense", "output.LayerNorm") for kind in ("weight", "bias")),
]


def mix(z):
    """The finalizer of splitmix64, on one number or an array of them."""
    if isinstance(z, int):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def normal(seed, name, index, length):
    """qbert_train::random::Stream::new(seed, name, index).fill_normal(values, 1.0)"""
    state = mix(seed ^ GOLDEN)
    for byte in name.encode():
        state = (mix(state ^ byte) + GOLDEN) & MASK
    state = mix(state ^ ((index * GOLDEN) & MASK))
    with numpy.errstate(over="ignore"):
        steps = numpy.arange(1, length + length % 2 + 1, dtype=numpy.uint64) * numpy.uint64(GOLDEN)
        drawn = mix(numpy.uint64(state) + steps)
    uniform = ((drawn >> numpy.uint64(11)) + numpy.uint64(1)).astype(numpy.float64) / float(1 << 53)
    radius, angle = numpy.sqrt(-2 * numpy.log(uniform[0::2])), 2 * numpy.pi * uniform[1::2]
    pairs = numpy.stack([radius * numpy.cos(angle), radius * numpy.sin(angle)], axis=1)
    return pairs.astype(numpy.float32).reshape(-1)[:length]


def ours(options, data, directory):
    command = [str(options.qbert), "analyze", "--model", str(options.model), "--task", "sst2", "--data", str(data),
               "--runs", "1", "--fraction", "1", "--max-examples", "all", "--method", "power", "--tol", "1e-9",
               "--iterations", str(options.iterations), "--seed", str(SEED), "--out", str(directory), "--json", "-q"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def theirs(options, rows):
    bert = transformers.BertForSequenceClassification.from_pretrained(options.model, attn_implementation="eager")
    bert = bert.to(torch.float32).eval()
    bert.requires_grad_(False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    batch = tokenizer([row[0] for row in rows], padding=True, truncation=True, max_length=128, return_tensors="pt")
    labels = torch.tensor([int(row[1]) for row in rows])
    for index, layer in enumerate(bert.bert.encoder.layer):
        parameters = dict(layer.named_parameters())
        assert sorted(parameters) == sorted(PARTS), sorted(parameters)
        parameters = [parameters[part].requires_grad_(True) for part in PARTS]
        flat = torch.from_numpy(normal(SEED, "analysis start", index, sum(p.numel() for p in parameters)))
        gradients = torch.autograd.grad(bert(**batch, labels=labels).loss, parameters, create_graph=True)
        for _ in range(options.iterations):
            flat = flat / flat.norm()
            vector = [v.view_as(p) for v, p in zip(flat.split([p.numel() for p in parameters]), parameters)]
            product = torch.autograd.grad(gradients, parameters, grad_outputs=vector, retain_graph=True)
            product = torch.cat([p.reshape(-1) for p in product])
            value = torch.dot(flat.double(), product.double()).item()
            flat = product
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--qbert", type=pathlib.Path, required=True, help="the qbert binary")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="MiniLM fine-tuned on SST-2")
    parser.add_argument("--sst2", type=pathlib.Path, required=True, help="train.tsv")
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    with options.sst2.open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:options.sentences + 1]
    with tempfile.TemporaryDirectory() as home:
        data = pathlib.Path(home) / "data.tsv"
        data.write_text("sentence\tlabel\n" + "".join(f"{row[0]}\t{row[1]}\n" for row in rows), encoding="utf-8")
        found = ours(options, data, pathlib.Path(home) / "out")
    layers = []
    for layer, twin in zip(found["layers"], theirs(options, rows)):
        value, iterations = layer["eigenvalues"][0], layer["iterations"][0]
        assert iterations == options.iterations, f"{iterations} products where {options.iterations} were asked for"
        layers.append({"layer": layer["layer"], "qbert": value, "pytorch": twin,
                       "relative_difference": abs(value - twin) / abs(twin)})
        print(layers[-1])
    largest = max(layer["relative_difference"] for layer in layers)
    result = {
        "what": "top Hessian eigenvalue of every encoder layer of MiniLM fine-tuned on SST-2, by power iteration from "
                "the same starting vectors on the same sentences: qbert beside PyTorch double backward",
        "command": "python reference/hessian/compare_eigenvalues.py --qbert target/release/qbert --model tuned "
                   "--sst2 train.tsv --out results/eigenvalues-vs-pytorch.json",
        "sentences": len(rows), "iterations": options.iterations, "target": "within 1 %",
        "largest_relative_difference": largest, "layers": layers,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if largest > LARGEST_DIFFERENCE:
        sys.exit(f"off by {largest:.2%}")


if __name__ == "__main__":
    main()
