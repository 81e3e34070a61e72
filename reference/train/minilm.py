"""Goldens of a real checkpoint, all-MiniLM-L6-v2: small summaries of results too large to keep.

Nothing random has to be reproduced: token ids are stored, and the rest follows from formulas, computed in f64
and rounded to f32 (indices from 0):

    classifier.weight[i, j] = 0.1 * sin(1 + i * 384 + j), three labels; classifier.bias = 0
    v[k] = sin(1 + 0.37 * k), k the flat index within each tensor of a layer, then all tensors of the layer
           divided by their common norm
"""
import torch
import transformers

from ragged import Batch, dot, gradients, hessian_vector_product, layer_parameters, run
from store import PRECISIONS, batch_tensors, write

LENGTHS = [12, 5, 64, 33]
LABELS = [2, 0, 1, 2]
SAMPLES = 16
FIRST, LAST = 101, 102


def load(directory):
    model, report = transformers.BertForSequenceClassification.from_pretrained(
        directory, num_labels=3, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    missing = set(report["missing_keys"])
    assert missing == {"classifier.weight", "classifier.bias"}, f"{directory} lacks more than the head: {missing}"
    labels, hidden = model.classifier.weight.shape
    weight = 0.1 * torch.sin(1 + torch.arange(labels * hidden, dtype=torch.float64))
    with torch.no_grad():
        model.classifier.weight.copy_(weight.view(labels, hidden))
        model.classifier.bias.zero_()
    return model.eval()


def make_batch():
    """Random ids between the two special tokens: no text. The tail of every second sequence is segment 1."""
    generator = torch.Generator().manual_seed(401)
    ids, segments, offsets = [], [], [0]
    for index, length in enumerate(LENGTHS):
        middle = torch.randint(1000, 29000, (length - 2,), generator=generator)
        ids.append(torch.cat([torch.tensor([FIRST]), middle, torch.tensor([LAST])]))
        segment = torch.zeros(length, dtype=torch.int64)
        if index % 2 == 0:
            segment[length // 2 :] = 1
        segments.append(segment)
        offsets.append(offsets[-1] + length)
    return Batch(torch.cat(ids), torch.cat(segments), offsets, [torch.tensor(LABELS)])


def sample_index(name, shape, batch):
    """Flat indices spread over the tensor, one in each sixteenth; of tables, only rows that the batch uses."""
    count = shape.numel()
    spread = torch.arange(SAMPLES)
    if "word_embeddings" in name or "position_embeddings" in name:
        rows = batch.input_ids if "word" in name else torch.arange(max(LENGTHS))
        return rows[spread * (len(rows) - 1) // (SAMPLES - 1)] * shape[1] + spread * 53 % shape[1]
    slot = count // SAMPLES if count >= SAMPLES else 1
    return (spread * slot + spread * 7919 % slot) % count


def layer_vectors(parameters):
    waves = [torch.sin(1 + 0.37 * torch.arange(p.numel(), dtype=torch.float64)).view(p.shape) for p in parameters]
    norm = dot(waves, waves).sqrt()
    return [(wave / norm).float() for wave in waves]


def summary(values):
    """L2 norm and sum, added up in f64."""
    return torch.stack([values.double().norm(), values.double().sum()])


def products(model, batch, index, dtype):
    """H·v of each layer: norm and curvature per layer, sampled entries per tensor."""
    tensors = {}
    for layer in range(len(model.bert.encoder.layer)):
        names, parameters = layer_parameters(model, layer)
        vectors = [vector.to(dtype) for vector in layer_vectors(parameters)]
        found = hessian_vector_product(model, batch, parameters, vectors)
        tensors[f"hvp/layer.{layer}/norm"] = dot(found, found).sqrt()
        tensors[f"hvp/layer.{layer}/vhv"] = dot(vectors, found)
        for name, values in zip(names, found):
            full = f"bert.encoder.layer.{layer}.{name}"
            tensors[f"hvp_samples/{full}"] = values.flatten()[index[full]]
        if dtype == torch.float64:
            check_product(model, batch, parameters, vectors, found)
    return tensors


def check_product(model, batch, parameters, vectors, product, width=1e-4):
    """Along v, the gradient's central difference is H·v up to the third derivative."""
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, vector in zip(parameters, vectors):
                parameter.add_(vector, alpha=sign * width)
        sides.append(torch.autograd.grad(run(model, batch).loss, parameters))
        with torch.no_grad():
            for parameter, vector in zip(parameters, vectors):
                parameter.add_(vector, alpha=-sign * width)
    difference = [(above - below) / (2 * width) - exact for above, below, exact in zip(*sides, product)]
    error = (dot(difference, difference) / dot(product, product)).sqrt().item()
    assert error < 1e-5, f"H·v is off by {error} from finite differences"


def bf16_samples(model, batch, index):
    """Sampled gradients of mixed precision as PyTorch has it: how far bf16 may be off."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = run(model, batch)
    names, parameters = zip(*model.named_parameters())
    found = zip(names, torch.autograd.grad(results.loss, parameters))
    return {f"bf16/grad_samples/{name}": values.flatten()[index[name]] for name, values in found}


def make(out, directory):
    batch = make_batch()
    model = load(directory)
    index = {name: sample_index(name, p.shape, batch) for name, p in model.named_parameters()}
    tokens = torch.tensor([0, LENGTHS[0] + 2, sum(LENGTHS[:2]) + 40, sum(LENGTHS) - 1])
    tensors = batch_tensors(batch) | {"vector_tokens": tokens}
    tensors |= {f"sample_index/{name}": value for name, value in index.items()}
    for prefix, dtype in PRECISIONS.items():
        model = model.to(dtype)
        results, gradient = gradients(model, batch)
        found = {"logits": results.logits, "loss": results.loss}
        for number, rows in enumerate(results.hidden):
            name = "embeddings" if number == 0 else f"hidden.{number - 1}"
            found[f"{name}/norms"] = rows.norm(dim=1)
            if dtype == torch.float64:
                # Computed in f64, kept in f32: the rounding is far below what an f32 engine can reach.
                found[f"{name}/vectors"] = rows[tokens].float()
        for name, values in gradient.items():
            found[f"grad_summary/{name}"] = summary(values)
            found[f"grad_samples/{name}"] = values.flatten()[index[name]]
        del results, gradient
        found |= products(model, batch, index, dtype)
        tensors |= {f"{prefix}/{name}": value for name, value in found.items()}
    tensors |= bf16_samples(model.float(), batch, index)
    write(out / "minilm.safetensors", tensors)
    report(tensors)


def report(tensors):
    """What f32 makes of gradients and products, as a guide for tolerances."""
    for kind in ("grad_samples/", "hvp_samples/"):
        pairs = [(tensors[n.replace("f64", "f32", 1)], tensors[n]) for n in tensors if n.startswith(f"f64/{kind}")]
        difference = torch.cat([single.double() - double for single, double in pairs])
        print(f"  {kind[:-1]}: f32 off by {(difference.norm() / torch.cat([d for _, d in pairs]).norm()).item():.1e}")
    for layer in range(6):
        single, double = (tensors[f"{p}/hvp/layer.{layer}/vhv"].item() for p in PRECISIONS)
        norm = tensors[f"f64/hvp/layer.{layer}/norm"].item()
        error = abs(single - double) / norm
        print(f"  layer {layer}: norm of Hv {norm:.6e}, vHv {double:.6e}, f32 off by {error:.1e} of the norm")
