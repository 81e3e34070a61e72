#!/usr/bin/env python3
"""Makes the int8 models of OpenVINO and ONNX Runtime that qbert is compared with, as their users make them.

    python reference/bench/make_peer_models.py MODELS minilm-l6="$(qbert fetch minilm)" gte-small=DIR mpnet=DIR bert-base=random

MODELS gets a folder for each name, with a link `checkpoint`, `openvino-int8.xml`, `onnxruntime-int8.onnx` and `made.json`,
the versions of the programs. A model that is there already is kept. `random` stands for BERT-base's shape with random
weights and the tokenizer of the first checkpoint: speed does not depend on the weights, nor on how well they were
calibrated. So calibration takes random tokens, and these models are for measuring time, not for use.

OpenVINO: converted from PyTorch, static int8 by NNCF for transformers. ONNX Runtime: exported from PyTorch, fused by its
optimizer for BERT, dynamic int8. Needs `pip install torch transformers openvino nncf onnx onnxscript onnxruntime`.
"""
import importlib.metadata
import json
import pathlib
import shutil
import sys
import tempfile

import nncf
import numpy
import openvino
import torch
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model
from transformers import AutoModel, BertConfig, BertForSequenceClassification

PROGRAMS = ("torch", "transformers", "openvino", "nncf", "onnx", "onnxruntime")
TOKENIZER = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class HiddenStates(torch.nn.Module):
    """All tokens' last hidden states, which is what is measured."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.has_types = getattr(encoder.config, "type_vocab_size", 0) > 0

    def forward(self, input_ids, attention_mask, token_type_ids):
        if not self.has_types:
            # The input stays, so that all models are asked alike.
            return self.encoder(input_ids=input_ids + 0 * token_type_ids, attention_mask=attention_mask)[0]
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[0]


def sample(seed):
    ids = numpy.random.default_rng(seed).integers(1000, 29000, (1, 128), dtype=numpy.int64)
    ids[:, 0], ids[:, -1] = 101, 102
    return {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}


def tensors():
    return {name: torch.from_numpy(value) for name, value in sample(0).items()}


def encoder(checkpoint, attention):
    options = {"add_pooling_layer": False}
    try:
        model = AutoModel.from_pretrained(checkpoint, attn_implementation=attention, **options)
    except ValueError:
        # Not every family has both kinds of attention.
        model = AutoModel.from_pretrained(checkpoint, **options)
    return HiddenStates(model).eval()


def write_random_bert_base(tokenizer, checkpoint):
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(num_labels=2)).save_pretrained(checkpoint)
    for name in TOKENIZER:
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, checkpoint / name)


def make_openvino(checkpoint, out):
    with torch.no_grad():
        converted = openvino.convert_model(encoder(checkpoint, "sdpa"), example_input=tensors(),
                                           input=[(name, [-1, -1], numpy.int64) for name in INPUTS])
    quantized = nncf.quantize(converted, nncf.Dataset([sample(seed) for seed in range(8)]), subset_size=8,
                              model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(quantized, out, compress_to_fp16=False)


def make_onnxruntime(checkpoint, out):
    model = encoder(checkpoint, "eager")
    config = model.encoder.config
    with tempfile.TemporaryDirectory() as scratch:
        exported, fused = f"{scratch}/exported.onnx", f"{scratch}/fused.onnx"
        axes = {name: {0: "batch", 1: "tokens"} for name in (*INPUTS, "hidden")}
        with torch.no_grad():
            torch.onnx.export(model, tuple(tensors().values()), exported, input_names=list(INPUTS), output_names=["hidden"],
                              dynamic_axes=axes, opset_version=17, dynamo=False)
        optimizer = optimize_model(exported, "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size)
        print("fused:", optimizer.get_fused_operator_statistics(), file=sys.stderr)
        optimizer.save_model_to_file(fused)
        # Shapes and types of fused operators are unknown to the quantizer; all of them are f32.
        quantize_dynamic(fused, out, weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": TensorProto.FLOAT})


def main():
    models = pathlib.Path(sys.argv[1])
    wanted = dict(argument.split("=", 1) for argument in sys.argv[2:])
    tokenizer = next((pathlib.Path(path) for path in wanted.values() if path != "random"), None)
    for name, source in wanted.items():
        out = models / name
        if (out / "made.json").exists():
            continue
        out.mkdir(parents=True, exist_ok=True)
        checkpoint = out / "checkpoint"
        if source == "random":
            if tokenizer is None:
                raise SystemExit("random weights need the tokenizer of another checkpoint: name one as well")
            write_random_bert_base(tokenizer, checkpoint)
        elif not checkpoint.exists():
            checkpoint.symlink_to(pathlib.Path(source).resolve())
        make_openvino(checkpoint, out / "openvino-int8.xml")
        make_onnxruntime(checkpoint, out / "onnxruntime-int8.onnx")
        versions = {program: importlib.metadata.version(program) for program in PROGRAMS}
        (out / "made.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
        print(out)


if __name__ == "__main__":
    main()
