"""Runs the long experiments behind `results/`, and takes up again where it was stopped.

    python3 reference/experiments.py --data DATA --work WORK --results results [--jobs N] [--threads N] [--only NAME …] [--list]

A job is done when the file it makes exists. `qbert` and `qbert-paper` resume an interrupted run themselves, so stopping
this script at any time loses at most a minute. Checkpoints go to WORK and are not committed; results are.

With `--jobs N`, N jobs run at once and share the cores. Results are the same for any number of threads, and two jobs with
one thread each take less time than one after the other with two.

DATA is a directory with `sst2`, `mnli`, `conll2003` and `squad`; MODELS has the checkpoints of `--models` by name.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time


@dataclasses.dataclass(eq=False)
class Job:
    """A command, the file that says that it is done, and the files of other jobs that it needs."""

    name: str
    makes: pathlib.Path
    command: list[str]
    needs: list[pathlib.Path] = dataclasses.field(default_factory=list)
    # Files to copy when it is done: what it wrote, and the name in the results.
    keeps: list[tuple[pathlib.Path, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Place:
    """Where things are."""

    data: pathlib.Path
    work: pathlib.Path
    results: pathlib.Path
    models: dict[str, str]
    bin: pathlib.Path


TASKS = {
    "conll03": (["conll2003/eng.train"], "conll2003/eng.testa"),
    "sst2": (["sst2/train.tsv"], "sst2/dev.tsv"),
    # Two fifths of the subset are neutral, a third of the dev set: training takes as many neutral pairs as there are of the others.
    "mnli": (["mnli/train_subset.tsv"], "mnli/dev_matched.tsv"),
    "squad": (
        [
            "squad/train-v1.1.first12articles.json",
            "squad/train_extra_paragraphs.json",
            "squad/squadshifts_new_wiki_v1.0.json",
        ],
        "squad/dev-v1.1.json",
    ),
}

# Epochs and highest learning rate of fine-tuning.
FINETUNE = {
    ("minilm", "conll03"): (5, "3e-4"),
    ("minilm", "sst2"): (2, "1e-4"),
    ("minilm", "mnli"): (3, "1.5e-4"),
    ("minilm", "squad"): (2, "2e-4"),
    ("gte-small", "conll03"): (5, "2e-4"),
    ("gte-small", "sst2"): (2, "5e-5"),
    ("gte-small", "mnli"): (2, "1e-4"),
    ("gte-small", "squad"): (2, "1.5e-4"),
    ("mpnet", "conll03"): (1, "1e-4"),
}
# Models that learn another training set first, for one epoch: SNLI's pairs, because MNLI's subset is small.
FIRST = {("gte-small", "mnli"): ["snli-subset/snli_train_subset.tsv"], ("minilm", "mnli"): ["snli-subset/snli_train_subset.tsv"]}
# Samples for Ω, training examples in each, and random vectors for the trace. A pass over 12 layers takes four times as long.
SAMPLES = {"minilm": ("10", "128", "4"), "gte-small": ("4", "64", "2")}
# Tasks with longer sequences are not part of the study of plans: their rows need Ω only, and smaller samples rank the layers.
SAMPLES_FOR_ROWS = {"mnli": ("4", "32", "0"), "squad": ("2", "8", "0")}
# Widths at which the divergence of every matrix is measured.
MEASURED = {"minilm": "1,1.6,2,3,4,8", "gte-small": "2,3,4"}

# The pieces of the training recipe, each against the same start: optimal ranges, compensated, distilled. The rows, then
# what differs from the start.
START = ["--ranges", "optimal", "--compensate", "--distill"]
TWO, TWO_PER_NEURON = "q-bert:2", "q-bert:2,groups=neuron"
RECIPES = {
    "start": (TWO, START),
    "learned ranges, 30": (TWO, [*START, "--weight-ranges", "learn:30"]),
    "no distillation": (TWO, ["--ranges", "optimal", "--compensate"]),
    "no compensation": (TWO, ["--ranges", "optimal", "--distill"]),
    "no mask": (TWO, [*START, "--mask", "none"]),
    "per neuron": (TWO_PER_NEURON, START),
    "learned ranges, 10": (TWO, [*START, "--weight-ranges", "learn:10"]),
    "learned ranges, 100": (TWO, [*START, "--weight-ranges", "learn:100"]),
    "mask half a step out": (TWO, [*START, "--mask", "half-step"]),
    "fitted layers": (TWO, [*START, "--weight-ranges", "learn:10", "--fit-layers", "200"]),
}
# Pieces that are run with the first seed only: they lose clearly, or lie beyond the best.
ONE_SEED = ["learned ranges, 100", "mask half a step out"]


def train_files(place, task):
    if task == "mnli":
        return [str(balanced(place, *TASKS[task][0]))]
    return [str(place.data / name) for name in TASKS[task][0]]


def balanced(place, name, label="neutral"):
    """The file without the surplus of a label: as many of its pairs as of the others on average, evenly spaced."""
    target = place.work / f"{pathlib.PurePath(name).stem}_balanced.tsv"
    if not target.exists():
        header, *lines = (place.data / name).read_text(encoding="utf-8").splitlines(keepends=True)
        column = header.split("\t").index("gold_label")
        surplus = [index for index, line in enumerate(lines) if line.split("\t")[column] == label]
        wanted = (len(lines) - len(surplus)) // 2
        kept = {surplus[index * len(surplus) // wanted] for index in range(wanted)}
        dropped = set(surplus) - kept
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".part")
        partial.write_text(header + "".join(line for index, line in enumerate(lines) if index not in dropped), encoding="utf-8")
        partial.replace(target)
    return target


def files(place, task):
    return ["--train", *train_files(place, task), "--dev", str(place.data / TASKS[task][1])]


def tuned(place, model, task):
    return place.work / "tuned" / f"{model}-{task}"


def tuned_marker(place, model, task):
    """The state is removed when a run is finished; the marker is written by this script."""
    return tuned(place, model, task).with_suffix(".done")


def finetune(place, model, task):
    """One job, or two where another training set comes first."""
    epochs, rate = FINETUNE[model, task]
    out, start, needs = tuned(place, model, task), place.models.get(model, model), []
    _, dev = TASKS[task]

    def job(name, out, start, train, epochs, needs):
        command = [str(place.bin / "qbert"), "finetune", "--model", str(start), "--task", task, *train]
        command += ["--out", str(out), "--batch", "32", "--epochs", str(epochs), "--lr", rate, "--precision", "bf16", "--resume"]
        return Job(name, out.with_suffix(".done"), command, needs, [(out / "metrics.json", f"tuned/{out.name}.json")])

    if (model, task) in FIRST:
        train = ["--train", *(str(place.data / name) for name in FIRST[model, task]), "--dev", str(place.data / dev)]
        first = out.with_name(f"{out.name}-first")
        yield job(f"first finetune {model} {task}", first, start, train, 1, [])
        start, needs = first, [first.with_suffix(".done")]
    yield job(f"finetune {model} {task}", out, start, files(place, task), epochs, needs)


# Questions that judge the rows of SQuAD, as in results/reproduce: all 10,570 take 25 minutes each time in full precision.
SHORT_DEV = {"squad": ["--max-dev", "1500"]}


def rows(place, model, task, out, names, extra):
    """One row for each seed, by `qbert-paper reproduce`, in bf16: nothing is lost by it (docs/results/precision.md)."""
    extra = [*extra, *SHORT_DEV.get(task, [])]
    command = [str(place.bin / "qbert-paper"), "reproduce", "--task", task, "--rows", *names, *extra, "--precision", "bf16"]
    return [*command, "--model", str(tuned(place, model, task)), *files(place, task), "--out", str(out)]


def recipe_jobs(place, task, rate):
    """The ablation of the training recipe at 2 bits: one pass over CoNLL-03's training set, as many steps on SST-2."""
    needs = [tuned_marker(place, "minilm", task)]
    for piece, (row, extra) in RECIPES.items():
        for seed in ["1"] if piece in ONE_SEED else ["1", "2", "3"]:
            marker = place.work / "done" / f"recipe-{task}-{piece.replace(' ', '-')}-{seed}"
            command = rows(place, "minilm", task, place.results / "recipe", [row], extra)
            yield Job(f"recipe {task} {piece} {seed}", marker, [*command, "--steps", "439", "--lr", rate, "--seeds", seed], needs)


