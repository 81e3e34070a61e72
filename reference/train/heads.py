"""Goldens of the three heads: every hidden state, logits, loss and the gradient of every parameter."""
import tiny
from ragged import gradients
from store import PRECISIONS, batch_tensors, compare, write


def tensors_of(results, gradient, prefix):
    """What one precision contributes to the file."""
    tensors = {
        f"{prefix}/embeddings": results.hidden[0],
        f"{prefix}/attention.0": results.attention,
        f"{prefix}/logits": results.logits,
        f"{prefix}/loss": results.loss,
    }
    tensors |= {f"{prefix}/hidden.{index}": rows for index, rows in enumerate(results.hidden[1:])}
    tensors |= {f"{prefix}/grad/{name}": values for name, values in gradient.items()}
    if results.pooled is not None:
        tensors[f"{prefix}/pooled"] = results.pooled
    return tensors


def make(out):
    for kind in tiny.HEADS:
        batch = tiny.batch(kind)
        tensors = batch_tensors(batch)
        gradient = {}
        for prefix, dtype in PRECISIONS.items():
            model = tiny.load(out / f"tiny-{kind}", kind, dtype)
            results, gradient[prefix] = gradients(model, batch)
            tensors |= tensors_of(results, gradient[prefix], prefix)
        write(out / f"tiny_{kind}.safetensors", tensors)
        compare("gradients", gradient["f32"], gradient["f64"])
