"""A padding-free batch, and transformers' results on it.

The Rust engine keeps a batch as one row per token plus the start of every sequence. transformers knows only
rectangles, so here every sequence runs alone, unpadded, and the parts are put together as the engine would:
token rows one after the other, and the loss as the mean over the whole batch. Not meant for training: it is slow.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

IGNORED = -100


@dataclass
class Batch:
    """`labels` holds one tensor for classifiers and two (starts, ends: positions in their sequence) for spans."""

    input_ids: torch.Tensor  # [tokens]
    segments: torch.Tensor  # [tokens]
    offsets: list  # [sequences + 1]
    labels: list

    def spans(self):
        return list(zip(self.offsets[:-1], self.offsets[1:]))

    def lengths(self):
        return [end - start for start, end in self.spans()]


@dataclass
class Results:
    """`hidden[0]` is the output of the embeddings, `hidden[i + 1]` that of layer i; all rows concatenated."""

    hidden: list  # layers + 1 times [tokens, hidden]
    attention: torch.Tensor  # layer 0, flat: sequence, head, query, key
    pooled: torch.Tensor | None  # [sequences, hidden]
    logits: torch.Tensor  # [sequences, labels], [tokens, labels] or [tokens, 2]
    loss: torch.Tensor  # scalar


def run(model, batch):
    """One pass over the batch, differentiable."""
    pooled, outputs = [], []
    pooler = getattr(model.base_model, "pooler", None)
    has_types = any("token_type" in name for name, _ in model.named_parameters())
    hook = pooler and pooler.register_forward_hook(lambda _module, _inputs, output: pooled.append(output))
    for start, end in batch.spans():
        types = dict(token_type_ids=batch.segments[None, start:end]) if has_types else {}
        outputs.append(
            model(
                input_ids=batch.input_ids[None, start:end],
                **types,
                output_hidden_states=True,
                output_attentions=True,
            )
        )
    if hook:
        hook.remove()
    logits = torch.cat([rows_of_logits(output) for output in outputs])
    return Results(
        hidden=[torch.cat([layer[0] for layer in layers]) for layers in zip(*(o.hidden_states for o in outputs))],
        attention=torch.cat([output.attentions[0].flatten() for output in outputs]),
        pooled=torch.cat(pooled) if pooled else None,
        logits=logits,
        loss=loss_of(kind_of(model), logits, batch),
    )


def rows_of_logits(output):
    if hasattr(output, "start_logits"):
        return torch.stack([output.start_logits[0], output.end_logits[0]], dim=1)
    # Sequence logits are [1, labels] already, token logits [1, tokens, labels].
    return output.logits if output.logits.dim() == 2 else output.logits[0]


def kind_of(model):
    kinds = {"SequenceClassification": "sequence", "TokenClassification": "token", "QuestionAnswering": "span"}
    return kinds[type(model).__name__.split("For")[1]]


def loss_of(kind, logits, batch):
    """Cross-entropy: mean over sequences, over labelled tokens, or over sequences and the two ends of a span.

    The softmax of a span end runs over the tokens of its own sequence and nothing else.
    """
    if kind != "span":
        return functional.cross_entropy(logits, batch.labels[0], ignore_index=IGNORED)
    losses = [
        functional.cross_entropy(logits[start:end, side], positions[index])
        for side, positions in enumerate(batch.labels)
        for index, (start, end) in enumerate(batch.spans())
    ]
    return torch.stack(losses).mean()


def gradients(model, batch):
    """Loss and the gradient of every parameter, by name."""
    names, parameters = zip(*model.named_parameters())
    results = run(model, batch)
    return results, dict(zip(names, torch.autograd.grad(results.loss, parameters)))


def layer_parameters(model, index):
    """Names (within the layer) and parameters of one encoder layer, in transformers' order."""
    return zip(*model.bert.encoder.layer[index].named_parameters())


def hessian_vector_product(model, batch, parameters, vectors):
    """Exact H·v for the block of `parameters`, by differentiating the gradient once more."""
    first = torch.autograd.grad(run(model, batch).loss, parameters, create_graph=True)
    return torch.autograd.grad(first, parameters, grad_outputs=vectors)


def dot(left, right):
    return sum((a.double() * b.double()).sum() for a, b in zip(left, right))