# Steps of fine-tuning, and of distilled training at 2/3 bits, in the comparison of f32 with bf16; the learning rate.
PRECISION = {"conll03": (439, 200, "3e-4"), "sst2": (439, 200, "1e-4")}


def precision_jobs(place, task):
    """f32 against bf16, three seeds each: fine-tuning, then training at 2/3 bits from the f32 model of seed 1."""
    tuning, training, rate = PRECISION[task]
    root = place.work / "precision"
    for seed in ["1", "2", "3"]:
        for precision in ["f32", "bf16"]:
            out = root / f"{task}-{precision}-{seed}"
            command = [str(place.bin / "qbert"), "finetune", "--model", "minilm", "--task", task, *files(place, task)]
            command += ["--out", str(out), "--batch", "32", "--lr", rate, "--precision", precision, "--seed", seed, "--resume"]
            command += ["--epochs", "1", "--max-train", str(32 * tuning)]
            yield Job(f"precision finetune {task} {precision} {seed}", out.with_suffix(".done"), command)
    model = root / f"{task}-f32-1"
    for precision in ["f32", "bf16"]:
        command = [str(place.bin / "qbert-paper"), "reproduce", "--task", task, "--rows", "q-bert:2/3", *START]
        command += ["--model", str(model), *files(place, task), "--sensitivity", str(place.results / f"sensitivity-{task}.json")]
        command += ["--steps", str(training), "--lr", rate, "--precision", precision, "--seeds", "1,2,3"]
        command += ["--out", str(place.results / "precision" / precision)]
        yield Job(f"precision quantize {task} {precision}", root / f"{task}-{precision}-rows.done", command)


