#!/usr/bin/env python3
"""Goldens of every family but plain BERT: tiny random models of `transformers`, one per head.

    pip install -r reference/train/requirements.txt
    python reference/train/families.py

It writes crates/qbert-train/tests/goldens-families. README.md beside this file lists what each file holds. Weights are
stored in f16, everything is computed from them in f64 and stored in f32.
"""
import argparse
import json
import math
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

from optimizer import CLIP, DECAY, PEAK, STEPS, WARMUP
from ragged import IGNORED, Batch, hessian_vector_product, run

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "qbert-train" / "tests" / "goldens-families"
LIMIT_BYTES = 1_600_000
DEVIATION = 0.25
VOCABULARY = 20
LENGTHS = [5, 1, 9, 12, 3]
LABELS = {"sequence": 3, "token": 4, "span": 2}
HEADS = {"sequence": "SequenceClassification", "token": "TokenClassification", "span": "QuestionAnswering"}

SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=16,
    max_position_embeddings=16,
)


class Case:
    """A tiny model of a family: the class names' beginning, what differs from SIZES, and the number of token types."""

    def __init__(self, name, classes, types, heads=tuple(HEADS), layers="encoder.layer.{}.", lengths=LENGTHS, **changes):
        self.name, self.classes, self.types, self.heads, self.layers = name, classes, types, heads, layers
        self.lengths, self.changes = lengths, changes

    def config(self, labels):
        kind = getattr(transformers, f"{self.classes}Config")
        return kind(**(SIZES | self.changes), num_labels=labels, torch_dtype="float16")


AFTER_PADDING = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)
LONG = [40, 1, 9, 70, 3]
MODERN = dict(
    num_hidden_layers=3, max_position_embeddings=96, global_attn_every_n_layers=2, local_attention=6,
    pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2,
)
ALBERT_LAYERS = "encoder.albert_layer_groups.{}.albert_layers.0."
CASES = [
    Case("bert-gelu-new", "Bert", 2, heads=("sequence",), hidden_act="gelu_new"),
    Case("bert-relu", "Bert", 2, heads=("sequence",), hidden_act="relu"),
    Case("bert-silu", "Bert", 2, heads=("sequence",), hidden_act="silu"),
    Case(
        "distilbert", "DistilBert", 0, layers="transformer.layer.{}.",
        dim=12, n_layers=2, n_heads=3, hidden_dim=16,
    ),
    Case("roberta", "Roberta", 1, type_vocab_size=1, **AFTER_PADDING),
    Case("xlm-roberta", "XLMRoberta", 1, type_vocab_size=1, **AFTER_PADDING),
    Case("camembert", "Camembert", 1, type_vocab_size=1, **AFTER_PADDING),
    Case("electra", "Electra", 2, embedding_size=8),
    Case("mpnet", "MPNet", 0, **AFTER_PADDING),
    # Three layers of one group, and three of two.
    Case("albert", "Albert", 2, layers=ALBERT_LAYERS, embedding_size=8, num_hidden_layers=3),
    Case(
        "albert-groups", "Albert", 2, heads=("sequence",), layers=ALBERT_LAYERS,
        embedding_size=12, num_hidden_layers=3, num_hidden_groups=2,
    ),
    # A global layer, a local one that sees three tokens to each side, a global one; sequences of several tiles.
    Case("modernbert", "ModernBert", 0, layers="layers.{}.", lengths=LONG, **MODERN),
    # Everything that the usual configuration leaves out.
    Case(
        "modernbert-biases", "ModernBert", 0, heads=("sequence",), layers="layers.{}.", lengths=LONG, **MODERN,
        attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True,
        classifier_pooling="mean", classifier_activation="relu", hidden_activation="silu",
    ),
]


def build(case, head):
    """A model whose weights are exact in f16, drawn in the order of `named_parameters()`."""
    config = case.config(LABELS[head])
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{case.classes}For{HEADS[head]}")(config).eval()
    generator = torch.Generator().manual_seed(401 + len(case.name) + 10 * list(HEADS).index(head))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * DEVIATION
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_((1 + noise if is_norm else noise).half())
    return model


