"""Models with other heads than one label: sets of labels, and values of pairs, which rank documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qbert

from conftest import QUICKLY

WEATHER = {"ice": "the lake is frozen", "mud": "deep mud on the path", "sun": "a dry and sunny day"}


@pytest.fixture(scope="module")
def reranker(work: Path, tmp_path_factory: pytest.TempPathFactory) -> qbert.Model:
    """Scores whether a text is about a word."""
    rows = [
        {"text": word, "text2": text, "label": 1.0 if own == word else 0.0}
        for word in WEATHER
        for own, text in WEATHER.items()
    ]
    out = tmp_path_factory.mktemp("reranker") / "out"
    found = qbert.quantize(
        str(work / "tiny-bert"), task="score-pair", train=rows * 10, dev=rows, text="text", text2="text2", label="label",
        out=str(out), max_length=32, epochs=12, **QUICKLY,
    )  # fmt: skip
    return found.load()


def test_a_reranker_scores_pairs_and_ranks_by_them(reranker: qbert.Model) -> None:
    texts = list(WEATHER.values())
    for word in WEATHER:
        scores = [found["score"] for found in reranker.predict([(word, text) for text in texts])]
        ranked = reranker.rank(word, texts)
        assert [found["corpus_id"] for found in ranked] == np.argsort([-score for score in scores], kind="stable").tolist()
        assert [found["score"] for found in ranked] == sorted(scores, reverse=True)
        assert len(reranker.rank(word, texts, top_k=1, return_documents=True)) == 1
    value = reranker("ice", text_pair=WEATHER["ice"])
    assert value["label"] == "LABEL_0" and isinstance(value["score"], float)


def test_sets_of_labels(work: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = [
        {"text": WEATHER["ice"], "label": ["cold"]},
        {"text": WEATHER["mud"], "label": ["wet"]},
        {"text": WEATHER["ice"] + " and " + WEATHER["mud"], "label": ["cold", "wet"]},
        {"text": WEATHER["sun"], "label": []},
    ]
    out = tmp_path_factory.mktemp("sets") / "out"
    found = qbert.quantize(
        str(work / "tiny-bert"), task="multilabel", train=rows * 10, dev=rows, text="text", label="label", out=str(out),
        max_length=32, epochs=12, **QUICKLY,
    )  # fmt: skip
    model = found.load()
    (answer,) = model.predict([WEATHER["ice"]])
    assert set(answer["labels"]) <= {"cold", "wet"} and len(answer["scores"]) == 2
    assert model(WEATHER["ice"])[0]["label"] in {"cold", "wet"}
    assert {one["label"] for one in model(WEATHER["ice"], top_k=None)} == {"cold", "wet"}
