#!/usr/bin/env python3
"""Writes every golden of the training engine from PyTorch and transformers, the engine's twin.

    pip install -r reference/train/requirements.txt
    python reference/train/make_goldens.py --minilm "$(qbert fetch minilm)"

That one command regenerates everything under crates/qbert-train/tests/goldens/ (README.md beside this file lists what
each file holds), checking as it goes: padded against unpadded runs, gradients and Hessian-vector products
against finite differences, AdamW against its formulas. It stops at the first check that fails. One thread,
fixed seeds: with the pinned versions on the same kind of CPU the bytes are the same; elsewhere the last
digits may differ.
"""
import argparse
import pathlib
import shutil

import torch
import transformers

import checks
import fake_quantization
import heads
import hessian
import minilm
import optimizer
import tiny

GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "crates" / "qbert-train" / "tests" / "goldens"
LIMIT_BYTES = 1_500_000


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minilm", type=pathlib.Path, required=True, help="directory of all-MiniLM-L6-v2")
    arguments.add_argument("--out", type=pathlib.Path, default=GOLDENS, help="where to write (default: %(default)s)")
    options = arguments.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    for kind in tiny.HEADS:
        shutil.rmtree(out / f"tiny-{kind}", ignore_errors=True)
        tiny.save(tiny.build(kind), out / f"tiny-{kind}")
    checks.run_all(out)
    heads.make(out)
    optimizer.make(out)
    fake_quantization.make(out)
    hessian.make(out)
    minilm.make(out, options.minilm)

    files = [path for path in out.rglob("*") if path.is_file()]
    for path in files:
        # safetensors makes its files readable by their owner only.
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in files)
    print(f"{size} bytes in all")
    assert size < LIMIT_BYTES, "the goldens have grown too large to commit"


if __name__ == "__main__":
    main()
