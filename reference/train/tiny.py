"""The tiny BERT of the goldens: three heads, random weights, an invented vocabulary, and a batch for each head.

The sizes are awkward on purpose (20 = 16 + 4, 24 = 16 + 8, heads of 5, 33 words), so that vector kernels have to
handle their tails. Weights are ten times larger than a fresh BERT's, biases and LayerNorm are random too:
attention is then far from uniform, GELU is used on both sides of zero, and no gradient is small by accident.
"""
import json

import torch
import transformers

from ragged import IGNORED, Batch

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [
    f"{consonant}{vowel}" for consonant in "bdfklmnr" for vowel in "aiu"
] + ["##na", "##to", "##li", "##ku"]
SIZES = dict(
    vocab_size=len(VOCABULARY),
    hidden_size=20,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=22,
    type_vocab_size=2,
    pad_token_id=0,
    hidden_act="gelu",
)
HEADS = {
    "sequence": (transformers.BertForSequenceClassification, 3),
    "token": (transformers.BertForTokenClassification, 5),
    "span": (transformers.BertForQuestionAnswering, 2),
}
LENGTHS = {"sequence": [7, 1, 20, 2, 13, 7], "token": [2, 13, 1, 20, 5, 7], "span": [20, 2, 9, 1, 13, 6]}
DEVIATION = 0.25


def build(kind):
    """The model of one head, weights drawn in the order of `named_parameters()` from a seed of its own."""
    kind_class, labels = HEADS[kind]
    config = transformers.BertConfig(**SIZES, num_labels=labels)
    config._attn_implementation = "eager"
    model = kind_class(config).eval()
    generator = torch.Generator().manual_seed(101 + list(HEADS).index(kind))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * DEVIATION
            parameter.copy_(1 + noise if name.endswith("LayerNorm.weight") else noise)
    return model


def save(model, directory):
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY))
    tokenizer = {"do_lower_case": True, "model_max_length": 22, "tokenizer_class": "BertTokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2, sort_keys=True) + "\n")


def load(directory, kind, dtype):
    """Reads a saved model back, so that goldens describe the files and not what was in memory."""
    model, report = HEADS[kind][0].from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    problems = {what: found for what, found in report.items() if found}
    assert not problems, f"{directory}: {problems}"
    return model.to(dtype).eval()


def batch(kind):
    """Ids never are 0: torch's embedding gives the padding id no gradient, ours has no padding."""
    generator = torch.Generator().manual_seed(201 + list(HEADS).index(kind))
    lengths = LENGTHS[kind]
    offsets = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    tokens = offsets[-1]
    input_ids = torch.randint(1, len(VOCABULARY), (tokens,), generator=generator)
    segments = torch.zeros(tokens, dtype=torch.int64)
    for index, length in enumerate(lengths):
        if index % 2 == 0 and length > 2:
            segments[offsets[index] + length // 2 : offsets[index + 1]] = 1
    return Batch(input_ids, segments, offsets, labels(kind, lengths, generator))


def labels(kind, lengths, generator):
    if kind == "sequence":
        return [torch.tensor([2, 0, 1, 1, 0, 2])]
    if kind == "token":
        drawn = torch.randint(0, 5, (sum(lengths),), generator=generator)
        drawn[torch.rand(sum(lengths), generator=generator) < 0.3] = IGNORED
        return [drawn]
    ends = [torch.randint(0, length, (2,), generator=generator).sort().values for length in lengths]
    return [torch.stack([pair[side] for pair in ends]) for side in range(2)]
