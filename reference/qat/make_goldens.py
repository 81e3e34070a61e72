#!/usr/bin/env python3
"""Writes the goldens of quantization-aware training and distillation from PyTorch's autograd, the twin of qbert-train.

    pip install -r reference/qat/requirements.txt
    python reference/qat/make_goldens.py

This regenerates crates/qbert-train/tests/goldens-qat/ from the tiny checkpoints of crates/qbert-train/tests/goldens/ (README.md beside
this file lists what each file holds). It checks first that the model written out here is transformers' own, draws
batches until no activation lies so near a tie of its quantizer that f32 could round it otherwise than f64, and checks
gradients of the smooth terms against finite differences. One thread, fixed seeds.
"""
import pathlib
import sys

import torch
import torch.nn.functional as functional

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "train"))

import ragged  # noqa: E402
import tiny  # noqa: E402
from model import LEARNED, Bert  # noqa: E402
from quantizers import (  # noqa: E402
    Margin, StraightThrough, activation_params, quantized_activation, quantized_weight, weight_ranges,
)
from store import batch_tensors, write  # noqa: E402

TESTS = HERE.parents[1] / "crates" / "qbert-train" / "tests"
MATRICES = ("query", "key", "value", "attention_output", "intermediate", "output")
TENSORS = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "attention_output": "attention.output.dense", "intermediate": "intermediate.dense", "output": "output.dense",
}
# Bits, groups (a number, "head" or "neuron") and the part of [min, max] that is the range (None: all of it).
PART = (0.1, 0.85)
LAYERS = [
    {"query": (2, 4, PART), "key": (3, "head", None), "value": (1, 3, PART),
     "attention_output": (2, "neuron", PART), "intermediate": (4, 5, None), "output": (32, 1, None)},
    {name: (3, 7, PART) for name in MATRICES},
    {name: (2, 4, None) for name in MATRICES} | {"intermediate": (8, 1, PART)},
]
EMBEDDINGS = {"word": (4, 6, PART), "position": (8, 1, None), "type": (3, 2, PART)}
LENGTHS = {"sequence": [3, 1, 6, 4], "token": [4, 2, 5], "span": [5, 3, 4]}
# A value must be so far from a tie, in codes; our f32 is a hundred times nearer to f64 than that.
MARGIN = 2e-4
# What of the observed ranges is kept, so that the clamp acts.
KEPT = 0.9
WEIGHTS = {"labels": 0.7, "answers": 1.3, "hidden": 0.6, "attention": 0.9}
TEMPERATURE = 1.5


def sites():
    """(site, tensor name, bits, groups, part, whether groups are of columns), in the order of the plan."""
    for table, (bits, groups, part) in EMBEDDINGS.items():
        kind = "token_type" if table == "type" else table
        yield f"embedding.{table}", f"bert.embeddings.{kind}_embeddings.weight", bits, groups, part, True
    for layer, plan in enumerate(LAYERS):
        for name, (bits, groups, part) in plan.items():
            tensor = f"bert.encoder.layer.{layer}.{TENSORS[name]}.weight"
            yield f"layer.{layer}.{name}", tensor, bits, groups, part, False


def plan_text():
    """The plan as qbert-quant reads it. A sub-interval is `mse` there; the test sets the ranges of the golden."""
    def site(bits, groups, part):
        groups = f'"{groups}"' if isinstance(groups, str) else groups
        return f'{{ bits = {bits}, groups = {groups}, range = "{"min-max" if part is None else "mse"}" }}'
    lines = ["version = 1", "", "[encoder]", "groups = 1", 'range = "mse"']
    for layer, plan in enumerate(LAYERS):
        lines.append(f"layer.{layer} = {{ " + ", ".join(f"{name} = {site(*plan[name])}" for name in MATRICES) + " }")
    lines += ["", "[embedding]", "groups = 1", 'range = "mse"']
    lines += [f"{table} = {site(*own)}" for table, own in EMBEDDINGS.items()]
    return "\n".join(lines + ["", "[activation]", "bits = 8", 'range = "min-max"', ""])


def quantize_weights(masters, heads):
    """Straight-through quantized weights of the plan, and the ranges by site."""
    weights, ranges = dict(masters), {}
    for site, name, bits, groups, part, by_columns in sites():
        if bits == 32:
            continue
        matrix = masters[name].detach().to(torch.float32).numpy()
        neurons = matrix.shape[1 if by_columns else 0]
        count = {"head": heads, "neuron": neurons}.get(groups, groups)
        ranges[site] = weight_ranges(matrix, count, by_columns, part)
        values, mask = quantized_weight(matrix, ranges[site], bits, by_columns)
        assert mask.all() == (part is None), site
        weights[name] = StraightThrough.apply(masters[name], torch.from_numpy(values), torch.from_numpy(mask))
    return weights, ranges


def observe(config, weights, batch):
    """Step and zero point of each learned tensor, from a shrunk part of what it holds in this batch."""
    found = {}

    def look(layer, tensor, x):
        low, high = found.get((layer, tensor), (0.0, 0.0))
        found[layer, tensor] = (min(low, x.min().item()), max(high, x.max().item()))
        return x

    Bert(config, weights, look).run(batch)
    return {key: activation_params(KEPT * low, KEPT * high) for key, (low, high) in found.items() if key[1] in LEARNED}


def quantizer(params, margin):
    def quantize(layer, tensor, x):
        step, zero_point = (1 / 255, 0) if tensor == "probabilities" else params[layer, tensor]
        return quantized_activation(x, step, zero_point, margin)

    return quantize


