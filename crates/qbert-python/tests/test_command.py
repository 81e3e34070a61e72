"""The ``qbert`` command of the wheel, and what importing the package costs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import qbert
from conftest import EXAMPLES


def test_the_command_is_installed() -> None:
    name = shutil.which("qbert", path=os.path.dirname(sys.executable))
    assert name, "the wheel has a script"
    done = subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"qbert {qbert.__version__}\n"
    done = subprocess.run([name, "predict", "none.qbert", "a text"], capture_output=True, text=True)
    assert done.returncode == 2 and "none.qbert" in done.stderr and done.stdout == ""
    done = subprocess.run([name, "predict"], capture_output=True, text=True)
    assert done.returncode == 2 and "Usage" in done.stderr


def test_hints_and_records_name_the_command_as_typed(work: Path, tmp_path: Path) -> None:
    words = ["run", "--model", str(work / "tiny-bert"), "--task", "ner", "--train", str(EXAMPLES / "ner/train.conll")]
    words += ["--dev", str(EXAMPLES / "ner/dev.conll"), "--out", str(tmp_path / "out"), "--epochs", "100000", "--max-len", "64"]
    process = subprocess.Popen([sys.executable, "-m", "qbert", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[1/8] finetune"):
            break
    while not (tmp_path / "out/finetuned/resume.safetensors").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"to continue: qbert run --model {work / 'tiny-bert'}" in text


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, qbert; print(sorted(m for m in ('numpy', 'torch', 'pandas', 'IPython') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_inspect_reads_what_python_made(classifier: qbert.Model) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qbert", "inspect", classifier.path, "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["format"].startswith("qbert")


@pytest.mark.parametrize("name", sorted(qbert.__all__))
def test_everything_public_is_documented(name: str) -> None:
    assert name == "__version__" or getattr(qbert, name).__doc__
