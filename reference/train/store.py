"""Writing goldens: safetensors files whose bytes depend on nothing but the tensors."""
import torch
from safetensors.torch import save_file

PRECISIONS = {"f32": torch.float32, "f64": torch.float64}


def write(path, tensors):
    """Writes plain contiguous copies; scalars become tensors of shape [1], which every reader can take."""
    plain = {}
    for name, tensor in tensors.items():
        tensor = torch.as_tensor(tensor).detach()
        plain[name] = (tensor.reshape(1) if tensor.dim() == 0 else tensor).contiguous().clone()
    # No metadata: its order in the file is not fixed.
    save_file(plain, path)
    print(f"{path.name}: {len(plain)} tensors, {path.stat().st_size} bytes")


def batch_tensors(batch):
    """The description of a batch, under the names every golden uses."""
    tensors = {
        "input_ids": batch.input_ids,
        "segments": batch.segments,
        "offsets": torch.tensor(batch.offsets, dtype=torch.int64),
    }
    label_names = ["labels"] if len(batch.labels) == 1 else ["start_labels", "end_labels"]
    return tensors | dict(zip(label_names, batch.labels))


def compare(what, actual, expected):
    """The largest error relative to each tensor's largest entry, printed; a guide for tolerances, not a check."""
    worst_name, worst, vanishing = "-", 0.0, []
    largest = max(values.abs().max().item() for values in expected.values())
    for name, values in expected.items():
        scale = values.abs().max().item()
        # Zero in exact arithmetic (a softmax does not see what shifts all its inputs), so nothing but noise in f32.
        if scale < 1e-12 * largest:
            vanishing.append(name)
            continue
        error = (actual[name].double() - values).abs().max().item() / scale
        if error > worst:
            worst_name, worst = name, error
    print(f"  {what}: f32 differs from f64 by at most {worst:.1e} of a tensor's largest entry ({worst_name})")
    if vanishing:
        noise = max(actual[name].abs().max().item() for name in vanishing)
        print(f"  zero but for rounding, up to {noise:.1e} in f32: {', '.join(vanishing)}")
