"""Writes docs/results/recipe.md and the README's table of the 12-layer model from results/recipe, results/headline and results/without-training: what each piece of the training
recipe gives at 2 bits, what the best recipe loses, and what is lost without training. No number in it is typed by hand.

    python3 reference/render_recipe.py [--check]
"""

import json
import math
import re
import statistics
import sys

from pages import MODELS, ROOT, TASKS, finish, with_region

PAGE = ROOT / "docs" / "results" / "recipe.md"
PAPER = ROOT / "crates" / "qbert-paper" / "src" / "paper.rs"
README = ROOT / "README.md"
# By the end of a row's name, after its width.
PIECES = {
    "qbert-2.optimal.compensate.distill": "start: refined ranges, compensated, distilled",
    "qbert-2.optimal.distill": "without compensated rounding",
    "qbert-2.optimal.compensate": "without distillation",
    "qbert-2.optimal.compensate.distill.mask-half-step": "mask half a step further out",
    "qbert-2.optimal.compensate.distill.mask-none": "no mask",
    "qbert-2-groups-neuron.optimal.compensate.distill": "a range per neuron instead of 128 groups",
    "qbert-2.optimal.compensate.distill.learned-3": "ranges learned, at 3 times the rate",
    "qbert-2.optimal.compensate.distill.learned-10": "ranges learned, at 10 times the rate",
    "qbert-2.optimal.compensate.distill.learned-30": "ranges learned, at 30 times the rate",
    "qbert-2.optimal.compensate.distill.learned-100": "ranges learned, at 100 times the rate",
    "qbert-2.optimal.compensate.distill.learned-10.fitted-200": "ranges learned, at 10 times the rate, from fitted layers",
}
BEST_AT_TWO = "qbert-2.optimal.compensate.distill.learned-10"
# By the method of a row.
SMALL_TABLE = "q-bert:2/3,embedding=4/8,embedding-groups=row"
WIDTHS = {"q-bert:2/3": "2/3", SMALL_TABLE: "2/3, words at 4", "q-bert:2": "2", "q-bert:1.6": "ternary", "q-bert:1/2": "1/2"}


def read_rows(directory):
    """Rows by name without the seed, each with its seeds."""
    found = {}
    for path in sorted(directory.glob("*.json")):
        name, _, seed = path.stem.rpartition(".seed")
        if name:
            found.setdefault(name, {})[int(seed)] = json.loads(path.read_text())
    return found


def last(row):
    return row["last"]["metrics"][row["metric"]]


def mean_and_error(values):
    """With the standard error of the mean, where there are several."""
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.2f}{error}"


def mean_or_dash(values, form):
    return form.format(statistics.mean(values)) if values else "–"


def ablation(task, rows):
    start = rows.get("qbert-2.optimal.compensate.distill")
    if not start:
        return
    any_row = next(iter(start.values()))
    full, metric = any_row["full_precision"][any_row["metric"]], any_row["metric"]
    steps, batch = any_row["training"]["steps"], any_row["settings"]["budget"]["batch"]
    yield f"### {TASKS[task]}\n"
    yield (
        f"{metric.upper() if metric == 'f1' else metric.capitalize()} {full:.2f} in full precision, {any_row['examples']:,} dev examples, "
        f"{steps} steps of {batch}.\n"
    )
    yield "| recipe | seeds | not trained | trained | against the start | divergence, mnats | relative to the start |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, title in PIECES.items():
        if name not in rows:
            continue
        own = rows[name]
        changes = [last(row) - full for row in own.values()]
        untrained = [row["post_training"][metric] - full for row in own.values()]
        divergences = [1000 * row["divergence"] for row in own.values() if row.get("divergence") is not None]
        shared = [seed for seed in own if seed in start]
        paired = mean_and_error([last(own[seed]) - last(start[seed]) for seed in shared]) if name != next(iter(PIECES)) and shared else ""
        ratios = [own[seed]["divergence"] / start[seed]["divergence"] for seed in shared if own[seed].get("divergence")]
        ratio = mean_or_dash(ratios, "{:.2f} ×") if paired else ""
        cells = [f"{len(own)}", f"{statistics.mean(untrained):+.2f}", f"{statistics.mean(changes):+.2f}", paired, mean_or_dash(divergences, "{:.1f}"), ratio]
        yield f"| {title} | " + " | ".join(cells) + " |"
    yield ""


