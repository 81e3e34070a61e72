"""Writes docs/results/hessian.md and its figures from results/plans: does the Hessian choose better layers than other rankings?
The verdicts follow docs/results/hessian-rules.md, which was written before the runs. No number in them is typed by hand.

    python3 reference/render_hessian.py [--check]
"""

import json
import math
import sys

from pages import MODELS, ROOT, TASKS, finish, places, spearman
from plan_study import chosen

PAGE = ROOT / "docs" / "results" / "hessian.md"
RANKINGS = {
    "omega": "Ω",
    "mean": "mean eigenvalue",
    "trace": "trace",
    "trace-error": "trace × error",
    "divergence": "measured divergence",
    "depth": "depth, first layers first",
}
TREATMENTS = ["not trained", "distilled"]
# Names of plans on a figure, shortened. Plans that several rankings choose carry all their names.
SHORT = {"omega": "Ω", "mean": "mean", "trace": "trace", "trace-error": "trace × error", "divergence": "measured", "depth": "depth",
         "published": "published", "published, reversed": "published, reversed", "last layers": "last layers"}
# The limits of the rules.
WORKS, BEATEN_BY = 0.45, 0.2


class Study:
    """The plans of a model and task under one treatment, the best first."""

    def __init__(self, found, treatment):
        self.rankings = found["rankings"]
        self.rows = sorted((row for row in found["rows"] if row["treatment"] == treatment), key=lambda row: row["divergence"])
        self.layers = len(next(iter(self.rankings.values())))
        self.high = len(self.rows[0]["layers"]) if self.rows else 0

    def predicted(self, ranking, layers):
        """What a plan costs by a ranking: the sum over its 2-bit layers."""
        return sum(value for layer, value in enumerate(self.rankings[ranking]) if layer not in layers)

    def correlation(self, ranking):
        return spearman([self.predicted(ranking, row["layers"]) for row in self.rows], [row["divergence"] for row in self.rows])

    def choice(self, ranking):
        return chosen(self.rankings[ranking], self.high)

    def row(self, layers):
        return next((row for row in self.rows if row["layers"] == list(layers)), None)

    def place(self, layers):
        own = self.row(layers)
        return math.ceil(places([row["divergence"] for row in self.rows])[self.rows.index(own)]) if own else None


    def is_complete(self):
        """MiniLM has all 20 plans; the 12-layer model has its 10 random plans after the others."""
        if self.layers == 6:
            return len(self.rows) == math.comb(6, 3)
        return any("random 10" in row["names"] for row in self.rows)


def studies(found):
    """By treatment and task, where all plans are measured."""
    for treatment in TREATMENTS:
        own = {task: Study(result, treatment) for task, result in found.items()}
        yield treatment, {task: study for task, study in own.items() if study.is_complete()}


def table(tasks):
    present = [name for name in RANKINGS if all(name in study.rankings for study in tasks.values())]
    yield "| ranking | " + " | ".join(f"{TASKS[task]}: correlation | its layers at 3 bits | divergence, mnats | place of {len(study.rows)}" for task, study in tasks.items()) + " |"
    yield "|---|" + "---:|---|---:|---:|" * len(tasks)
    for name in present:
        cells = []
        for study in tasks.values():
            own = study.choice(name)
            row = study.row(own)
            cells += [f"{study.correlation(name):+.2f}", ", ".join(map(str, own)), f"{1000 * row['divergence']:.1f}" if row else "–", str(study.place(own) or "–")]
        yield f"| {RANKINGS[name]} | " + " | ".join(cells) + " |"
    for name in ["published", "published, reversed", "last layers"]:
        cells = []
        for study in tasks.values():
            row = next((row for row in study.rows if name in row["names"]), None)
            cells += ["", ", ".join(map(str, row["layers"])), f"{1000 * row['divergence']:.1f}", str(study.place(row["layers"]))] if row else []
        if cells:
            yield f"| {name if name == 'last layers' else 'the paper’s plan, ' + ('reversed' if 'reversed' in name else 'as printed')} | " + " | ".join(cells) + " |"
    for title, pick in {"best plan": 0, "worst plan": -1}.items():
        cells = []
        for study in tasks.values():
            row = study.rows[pick]
            cells += ["", ", ".join(map(str, row["layers"])), f"{1000 * row['divergence']:.1f}", str(study.place(row["layers"]))]
        yield f"| {title} | " + " | ".join(cells) + " |"
    yield ""


def listed(names):
    return ", ".join(names) if names else "none"


def verdicts(tasks):
    """The four questions of the rules."""
    present = [name for name in RANKINGS if all(name in study.rankings for study in tasks.values())]
    correlations = {name: [study.correlation(name) for study in tasks.values()] for name in present}
    works = [RANKINGS[name] for name in present if min(correlations[name]) >= WORKS]
    yield f"1. Rankings that **work** (correlation of at least {WORKS} on both tasks): {listed(works)}."
    well = []
    for name in present:
        found = [(study.place(study.choice(name)), len(study.rows)) for study in tasks.values()]
        if all(place is not None and place <= count / 4 for place, count in found):
            well.append(RANKINGS[name])
    yield f"2. Rankings that **choose well** (own plan in the best quarter on both tasks): {listed(well)}."
    pairs = [(study, study.choice("omega"), study.choice("depth")) for study in tasks.values()]
    if all(own == first for _, own, first in pairs):
        answer = "not shown: both choose the same layers on both tasks"
    elif any(own == first for _, own, first in pairs):
        answer = "not shown: both choose the same layers on one of the tasks"
    elif all(study.row(own)["divergence"] < study.row(first)["divergence"] for study, own, first in pairs):
        answer = "yes"
    else:
        answer = "no"
    yield f"3. Does Ω **add something to depth**? {answer[0].upper()}{answer[1:]}."
    better = [
        RANKINGS[name]
        for name in present
        if name != "omega" and all(own - omega >= BEATEN_BY for own, omega in zip(correlations[name], correlations["omega"]))
    ]
    yield f"4. Rankings that **beat** Ω (correlation larger by {BEATEN_BY} or more on both tasks): {listed(better)}."
    yield ""


