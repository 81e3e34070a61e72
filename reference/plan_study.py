"""Measures plans of the same size against each other: how far their answers are from full precision.

    python3 reference/plan_study.py --model TUNED --name minilm --task sst2 --train FILE … --dev FILE \\
        --sensitivity sensitivity.json --work WORK --out results/plans [--bin target/release]

`docs/results/hessian-rules.md` has the rules: which plans, which treatments, which measure. A plan that is in the results
already is not measured again, so the script can be stopped at any time. The results have one entry per plan and treatment.
"""

import argparse
import itertools
import json
import pathlib
import random
import shutil
import subprocess
import sys

# Layers at 3 bits in the paper's published plans (Tab. 6), counted from 0.
PUBLISHED = {"sst2": [3, 4, 5, 6, 7, 8], "conll03": [1, 2, 3, 4]}
LOW, HIGH = 2, 3
RANDOM_PLANS = 10
TREATMENTS = {
    "not trained": ["--epochs", "0", "--max-train", "1024"],
    "distilled": ["--epochs", "1", "--max-train", str(32 * 200), "--batch", "32", "--seed", "1", "--keep-last"],
}
RATES = {"sst2": "1e-4", "conll03": "3e-4"}


def rankings(sensitivity):
    """What every layer counts by each ranking, the largest first to get more bits."""
    layers = sorted(sensitivity["layers"], key=lambda layer: layer["layer"])
    sites = sensitivity["measured"]["sites"]

    def by_layer(figure):
        """The sum over the matrices of every layer, at 2 bits."""
        at_low = lambda site: next(width[figure] for width in site["widths"] if width["bits"] == LOW)
        return [sum(at_low(site) for site in sites if site["layer"] == layer["layer"]) for layer in layers]

    return {
        "omega": [layer["omega"] for layer in layers],
        "mean": [abs(layer["mean"]) for layer in layers],
        # The trace is per parameter, as `qbert plan --metric trace-error` takes it.
        "trace": [abs(layer["trace"]) for layer in layers],
        "trace-error": [abs(layer["trace"]) * error for layer, error in zip(layers, by_layer("error"))],
        "divergence": by_layer("divergence"),
        "depth": [len(layers) - layer["layer"] for layer in layers],
    }


def chosen(values, count):
    return sorted(sorted(range(len(values)), key=lambda layer: -values[layer])[:count])


def plans(task, layers, sensitivity):
    """The layers at 3 bits of every plan, with its names."""
    ranked = rankings(sensitivity)
    if layers == 6:
        found = {tuple(own): [] for own in itertools.combinations(range(6), 3)}
        count = 3
    else:
        count, found = len(PUBLISHED[task]), {}
        add = lambda name, own: found.setdefault(tuple(own), []).append(name)
        add("published", PUBLISHED[task])
        others = [layer for layer in range(layers) if layer not in PUBLISHED[task]]
        add("published, reversed", sorted(others[:count] if len(others) > count else others))
        add("last layers", range(layers - count, layers))
    for name, values in ranked.items():
        found.setdefault(tuple(chosen(values, count)), []).append(name)
    if layers != 6:
        source, drawn = random.Random(0), 0
        while drawn < RANDOM_PLANS:
            own = tuple(sorted(source.sample(range(layers), count)))
            if own not in found:
                found[own] = [f"random {drawn + 1}"]
                drawn += 1
    return found


def write_plan(base, layers, path):
    lines = base.splitlines(keepends=True)
    for index, line in enumerate(lines):
        head = line.split("=", 1)[0].strip()
        if head.startswith("layer.") and int(head.split(".")[1]) in layers:
            lines[index] = line.replace(f"= {LOW}", f"= {HIGH}")
    path.write_text("".join(lines))


def measure(options, base, layers, treatment):
    work = options.work / "plan"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_plan(base, layers, work / "plan.toml")
    threads = ["--threads", str(options.threads)] if options.threads else []
    run = lambda *words: subprocess.run([str(options.bin / "qbert"), *words, *threads], check=True, capture_output=True, text=True).stdout
    run("quantize", "--model", str(options.model), "--plan", str(work / "plan.toml"), "--task", options.task,
        "--train", *map(str, options.train), "--dev", str(options.dev), "--out", str(work / "small"), "--lr", RATES[options.task],
        "-q", *TREATMENTS[treatment])  # fmt: skip
    found = json.loads(
        run("compare", str(options.model), str(work / "small" / "model.qbert"), "--task", options.task, "--data", str(options.dev),
            "--changes", "0", "--json", "-q")  # fmt: skip
    )
    metric = found["metric"]
    return {
        "layers": list(layers),
        "treatment": treatment,
        "divergence": found["divergence"],
        "metric": metric["name"],
        "full_precision": metric["reference"],
        "value": metric["candidate"],
        "bytes": found["candidate"]["bytes"],
    }


def command(options):
    """What was called, with the names of results/README.md instead of paths."""
    words = ["python3 reference/plan_study.py --model tuned --name", options.name, "--task", options.task, "--train"]
    words += [path.name for path in options.train]
    return " ".join([*words, "--dev", options.dev.name, "--sensitivity sensitivity.json --work WORK --out results/plans"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--task", choices=sorted(PUBLISHED), required=True)
    parser.add_argument("--train", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--dev", type=pathlib.Path, required=True)
    parser.add_argument("--sensitivity", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--threads", type=int, help="threads [default: one per core]")
    options = parser.parse_args()
    sensitivity = json.loads(options.sensitivity.read_text())
    layers = len(sensitivity["layers"])
    path = options.out / f"{options.name}-{options.task}.json"
    result = json.loads(path.read_text()) if path.exists() else {"rules": "docs/results/hessian-rules.md", "rows": []}
    result |= {"model": options.name, "task": options.task, "command": command(options), "rankings": rankings(sensitivity)}
    done = {(tuple(row["layers"]), row["treatment"]) for row in result["rows"]}
    options.work.mkdir(parents=True, exist_ok=True)
    base = options.work / "base.toml"
    subprocess.run([str(options.bin / "qbert"), "plan", "--model", str(options.model), "--bits", str(LOW), "--embedding-bits", "4,8", "--embedding-groups", "128",
                    "--out", str(base), "-q"], check=True, capture_output=True)  # fmt: skip
    for treatment in TREATMENTS:
        for own, names in plans(options.task, layers, sensitivity).items():
            if (own, treatment) in done:
                continue
            row = measure(options, base.read_text(), own, treatment) | {"names": names}
            result["rows"].append(row)
            options.out.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".part")
            partial.write_text(json.dumps(result, indent=1) + "\n")
            partial.replace(path)
            print(f"{treatment}: {own} {row['divergence']:.5f} {row['value']:.2f} {', '.join(names)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
