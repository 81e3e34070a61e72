"""Bad input raises exceptions of the right type, with hints, and never a panic."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import qbert


def test_exceptions_are_the_built_in_ones_too(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        qbert.load(tmp_path / "none.qbert")
    assert isinstance(missing.value, qbert.MissingFileError) and isinstance(missing.value, OSError)
    assert "none.qbert" in str(missing.value)
    (tmp_path / "text.qbert").write_text("not a model")
    with pytest.raises(ValueError) as wrong:
        qbert.load(tmp_path / "text.qbert")
    assert isinstance(wrong.value, qbert.InputError)
    assert wrong.value.hint and f"hint: {wrong.value.hint}" in str(wrong.value)
    again = pickle.loads(pickle.dumps(wrong.value))
    assert (again.message, again.hint) == (wrong.value.message, wrong.value.hint)


def test_a_damaged_model_is_refused(classifier_path: Path) -> None:
    content = bytearray(classifier_path.read_bytes())
    for place in (0, 8, 40, len(content) // 2, len(content) - 1):
        damaged = bytes(content[:place]) + bytes([content[place] ^ 0xFF]) + bytes(content[place + 1 :])
        with pytest.raises(qbert.InputError):
            qbert.load(damaged).verify()
    with pytest.raises(qbert.InputError):
        qbert.load(bytes(content[:100]))
    with pytest.raises(qbert.InputError):
        qbert.load(b"")


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": 10**6},
        {"threads": -1},
        {"max_length": 0},
        {"max_length": 10**6},
        {"storage": "cloud"},
        {"max_input_bytes": 0},
    ],
)
def test_bad_options(classifier_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(qbert.InputError) as error:
        qbert.load(classifier_path, **options)
    assert error.value.hint


def test_options_of_the_wrong_type(classifier_path: Path) -> None:
    for options in ({"threads": "2"}, {"max_length": 2.5}, {"threads": True}):
        with pytest.raises(TypeError):
            qbert.load(classifier_path, **options)  # type: ignore[arg-type]
    with pytest.raises(qbert.InputTypeError):
        qbert.load(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("inputs", [7, [7], [None], None, b"bytes", [["a", "list"]], ("one",), ("a", "b", "c"), [("a", 2)], {"text": 3}, {"words": "no list"}])
def test_inputs_of_the_wrong_type(classifier: qbert.Model, inputs: Any) -> None:
    with pytest.raises((qbert.InputTypeError, qbert.InputError)) as error:
        classifier(inputs)
    assert error.value.hint
    if not isinstance(inputs, (dict, tuple)) and inputs is not None:
        with pytest.raises(qbert.InputTypeError):
            classifier.embed(inputs)


def test_inputs_that_the_model_does_not_answer(
    classifier: qbert.Model, entities: qbert.Model, answers: qbert.Model
) -> None:
    bad: list[tuple[qbert.Model, Any]] = [
        (classifier, {"question": "who ?", "context": "nobody"}),
        (classifier, {"words": ["a", "b"]}),
        (classifier, ("a", "pair")),
        (classifier, {"nothing": "known"}),
        (entities, ("a", "pair")),
        (answers, "a text without a question"),
        (answers, {"question": "who ?"}),
    ]
    for model, inputs in bad:
        with pytest.raises(qbert.InputError) as error:
            model(inputs)
        assert error.value.hint, inputs
    with pytest.raises(qbert.InputError, match="input 2"):
        classifier(["good", "good", {"words": ["bad"]}])
    with pytest.raises(qbert.InputError):
        classifier(question="who ?")
    with pytest.raises(qbert.InputError):
        classifier()
    with pytest.raises(qbert.InputError):
        classifier("a text", top_k=0)
    with pytest.raises(qbert.InputError):
        classifier.tag(["a", "b"])
    with pytest.raises(qbert.InputError, match="pooling"):
        classifier.embed(["a"], pooling="median")
    with pytest.raises(qbert.InputError, match="surrogate|character"):
        classifier("half a character: \ud800")
    with pytest.raises(qbert.InputError):
        entities("x" * (2 << 20))


def test_bad_jobs(work: Path, tmp_path: Path) -> None:
    usual: dict[str, Any] = {
        "task": "classify", "text": "note", "label": "condition", "train": work / "train.tsv", "dev": work / "dev.tsv",
        "out": tmp_path / "out", "progress": False,
    }  # fmt: skip
    tiny = work / "tiny-bert"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"task": "clasify"}, "classify"),
        ({"train": work / "none.tsv"}, "none.tsv"),
        ({"train": []}, "no rows"),
        ({"train": [{"text": "a", "label": "b"}, 7]}, "row 1"),
        ({"train": 7}, "train"),
        ({"lr": -1.0}, "`lr`"),
        ({"batch": 0}, "`batch`"),
        ({"batch": -3}, "`batch`"),
        ({"bits": 9}, "9"),
        ({"bits": True}, "`bits`"),
        ({"max_length": 10**5}, "max_length"),
        ({"size": 1.0, "budget": 1.0}, "`size`"),
        ({"label": "nothing"}, "nothing"),
        ({"labels": ["a,b"]}, "comma"),
        ({"dev": [work / "dev.tsv", work / "dev.tsv"]}, "dev"),
    ]
    for change, named in cases:
        with pytest.raises(qbert.QbertError) as error:
            qbert.quantize(tiny, **{**usual, **change})
        assert named in str(error.value), (change, str(error.value))
        assert "--" not in str(error.value), str(error.value)
    with pytest.raises(qbert.QbertError):
        qbert.quantize(work / "no-such-model", **usual)
    with pytest.raises(FileNotFoundError):
        qbert.open_run(tmp_path / "none")
    with pytest.raises(TypeError):
        qbert.quantize(tiny, **usual, epoch=3)


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="permissions do not hold for this user")
def test_a_file_that_may_not_be_read(tmp_path: Path, classifier_path: Path) -> None:
    path = tmp_path / "secret.qbert"
    path.write_bytes(classifier_path.read_bytes())
    path.chmod(0)
    with pytest.raises(qbert.MachineError):
        qbert.load(path)
