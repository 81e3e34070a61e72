"""What has to hold before a golden is worth writing, all in f64 on the tiny models.

The goldens come from running sequences one at a time and from our own combination of the losses; here both are
held against transformers' usual way (a padded batch with its own loss) and against finite differences.
"""
import torch
import torch.nn.functional as functional

import tiny
from ragged import IGNORED, gradients, hessian_vector_product, layer_parameters, run


def run_all(out):
    for kind in tiny.HEADS:
        batch = tiny.batch(kind)
        model = tiny.load(out / f"tiny-{kind}", kind, torch.float64)
        results, gradient = gradients(model, batch)
        check_embeddings(model, batch, results)
        check_padded(kind, model, batch, results, gradient)
        check_own_losses(kind, model, batch, results)
        check_differences(model, batch, gradient)
        for layer in range(len(model.bert.encoder.layer)):
            check_product(model, batch, layer)
        print(f"{kind}: padded batch, own losses, finite differences of loss and gradient agree")


def check_embeddings(model, batch, results):
    """`hidden[0]` is what the embedding block puts out, and not the input of something later."""
    parts = [model.bert.embeddings(batch.input_ids[None, a:b], batch.segments[None, a:b])[0] for a, b in batch.spans()]
    assert torch.equal(results.hidden[0], torch.cat(parts))


def padded(batch, values, fill):
    rows = [values[start:end] for start, end in batch.spans()]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)


def check_padded(kind, model, batch, results, gradient):
    """One rectangle with an attention mask gives the same logits, loss and gradients."""
    mask = padded(batch, torch.ones_like(batch.input_ids), 0)
    output = model(
        input_ids=padded(batch, batch.input_ids, 0),
        token_type_ids=padded(batch, batch.segments, 0),
        attention_mask=mask,
    )
    if kind == "span":
        # transformers lets the padding take part in the softmax of a span; ours must not.
        ends = [side.masked_fill(mask == 0, -torch.inf) for side in (output.start_logits, output.end_logits)]
        loss = sum(functional.cross_entropy(side, label) for side, label in zip(ends, batch.labels)) / 2
        logits = torch.stack([output.start_logits, output.end_logits], dim=2)[mask == 1]
    elif kind == "token":
        label = padded(batch, batch.labels[0], IGNORED)
        loss = functional.cross_entropy(output.logits.flatten(0, 1), label.flatten(), ignore_index=IGNORED)
        logits = output.logits[mask == 1]
    else:
        loss, logits = functional.cross_entropy(output.logits, batch.labels[0]), output.logits
    torch.testing.assert_close(logits, results.logits, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(loss, results.loss, rtol=1e-12, atol=1e-12)
    names, parameters = zip(*model.named_parameters())
    for name, value in zip(names, torch.autograd.grad(loss, parameters)):
        torch.testing.assert_close(value, gradient[name], rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def check_own_losses(kind, model, batch, results):
    """The losses transformers returns for single sequences combine to ours."""
    total, weight = 0.0, 0
    for index, (start, end) in enumerate(batch.spans()):
        inputs = dict(input_ids=batch.input_ids[None, start:end], token_type_ids=batch.segments[None, start:end])
        if kind == "span":
            starts, ends = batch.labels
            loss, count = model(**inputs, start_positions=starts[None, index], end_positions=ends[None, index]).loss, 1
        elif kind == "token":
            label = batch.labels[0][None, start:end]
            loss, count = model(**inputs, labels=label).loss, int((label != IGNORED).sum())
        else:
            loss, count = model(**inputs, labels=batch.labels[0][None, index]).loss, 1
        total, weight = total + (loss.item() * count if count else 0.0), weight + count
    assert abs(total / weight - results.loss.item()) < 1e-12, (total / weight, results.loss.item())


def check_differences(model, batch, gradient, width=1e-5):
    """Central differences of the loss at the largest entry of every gradient and at two fixed ones."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            flat, expected = parameter.view(-1), gradient[name].view(-1)
            for index in {int(expected.abs().argmax()), 1, len(flat) // 2}:
                index = min(index, len(flat) - 1)
                middle = flat[index].item()
                flat[index] = middle + width
                above = run(model, batch).loss.item()
                flat[index] = middle - width
                below = run(model, batch).loss.item()
                flat[index] = middle
                found = (above - below) / (2 * width)
                error = abs(found - expected[index].item())
                assert error < 1e-8 + 1e-7 * abs(found), f"{name}[{index}]: {found}, not {expected[index].item()}"


def check_product(model, batch, layer, width=1e-5):
    """H·v against central differences of the gradient along v."""
    generator = torch.Generator().manual_seed(7)
    _, parameters = layer_parameters(model, layer)
    vectors = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    product = hessian_vector_product(model, batch, parameters, vectors)
    sides = []
    for sign in (1, -1):
        move(parameters, vectors, sign * width)
        sides.append(torch.autograd.grad(run(model, batch).loss, parameters))
        move(parameters, vectors, -sign * width)
    for exact, above, below in zip(product, *sides):
        scale = exact.abs().max().item()
        torch.testing.assert_close((above - below) / (2 * width), exact, rtol=1e-5, atol=1e-5 * scale + 1e-7)


def move(parameters, vectors, factor):
    with torch.no_grad():
        for parameter, vector in zip(parameters, vectors):
            parameter.add_(vector, alpha=factor)