def labels_of(study, x, width):
    """What is written above a strip: place of the dot, start of the text, its line (the lowest that has room), the text."""
    ends = []
    for row in study.rows:
        text = ", ".join(SHORT[name] for name in row["names"] if name in SHORT)
        if not text:
            continue
        dot, length = x(1000 * row["divergence"]), 6.2 * len(text)
        start = min(dot - 4, width - 8 - length)
        line = next((line for line, end in enumerate(ends) if end < start), len(ends))
        ends[line : line + 1] = [start + length + 8]
        yield dot, start, line, text


def figure(model, by_treatment):
    """A strip for each task and treatment: every plan by its divergence, named where a ranking chooses it."""
    width, left, top = 760, 150, 0
    parts = []
    for treatment, task, study in [(treatment, task, study) for treatment, tasks in by_treatment for task, study in tasks.items()]:
        values = [1000 * row["divergence"] for row in study.rows]
        low, high = math.log(min(values) * 0.97), math.log(max(values) * 1.03)
        x = lambda value: left + (math.log(value) - low) / (high - low) * (width - left - 30)
        labels = list(labels_of(study, x, width))
        base = top + 31 + 17 * max(line for _, _, line, _ in labels)
        top = base + 35
        parts.append(f'<text class="title" x="8" y="{base - 2}">{TASKS[task]}</text><text class="tick" x="8" y="{base + 13}">{treatment}</text>')
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 30}" y1="{base}" y2="{base}"/>')
        for dot, start, line, text in labels:
            height = base - 14 - 17 * line
            parts.append(f'<line class="stem" x1="{dot:.1f}" x2="{dot:.1f}" y1="{height + 3}" y2="{base - 6}"/><text x="{start:.1f}" y="{height}">{text}</text>')
        for row in study.rows:
            value = 1000 * row["divergence"]
            kind = "chosen" if any(name in SHORT for name in row["names"]) else "plain"
            title = f"3 bits in layers {', '.join(map(str, row['layers']))}: {value:.1f} mnats, {row['value']:.2f}"
            parts.append(f'<circle class="{kind}" cx="{x(value):.1f}" cy="{base}" r="5"><title>{title}</title></circle>')
        for value in (values[0], values[-1]):
            parts.append(f'<text class="tick" text-anchor="middle" x="{x(value):.1f}" y="{base + 20}">{value:.1f}</text>')
    style = (
        "text{font:11px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:12px}.tick{fill:#666}.grid{stroke:#bbb}.stem{stroke:#bbb}"
        ".chosen{fill:#1667b7}.plain{fill:#fff;stroke:#888;stroke-width:1.5}svg{background:#fff}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.tick{fill:#aaa}.grid,.stem{stroke:#555}.chosen{fill:#6fb1f2}"
        ".plain{fill:#161616;stroke:#999}svg{background:#161616}}"
    )
    label = f"Divergence of plans of the same size from full precision, {MODELS[model]}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" role="img" aria-label="{label}"><style>{style}</style>{"".join(parts)}</svg>\n'


def page(models):
    yield "# Does the Hessian matter? Measured\n"
    yield (
        "`python3 reference/render_hessian.py` writes this page from `results/plans`; do not edit it by hand. The [rules](hessian-rules.md) were written down "
        "before any plan was measured: which plans, which rankings, what counts. `python3 reference/experiments.py --only plans` measures the plans.\n"
    )
    yield (
        "All plans of a task have the same size: some layers at 3 bits, the others at 2. **Divergence** is the mean KL divergence of the answers from those of "
        "the full-precision model on the dev set, in thousandths of a nat. **Correlation** is Spearman's, of what a ranking predicts for a plan and what was "
        "measured. **Place** is where the ranking's own plan ends up, 1 being the best. Layers are counted from 0.\n"
    )
    for model, by_treatment in models.items():
        yield f"## {MODELS[model]}\n"
        yield f"![Plans by their divergence](hessian-{model}.svg)\n"
        yield "Each dot is a plan, further left is better, on a logarithmic scale in thousandths of a nat. Filled dots are plans that a ranking chooses, or the paper.\n"
        for treatment, tasks in by_treatment:
            if not tasks:
                continue
            yield f"### {treatment.capitalize()}\n"
            yield from table(tasks)
            if len(tasks) == 2:
                yield from verdicts(tasks)
            else:
                yield "The rules ask for both tasks, so there is no verdict yet.\n"
    missing = [MODELS[model] for model in MODELS if model not in models]
    if missing:
        yield f"Not measured yet: {', '.join(missing)}.\n"


def main():
    models, wanted = {}, {}
    for model in MODELS:
        found = {}
        for task in TASKS:
            path = ROOT / "results" / "plans" / f"{model}-{task}.json"
            if path.exists():
                found[task] = json.loads(path.read_text())
        by_treatment = list(studies(found))
        if any(tasks for _, tasks in by_treatment):
            models[model] = by_treatment
            wanted[PAGE.with_name(f"hessian-{model}.svg")] = figure(model, by_treatment)
    return finish({PAGE: "\n".join(page(models)).rstrip() + "\n"} | wanted)


if __name__ == "__main__":
    sys.exit(main())
