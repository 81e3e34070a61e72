#!/usr/bin/env python3
"""Measures `qbert bench` and the PyTorch script for the same work in turn, several times, and writes medians and ratios.

    python reference/bench/beside_pytorch.py hvp --qbert target/release/qbert --model "$(qbert fetch minilm)" \
        --sst2 train.tsv --peers PEERS --python PYTHON --out results/bench-hvp.json

PEERS is the directory of torch_train.py and torch_hvp.py, PYTHON an interpreter with PyTorch and transformers. Training
is measured with products in f32 and in bf16; what counts is our time in bf16 against the faster of PyTorch's. Nothing
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
    "train": {"train step, 32 x 64 tokens": 0.9, "train, 24 random SST-2 batches of 32": 0.35},
    "train on AMX": {"train step, 32 x 64 tokens": 0.6, "train, 24 random SST-2 batches of 32": 0.25},
    "hvp": {"HVP of each of 6 layers over 4 SST-2 batches of 32": 0.25},
}
# What each program is given for each precision.
PRECISIONS = {"train": {"f32": ([], []), "bf16": (["--precision", "bf16"], ["--bf16"])}, "hvp": {"f32": ([], [])}}


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
    precisions = PRECISIONS[options.what]
    found = {}
    for repeat in range(options.repeats):
        for precision, (our_flags, their_flags) in precisions.items():
            qbert = [str(options.qbert), "bench", options.what, "--model", str(options.model), *common, "--json"]
            script = [options.python, f"torch_{options.what}.py", str(options.model.resolve()), *common]
            found.setdefault(f"qbert {precision}", []).extend(lines([*qbert, *our_flags]))
            found.setdefault(f"pytorch {precision}", []).extend(lines([*script, *their_flags], cwd=options.peers))
        print(f"round {repeat + 1} of {options.repeats} done", file=sys.stderr)
    computer = {name: found["qbert f32"][0][name] for name in ("cpu", "cpu_features", "kernels")}
    on_amx = options.what == "train" and "amx_int8" in computer["cpu_features"]
    works = []
    for work, target in TARGETS["train on AMX" if on_amx else options.what].items():
        row = {"work": work, "threads": options.threads, "target_ratio": target, "programs": {}}
        for name, measured in found.items():
            own = [entry for entry in measured if entry["work"] == work]
            row["programs"][name] = {
                "ms": round(statistics.median(entry["ms"] for entry in own), 1),
                "all_ms": [round(entry["ms"], 1) for entry in own],
                "peak_rss_mib": max(entry["peak_rss_mib"] for entry in own),
            }
        times = {name: figures["ms"] for name, figures in row["programs"].items()}
        ours = f"qbert {'bf16' if 'bf16' in precisions else 'f32'}"
        theirs = min((name for name in times if name.startswith("pytorch")), key=times.get)
        row["compared"] = [ours, theirs]
        row["time_ratio"] = round(times[ours] / times[theirs], 3)
        row["f32_ratio"] = round(times["qbert f32"] / times["pytorch f32"], 3)
        memory = [row["programs"][name]["peak_rss_mib"] for name in (ours, theirs)]
        row["memory_ratio"] = round(memory[0] / memory[1], 3)
        works.append(row)
        print(json.dumps(row))
    result = {
        "what": f"`qbert bench {options.what}` beside the PyTorch script for the same work, MiniLM-L6, in turn; medians",
        "command": f"python reference/bench/beside_pytorch.py {options.what} --qbert target/release/qbert --model minilm "
                   f"--sst2 train.tsv --peers PEERS --python PYTHON --repeats {options.repeats} --out {options.out.name}",
        **computer,
        "load_before": round(load, 2),
        "works": works,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
