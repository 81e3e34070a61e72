"""Goldens of Hessian-vector products and of the spectrum of each layer's block, tiny sequence classifier, f64.

A block is the Hessian of the loss over all parameters of one encoder layer (paper, section 3.2). It is small
enough here to be formed whole, so eigenvalues and trace are exact rather than iterated.
"""
import torch

import tiny
from ragged import dot, hessian_vector_product, layer_parameters, run
from store import batch_tensors, write

EXTREMES = 8
CHUNK = 128


def dense_hessian(model, batch, parameters):
    """Row by row from the graph of the gradient, many rows at a time."""
    first = torch.autograd.grad(run(model, batch).loss, parameters, create_graph=True)
    flat = torch.cat([part.reshape(-1) for part in first])
    size = len(flat)
    rows = []
    for start in range(0, size, CHUNK):
        count = min(CHUNK, size - start)
        unit = torch.zeros(count, size, dtype=flat.dtype)
        unit[torch.arange(count), start + torch.arange(count)] = 1
        parts = torch.autograd.grad(flat, parameters, grad_outputs=unit, retain_graph=True, is_grads_batched=True)
        rows.append(torch.cat([part.reshape(count, -1) for part in parts], dim=1))
    return torch.cat(rows)


def unit_vectors(parameters, generator):
    """Normal entries, unit norm over the block, then rounded to f32: an f32 engine gets exactly this vector."""
    vectors = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    norm = dot(vectors, vectors).sqrt()
    return [(vector / norm).float() for vector in vectors]


def make(out):
    batch = tiny.batch("sequence")
    model = tiny.load(out / "tiny-sequence", "sequence", torch.float64)
    single = tiny.load(out / "tiny-sequence", "sequence", torch.float32)
    tensors = batch_tensors(batch)
    for index in range(len(model.bert.encoder.layer)):
        names, parameters = layer_parameters(model, index)
        vectors = unit_vectors(parameters, torch.Generator().manual_seed(301 + index))
        product = hessian_vector_product(model, batch, parameters, [v.double() for v in vectors])
        matrix = dense_hessian(model, batch, parameters)
        check_dense(matrix, vectors, product)
        eigenvalues = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
        found = {
            "vhv": dot(vectors, product),
            "eigenvalue_dominant": eigenvalues[eigenvalues.abs().argmax()],
            "trace": matrix.trace(),
            "eigenvalues_high": eigenvalues.flip(0)[:EXTREMES],
            "eigenvalues_low": eigenvalues[:EXTREMES],
        }
        tensors |= {f"layer.{index}/{name}": value for name, value in found.items()}
        tensors |= {f"layer.{index}/v/{name}": value for name, value in zip(names, vectors)}
        tensors |= {f"layer.{index}/hv/{name}": value for name, value in zip(names, product)}
        report(index, single, batch, vectors, product, found)
    write(out / "tiny_hessian.safetensors", tensors)


def check_dense(matrix, vectors, product):
    scale = matrix.abs().max()
    assert (matrix - matrix.T).abs().max() < 1e-12 * scale, "the Hessian is symmetric"
    flat = torch.cat([v.double().reshape(-1) for v in vectors])
    expected = torch.cat([part.reshape(-1) for part in product])
    torch.testing.assert_close(matrix @ flat, expected, rtol=1e-9, atol=1e-12)


def report(index, single, batch, vectors, product, found):
    """What f32 makes of the same product, as a guide for tolerances."""
    _, parameters = layer_parameters(single, index)
    rough = hessian_vector_product(single, batch, parameters, vectors)
    difference = [a.double() - b for a, b in zip(rough, product)]
    error = (dot(difference, difference) / dot(product, product)).sqrt().item()
    high, low = (found[f"eigenvalues_{end}"][:3].tolist() for end in ("high", "low"))
    print(f"  layer {index}: Hv f32 off by {error:.1e} (norm); eigenvalues {high} … {low}")