# Distilled epochs and highest learning rate of the results that count. SQuAD needs a second
# epoch at 2 bits.
HEADLINE = {"conll03": (3, "3e-4"), "sst2": (1, "1e-4"), "mnli": (1, "1.5e-4"), "squad": (2, "2e-4")}
# The recipe of the headline rows: what the ablation finds best (docs/results/recipe.md).
BEST = [*START, "--weight-ranges", "learn:10"]
# By the name of their row: a method such as q-bert:2/3 has several, with more or fewer layers at 3 bits.
WIDTHS = {"2/3": "qbert-mp-2-3", "2/3 small table": "q-bert:2/3,embedding=4/8,embedding-groups=row", "2": "q-bert:2", "1/2": "q-bert:1/2", "1.6": "q-bert:1.6"}


def analysis(place, model, task):
    return place.work / "analysis" / f"{model}-{task}"


def analyzed(place, model, task):
    """The sensitivities, which are kept in the results: checkpoints have the same bytes on every machine, so they still hold."""
    return place.results / "analysis" / f"{model}-{task}.json"


def analyze_jobs(place, model, task):
    """Ω and the trace on training data, then measured divergences on dev data, in one file. Plans of the rows need the first only."""
    known, for_rows = analyzed(place, model, task), task in SAMPLES_FOR_ROWS
    if known.exists() and (for_rows or "measured" in json.loads(known.read_text())):
        return
    out = analysis(place, model, task)
    command = [str(place.bin / "qbert"), "analyze", "--model", str(tuned(place, model, task)), "--task", task, "--out", str(out)]
    runs, examples, vectors = SAMPLES_FOR_ROWS[task] if for_rows else SAMPLES[model]
    hessian = [*command, "--data", *train_files(place, task), "--runs", runs, "--max-examples", examples, "--trace", vectors, "--resume"]
    keeps = [(out / "sensitivity.json", f"analysis/{model}-{task}.json")]
    yield Job(f"analyze {model} {task}", out.with_suffix(".hessian"), hessian, [tuned_marker(place, model, task)], keeps)
    if not for_rows:
        dev = str(place.data / TASKS[task][1])
        measured = [*command, "--data", dev, "--method", "kl", "--widths", MEASURED[model], "--resume"]
        yield Job(f"measure {model} {task}", out.with_suffix(".measured"), measured, [out.with_suffix(".hessian")], keeps)


