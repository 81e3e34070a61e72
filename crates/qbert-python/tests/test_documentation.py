"""Every line of Python in docstrings, in the README and in the guide runs as it is written."""

from __future__ import annotations

import doctest
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qbert
from conftest import QUICKLY, ROOT

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def objects() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("qbert", qbert)]
    for name in qbert.__all__:
        value = getattr(qbert, name)
        found.append((f"qbert.{name}", value))
        if inspect.isclass(value):
            members = [(key, member) for key, member in vars(value).items() if not key.startswith("_") or key == "__call__"]
            found += [(f"qbert.{name}.{key}", member) for key, member in members]
    return [(name, value) for name, value in found if ">>>" in (getattr(value, "__doc__", None) or "")]


@pytest.fixture()
def names(
    work: Path, run: qbert.Run, classifier_path: Path, entities: qbert.Model, answers: qbert.Model,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:  # fmt: skip
    """What documentation may refer to."""
    monkeypatch.chdir(work)
    model = qbert.load("model.qbert")
    return {
        "qbert": qbert,
        "model": model,
        "entities": entities,
        "answers": answers,
        "encoder": qbert.SentenceTransformer(model),
        "tuned": "small/finetuned",
        "quickly": {"max_length": 64, "epochs": 8, **QUICKLY},
    }


@pytest.mark.parametrize(("name", "value"), objects(), ids=[name for name, _ in objects()])
def test_docstrings(name: str, value: Any, names: dict[str, Any]) -> None:
    check(name, value.__doc__, names)


def check(name: str, text: str, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(text, dict(names), name, name, 0)
    assert test.examples
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/guide/python.md"])
def test_pages(page: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run one after the other, in a directory with the files that the page names."""
    monkeypatch.chdir(tmp_path)
    source = ROOT / "examples"
    shutil.copytree(source / "tiny-bert", tmp_path / "my-bert")
    shutil.copytree(Path(names["entities"].path).parent, tmp_path / "ner")
    shutil.copytree(Path(names["answers"].path).parent, tmp_path / "qa")
    for name in ("train", "dev"):
        lines = (source / f"classify/{name}.tsv").read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines]
        place = {column: index for index, column in enumerate(rows[0])}
        # The page's data is a table with the usual columns.
        csv = "".join(f'"{row[place["note"]]}",{row[place["condition"]]}\n' for row in rows[1:])
        (tmp_path / f"{name}.csv").write_text("text,label\n" + csv, encoding="utf-8")
    found = blocks(page)
    assert found
    known: dict[str, Any] = {}
    for block in found:
        if ">>>" in block:
            check(page, block, known)
        else:
            exec(compile(block, page, "exec"), known)


def test_the_example_runs(tmp_path: Path) -> None:
    program = ROOT / "examples/python/run.py"
    done = subprocess.run([sys.executable, str(program), str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'label': 'icy'" in done.stdout and "times smaller" in done.stdout
