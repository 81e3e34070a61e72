"""Loading and asking: shapes as in pipelines, the same bits as the command line, vectors."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qbert

QUESTION = "When does the ferry Cora leave ?"
CONTEXT = "The ferry Cora leaves Skerry at noon and reaches Kelp Bay at four . A ticket costs two crowns ."
TEXTS = ["the path to the lake is frozen", "deep mud up to the chapel", "", "ein Wort — 字", "dry " * 200]


def command(*arguments: str, lines: str = "") -> list[Any]:
    """What the ``qbert`` command of this environment prints, line by line."""
    words = [sys.executable, "-m", "qbert", *arguments]
    done = subprocess.run(words, input=lines, capture_output=True, text=True, encoding="utf-8", check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_text_is_answered_as_a_pipeline_does(classifier: qbert.Model) -> None:
    found = classifier(TEXTS[0])
    assert isinstance(found, list) and len(found) == 1
    assert set(found[0]) == {"label", "score"}
    assert found[0]["label"] == "icy" and 0.5 < found[0]["score"] <= 1.0


def test_several_texts_and_their_best_labels(classifier: qbert.Model) -> None:
    found = classifier(TEXTS)
    assert [set(one) for one in found] == [{"label", "score"}] * len(TEXTS)
    assert found[0] == classifier(TEXTS[0])[0]
    everything = classifier(TEXTS, top_k=None)
    assert all(len(one) == 3 and sum(score["score"] for score in one) == pytest.approx(1.0) for one in everything)
    assert all([score["score"] for score in one] == sorted((s["score"] for s in one), reverse=True) for one in everything)
    assert classifier(TEXTS[0], top_k=2) == everything[0][:2]
    assert classifier(iter(TEXTS)) == classifier(np.array(TEXTS)) == found
    assert classifier([]) == []


def test_pairs(pairs: qbert.Model) -> None:
    as_dict = pairs({"text": "the lake is frozen", "text_pair": "there is ice"})
    assert set(as_dict) == {"label", "score"}
    assert pairs("the lake is frozen", text_pair="there is ice") == as_dict
    assert pairs([("the lake is frozen", "there is ice")]) == [as_dict]
    with pytest.warns(UserWarning, match="second one"):
        pairs("the lake is frozen")
    assert pairs.task == "pair" and pairs.labels == ["no", "yes"]


def test_entities(entities: qbert.Model) -> None:
    text = "Ünlü barn owl was seen at Mill Pond ."
    found = entities(text)
    assert found, "the model knows its examples"
    for entity in found:
        assert set(entity) == {"entity_group", "score", "word", "start", "end"}
        assert text[entity["start"] : entity["end"]] == entity["word"], "offsets count characters"
    assert entities([text, "nothing here"])[0] == found
    words = text.split()
    assert [word["word"] for word in entities.tag(words)] == words
    assert entities.tag([words, words[:2]])[1][0]["word"] == words[0]
    assert entities({"words": words})[0]["entity_group"] == found[0]["entity_group"]


def test_answers(answers: qbert.Model) -> None:
    found = answers(question=QUESTION, context=CONTEXT)
    assert set(found) == {"score", "start", "end", "answer"}
    assert CONTEXT[found["start"] : found["end"]] == found["answer"]
    several = answers({"question": QUESTION, "context": CONTEXT}, top_k=3)
    assert len(several) == 3 and several[0] == found
    assert answers([{"question": QUESTION, "context": CONTEXT}] * 2) == [found, found]


def test_the_same_bits_as_the_command_line(
    classifier: qbert.Model, pairs: qbert.Model, entities: qbert.Model, answers: qbert.Model
) -> None:
    asked: list[tuple[qbert.Model, list[dict[str, Any]]]] = [
        (classifier, [{"text": text} for text in TEXTS]),
        (pairs, [{"text": "the lake is frozen", "text2": "there is ice"}]),
        (entities, [{"text": "A barn owl was seen at Mill Pond ."}, {"words": ["A", "barn", "owl"]}]),
        (answers, [{"question": QUESTION, "context": CONTEXT}]),
    ]
    for model, inputs in asked:
        lines = "".join(json.dumps(one) + "\n" for one in inputs)
        assert command("predict", model.path, "--jsonl", lines=lines) == model.predict(inputs), model.path


def test_the_same_bits_for_any_number_of_threads(classifier: qbert.Model) -> None:
    expected = classifier.predict(TEXTS)
    vectors = classifier.embed(TEXTS)
    for threads in (1, 2, 3):
        model = qbert.load(classifier.path, threads=threads)
        assert model.threads == threads
        assert model.predict(TEXTS) == expected
        assert np.array_equal(model.embed(TEXTS), vectors)
        assert np.array_equal(np.stack([model.embed(text) for text in TEXTS]), vectors)


def test_vectors(classifier: qbert.Model) -> None:
    vectors = classifier.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), classifier.hidden_size) and vectors.dtype == np.float32
    assert vectors.flags["C_CONTIGUOUS"] and vectors.flags["WRITEABLE"]
    assert classifier.embed([]).shape == (0, classifier.hidden_size)
    many = classifier.embed([TEXTS[0]] * 600)
    assert np.array_equal(many, np.broadcast_to(vectors[0], many.shape)), "batches change nothing"
    units = classifier.embed(TEXTS, pooling="first", normalize=True)
    assert np.allclose(np.linalg.norm(units, axis=1), 1.0)
    states = classifier.hidden_states(TEXTS[:2])
    assert np.allclose(states[0]["vectors"].mean(axis=0), vectors[0], atol=1e-5)
    assert len(states[0]["ids"]) == len(states[0]["offsets"]) == len(states[0]["vectors"])
    accented = classifier.hidden_states("üü mud")["offsets"]
    assert accented[-2] == (3, 6), "offsets count characters"


def test_rank(classifier: qbert.Model) -> None:
    documents = ["deep mud", "the lake is frozen", "deep mud"]
    ranked = classifier.rank("deep mud", documents)
    assert [found["corpus_id"] for found in ranked][:2] == [0, 2]
    assert ranked[0]["score"] == pytest.approx(1.0, abs=1e-5)
    assert classifier.rank("deep mud", documents, top_k=1, return_documents=True)[0]["text"] == "deep mud"
    assert classifier.rank("deep mud", []) == []


def test_what_a_model_says_of_itself(classifier: qbert.Model, classifier_path: Path) -> None:
    assert classifier.path == str(classifier_path) and classifier.file_size == classifier_path.stat().st_size
    assert (classifier.head, classifier.task, classifier.layers) == ("text-classification", "classify", 2)
    assert classifier.labels == ["dry", "icy", "muddy"]
    assert "bits" in classifier.plan and "sha256" in classifier.provenance
    assert classifier.provenance["command"].startswith("qbert.quantize(model='tiny-bert', task='classify'")
    assert classifier.kernels and classifier.threads >= 1
    classifier.verify()
    assert "labels=['dry', 'icy', 'muddy']" in repr(classifier)


def test_where_a_model_comes_from(classifier: qbert.Model, classifier_path: Path, work: Path) -> None:
    expected = classifier.predict(TEXTS)
    assert qbert.load(classifier_path.read_bytes()).predict(TEXTS) == expected
    assert qbert.load(work / "small").predict(TEXTS) == expected, "a directory with a model.qbert"
    assert qbert.load(str(classifier_path), storage="mapped").predict(TEXTS) == expected
    again = pickle.loads(pickle.dumps(qbert.load(classifier_path, threads=1, max_length=32)))
    assert (again.threads, again.max_length) == (1, 32)
    short = qbert.load(classifier_path, max_length=8)
    assert short.predict("mud " * 30)["removed"] == 24


def test_nothing_is_printed_or_warned(classifier: qbert.Model, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier(TEXTS)
        classifier.embed(TEXTS)
    assert capfd.readouterr() == ("", "")