def headline_jobs(place, model, task, seeds):
    """The best recipe at every width, one job for each row. Only MiniLM goes below 2 bits with every seed, only the 12-layer model has a 4-bit word table."""
    epochs, rate = HEADLINE[task]
    for seed in seeds:
        for width, row in WIDTHS.items():
            if width in ["1/2", "1.6"] and (model != "minilm" or (width == "1.6" and seed != "1")):
                continue
            if width == "2/3 small table" and model != "gte-small":
                continue
            name = f"headline {model} {task} {width} {seed}"
            command = rows(place, model, task, place.results / "headline" / model, [row], BEST)
            command += ["--epochs", str(epochs), "--lr", rate, "--seeds", seed]
            needs = [tuned_marker(place, model, task)]
            # Only plans with two widths ask which layers are sensitive.
            if "/" in width:
                command += ["--sensitivity", str(analyzed(place, model, task))]
                needs.append(analyzed(place, model, task))
            yield Job(name, place.work / "done" / name.replace(" ", "-").replace("/", "-"), command, needs)


def mpnet_jobs(place):
    """The base-sized model on CoNLL-03: the six of its twelve layers with the largest Ω at 3 bits."""
    task, train_rate = "conll03", "1e-4"
    model, out = tuned(place, "mpnet", task), place.work / "mpnet"
    measured, plan, small = out / "analysis" / "sensitivity.json", out / "plan.toml", out / "small"
    qbert = str(place.bin / "qbert")
    yield from finetune(place, "mpnet", task)
    command = [qbert, "analyze", "--model", str(model), "--task", task, "--data", str(place.data / TASKS[task][0][0])]
    command += ["--runs", "2", "--max-examples", "16", "--out", str(measured.parent), "--resume"]
    yield Job("mpnet analyze", measured.with_suffix(".done"), command, [tuned_marker(place, "mpnet", task)])
    command = [qbert, "plan", "--model", str(model), "--bits", "2,3", "--sensitivity", str(measured), "--high", "6"]
    yield Job("mpnet plan", plan, [*command, "--embedding-bits", "4,8", "--out", str(plan)], [measured.with_suffix(".done")])
    command = [qbert, "quantize", "--model", str(model), "--plan", str(plan), "--task", task, *files(place, task), "--epochs", "1"]
    command += ["--max-train", str(32 * 250)]
    yield Job("mpnet quantize", small.with_suffix(".done"), [*command, "--lr", train_rate, "--batch", "32", "--out", str(small), "--resume"], [plan])


