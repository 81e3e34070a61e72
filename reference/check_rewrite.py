#!/usr/bin/env python3
"""Loads two checkpoint directories with transformers and compares every tensor bit for bit.

    cargo run --release -p qbert-model --example rewrite -- IN OUT
    python reference/check_rewrite.py IN OUT
"""
import sys

import torch
import transformers

HEADS = {
    "BertModel": transformers.BertModel,
    "BertForSequenceClassification": transformers.BertForSequenceClassification,
    "BertForTokenClassification": transformers.BertForTokenClassification,
    "BertForQuestionAnswering": transformers.BertForQuestionAnswering,
}


def load(directory):
    config = transformers.AutoConfig.from_pretrained(directory)
    model, report = HEADS[config.architectures[0]].from_pretrained(
        directory, output_loading_info=True, dtype=torch.float32
    )
    problems = {kind: list(found) for kind, found in report.items() if found}
    if problems:
        sys.exit(f"{directory}: {problems}")
    transformers.AutoTokenizer.from_pretrained(directory)
    return model.state_dict()


original, rewritten = load(sys.argv[1]), load(sys.argv[2])
if original.keys() != rewritten.keys():
    sys.exit(f"names differ: {sorted(original.keys() ^ rewritten.keys())}")
different = [name for name in original if not torch.equal(original[name], rewritten[name])]
if different:
    sys.exit(f"{len(different)} tensors differ: {different[:5]}")
print(f"{len(original)} tensors identical")
