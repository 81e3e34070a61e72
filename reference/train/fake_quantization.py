"""Goldens of straight-through fake quantization (paper, section 3.1 and appendix A), to the bit in f32.

    code  = clamp(round_half_even((x - low) * (1 / step)), 0, 2^k - 1)
    value = step * code + low              two roundings, not fused
    gradient passes where low <= x <= high
    step = 0 (all values of a group equal): code 0, value low

Two rules for the step are in the file, because they differ in the last bit when high - low is not exact in f32:

    float32        step = (high - low) / (2^k - 1), both operations in f32
    rounded_once   the same computed in f64 and rounded once to f32; this is what qbert-quant does
"""
import numpy as np
import torch

import tiny
from store import write

WIDTHS = (1, 2, 3, 4, 8)
# Sub-intervals: the group's [min, max] shrunk to these parts of its extent, so that the clamp acts on both sides.
LOWER_PART, UPPER_PART = np.float32(0.2), np.float32(0.7)


def matrices(out):
    """Name to matrix: two from the tiny models, and one of edge cases (ties, a constant row, an outlier)."""
    token = tiny.load(out / "tiny-token", "token", torch.float32)
    layer = token.bert.encoder.layer[0]
    ties = np.array([[0.0, 0.5, 1.5, 2.5, 3.5, 6.5, 254.5, 255.0]], dtype=np.float32)
    return {
        "classifier": token.classifier.weight.detach().numpy(),
        "intermediate": layer.intermediate.dense.weight.detach().numpy()[:6].copy(),
        "edges": np.concatenate([ties, ties * 0 + np.float32(0.3), -ties, ties / 255, np.roll(ties, 3) * 1e-30]),
    }


def boundaries(rows, groups):
    """Contiguous groups; the first rows % groups of them have one row more."""
    base, extra = divmod(rows, groups)
    return [index * base + min(index, extra) for index in range(groups + 1)]


def ranges(matrix, starts, kind):
    blocks = [matrix[a:b] for a, b in zip(starts, starts[1:])]
    # Adding zero makes a negative zero positive, as the quantizer's ranges do.
    low = np.array([block.min() for block in blocks], dtype=np.float32) + np.float32(0)
    high = np.array([block.max() for block in blocks], dtype=np.float32) + np.float32(0)
    if kind == "clamped":
        extent = high - low
        low, high = low + extent * LOWER_PART, low + extent * UPPER_PART
    return low, high


def step_of(rule, low, high, width):
    top = 2**width - 1
    if rule == "float32":
        return (high - low) / np.float32(top)
    return ((high.astype(np.float64) - low.astype(np.float64)) / top).astype(np.float32)


def quantize(matrix, low, step, width):
    """Codes and values; `low` and `step` are given per row. numpy rounds every f32 operation and half to even."""
    low, step = low[:, None], step[:, None]
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    codes = np.clip(np.rint((matrix - low) * inverse), 0, 2**width - 1).astype(np.float32)
    product = step * codes
    return codes.astype(np.uint8), product + low


def straight_through(matrix, low, high, upstream):
    """The gradient passes where the clamp leaves x alone, ends included; held against autograd's clamp."""
    low, high = low[:, None], high[:, None]
    gradient = np.where((matrix >= low) & (matrix <= high), upstream, np.float32(0))
    x = torch.from_numpy(matrix).requires_grad_()
    clamped = torch.clamp(x, torch.from_numpy(low), torch.from_numpy(high))
    by_autograd = torch.autograd.grad(clamped, x, grad_outputs=torch.from_numpy(upstream))[0].numpy()
    # Exactly at an end torch passes half or nothing of the gradient, depending on how clamp is called.
    elsewhere = (matrix != low) & (matrix != high)
    assert np.array_equal(gradient[elsewhere], by_autograd[elsewhere])
    return gradient


def case(matrix, upstream, groups, kind):
    """All tensors of one grouping and kind of range."""
    starts = boundaries(len(matrix), groups)
    low, high = ranges(matrix, starts, kind)
    row_group = np.repeat(np.arange(groups), np.diff(starts))
    tensors = {"starts": np.array(starts, dtype=np.int64), "low": low, "high": high}
    for rule in ("float32", "rounded_once"):
        steps = [step_of(rule, low, high, width) for width in WIDTHS]
        results = [quantize(matrix, low[row_group], step[row_group], width) for step, width in zip(steps, WIDTHS)]
        tensors[f"{rule}/step"] = np.stack(steps)
        tensors[f"{rule}/codes"] = np.stack([codes for codes, _ in results])
        tensors[f"{rule}/values"] = np.stack([values for _, values in results])
    tensors["grad"] = straight_through(matrix, low[row_group], high[row_group], upstream)
    clamp_acts = (tensors["grad"] != upstream).any()
    assert clamp_acts == (kind == "clamped"), "only a sub-interval stops gradients"
    return tensors


def make(out):
    tensors, different, total = {"widths": torch.tensor(WIDTHS)}, 0, 0
    generator = np.random.Generator(np.random.PCG64(31))
    for name, matrix in matrices(out).items():
        upstream = generator.standard_normal(matrix.shape, dtype=np.float32)
        tensors[f"{name}/input"], tensors[f"{name}/upstream"] = matrix, upstream
        for label, groups in (("1", 1), ("4", 4), ("row", len(matrix))):
            for kind in ("min_max", "clamped"):
                found = case(matrix, upstream, groups, kind)
                different += int((found["float32/step"] != found["rounded_once/step"]).sum())
                total += found["float32/step"].size
                tensors |= {f"{name}/{label}/{kind}/{part}": value for part, value in found.items()}
    write(out / "fake_quantization.safetensors", tensors)
    print(f"  the two rules give different steps in {different} of {total} groups and widths")