def papers_changes():
    """Points that the paper's BERT-base changes by, by method and task: its main table and that of word tables, as `qbert-paper` has them."""
    source, found = PAPER.read_text(encoding="utf-8"), {}
    columns = {"sst2": 4, "mnli": 5, "conll03": 7, "squad": 9}
    for table in ["MAIN", "MIXED_EMBEDDING"]:
        lines = re.search(rf'const {table}: &str = "(.*?)";', source, re.DOTALL)[1].splitlines()
        rows = [[cell.strip() for cell in line.split("|")] for line in lines if "|" in line]
        scores = {row[0]: {task: float(row[column]) for task, column in columns.items()} for row in rows}
        found |= {method: {task: own - scores["full"][task] for task, own in tasks.items()} for method, tasks in scores.items()}
    # Ranges of rows are not the paper's.
    return {SMALL_TABLE if method == "q-bert:2/3,embedding=4/8" else method: tasks for method, tasks in found.items()}


def lengths(recipes, headlines):
    """The best recipe at 2 bits, trained for longer."""
    found = []
    for task, title in TASKS.items():
        for rows in (recipes.get(task, {}), headlines.get(task, {})):
            own = list(rows.get(BEST_AT_TWO, {}).values())
            if own:
                found.append((title, own))
    if len(found) < 3:
        return
    yield "## What longer training gives\n"
    yield "MiniLM-L6, uniform 2 bits, the recipe of the row *ranges learned, at 10 times the rate*. Points against full precision after the last epoch.\n"
    yield "| task | steps of 32 | epochs | seeds | trained | divergence, mnats |"
    yield "|---|---:|---:|---:|---:|---:|"
    for title, own in found:
        training, metric = own[0]["training"], own[0]["metric"]
        changes = mean_and_error([last(row) - row["full_precision"][metric] for row in own])
        divergence = mean_or_dash([1000 * row["divergence"] for row in own if row.get("divergence") is not None], "{:.1f}")
        yield f"| {title} | {training['steps']:,} | {training['epochs']:.2g} | {len(own)} | {changes} | {divergence} |"
    yield ""


def headline(model, tasks):
    """What the best recipe loses, by task and width."""
    yield f"### {MODELS[model]}\n"
    # The paper's model has 12 layers, so only one of 12 layers is compared with it.
    papers, paper_column = (papers_changes(), " the paper’s BERT-base |") if model == "gte-small" else ({}, "")
    yield f"| task | full precision | bits | seeds | not trained | trained |{paper_column} encoder, times smaller | file, MB | training |"
    yield "|---|---:|---|---:|---:|---:|" + "---:|" * bool(papers) + "---:|---:|---|"
    for task, rows in tasks.items():
        by_width = {next(iter(own.values()))["settings"]["method"]: own for own in rows.values()}
        for method, width in WIDTHS.items():
            if method not in by_width:
                continue
            own = by_width[method]
            row = next(iter(own.values()))
            metric = row["metric"]
            full = row["full_precision"][metric]
            trained = mean_and_error([last(row) - full for row in own.values()])
            untrained = statistics.mean(row["post_training"][metric] - full for row in own.values())
            sizes = row["sizes"]
            paper = papers.get(method, {}).get(task)
            paper = (f" {paper:+.2f} |" if paper is not None else " – |") if papers else ""
            yield (
                f"| {TASKS[task]}, {metric} | {full:.2f} | {width} | {len(own)} | {untrained:+.2f} | **{trained}** |{paper} {sizes['compression']['encoder']:.1f} "
                f"| {sizes['file_bytes'] / 1e6:.1f} | {row['training']['steps']} steps |"
            )
    yield ""


