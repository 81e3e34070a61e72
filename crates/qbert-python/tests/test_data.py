"""Data sets in memory: dicts, Arrow tables, pandas, polars and datasets give what the same file gives."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import qbert
from arrow_table import ArrowTable
from conftest import QUICKLY
from qbert import _data

ROWS = [{"text": "the lake is frozen ü 字", "label": "ice"}, {"text": 'deep "mud"\there', "label": "mud"}]


def written(data: Any, task: str, directory: Path) -> str:
    return Path(_data.write(data, task, "train", str(directory))).read_text(encoding="utf-8")


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


def test_dicts_generators_and_arrow_tables_give_the_same_file(tmp_path: Path) -> None:
    expected = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    assert written(ROWS, "classify", tmp_path) == expected
    assert written(iter(ROWS), "classify", tmp_path) == expected
    assert written(ArrowTable(columns(ROWS)), "classify", tmp_path) == expected


def test_numbers_and_lists_of_an_arrow_table(tmp_path: Path) -> None:
    table = ArrowTable({"text": ["a", "b"], "label": [1, 0]})
    assert written(table, "classify", tmp_path) == '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n'
    words = ArrowTable({"tokens": [["A", "barn"], ["owl"]], "ner_tags": [["O", "B-BIRD"], ["I-BIRD"]]})
    assert written(words, "ner", tmp_path) == "A O\nbarn B-BIRD\n\nowl I-BIRD\n\n"


def test_questions(tmp_path: Path) -> None:
    row = {"question": "who ?", "context": "Mira saw owls", "answers": {"text": ["Mira"], "answer_start": [0]}}
    article = json.loads(written([row], "qa", tmp_path))["data"][0]
    question = article["paragraphs"][0]["qas"][0]
    assert question["answers"] == [{"text": "Mira", "answer_start": 0}] and question["id"] == "row-0"
    plain = {**row, "answers": [{"text": "Mira", "answer_start": 0}], "id": 7}
    article = json.loads(written([plain, plain], "squad", tmp_path))["data"][1]
    assert article["paragraphs"][0]["qas"][0]["id"] == "7"


class ClassLabel:
    names = ["mud", "ice"]


class Sequence:
    feature = ClassLabel()


class Dataset:
    """What the package looks at in a ``datasets.Dataset``."""

    features = {"label": ClassLabel(), "ner_tags": Sequence()}

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def test_class_labels_of_a_dataset_have_their_names(tmp_path: Path) -> None:
    assert written(Dataset([{"text": "a", "label": 1}]), "classify", tmp_path) == '{"text": "a", "label": "ice"}\n'
    tagged = Dataset([{"tokens": ["a", "b"], "ner_tags": [1, 0]}])
    assert written(tagged, "ner", tmp_path) == "a ice\nb mud\n\n"


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"tokens": ["a"], "tags": ["O", "O"]}], "row 0: 1 words and 2 tags"),
        ([{"tokens": ["a b"], "tags": ["O"]}], "a b"),
        ([{"tokens": ["a"], "tags": [0]}], "tag 0"),
        ([{"tags": ["O"]}], "words, tokens"),
    ],
)
def test_bad_sentences(tmp_path: Path, rows: list[dict[str, Any]], named: str) -> None:
    with pytest.raises(qbert.QbertError) as error:
        written(rows, "ner", tmp_path)
    assert named in str(error.value) and error.value.hint


def test_a_model_from_an_arrow_table_is_that_of_the_file(run: qbert.Run, work: Path, tmp_path: Path) -> None:
    def table(name: str) -> ArrowTable:
        with open(work / name, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return ArrowTable(columns(rows))

    made = qbert.quantize(
        work / "tiny-bert", task="classify", text="note", label="condition", train=table("train.tsv"),
        dev=table("dev.tsv"), out=tmp_path / "out", max_length=64, epochs=8, **QUICKLY,
    )  # fmt: skip
    texts = ["the path to the lake is frozen", "deep mud"]
    assert made.load().predict(texts) == qbert.load(work / "small").predict(texts)
    assert "train=<ArrowTable>" in made.load().provenance["command"]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "datasets"])
def test_tables_of_libraries(library: str, tmp_path: Path) -> None:
    module = pytest.importorskip(library)
    make = {
        "pandas": lambda: module.DataFrame(ROWS),
        "polars": lambda: module.DataFrame(ROWS),
        "pyarrow": lambda: module.Table.from_pylist(ROWS),
        "datasets": lambda: module.Dataset.from_list(ROWS),
    }
    expected = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    assert written(make[library](), "classify", tmp_path) == expected
    if library in ("pandas", "polars"):
        frame = make[library]()
        if library == "pandas":
            frame["label"] = frame["label"].astype("category")
        else:
            frame = frame.with_columns(module.col("label").cast(module.Categorical))
        assert written(frame, "classify", tmp_path) == expected