def fit_jobs(place, model, task):
    """Without training and labels: compensated, and with layers fitted."""
    sensitivity = analyzed(place, model, task)
    mixed = ["--bits", "2,3", "--sensitivity", str(sensitivity), "--high", "3"]
    columns, rows = [["--embedding-bits", "4,8", "--embedding-groups", groups] for groups in ["128", "row"]]
    widths = {"4-word-8": ["--bits", "4", "--embedding-bits", "8,8"]}
    for name, plan in {"4": ["--bits", "4"], "2-3": mixed, "2": ["--bits", "2"]}.items():
        widths[name] = [*plan, *columns]
        widths[f"{name}-rows"] = [*plan, *rows]
    for name, plan in widths.items():
        out = place.work / "fit" / f"{model}-{task}-{name}"
        plan_file = out.with_suffix(".toml")
        command = [str(place.bin / "qbert"), "plan", "--model", str(tuned(place, model, task)), *plan]
        needs = [tuned_marker(place, model, task), analyzed(place, model, task)]
        yield Job(f"fit {model} {task} {name} plan", plan_file, [*command, "--out", str(plan_file)], needs)
        for steps in ["0", "400"]:
            own = out.with_name(f"{out.name}-{steps}")
            command = [str(place.bin / "qbert"), "quantize", "--model", str(tuned(place, model, task)), "--plan", str(plan_file)]
            command += ["--task", task, *files(place, task), "--epochs", "0", "--max-train", "1024", "--fit-layers", steps, "--precision", "bf16"]
            kept = f"without-training/{own.name}.json"
            keeps = [(own / "metrics.json", kept)]
            yield Job(f"fit {model} {task} {name} {steps}", place.results / kept, [*command, "--out", str(own)], [plan_file], keeps)


def drop_job(place, model, task):
    """The smallest file that loses at most half a point."""
    out = place.work / "max-drop" / f"{model}-{task}"
    command = [str(place.bin / "qbert"), "run", "--model", str(tuned(place, model, task)), "--task", task, *files(place, task)]
    command += ["--max-drop", "0.5", "--out", str(out), "--no-speed", "--precision", "bf16"]
    kept = f"max-drop/{model}-{task}.json"
    keeps = [(out / "metrics.json", f"max-drop/{model}-{task}-metrics.json"), (out / "plan-search.json", kept)]
    return Job(f"max-drop {model} {task}", place.results / kept, command, [tuned_marker(place, model, task)], keeps)


def plan_job(place, model, task):
    """Plans of the same size against each other: docs/results/hessian-rules.md."""
    train, dev = TASKS[task]
    command = [sys.executable, str(pathlib.Path(__file__).with_name("plan_study.py")), "--model", str(tuned(place, model, task))]
    command += ["--name", model, "--task", task, "--train", *(str(place.data / name) for name in train)]
    command += ["--dev", str(place.data / dev), "--sensitivity", str(analyzed(place, model, task))]
    command += ["--work", str(place.work / "plans" / f"{model}-{task}"), "--out", str(place.results / "plans"), "--bin", str(place.bin)]
    return Job(f"plans {model} {task}", place.work / "done" / f"plans-{model}-{task}", command, [tuned_marker(place, model, task), analyzed(place, model, task)])


def sample_jobs(place):
    """Ω of CoNLL-03 by the size of its samples; the last is the paper's own, 10 % of the training sentences."""
    for examples in ["32", "128", "512", "all"]:
        out = place.work / "samples" / examples
        command = [str(place.bin / "qbert"), "analyze", "--model", str(tuned(place, "minilm", "conll03")), "--task", "conll03"]
        command += ["--data", str(place.data / "conll2003/eng.train"), "--runs", "10", "--fraction", "0.1"]
        command += ["--max-examples", examples, "--out", str(out), "--resume"]
        kept = f"samples/{examples}.json"
        keeps = [(out / "sensitivity.json", kept)]
        yield Job(f"samples {examples}", place.results / kept, command, [tuned_marker(place, "minilm", "conll03")], keeps)


def jobs(place):
    """All jobs in the order of what is needed first."""
    rates = {"conll03": "3e-4", "sst2": "1e-4"}
    recipes = {task: list(recipe_jobs(place, task, rate)) for task, rate in rates.items()}
    for task in rates:
        yield from precision_jobs(place, task)
    for task in rates:
        yield from finetune(place, "minilm", task)
    for task in rates:
        yield from recipes[task]
        yield from analyze_jobs(place, "minilm", task)
        yield from headline_jobs(place, "minilm", task, ["1"])
    yield from mpnet_jobs(place)
    for task in rates:
        yield from finetune(place, "gte-small", task)
        yield from analyze_jobs(place, "gte-small", task)
        yield from headline_jobs(place, "gte-small", task, ["1"])
    for task in rates:
        yield plan_job(place, "minilm", task)
    for task in ["squad", "mnli"]:
        for model in ["minilm", "gte-small"]:
            yield from finetune(place, model, task)
            yield from analyze_jobs(place, model, task)
            yield from headline_jobs(place, model, task, ["1"])
    for task in rates:
        yield plan_job(place, "gte-small", task)
    for task in TASKS:
        yield from fit_jobs(place, "minilm", task)
        for model in ["minilm", "gte-small"]:
            yield drop_job(place, model, task)
    for task in TASKS:
        yield from headline_jobs(place, "minilm", task, ["2", "3"])
    yield from sample_jobs(place)


