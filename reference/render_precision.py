#!/usr/bin/env python3
"""Training with products in f32 against bf16: collects the runs of experiments.py and renders docs/results/precision.md.

    python3 reference/experiments.py --data DATA --work WORK --only precision
    python3 reference/render_precision.py --collect WORK
    python3 reference/render_precision.py

Fine-tuning runs are summed up in results/precision/finetune.json; rows at 2/3 bits are files of their own beside it.
Seeds are pairs: both precisions see the same data in the same order.
"""
import argparse
import json
import math
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "precision"
TITLES = {"conll03": "CoNLL-03, F1", "sst2": "SST-2, accuracy"}
PRECISIONS = ("f32", "bf16")


def collect(work):
    runs = []
    for path in sorted((work / "precision").glob("*/metrics.json")):
        task, precision, seed = path.parent.name.split("-")
        found = json.loads(path.read_text(encoding="utf-8"))
        settings = found["run"]["settings"]
        assert settings.get("precision", "f32") == precision and settings["seed"] == int(seed), path
        runs.append({"task": task, "precision": precision, "seed": int(seed), "value": round(found["dev"]["value"], 4),
                     "settings": settings})
    result = {
        "what": "MiniLM-L6 fine-tuned with products of training in f32 and in bf16; the metric on the dev set, evaluated in f32",
        "command": "python3 reference/experiments.py --data DATA --work WORK --only 'precision finetune', "
                   "then python3 reference/render_precision.py --collect WORK",
        "runs": runs,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "finetune.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def finetuned():
    """By task, precision and seed."""
    path = RESULTS / "finetune.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    return {(run["task"], run["precision"], run["seed"]): run["value"] for run in runs}


def quantized():
    """The same for rows at 2/3 bits, which were trained from one fine-tuned model."""
    values = {}
    for path in sorted(RESULTS.glob("*/*/*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        if "seed" in row["id"]:
            name = row["metric"]
            values[path.parent.name, path.parent.parent.name, int(row["id"].rsplit("seed", 1)[1])] = row["last"]["metrics"][name]
    return values


def table(title, values):
    yield f"## {title}\n"
    yield "| task | seed | f32 | bf16 | difference |"
    yield "|---|---|---|---|---|"
    for task in TITLES:
        seeds = sorted({seed for found, _, seed in values if found == task})
        pairs = [[values.get((task, precision, seed)) for precision in PRECISIONS] for seed in seeds]
        pairs = [(seed, *pair) for seed, pair in zip(seeds, pairs) if None not in pair]
        differences = [bf16 - f32 for _, f32, bf16 in pairs]
        for (seed, f32, bf16), difference in zip(pairs, differences):
            yield f"| {TITLES[task]} | {seed} | {f32:.2f} | {bf16:.2f} | {difference:+.2f} |"
        if len(pairs) > 1:
            error = statistics.stdev(differences) / math.sqrt(len(pairs))
            means = [statistics.mean(column) for column in list(zip(*pairs))[1:]]
            yield (f"| **{TITLES[task]}** | mean | **{means[0]:.2f}** | **{means[1]:.2f}** "
                   f"| **{statistics.mean(differences):+.2f} ± {error:.2f}** |")
    yield ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collect", type=pathlib.Path, metavar="WORK", help="sum up the fine-tuning runs in this directory")
    options = parser.parse_args()
    if options.collect:
        collect(options.collect)
        return
    text = ["# Training in bf16, measured\n",
            "MiniLM-L6 on real data, with the products of training in f32 and in bf16. Everything else is the same: settings, seeds, "
            "order of the data, evaluation in f32. A mean difference has the standard error of the paired seeds. `python3 "
            "reference/render_precision.py` renders this page from `results/precision`; do not edit it by hand. "
            "[speed.md](speed.md) has the speed of both, "
            "[kernels.md](../reference/kernels.md#bf16-products-of-training) the arithmetic.\n"]
    text += table("Fine-tuning, 439 steps of 32", finetuned())
    text += table("2/3 bits, compensated start, 200 distilled steps of 32", quantized())
    (ROOT / "docs" / "results" / "precision.md").write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