def without_training():
    """What is lost where nothing is trained and no label is looked at."""
    found = {}
    for path in sorted((ROOT / "results" / "without-training").glob("*.json")):
        task, width, steps = re.fullmatch(r"minilm-([a-z0-9]+)-(.+)-(\d+)", path.stem).groups()
        found[task, width, int(steps)] = json.loads(path.read_text())
    if not found:
        return
    yield "## Without training\n"
    yield (
        "MiniLM-L6, tables but that of words and activations at 8 bits, calibrated on 1,024 training texts without their labels. **Compensated**: "
        "rounded so that weights make up for each other's errors. **Fitted**: then 400 steps for each layer towards the output of the full-precision layer "
        "(`--fit-layers 400`). Points against full precision.\n"
    )
    yield "| task | full precision | bits | word table | compensated | fitted |"
    yield "|---|---:|---|---|---:|---:|"
    tables = {"": "4 bits, 128 groups of columns", "-rows": "4 bits, a range per row", "-word-8": "8 bits"}
    widths = {f"{width}{table}": f"{bits} | {named}" for width, bits in {"4": "4", "2-3": "2/3", "2": "2"}.items() for table, named in tables.items()}
    for task, title in TASKS.items():
        for width, named in widths.items():
            own = [found.get((task, width, steps)) for steps in (0, 400)]
            if any(own):
                full = next(row for row in own if row)["before"]["full_precision"]
                cells = [f"{row['before']['post_training'] - full:+.2f}" if row else "–" for row in own]
                yield f"| {title} | {full:.2f} | {named} | " + " | ".join(cells) + " |"
    yield ""


def smallest_files():
    """What `--max-drop` found."""
    searches = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "results" / "max-drop").glob("*.json")) if not path.stem.endswith("-metrics")}
    if not searches:
        return
    yield "## The smallest file within a drop\n"
    yield (
        "`qbert run --max-drop POINTS` on a fine-tuned checkpoint, with its defaults. **Drop** is the chosen plan's on the whole dev set, after training where it was trained, with the "
        "interval that misses one case in twenty. **Time** is that of the whole command, with the number of threads, while other experiments shared the two cores.\n"
    )
    yield "| model | task | full precision | limit | file, MB | drop | interval | plans measured | trained | time |\n|---|---|---:|---:|---:|---:|---|---:|---:|---|"
    for name, found in searches.items():
        model, task = name.rsplit("-", 1)
        chosen = next(plan for plan in found["plans"] if plan["chosen"])
        own = chosen["trained"] or chosen["measured"]
        trained = sum(plan["trained"] is not None for plan in found["plans"])
        times = found.get("times", [])
        time = f"{sum(own['seconds'] for own in times) / 60:.0f} min, {times[0]['threads']} thread{'s' * (times[0]['threads'] > 1)}" if times else "–"
        yield (
            f"| {MODELS[model]} | {TASKS[task]} | {found['full_precision']:.2f} | {found['max_drop']} | {chosen['bytes'] / 1e6:.2f} | {own['drop']:.2f} "
            f"| {own['low']:.2f} to {own['high']:.2f} | {len(found['plans'])} | {trained} | {time} |"
        )