def start(place, job, threads):
    command = [*job.command, "--threads", str(threads)]
    print(f"{datetime.datetime.now():%H:%M:%S} {job.name}", flush=True)
    with open(place.work / "log" / (job.name.replace(" ", "-").replace("/", "-") + ".log"), "a") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def spoken(command):
    """The command with names instead of paths."""
    return " ".join(pathlib.PurePath(word).name if "/" in word else word for word in command)


def without_directories(value):
    """The same JSON with names instead of absolute paths, because results are read on other machines."""
    if isinstance(value, dict):
        return {key: without_directories(own) for key, own in value.items()}
    if isinstance(value, list):
        return [without_directories(own) for own in value]
    is_path = isinstance(value, str) and value.startswith("/")
    return pathlib.PurePath(value).name if is_path else value


def keep(place, job):
    """Copies what a finished job wrote into the results, with its command where the file has none."""
    for source, name in job.keeps:
        target = place.results / name
        target.parent.mkdir(parents=True, exist_ok=True)
        found = {"command": spoken(job.command)} | without_directories(json.loads(source.read_text()))
        times = source.with_name("times.jsonl")
        if source.name == "plan-search.json" and times.exists():
            found["times"] = [json.loads(line) for line in times.read_text().splitlines()]
        partial = target.with_suffix(".part")
        partial.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        partial.replace(target)


def run(place, wanted, at_once, threads):
    """Runs the jobs, `at_once` at a time, each as soon as what it needs is there. Returns how many failed."""
    waiting = [job for job in wanted if not job.makes.exists()]
    running, failed = {}, 0
    while waiting or running:
        for job, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[job]
            if process.returncode == 0:
                keep(place, job)
                job.makes.parent.mkdir(parents=True, exist_ok=True)
                job.makes.touch()
            else:
                failed += 1
                print(f"  {job.name} failed with {process.returncode}", flush=True)
        ready = [job for job in waiting if all(need.exists() for need in job.needs)]
        for job in ready[: at_once - len(running)]:
            waiting.remove(job)
            running[job] = start(place, job, threads)
        if not running:
            for job in waiting:
                print(f"  {job.name}: {', '.join(str(need) for need in job.needs if not need.exists())} is missing", flush=True)
            return failed + len(waiting)
        time.sleep(1)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results"))
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--models", nargs="*", default=[], metavar="NAME=DIR", help="checkpoints by name")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at once")
    parser.add_argument("--threads", type=int, help="threads of each job [default: the cores divided by --jobs]")
    parser.add_argument("--only", nargs="*", default=[], help="jobs whose names begin so")
    parser.add_argument("--list", action="store_true", help="list the jobs and what is done")
    options = parser.parse_args()
    models = dict(pair.split("=", 1) for pair in options.models)
    place = Place(options.data, options.work, options.results, models, options.bin)
    wanted = [job for job in jobs(place) if not options.only or job.name.startswith(tuple(options.only))]
    if options.list:
        for job in wanted:
            print("done " if job.makes.exists() else "     ", job.name)
        return 0
    (place.work / "log").mkdir(parents=True, exist_ok=True)
    threads = options.threads or max(1, (os.cpu_count() or 1) // options.jobs)
    return 1 if run(place, wanted, options.jobs, threads) else 0


if __name__ == "__main__":
    sys.exit(main())
