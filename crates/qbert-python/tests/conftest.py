"""Tiny models of every kind, made once by the installed package from the example data of the repository."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import qbert

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"

#: Enough training for a model of two layers to learn its examples, in seconds.
QUICKLY: dict[str, Any] = {
    "lr": 2e-3,
    "batch": 8,
    "qat_epochs": 4,
    "qat_lr": 1e-3,
    "runs": 2,
    "max_examples": 16,
    "precision": "f32",
    "figures": False,
    "speed": False,
    "progress": False,
}


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the documentation's lines name: a checkpoint, data, and a finished run."""
    directory = tmp_path_factory.mktemp("work")
    shutil.copytree(EXAMPLES / "tiny-bert", directory / "tiny-bert")
    for name in ("train.tsv", "dev.tsv"):
        shutil.copy(EXAMPLES / "classify" / name, directory / name)
    return directory


@pytest.fixture(scope="session")
def run(work: Path) -> qbert.Run:
    """The run of a classifier."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        return qbert.quantize(
            "tiny-bert", task="classify", text="note", label="condition", train="train.tsv", dev="dev.tsv", out="small",
            max_length=64, epochs=8, **QUICKLY,
        )  # fmt: skip


@pytest.fixture(scope="session")
def classifier_path(work: Path, run: qbert.Run) -> Path:
    """The packed classifier."""
    shutil.copy(work / run.model_path, work / "model.qbert")
    return work / "model.qbert"


@pytest.fixture(scope="session")
def classifier(classifier_path: Path) -> qbert.Model:
    """A classifier of notes about paths."""
    return qbert.load(classifier_path)


@pytest.fixture(scope="session")
def entities(work: Path) -> qbert.Model:
    """A model of entities."""
    run = qbert.quantize(
        work / "tiny-bert", task="ner", train=EXAMPLES / "ner/train.conll", dev=EXAMPLES / "ner/dev.conll",
        out=work / "ner", max_length=64, epochs=14, **QUICKLY,
    )  # fmt: skip
    return run.load()


@pytest.fixture(scope="session")
def answers(work: Path) -> qbert.Model:
    """A model that answers questions."""
    run = qbert.quantize(
        work / "tiny-bert", task="qa", train=EXAMPLES / "qa/train.json", dev=EXAMPLES / "qa/dev.json",
        out=work / "qa", max_length=96, epochs=12, **QUICKLY,
    )  # fmt: skip
    return run.load()


@pytest.fixture(scope="session")
def pairs(work: Path) -> qbert.Model:
    """A classifier of pairs, made from dicts."""
    rows = [
        {"text": "the lake is frozen", "text2": "there is ice", "label": "yes"},
        {"text": "the lake is frozen", "text2": "there is mud", "label": "no"},
        {"text": "deep mud on the path", "text2": "there is mud", "label": "yes"},
        {"text": "deep mud on the path", "text2": "there is ice", "label": "no"},
    ]
    run = qbert.quantize(
        work / "tiny-bert", task="pair", train=rows * 4, dev=rows, out=work / "pair", max_length=48, epochs=1, bits=4, **QUICKLY
    )
    return run.load()
