#!/usr/bin/env python3
"""Writes a model of BERT-base's shape with random weights: a checkpoint, and the same quantized by OpenVINO to int8.

    python reference/bench/make_bert_base.py VOCAB_DIR OUT_DIR

VOCAB_DIR is any checkpoint with BERT's uncased vocabulary (its tokenizer files are copied), OUT_DIR gets `checkpoint/` and
`openvino-int8.xml`. Needs PyTorch, transformers, OpenVINO and NNCF. Speed does not depend on the weights, so random ones
will do; int8 is static, for transformers, as OpenVINO's users make it. `reference/bench/openvino_infer.py` measures it.
"""
import pathlib
import shutil
import sys

import nncf
import numpy
import openvino
import torch
from transformers import BertConfig, BertForSequenceClassification


class HiddenStates(torch.nn.Module):
    """All tokens' last hidden states, as the other models here answer."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[0]


def main():
    vocabulary, out = map(pathlib.Path, sys.argv[1:3])
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_labels=2, attn_implementation="sdpa")).eval()
    checkpoint = out / "checkpoint"
    model.save_pretrained(checkpoint)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (vocabulary / name).exists():
            shutil.copyfile(vocabulary / name, checkpoint / name)

    def sample(seed):
        ids = numpy.random.default_rng(seed).integers(1000, 29000, (1, 128), dtype=numpy.int64)
        ids[:, 0], ids[:, -1] = 101, 102
        return {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}

    example = {name: torch.from_numpy(value) for name, value in sample(0).items()}
    with torch.no_grad():
        converted = openvino.convert_model(HiddenStates(model.bert), example_input=example,
                                           input=[(name, [-1, -1], numpy.int64) for name in example])
    quantized = nncf.quantize(converted, nncf.Dataset([sample(seed) for seed in range(8)]), subset_size=8,
                              model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(quantized, out / "openvino-int8.xml", compress_to_fp16=False)


if __name__ == "__main__":
    main()
