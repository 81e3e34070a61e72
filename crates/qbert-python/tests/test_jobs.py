"""Quantizing and analyzing: results, progress, Ctrl-C, what lies beside the packed model."""

from __future__ import annotations

import _thread
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qbert
from conftest import EXAMPLES, QUICKLY


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, also where the tests run in the background of a shell that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_run_has_figures_a_report_and_a_model(run: qbert.Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    assert run.summary["task"] == "classify" and run.summary["metric"] == "accuracy"
    assert run.summary["file_size"]["quantized"] == Path(run.model_path).stat().st_size
    assert run.metrics["metric"] == "accuracy"
    page = run._repr_html_()
    assert page.startswith('<iframe srcdoc="<!') and "accuracy" in page and page.count('"') == 6
    assert "accuracy" in repr(run) and run.load(threads=1).threads == 1
    opened = qbert.open_run("small")
    assert (opened.summary["bits"], opened.model_path) == (run.summary["bits"], run.model_path)


def test_configuration_and_tokenizer_lie_beside_the_packed_model(run: qbert.Run, work: Path) -> None:
    config = json.loads((work / "small/config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "qbert"
    assert config["quantization_config"]["file"] == "model.qbert"
    assert config["quantization_config"]["weight_bits"] == [2, 3]
    assert config["id2label"] == {"0": "dry", "1": "icy", "2": "muddy"} and config["model_type"] == "bert"
    assert (work / "small/vocab.txt").read_bytes() == (work / "tiny-bert/vocab.txt").read_bytes()


def test_the_same_call_again_does_nothing_new(run: qbert.Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    seen: list[qbert.Progress] = []
    again = qbert.quantize(
        "tiny-bert", task="classify", text="note", label="condition", train="train.tsv", dev="dev.tsv", out="small",
        max_length=64, epochs=8, **{**QUICKLY, "progress": seen.append},
    )  # fmt: skip
    assert again.summary == run.summary
    said = [progress.message for progress in seen if progress.stage is None]
    assert any("finetune: there already" in text for text in said), said


def test_analysis(run: qbert.Run, work: Path) -> None:
    usual: dict[str, Any] = {"task": "classify", "text": "note", "label": "condition", "data": work / "train.tsv"}
    seen: list[qbert.Progress] = []
    found = qbert.analyze(work / "small/finetuned", **usual, runs=2, max_examples=8, progress=seen.append)
    assert found.eigenvalues.shape == (2, 2) and found.omega.shape == (2,)
    columns = found.to_dict()
    assert np.allclose(found.eigenvalues.mean(axis=1), columns["mean"])
    assert np.allclose(found.omega, np.abs(columns["mean"]) + np.array(columns["std"]))
    assert columns["layer"] == [0, 1] and sorted(columns["rank"]) == [1, 2]
    assert {len(column) for column in columns.values()} == {2}
    assert seen[-1].stage == "analyze" and seen[-1].share == 1.0
    assert "<iframe" in found._repr_html_() and "<svg" in found._repr_html_()
    measured = qbert.analyze(
        work / "small/finetuned", **usual, method="kl", widths=[2, 8], max_examples=8, progress=False
    ).to_dict()
    assert set(measured["bits"]) == {2, 8} and len(measured["site"]) == len(measured["divergence"]) > 4


def test_a_limit_that_is_missed(work: Path, tmp_path: Path) -> None:
    usual: dict[str, Any] = {**QUICKLY, "qat_epochs": 0, "compensate": False, "distill": False}
    with pytest.raises(qbert.MissedLimitError) as missed:
        qbert.quantize(
            work / "tiny-bert", task="classify", text="note", label="condition", train=work / "train.tsv",
            dev=work / "dev.tsv", out=tmp_path / "out", max_length=64, epochs=8, bits=[1, 2],
            max_drop=0.0, tries=1, range="min-max", groups=1, **usual,
        )  # fmt: skip
    assert missed.value.hint and "max_drop" in missed.value.hint
    assert missed.value.directory and qbert.open_run(missed.value.directory).load().labels == ["dry", "icy", "muddy"]


def test_ctrl_c_saves_and_the_same_call_continues(work: Path, tmp_path: Path) -> None:
    usual: dict[str, Any] = {
        "task": "classify", "text": "note", "label": "condition", "train": work / "train.tsv", "dev": work / "dev.tsv",
        "max_length": 64, "bits": 4, **QUICKLY,
    }  # fmt: skip
    is_sent = threading.Event()

    def interrupt(progress: qbert.Progress) -> None:
        if progress.stage is not None and "finetune" in progress.stage and not is_sent.is_set():
            is_sent.set()
            _thread.interrupt_main()

    out = tmp_path / "interrupted"
    with pytest.raises(KeyboardInterrupt):
        qbert.quantize(work / "tiny-bert", out=out, epochs=400, **{**usual, "progress": interrupt})
    assert is_sent.is_set() and (out / "run.json").exists() and not (out / "model.qbert").exists()
    assert (out / "finetuned/resume.safetensors").exists(), "the state is kept"
    # The same call goes on from there; a shorter one would begin anew, so both have few epochs from here on.
    begun = tmp_path / "continued"
    is_sent.clear()
    with pytest.raises(KeyboardInterrupt):
        qbert.quantize(work / "tiny-bert", out=begun, epochs=6, **{**usual, "progress": interrupt})
    finished = qbert.quantize(work / "tiny-bert", out=begun, epochs=6, **usual)
    straight = qbert.quantize(work / "tiny-bert", out=tmp_path / "straight", epochs=6, **usual)
    first, second = finished.load(), straight.load()
    texts = ["the path to the lake is frozen", "deep mud"]
    assert first.predict(texts) == second.predict(texts)


def test_ctrl_c_ends_a_long_call(classifier: qbert.Model) -> None:
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            classifier.embed(["the path to the lake is frozen " * 5] * 1024)


def test_an_error_in_the_progress_function_stops_the_job(work: Path, tmp_path: Path) -> None:
    def broken(progress: qbert.Progress) -> None:
        raise LookupError("no bar")

    with pytest.raises(LookupError, match="no bar"):
        qbert.quantize(
            work / "tiny-bert", task="ner", train=EXAMPLES / "ner/train.conll", dev=EXAMPLES / "ner/dev.conll",
            out=tmp_path / "out", **{**QUICKLY, "progress": broken},
        )  # fmt: skip


def test_progress_in_a_log_is_plain_lines(work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    qbert.analyze(
        work / "small/finetuned", task="classify", text="note", label="condition", data=work / "train.tsv", runs=1,
        max_examples=4,
    )  # fmt: skip
    out, err = capfd.readouterr()
    assert out == "" and "\r" not in err and "analyze" in err