def batch(case, head):
    """Ids are never those of padding tokens, whose rows get no gradient from torch."""
    generator = torch.Generator().manual_seed(501 + list(HEADS).index(head))
    lengths = case.lengths
    offsets = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    tokens = offsets[-1]
    ids = torch.randint(2, VOCABULARY, (tokens,), generator=generator)
    segments = torch.zeros(tokens, dtype=torch.int64)
    if case.types > 1:
        for index, length in enumerate(lengths):
            segments[offsets[index] + (length + 1) // 2 : offsets[index + 1]] = 1
    return Batch(ids, segments, offsets, labels(head, lengths, generator))


def labels(head, lengths, generator):
    if head == "sequence":
        return [torch.tensor([2, 0, 1, 1, 0])]
    if head == "token":
        drawn = torch.randint(0, LABELS["token"], (sum(lengths),), generator=generator)
        drawn[torch.rand(sum(lengths), generator=generator) < 0.3] = IGNORED
        return [drawn]
    ends = [torch.randint(0, length, (2,), generator=generator).sort().values for length in lengths]
    return [torch.stack([pair[side] for pair in ends]) for side in range(2)]


def named(model):
    """Every parameter once, as files have it."""
    return dict(model.named_parameters())


def parts(name, tensor):
    """A tensor as the engine has it: query, key and value each on their own, with names of their own."""
    if "Wqkv" not in name:
        return [(name, tensor)]
    stem, end = name.rsplit(".", 1)
    return [(f"{stem}.{part}.{end}", rows) for part, rows in zip(("query", "key", "value"), tensor.chunk(3))]


def apart(prefix, tensors):
    return {prefix + name: rows for whole, tensor in tensors.items() for name, rows in parts(whole, tensor)}


def wave(name, parameter):
    waves = [
        torch.sin(1 + 0.37 * torch.arange(rows.numel(), dtype=torch.float64)).view(rows.shape)
        for _, rows in parts(name, parameter)
    ]
    return torch.cat(waves)


def direction(own):
    """sin(1 + 0.37·k) over each part of a tensor of a layer, all together of norm 1, in f32."""
    waves = [wave(name, parameter) for name, parameter in own]
    norm = torch.sqrt(sum((wave * wave).sum() for wave in waves))
    return [(wave / norm).float().double() for wave in waves]


def layer_count(case, model):
    prefix = case.layers.split("{}")[0]
    return 1 + max(int(n.split(prefix)[1].split(".")[0]) for n in named(model) if prefix in n)


def products(case, model, data):
    """H·v of each layer that has weights of its own."""
    found = {}
    for layer in range(layer_count(case, model)):
        inside = case.layers.format(layer)
        own = [(name, value) for name, value in named(model).items() if inside in name]
        parameters = [value for _, value in own]
        product = hessian_vector_product(model, data, parameters, direction(own))
        found |= apart("hv/", {name: value for (name, _), value in zip(own, product)})
    return found


def is_decayed(name):
    return not (name.endswith("bias") or "norm" in name.lower() or "relative_attention_bias" in name)


def steps(model, data):
    """Losses and gradient norms of ten steps of AdamW, and the weights after two."""
    own = named(model)
    groups = [
        {"params": [p for name, p in own.items() if is_decayed(name)], "weight_decay": DECAY},
        {"params": [p for name, p in own.items() if not is_decayed(name)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.999), eps=1e-8, foreach=False, fused=False)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    losses, norms, after = [], [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = run(model, data).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(own.values(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
        schedule.step()
        if step + 1 == 2:
            after = apart("after_step_2/", {name: value.detach().clone() for name, value in own.items()})
    return {"adamw/loss": torch.tensor(losses), "adamw/norm": torch.tensor(norms)} | after


def with_padding(case, model):
    """Logits of a text that contains the padding token: families that count positions after it do not count it."""
    ids = torch.tensor([3, 1, 4, 5, 1, 6])
    data = Batch(ids, torch.zeros_like(ids), [0, len(ids)], [torch.tensor([0])])
    return {"padding/input_ids": ids, "padding/logits": run(model, data).logits}


def goldens(case, head, model, data):
    results = run(model, data)
    own = named(model)
    gradients = torch.autograd.grad(results.loss, own.values(), allow_unused=True)
    found = {
        "input_ids": data.input_ids,
        "segments": data.segments,
        "offsets": torch.tensor(data.offsets),
        "logits": results.logits,
        "loss": results.loss,
    }
    label_names = ["labels"] if len(data.labels) == 1 else ["start_labels", "end_labels"]
    found |= dict(zip(label_names, data.labels))
    for name, gradient in zip(own, gradients):
        assert gradient is not None, f"{case.name}: nothing depends on {name}"
        found |= apart("grad/", {name: gradient})
    if head == "sequence":
        found |= {f"hidden.{index}": rows for index, rows in enumerate(results.hidden)}
        found |= products(case, model, data)
        if case.changes.get("pad_token_id") == 1 and case.classes != "ModernBert":
            found |= with_padding(case, model)
        if case.name == "mpnet":
            distances = torch.arange(-600, 601)
            found["buckets"] = model.mpnet.encoder.relative_position_bucket(distances)
        found |= steps(model, data)
    return found


def write(path, tensors):
    plain = {}
    for name, tensor in tensors.items():
        tensor = torch.as_tensor(tensor).detach()
        tensor = tensor.reshape(1) if tensor.dim() == 0 else tensor
        plain[name] = (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()
    save_file(plain, path)
    path.chmod(0o644)
    print(f"{path.name}: {len(plain)} tensors, {path.stat().st_size} bytes")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=pathlib.Path, default=OUT, help="where to write (default: %(default)s)")
    out = arguments.parse_args().out
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for case in CASES:
        for head in case.heads:
            name = f"{case.name}-{head}"
            build(case, head).half().save_pretrained(out / name)
            for path in (out / name).iterdir():
                path.chmod(0o644)
            kind = getattr(transformers, f"{case.classes}For{HEADS[head]}")
            model, report = kind.from_pretrained(
                out / name, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
            assert not any(report.values()), report
            write(out / f"{name}.safetensors", goldens(case, head, model.double().eval(), batch(case, head)))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{size} bytes in all")
    assert size < LIMIT_BYTES, "the goldens have grown too large to commit"


if __name__ == "__main__":
    main()
