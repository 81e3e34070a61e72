"""What the scripts that write pages from `results/` share."""

import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TASKS = {"conll03": "CoNLL-03", "sst2": "SST-2", "mnli": "MNLI", "squad": "SQuAD"}
MODELS = {"minilm": "MiniLM-L6", "gte-small": "gte-small, 12 layers"}


def finish(wanted):
    """Writes the files, or with `--check` says which of them are not what `results/` give. Returns the exit code."""
    if "--check" not in sys.argv[1:]:
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not what results/ give: run python3 reference/{pathlib.Path(sys.argv[0]).name}", file=sys.stderr)
    return 1 if stale else 0


def with_region(text, name, body):
    """The text with what stands between `<!-- name -->` and `<!-- /name -->` replaced."""
    region = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    new, count = region.subn(lambda found: found[1] + (body + "\n" if body else "") + found[2], text)
    assert count == 1, f"the page has {count} places for {name}"
    return new


def places(values):
    """The rank of every value, the smallest being 1; equal values share the mean of their ranks."""
    return [sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values]


def spearman(first, second):
    """Spearman's rank correlation; NaN if one side is constant."""
    try:
        return statistics.correlation(places(first), places(second))
    except statistics.StatisticsError:
        return float("nan")
