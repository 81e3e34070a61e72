#!/usr/bin/env python3
"""Compares the last hidden states of a real checkpoint with those of `transformers`.

    cargo build --release -p qbert-train --example hidden_states
    python reference/train/real_weights.py --program target/release/examples/hidden_states --model DIR --texts FILE
"""
import argparse
import json
import subprocess

import torch
import transformers


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--program", required=True, help="the example `hidden_states` of qbert-train")
    arguments.add_argument("--model", required=True, help="a checkpoint with its tokenizer")
    arguments.add_argument("--texts", required=True, help="a file of real lines")
    arguments.add_argument("--count", type=int, default=50)
    options = arguments.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModel.from_pretrained(options.model, attn_implementation="eager").eval()
    lines = [line.strip() for line in open(options.texts, encoding="utf-8") if line.strip()]
    texts = [lines[index * len(lines) // options.count] for index in range(options.count)]
    # A long one, so that far distances are compared too.
    texts.append(" ".join(lines[:40]))
    ids = [tokenizer(text, truncation=True, max_length=384)["input_ids"] for text in texts]
    given = "".join(json.dumps(one) + "\n" for one in ids)
    output = subprocess.run([options.program, options.model], input=given, text=True, capture_output=True, check=True).stdout
    worst, largest = 0.0, 0.0
    for one, line in zip(ids, output.splitlines()):
        with torch.no_grad():
            expected = model(torch.tensor([one])).last_hidden_state[0]
        found = torch.tensor(json.loads(line)).view(expected.shape)
        worst = max(worst, (found - expected).abs().max().item())
        largest = max(largest, expected.abs().max().item())
    print(f"{len(ids)} texts of {min(map(len, ids))} to {max(map(len, ids))} tokens: hidden states differ by at most {worst:.2e} (largest {largest:.2f})")


if __name__ == "__main__":
    main()