def page():
    yield "# The recipe of low-bit training, measured\n"
    sources = ", ".join(f"`results/{name}`" for name in ["recipe", "headline", "without-training", "max-drop"] if (ROOT / "results" / name).exists())
    yield (
        f"`python3 reference/render_recipe.py` writes this page from {sources}; do not edit it by hand. Every row of "
        "a table is a file there, with the command that made it; `python3 reference/experiments.py` runs them all.\n"
    )
    found = {task: read_rows(ROOT / "results" / "recipe" / task) for task in TASKS}
    if any(found.values()):
        yield "## What each piece gives at 2 bits\n"
        yield (
            "MiniLM-L6, every encoder matrix at 2 bits, embeddings and activations at 8. Each recipe changes one piece of the start, with the same number of "
            "steps, the same learning rate and the same order of the data. Columns show points against full precision on the dev set. "
            "**Against the start** pairs the seeds: the mean difference and its standard error. "
            "**Divergence** is the mean KL divergence of the answers from those of the full-precision model on the dev set, in thousandths of a nat: it "
            "separates recipes that the metric cannot tell apart. Smaller is better.\n"
        )
    for task, rows in found.items():
        yield from ablation(task, rows)
    models = {model: {task: read_rows(ROOT / "results" / "headline" / model / task) for task in TASKS} for model in MODELS}
    models = {model: {task: rows for task, rows in tasks.items() if rows} for model, tasks in models.items()}
    yield from lengths(found, models["minilm"])
    if any(models.values()):
        yield "## What the best recipe loses\n"
        yield (
            "Trained with distillation from a compensated start, with learned ranges; embeddings and activations at 8 bits; **words at 4** means a word table of 4 bits with a range per row. "
            "The layers with the largest Ω have the higher of two widths: half of the layers, but a third at 2/3 bits on CoNLL-03 and MNLI, as in the paper's plans. Points against full precision after the last epoch, on the whole dev set, of SQuAD on its first 1,500 questions; with "
            "several seeds, the mean and its standard error.\n"
        )
    for model, tasks in models.items():
        if tasks:
            yield from headline(model, tasks)
    yield from without_training()
    yield ""
    yield from smallest_files()


def readme_table(model):
    """The same rows for the README: a line per task, a column per width."""
    widths = {SMALL_TABLE: "2/3 bits, word table 4", "q-bert:2": "2 bits, word table 8"}
    papers = papers_changes()
    yield "| | full precision | " + " | ".join(f"{width} | paper" for width in widths.values()) + " |"
    yield "|---" * (2 + 2 * len(widths)) + "|"
    sizes = {method: [] for method in widths}
    full_bytes = []
    for task, title in TASKS.items():
        by_width = {next(iter(own.values()))["settings"]["method"]: own for own in read_rows(ROOT / "results" / "headline" / model / task).values()}
        if not by_width:
            continue
        row = next(iter(next(iter(by_width.values())).values()))
        metric, full = row["metric"], row["full_precision"][row["metric"]]
        full_bytes.append(row["sizes"]["f32_bytes"])
        cells = []
        for method in widths:
            own = list(by_width.get(method, {}).values())
            sizes[method] += [row["sizes"] for row in own]
            scores = mean_or_dash([last(row) for row in own], "**{:.2f}**")
            change = f" ({mean_and_error([last(row) - full for row in own])})" if own else ""
            cells += [scores + change, f"{papers[method][task]:+.2f}"]
        yield f"| {title}, {metric.replace('f1', 'F1')} | {full:.2f} | " + " | ".join(cells) + " |"
    over_tasks = lambda figure, form: " | ".join(mean_or_dash([figure(own) for own in found], form) + " |" for found in sizes.values())
    yield f"| encoder, times smaller | 1× | {over_tasks(lambda own: own['compression']['encoder'], '{:.1f}×')} |"
    yield f"| file | {statistics.mean(full_bytes) / 1e6:.1f} MB | {over_tasks(lambda own: own['file_bytes'] / 1e6, '{:.1f} MB')} |"


def main():
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(page())).rstrip() + "\n"
    readme = with_region(README.read_text(encoding="utf-8"), "twelve layers", "\n".join(readme_table("gte-small")))
    return finish({PAGE: text, README: readme})


if __name__ == "__main__":
    sys.exit(main())
