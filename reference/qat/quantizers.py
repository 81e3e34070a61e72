"""The two quantizers of quantization-aware training with their straight-through gradients (paper, 3.1 and App. A).

Weights: one float range per group of output neurons. Codes and values are computed in f32 exactly as qbert-quant does,
because a code that flips is a different model; the gradient is 1 where the range holds the weight.

Activations: 8 bits, one step and one integer zero point per tensor,

    code = clamp(round_half_even(x / step) + zero_point, 0, 255)        value = step * (code - zero_point)

in the precision of x; the gradient is 1 where the clamp left the code alone. `Margin` keeps the smallest distance of any
x / step from a tie: only if it is well above the error of f32 do an f32 and an f64 program round everything alike.
"""
import numpy as np
import torch


def boundaries(neurons, groups):
    """Contiguous groups; the first neurons % groups of them have one neuron more."""
    base, extra = divmod(neurons, groups)
    return [index * base + min(index, extra) for index in range(groups + 1)]


def weight_ranges(matrix, groups, by_columns, part):
    """Per group [low, high]: min and max, or the part (from, to) of the way between them. f32."""
    rows = matrix.T if by_columns else matrix
    starts = boundaries(len(rows), groups)
    ranges = []
    for start, end in zip(starts, starts[1:]):
        low, high = rows[start:end].min(), rows[start:end].max()
        extent = high - low
        ranges.append((low, high) if part is None else (low + extent * np.float32(part[0]), low + extent * np.float32(part[1])))
    return np.array(ranges, dtype=np.float32) + np.float32(0)


def quantized_weight(matrix, ranges, bits, by_columns):
    """Values and mask of a matrix, f32 arithmetic rounded after every operation."""
    rows = matrix.T if by_columns else matrix
    neurons = np.repeat(np.arange(len(ranges)), np.diff(boundaries(len(rows), len(ranges))))
    low, high = ranges[neurons, 0][:, None], ranges[neurons, 1][:, None]
    step = ((high.astype(np.float64) - low.astype(np.float64)) / (2**bits - 1)).astype(np.float32)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    codes = np.clip(np.rint((rows - low) * inverse), 0, 2**bits - 1).astype(np.float32)
    values, mask = step * codes + low, (low <= rows) & (rows <= high)
    return (values.T.copy(), mask.T.copy()) if by_columns else (values, mask)


class StraightThrough(torch.autograd.Function):
    """Takes the given values in the forward pass, and the gradient where the mask is set."""

    @staticmethod
    def forward(context, x, values, mask):
        context.save_for_backward(mask)
        return values.to(x.dtype)

    @staticmethod
    def backward(context, gradient):
        (mask,) = context.saved_tensors
        return gradient * mask, None, None


def activation_params(low, high):
    """Step and zero point of a range, which always holds 0; f64 arithmetic, the step rounded once to f32."""
    low, high = min(float(np.float32(low)), 0.0), max(float(np.float32(high)), 0.0)
    step = np.float32((high - low) / 255)
    return float(step), int(np.clip(np.rint(-low / float(step)), 0, 255))


class Margin:
    """The smallest distance from a tie, in codes, among values whose rounding matters; and how many were clamped."""

    def __init__(self):
        self.smallest, self.clamped, self.total = 0.5, 0, 0

    def look(self, scaled, zero_point):
        lowest, highest = -zero_point - 0.5, 255.5 - zero_point
        inside = scaled[(scaled > lowest - 1) & (scaled < highest + 1)]
        distance = (inside - torch.floor(inside) - 0.5).abs()
        self.smallest = min(self.smallest, distance.min().item()) if distance.numel() else self.smallest
        self.clamped += int(((scaled < lowest) | (scaled > highest)).sum())
        self.total += scaled.numel()


def quantized_activation(x, step, zero_point, margin):
    scaled = x.detach() / step
    margin.look(scaled, zero_point)
    codes = torch.clamp(torch.round(scaled) + zero_point, 0, 255)
    mask = (scaled >= -zero_point - 0.5) & (scaled <= 255.5 - zero_point)
    return StraightThrough.apply(x, step * (codes - zero_point), mask)
