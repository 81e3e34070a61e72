#!/usr/bin/env python3
"""Writes docs/results/sensitivity.md from results/sensitivity-*.json and results/samples; no number in it is typed by hand.

    python3 reference/render_sensitivity.py [--check]
"""
import json
import sys

from pages import ROOT, TASKS as NAMES, finish, spearman


def command(found):
    settings, data = found["settings"], {"sst2": "train.tsv", "mnli": "train_subset.tsv", "conll03": "eng.train",
                                          "squad": "train-v1.1.first12articles.json train_extra_paragraphs.json "
                                                   "squadshifts_new_wiki_v1.0.json"}
    limit = settings["max_examples"] or "all"
    extra = f" --trace {settings['trace']}" if settings["trace"] else ""
    return (f"qbert analyze --model tuned-{found['task']} --task {found['task']} "
            f"--data {data.get(found['task'], 'TRAIN FILES')} --runs {settings['runs']} --fraction {settings['fraction']} "
            f"--max-examples {limit} --method {settings['method']} --tol {settings['stop']['tolerance']} "
            f"--iterations {settings['stop']['iterations']} --seed {settings['seed']}{extra} --out analysis")


def number(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def section(name, found):
    yield f"## {NAMES[found['task']]}, seed {found['settings']['seed']}\n"
    yield f"`{command(found)}` (`results/{name}`)\n"
    runs = found["runs"]
    yield (f"{len(runs)} runs on {runs[0]['examples']} of {found['data']['sequences']} sequences each, mean loss "
           f"{sum(run['loss'] for run in runs) / len(runs):.4f}. Rank correlation of the two halves of the runs: "
           f"{found['agreement_of_halves']:.2f}.\n")
    yield "| layer | rank | Ω | mean λ | std | smallest λ | largest λ | lowest eigenvalue, mean | products |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for layer in found["layers"]:
        values, lowest = layer["eigenvalues"], layer["lowest"]
        low = number(sum(lowest) / len(lowest)) if lowest else "–"
        yield (f"| {layer['layer']} | {found['ranking'].index(layer['layer']) + 1} | {number(layer['omega'])} "
               f"| {number(layer['mean'])} | {number(layer['std'])} | {number(min(values))} | {number(max(values))} | {low} "
               f"| {sum(layer['iterations']) / len(layer['iterations']):.1f} |")
    yield ""
    for warning in found["warnings"]:
        yield f"> warning: {warning}\n"


def negative(found):
    """How often the eigenvalue of largest size is negative, of how many."""
    values = [value for layer in found["layers"] for value in layer["eigenvalues"]]
    return f"{sum(value < 0 for value in values)} of {len(values)}"


def samples(results):
    """What the size of a sample does to Ω, the smallest first."""
    yield "## What the sample's size changes\n"
    yield ("CoNLL-03, the checkpoint of `reference/experiments.py`, the same ten samples cut off at different sizes. The last row is the paper's "
           "own sample: 10 % of the training sentences. `python3 reference/experiments.py --only samples` makes them (`results/samples`).\n")
    layers = len(results[0]["layers"])
    yield "| sequences in a sample | " + " | ".join(f"Ω of layer {layer}" for layer in range(layers)) + " | layers from most to least sensitive | agreement of halves | runs whose largest λ is negative | std / mean of λ |"
    yield "|---:|" + "---:|" * layers + "---|---:|---:|---:|"
    for found in results:
        spread = sum(layer["std"] / abs(layer["mean"]) for layer in found["layers"]) / layers
        yield (f"| {found['runs'][0]['examples']:,} | " + " | ".join(number(layer["omega"]) for layer in found["layers"])
               + f" | {', '.join(map(str, found['ranking']))} | {found['agreement_of_halves']:.2f} | {negative(found)} | {spread:.2f} |")
    yield ""


def main():
    files = sorted((ROOT / "results").glob("sensitivity-*.json"))
    results = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    text = ["# Which layers are sensitive, measured\n",
            "MiniLM-L6, fine-tuned on each task (`results/finetune-TASK.json`); layers are counted from 0. "
            "`python reference/render_sensitivity.py` renders this page from `results/sensitivity-*.json`; do not edit it by hand. "
            "[analyze.md](../guide/analyze.md) explains the method. In the commands, `tuned-TASK` stands for the fine-tuned "
            "checkpoint.\n",
            "| task | seed | layers from most to least sensitive | Ω, largest / smallest | agreement of halves "
            "| runs whose largest λ is negative |",
            "|---|---|---|---|---|---|"]
    for found in results.values():
        omegas = [layer["omega"] for layer in found["layers"]]
        text.append(f"| {NAMES[found['task']]} | {found['settings']['seed']} | {', '.join(map(str, found['ranking']))} "
                    f"| {number(max(omegas) / min(omegas))} | {found['agreement_of_halves']:.2f} | {negative(found)} |")
    text.append("")
    by_task = {}
    for found in results.values():
        by_task.setdefault(found["task"], []).append(found)
    for task, seeds in by_task.items():
        for other in seeds[1:]:
            places = [[found["ranking"].index(layer) for layer in range(len(found["ranking"]))] for found in (seeds[0], other)]
            agreement = spearman(*places)
            text.append(f"{NAMES[task]}: Spearman's rank correlation of seeds {other['settings']['seed']} and "
                        f"{seeds[0]['settings']['seed']} is {agreement:.2f}.\n")
    by_size = [json.loads(file.read_text(encoding="utf-8")) for file in (ROOT / "results" / "samples").glob("*.json")]
    if by_size:
        text += samples(sorted(by_size, key=lambda found: found["runs"][0]["examples"]))
    for name, found in results.items():
        text += section(name, found)
    return finish({ROOT / "docs" / "results" / "sensitivity.md": "\n".join(text).rstrip() + "\n"})


if __name__ == "__main__":
    sys.exit(main())