def draw(kind, seed):
    """A batch of its own: `tiny.batch` with other lengths and seed."""
    generator = torch.Generator().manual_seed(seed)
    lengths = LENGTHS[kind]
    offsets = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    ids = torch.randint(1, len(tiny.VOCABULARY), (offsets[-1],), generator=generator)
    segments = torch.cat([(torch.arange(length) * 2 > length).long() for length in lengths])
    if kind == "sequence":
        labels = [torch.randint(0, 3, (len(lengths),), generator=generator)]
    else:
        labels = tiny.labels(kind, lengths, generator)
    return ragged.Batch(ids, segments, offsets, labels)


def soft_answers(kind, student, teacher, batch):
    """Mean over the softmaxes of the cross-entropy: temperature squared times KL(teacher, student)."""
    if kind == "span":
        pairs = [(student[a:b, side], teacher[a:b, side]) for a, b in batch.spans() for side in range(2)]
    else:
        rows = [row for row, label in enumerate(batch.labels[0].tolist()) if label != ragged.IGNORED]
        pairs = [(student[row], teacher[row]) for row in rows]
    terms = [functional.kl_div((s / TEMPERATURE).log_softmax(-1), (t / TEMPERATURE).log_softmax(-1), log_target=True,
                               reduction="sum") for s, t in pairs]
    return TEMPERATURE**2 * torch.stack(terms).mean()


def distilled(kind, student, teacher, batch):
    """The four terms, not yet weighted."""
    (hidden, attention, logits), (t_hidden, t_attention, t_logits) = student, teacher
    rows = sum(p.shape[0] * p.shape[1] for p in attention[0])
    divergence = sum((t * (t.log() - s.log())).sum() for own, other in zip(attention, t_attention) for s, t in zip(own, other))
    return {
        "labels": ragged.loss_of(kind, logits, batch),
        "answers": soft_answers(kind, logits, t_logits, batch),
        "hidden": sum(((s - t) ** 2).mean() for s, t in zip(hidden, t_hidden)),
        "attention": divergence / rows,
    }


def gradients(loss, masters):
    found = torch.autograd.grad(loss, list(masters.values()), retain_graph=True)
    return dict(zip(masters, found))


def check_model(kind, model, batch):
    """Without quantizers, the model written out is transformers' own."""
    results = ragged.run(model, batch)
    hidden, _, logits = Bert(model.config, dict(model.named_parameters())).run(batch)
    for mine, theirs in zip(hidden + [logits], results.hidden + [results.logits]):
        assert (mine - theirs).abs().max() < 1e-12, kind


def check_terms(kind, config, masters, teacher, batch):
    """The terms' gradients against central differences, at weights that are not the teacher's."""
    moved = {name: (value.detach() * 1.05 + 0.01).requires_grad_() for name, value in masters.items()}
    loss_of = lambda weights: sum(  # noqa: E731
        WEIGHTS[name] * term for name, term in distilled(kind, Bert(config, weights).run(batch), teacher, batch).items())
    gradient = gradients(loss_of(moved), moved)
    generator = torch.Generator().manual_seed(7)
    direction = {name: torch.randn(v.shape, generator=generator, dtype=torch.float64) for name, v in moved.items()}
    step = 1e-6
    shifted = [loss_of({n: v.detach() + sign * step * direction[n] for n, v in moved.items()}).item() for sign in (1, -1)]
    expected = sum((gradient[name] * direction[name]).sum().item() for name in moved)
    assert abs((shifted[0] - shifted[1]) / (2 * step) - expected) < 1e-5 * max(1.0, abs(expected)), kind


def make(kind, out):
    model = tiny.load(TESTS / "goldens" / f"tiny-{kind}", kind, torch.float64)
    config = model.config
    masters = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    for seed in range(1000):
        batch, margin = draw(kind, 400 + seed), Margin()
        weights, ranges = quantize_weights(masters, config.num_attention_heads)
        params = observe(config, weights, batch)
        student = Bert(config, weights, quantizer(params, margin)).run(batch)
        if margin.smallest > MARGIN:
            break
    else:
        raise AssertionError("no batch keeps its distance from ties")
    assert margin.clamped > 20, "the clamp acts"
    check_model(kind, model, batch)
    with torch.no_grad():
        teacher = Bert(config, masters).run(batch)
    check_terms(kind, config, masters, teacher, batch)
    terms = distilled(kind, student, teacher, batch)
    total = sum(WEIGHTS[name] * term for name, term in terms.items())
    tensors = batch_tensors(batch)
    tensors |= {f"range/{site}": torch.from_numpy(own) for site, own in ranges.items()}
    tensors |= {
        f"activation/layer.{layer}.{tensor}": torch.tensor([step, zero_point], dtype=torch.float64)
        for (layer, tensor), (step, zero_point) in params.items()
    }
    hidden, _, logits = student
    tensors |= {"logits": logits, "hidden": hidden[-1], "loss": terms["labels"], "distilled_loss": total}
    tensors |= {f"term/{name}": term for name, term in terms.items()}
    # Rounded to f32 to save space: the tests allow more than that.
    tensors |= {f"grad/{name}": value.float() for name, value in gradients(terms["labels"], masters).items()}
    tensors |= {f"distilled_grad/{name}": value.float() for name, value in gradients(total, masters).items()}
    write(out / f"{kind}.safetensors", tensors)
    print(f"  seed {400 + seed}: {margin.smallest:.1e} codes from a tie, {margin.clamped} of {margin.total} clamped")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    out = TESTS / "goldens-qat"
    out.mkdir(exist_ok=True)
    (out / "plan.toml").write_text(plan_text())
    for kind in LENGTHS:
        make(kind, out)
    for path in out.iterdir():
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in out.iterdir())
    print(f"{size} bytes in all")
    assert size < 400_000, "the goldens have grown too large to commit"


if __name__ == "__main__":
    main()
