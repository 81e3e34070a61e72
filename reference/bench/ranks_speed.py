"""Steps per second of fine-tuning: one process with two threads against two ranks with one thread each, in alternating rounds.

    python3 reference/bench/ranks_speed.py --qbert QBERT_WITH_MPI --model minilm --train train.tsv --dev dev.tsv --out results/ranks-speed.json

A round takes the time of a short and of a long run; the difference is the time of steps alone. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from kinds import cpu_name

MPIRUN = ["mpirun", "-n", "2", "--bind-to", "core", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def seconds(words):
    with tempfile.TemporaryDirectory() as scratch:
        begun = time.perf_counter()
        subprocess.run([*words, "--out", f"{scratch}/tuned", "-q"], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qbert", required=True, help="built with the feature mpi")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True, help="a small file: every run evaluates on it")
    parser.add_argument("--steps", type=int, nargs=2, default=[20, 120])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    result = {"command": "python3 reference/bench/ranks_speed.py --qbert QBERT --train sst2/train.tsv --dev DEV --out results/ranks-speed.json"}
    result |= {"machine": cpu_name(), "rounds": options.rounds, "task": "sst2", "batch": 32, "steps": options.steps}
    ways = {"one process, 2 threads": [options.qbert], "2 ranks, 1 thread each": [*MPIRUN, options.qbert]}
    for precision in ["bf16", "f32"]:
        found = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, start in ways.items():
                threads = "2" if len(start) == 1 else "1"
                words = [*start, "finetune", "--model", options.model, "--task", "sst2", "--train", options.train, "--dev", options.dev]
                words += ["--batch", "32", "--epochs", "1", "--threads", threads, "--precision", precision]
                short, long = (seconds([*words, "--max-train", str(32 * steps)]) for steps in options.steps)
                found[name].append((options.steps[1] - options.steps[0]) / (long - short))
        medians = {name: statistics.median(rates) for name, rates in found.items()}
        one, two = medians.values()
        result[precision] = {"steps_per_second": {name: round(rate, 2) for name, rate in medians.items()}, "ratio": round(two / one, 3)}
        print(precision, json.dumps(result[precision]), flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
