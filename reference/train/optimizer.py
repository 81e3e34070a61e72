"""Goldens of ten AdamW steps on the tiny sequence classifier, the same batch every step, no dropout.

With t = 0..9 the number of the step:

    lr_t = peak * t / 3           for t < 3     (so step 0 moves nothing, but fills the moments)
    lr_t = peak * (10 - t) / 7    from t = 3 on
    g    = g * min(1, 1 / (norm(g) + 1e-6))     norm over all parameters together
    w    = w * (1 - lr_t * 0.01)                matrices and embeddings only
    m    = m + (1 - 0.9) * (g - m)
    s    = 0.999 * s + (1 - 0.999) * g * g
    w    = w - lr_t / (1 - 0.9^(t+1)) * m / (sqrt(s) / sqrt(1 - 0.999^(t+1)) + 1e-8)
"""
import torch
import transformers

import tiny
from ragged import gradients, run
from store import PRECISIONS, batch_tensors, compare, write

STEPS, WARMUP, PEAK, DECAY, CLIP = 10, 3, 0.02, 0.01, 1.0
SAVED_AFTER = (2, 10)


def is_decayed(name):
    return not (name.endswith(".bias") or "LayerNorm" in name)


def train(model, batch):
    """Rows of (loss, gradient norm before clipping, rate), and the weights after the steps of SAVED_AFTER."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if is_decayed(name)], "weight_decay": DECAY},
        {"params": [p for name, p in named if not is_decayed(name)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.999), eps=1e-8, foreach=False, fused=False)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    initial = {name: parameter.detach().clone() for name, parameter in named}
    rows, saved = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = run(model, batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        rows.append((loss.item(), norm.item(), schedule.get_last_lr()[0]))
        optimizer.step()
        schedule.step()
        weights = {name: parameter.detach().clone() for name, parameter in named}
        if step == 0:
            assert all(torch.equal(weights[name], initial[name]) for name in weights), "the first rate is zero"
        if step + 1 in SAVED_AFTER:
            saved[step + 1] = weights
    return rows, saved


def make(out):
    batch = tiny.batch("sequence")
    tensors, last = batch_tensors(batch), {}
    for prefix, dtype in PRECISIONS.items():
        rows, saved = train(tiny.load(out / "tiny-sequence", "sequence", dtype), batch)
        for column, name in enumerate(("loss", "grad_norm", "lr")):
            tensors[f"{prefix}/{name}"] = torch.tensor([row[column] for row in rows], dtype=dtype)
        for step, weights in saved.items():
            tensors |= {f"{prefix}/after_step_{step}/{name}": value for name, value in weights.items()}
        last[prefix] = saved[STEPS]
    check_by_hand(out, batch, tensors)
    write(out / "tiny_adamw.safetensors", tensors)
    for row in zip(tensors["f64/loss"].tolist(), tensors["f64/grad_norm"].tolist(), tensors["f64/lr"].tolist()):
        print("  loss %.6f  norm %.6f  lr %.6f" % row)
    key_biases = {name for name in last["f64"] if name.endswith("key.bias")}
    compare("weights after step 10", last["f32"], {n: w for n, w in last["f64"].items() if n not in key_biases})
    # Their gradient is nothing but rounding, which AdamW divides by its own size: the f32 values mean nothing.
    compare("key biases after step 10", last["f32"], {n: last["f64"][n] for n in sorted(key_biases)})


def check_by_hand(out, batch, tensors):
    """The formulas above, written out, give the same weights as torch's optimizer and schedule."""
    model = tiny.load(out / "tiny-sequence", "sequence", torch.float64)
    named = dict(model.named_parameters())
    first = {name: torch.zeros_like(value) for name, value in named.items()}
    second = {name: torch.zeros_like(value) for name, value in named.items()}
    for t in range(STEPS):
        rate = PEAK * (t / WARMUP if t < WARMUP else (STEPS - t) / (STEPS - WARMUP))
        _, gradient = gradients(model, batch)
        norm = torch.sqrt(sum((g * g).sum() for g in gradient.values()))
        with torch.no_grad():
            for name, weight in named.items():
                g = gradient[name] * min(1.0, CLIP / (norm.item() + 1e-6))
                first[name] += (1 - 0.9) * (g - first[name])
                second[name] = 0.999 * second[name] + (1 - 0.999) * g * g
                denominator = second[name].sqrt() / (1 - 0.999 ** (t + 1)) ** 0.5 + 1e-8
                weight *= 1 - rate * (DECAY if is_decayed(name) else 0)
                weight -= rate / (1 - 0.9 ** (t + 1)) * first[name] / denominator
        if t + 1 in SAVED_AFTER:
            for name, weight in named.items():
                torch.testing.assert_close(weight, tensors[f"f64/after_step_{t + 1}/{name}"], rtol=1e-9, atol=1e-9)
