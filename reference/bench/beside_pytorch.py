#!/usr/bin/env python3
"""Measures `qbert bench` and the PyTorch script for the same work in turn, several times, and writes medians and ratios.

    python reference/bench/beside_pytorch.py hvp --qbert target/release/qbert --model "$(qbert fetch minilm)" \
        --sst2 train.tsv --peers PEERS --python PYTHON --out results/bench-hvp.json

PEERS is the directory of torch_train.py and torch_hvp.py, PYTHON an interpreter with PyTorch and transformers. Nothing
else may run meanwhile; the load before the start is written down.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

TARGETS = {
    "train": {"train step, 32 x 64 tokens": 0.9, "train, 24 random SST-2 batches of 32": 0.45},
    "hvp": {"HVP of each of 6 layers over 4 SST-2 batches of 32": 0.25},
}


def lines(command, cwd=None):
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=TARGETS)
    parser.add_argument("--qbert", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--sst2", type=pathlib.Path, required=True)
    parser.add_argument("--peers", type=pathlib.Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    common = ["--sst2", str(options.sst2.resolve()), "--threads", str(options.threads)]
    ours, theirs = [], []
    for repeat in range(options.repeats):
        ours += lines([str(options.qbert), "bench", options.what, "--model", str(options.model), *common, "--json"])
        script = f"torch_{options.what}.py"
        theirs += lines([options.python, script, str(options.model.resolve()), *common], cwd=options.peers)
        print(f"round {repeat + 1} of {options.repeats} done", file=sys.stderr)
    works = []
    for work, target in TARGETS[options.what].items():
        row = {"work": work, "threads": options.threads, "target_ratio": target}
        for name, measured in (("qbert", ours), ("pytorch", theirs)):
            own = [entry for entry in measured if entry["work"] == work]
            row[name] = {
                "ms": round(statistics.median(entry["ms"] for entry in own), 1),
                "all_ms": [round(entry["ms"], 1) for entry in own],
                "peak_rss_mib": max(entry["peak_rss_mib"] for entry in own),
            }
        row["time_ratio"] = round(row["qbert"]["ms"] / row["pytorch"]["ms"], 3)
        row["memory_ratio"] = round(row["qbert"]["peak_rss_mib"] / row["pytorch"]["peak_rss_mib"], 3)
        works.append(row)
        print(json.dumps(row))
    result = {
        "what": f"`qbert bench {options.what}` beside the PyTorch script for the same work, MiniLM-L6, in turn; medians",
        "command": f"python reference/bench/beside_pytorch.py {options.what} --qbert target/release/qbert --model minilm "
                   f"--sst2 train.tsv --peers PEERS --python PYTHON --repeats {options.repeats} --out {options.out.name}",
        "load_before": round(load, 2),
        "works": works,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
