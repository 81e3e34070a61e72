"""From a checkpoint and a table to a packed model, and what to do with it: `python run.py [DIRECTORY]`.

It needs the Python package and nothing else; README.md of ../classify explains the data.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

import qbert

EXAMPLES = Path(__file__).resolve().parents[1]


def rows(name: str) -> list[dict[str, str]]:
    """A table as dicts, as any library would give it."""
    with open(EXAMPLES / "classify" / name, encoding="utf-8", newline="") as file:
        return [{"text": row["note"], "label": row["condition"]} for row in csv.DictReader(file, delimiter="\t")]


def shown(progress: qbert.Progress) -> None:
    """A progress bar of one's own."""
    if progress.stage is None:
        print(progress.message)


def main(out: Path) -> None:
    run = qbert.quantize(
        EXAMPLES / "tiny-bert",
        task="classify",
        train=rows("train.tsv"),
        dev=rows("dev.tsv"),
        out=out,
        max_length=64,
        epochs=8,
        lr=2e-3,
        batch=8,
        qat_epochs=4,
        qat_lr=1e-3,
        runs=4,
        max_examples=32,
        progress=shown,
    )
    size = run.summary["file_size"]
    print(f"accuracy {run.summary['trained'] or run.summary['post_training']:.1f}, {size['full'] / size['quantized']:.1f} times smaller")

    model = run.load()
    for text in ("the path to the lake is frozen", "deep mud up to the chapel"):
        print(text, "->", model(text))
    print(model.rank("ice on the path", ["the track is dusty", "the path to the lake is frozen"], return_documents=True))

    encoder = qbert.SentenceTransformer(model)
    vectors = encoder.encode(["frozen ground", "deep mud"])
    print("cosine", float(encoder.similarity(vectors, vectors)[0, 1]))
    print("report", run.report_path)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "run")
