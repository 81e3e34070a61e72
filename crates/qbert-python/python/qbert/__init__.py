"""Small, fast transformer encoders for ordinary CPUs.

Use a packed model:

>>> import qbert
>>> model = qbert.load("model.qbert")
>>> model("the path to the lake is frozen")
[{'label': 'icy', 'score': 0.64...}]
>>> model.embed(["deep mud", "fresh snow"]).shape
(2, 32)

Make one from a checkpoint and data:

>>> run = qbert.quantize("tiny-bert", task="classify", text="note", label="condition",
...                      train="train.tsv", dev="dev.tsv", out="small", **quickly)
>>> run.model_path
'small/model.qbert'

``import qbert`` loads neither numpy nor any machine learning library; numpy is loaded with the first array.
"""

from __future__ import annotations

from ._errors import (
    InputError,
    InputTypeError,
    InterruptedJobError,
    MachineError,
    MissedLimitError,
    MissingFileError,
    QbertError,
)
from ._jobs import Analysis, Run, analyze, open_run, quantize
from ._model import Model, load
from ._progress import Progress
from ._qbert import __version__
from .integrations import (
    ChromaEmbeddingFunction,
    LangChainEmbeddings,
    SentenceTransformer,
    TextClassifier,
    TextEmbedder,
)

__all__ = [
    "Analysis",
    "ChromaEmbeddingFunction",
    "InputError",
    "InputTypeError",
    "InterruptedJobError",
    "LangChainEmbeddings",
    "MachineError",
    "MissedLimitError",
    "MissingFileError",
    "Model",
    "Progress",
    "QbertError",
    "Run",
    "SentenceTransformer",
    "TextClassifier",
    "TextEmbedder",
    "__version__",
    "analyze",
    "load",
    "open_run",
    "quantize",
]
