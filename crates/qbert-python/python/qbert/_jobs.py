"""From a checkpoint and data to a packed model, and the analysis on its own.

Every keyword is a flag of the command line with the same meaning and default; ``qbert run --help`` and
``qbert analyze --help`` describe them in full.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Any, NoReturn

from . import _data, _qbert
from ._errors import InputError, InputTypeError, MissedLimitError
from ._model import Model, load
from ._progress import teller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Union

    import numpy as np
    from numpy.typing import NDArray

    from ._progress import ProgressOption

    #: A path, or anything that data in memory can be: see the guide.
    Data = Any
    #: Bits of a weight: 1 to 8, 1.6 for ternary codes, or 32.
    Width = float
    #: A checkpoint directory, a hub id, or ``"minilm"``.
    Checkpoint = Union[str, os.PathLike[str]]


def quantize(
    model: Checkpoint,
    *,
    task: str,
    train: Data,
    dev: Data,
    out: str | os.PathLike[str],
    # the plan
    max_drop: float | None = None,
    bits: Width | Sequence[Width] | None = None,
    high: int | Sequence[int] | None = None,
    size: float | None = None,
    budget: float | None = None,
    confidence: float | None = None,
    tries: int | None = None,
    groups: int | str | None = None,
    range: str | None = None,
    embedding_bits: Width | Sequence[Width] | None = None,
    activation_bits: Width | None = None,
    activation_range: str | None = None,
    plan: str | os.PathLike[str] | None = None,
    # the data
    text: str | None = None,
    text2: str | None = None,
    label: str | None = None,
    labels: Sequence[str] | Mapping[str, str] | None = None,
    format: str | None = None,
    max_length: int | None = None,
    max_train: int | None = None,
    # fine-tuning, and what both trainings share
    finetune: bool = False,
    epochs: int | None = None,
    lr: float | None = None,
    batch: int | None = None,
    accumulate: int | None = None,
    warmup: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    seed: int | None = None,
    precision: str | None = None,
    # the analysis
    runs: int | None = None,
    max_examples: int | str | None = None,
    iterations: int | None = None,
    # quantization-aware training
    qat_epochs: int | None = None,
    qat_lr: float | None = None,
    qat_max_train: int | str | None = None,
    distill: bool = True,
    compensate: bool = True,
    weight_ranges: str | None = None,
    learn_pairs: bool = False,
    # the rest
    figures: bool = True,
    speed: bool = True,
    license: str | None = None,
    language: Sequence[str] | None = None,
    threads: int | None = None,
    save_every: int | None = None,
    progress: ProgressOption = None,
) -> Run:
    """Fine-tunes, analyzes, plans, quantizes, packs, evaluates and reports: what ``qbert run`` does.

    ``model`` is a checkpoint directory, a hub id, or ``"minilm"``. A ``transformers`` model in memory is handed over by the
    directory that its ``save_pretrained`` and its tokenizer's wrote. ``task`` is ``"classify"``, ``"multilabel"``, ``"pair"``,
    ``"score"``, ``"score-pair"``, ``"ner"``, ``"qa"``, or a data set's name. ``train`` and ``dev`` are paths, lists of dicts, tables with the Arrow PyCapsule interface
    (pandas, polars, pyarrow), or a ``datasets.Dataset``.

    ``max_drop`` asks for the smallest model whose score drops by at most that many points. Otherwise ``bits`` has the
    widths to choose from (2 and 3 by default), or one for all layers.

    The same call again does what is left: after Ctrl-C it continues. Ctrl-C raises ``KeyboardInterrupt`` as soon as the state
    is saved; a second one does not wait for that. ``progress`` is ``False`` for none, or a function that gets
    ``qbert.Progress``.

    >>> run = qbert.quantize("tiny-bert", task="classify", out="from-dicts",
    ...                      train=[{"text": "the lake is frozen", "label": "ice"},
    ...                             {"text": "deep mud everywhere", "label": "mud"}] * 8,
    ...                      dev=[{"text": "the road is frozen", "label": "ice"}], **quickly)
    >>> run.load()("the lake is frozen")
    [{'label': ..., 'score': ...}]
    >>> run.summary["task"]
    'classify'

    Raises ``MissedLimitError`` if no plan keeps ``max_drop``; the run is done all the same, and ``qbert.open_run`` opens it.
    """
    given = dict(locals())
    for name in ("train", "dev", "progress", "finetune", "distill", "compensate", "learn_pairs", "figures", "speed", "max_length"):
        del given[name]
    switches = {
        "finetune": finetune,
        "learn-pairs": learn_pairs,
        "no-distill": not distill,
        "no-compensate": not compensate,
        "no-figures": not figures,
        "no-speed": not speed,
    }
    given["max_len"] = max_length
    flags = _flags(given) + [f"--{name}" for name, is_on in switches.items() if is_on]
    with tempfile.TemporaryDirectory(prefix="qbert-") as scratch:
        flags += _data_flags("train", train, task, scratch)
        dev_flags = _data_flags("dev", dev, task, scratch)
        if len(dev_flags) != 1:
            raise InputError(f"dev has {len(dev_flags)} files", "give one")
        found, missed = _qbert.run(flags + dev_flags, _call("quantize", {**given, "train": train, "dev": dev}), teller(progress))
    run = Run(json.loads(found))
    if missed is not None:
        _miss(run, missed)
    return run


def _miss(run: Run, why: str) -> NoReturn:
    error = MissedLimitError(
        f"`max_drop`: {why}", "allow a larger `max_drop`, offer wider `bits`, or train longer: `qat_epochs`"
    )
    error.directory = run.directory
    raise error


class Run:
    """A finished run: its packed model, figures and report. In a notebook it shows its report.

    >>> run = qbert.open_run("small")
    >>> run.metrics["metric"]
    'accuracy'
    >>> run.load().labels
    ['dry', 'icy', 'muddy']
    """

    def __init__(self, finished: dict[str, Any]) -> None:
        places = {name: finished.pop(name) for name in ("packed", "plan", "report", "card", "directory")}
        #: The outcome in a few numbers: metric, bits, sizes, speed.
        self.summary: dict[str, Any] = finished
        #: The directory.
        self.directory: str = places["directory"]
        #: The packed model.
        self.model_path: str = places["packed"]
        #: The plan's file.
        self.plan_path: str = places["plan"]
        #: The report, a page for a browser.
        self.report_path: str = places["report"]

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of every model, as ``metrics.json`` has them."""
        metrics: dict[str, Any] = _read_json(os.path.join(self.directory, "metrics.json"))
        return metrics

    def load(self, **options: Any) -> Model:
        """Opens the packed model; the options are those of ``qbert.load``."""
        return load(self.model_path, **options)

    def __repr__(self) -> str:
        values = {key: self.summary.get(key) for key in ("metric", "full_precision", "trained", "bits")}
        shown = ", ".join(f"{key}={value!r}" for key, value in values.items() if value is not None)
        return f"Run({self.directory!r}, {shown})"

    def _repr_html_(self) -> str:
        with open(self.report_path, encoding="utf-8") as file:
            return _framed(file.read())


def open_run(directory: str | os.PathLike[str]) -> Run:
    """Opens the directory of a run that is done, made here or by ``qbert run``.

    >>> qbert.open_run("small").summary["metric"]
    'accuracy'
    """
    directory = os.fspath(directory)
    found: dict[str, Any] = _read_json(os.path.join(directory, "summary.json"))
    names = {"packed": "model.qbert", "plan": "plan.toml", "report": "report.html", "card": "README.md"}
    places = {key: os.path.join(directory, name) for key, name in names.items()}
    return Run({**found, **places, "directory": directory})


def _read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except ValueError as error:
        raise InputError(f"{path}: {error}", "run `qbert.quantize` again: it writes the file anew") from error
    except FileNotFoundError as error:
        from ._errors import MissingFileError

        raise MissingFileError(f"{path}: it is not there", "give the directory of a run that is done") from error


def analyze(
    model: Checkpoint,
    *,
    task: str,
    data: Data,
    out: str | os.PathLike[str] | None = None,
    method: str | None = None,
    runs: int | None = None,
    fraction: float | None = None,
    max_examples: int | str | None = None,
    iterations: int | None = None,
    tol: float | None = None,
    trace: int | None = None,
    widths: Sequence[Width] | None = None,
    seed: int | None = None,
    text: str | None = None,
    text2: str | None = None,
    label: str | None = None,
    labels: Sequence[str] | Mapping[str, str] | None = None,
    format: str | None = None,
    max_length: int | None = None,
    threads: int | None = None,
    save_every: int | None = None,
    resume: bool = False,
    progress: ProgressOption = None,
) -> Analysis:
    """Measures how sensitive every layer of a fine-tuned checkpoint is to quantization: what ``qbert analyze`` does.

    ``method`` is ``"lanczos"`` (the default), ``"power"`` or ``"kl"``. ``out`` keeps the files; with ``resume`` an
    interrupted analysis continues there.

    >>> found = qbert.analyze(tuned, task="classify", text="note", label="condition", data="train.tsv", runs=2,
    ...                       max_examples=8, progress=False)
    >>> found.eigenvalues.shape
    (2, 2)
    >>> sorted(found.to_dict())
    ['iterations', 'layer', 'mean', 'omega', 'rank', 'std']
    """
    given = dict(locals())
    for name in ("data", "progress", "resume", "max_length", "out"):
        del given[name]
    given["max_len"] = max_length
    flags = _flags(given) + (["--resume"] if resume else [])
    if resume and out is None:
        raise InputError("resume without out", "give the directory of the analysis that was interrupted")
    with tempfile.TemporaryDirectory(prefix="qbert-") as scratch:
        directory = os.path.join(scratch, "analysis") if out is None else os.fspath(out)
        flags += [f"--out={directory}", *_data_flags("data", data, task, scratch)]
        found: dict[str, Any] = json.loads(_qbert.analyze(flags, teller(progress)))
        return Analysis(found, _qbert.report_html(directory))


class Analysis:
    """The sensitivity of every layer. In a notebook it shows its figures."""

    def __init__(self, found: dict[str, Any], html: str) -> None:
        #: Everything, as ``sensitivity.json`` has it.
        self.raw: dict[str, Any] = found
        self._html = html

    @property
    def ranking(self) -> list[int]:
        """The layers, the most sensitive first."""
        ranking: list[int] = self.raw["ranking"]
        return ranking

    @property
    def eigenvalues(self) -> NDArray[np.float64]:
        """The top eigenvalue of each layer in each run: an array of ``(layers, runs)``."""
        import numpy

        return numpy.array([layer["eigenvalues"] for layer in self.raw["layers"]], dtype=numpy.float64)

    @property
    def omega(self) -> NDArray[np.float64]:
        """The paper's sensitivity of each layer: ``|mean| + std`` of its eigenvalues."""
        import numpy

        return numpy.array([layer["omega"] for layer in self.raw["layers"]], dtype=numpy.float64)

    def to_dict(self) -> dict[str, list[Any]]:
        """One column for each figure, one row for each layer: ``pandas.DataFrame(found.to_dict())``.

        With ``method="kl"`` a row is a matrix at a width.
        """
        layers = self.raw["layers"]
        if not layers:
            rows = [
                {"site": site["site"], "layer": site["layer"], **width}
                for site in (self.raw.get("measured") or {}).get("sites", [])
                for width in site["widths"]
            ]
            return {key: [row[key] for row in rows] for key in ("site", "layer", "bits", "divergence", "error")}
        columns: dict[str, list[Any]] = {
            key: [layer[key] for layer in layers] for key in ("layer", "omega", "mean", "std")
        }
        columns["rank"] = [self.ranking.index(layer["layer"]) + 1 for layer in layers]
        columns["iterations"] = [max(layer["iterations"], default=0) for layer in layers]
        return columns

    def __repr__(self) -> str:
        return f"Analysis(layers={len(self.raw['layers'])}, ranking={self.raw['ranking']})"

    def _repr_html_(self) -> str:
        return _framed(self._html)


def _framed(page: str) -> str:
    """A page in a frame of its own, so that its styles and the notebook's do not meet."""
    source = page.replace("&", "&amp;").replace('"', "&quot;")
    return f'<iframe srcdoc="{source}" style="width:100%;height:640px;border:0" title="qbert report"></iframe>'


def _flags(given: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as flags of the command line."""
    flags: list[str] = []
    for name, value in given.items():
        if value is None:
            continue
        flags.append(f"--{name.replace('_', '-')}={_flag_value(name, value)}")
    return flags


def _flag_value(name: str, value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, bool):
        raise InputTypeError(f"`{name}` is {value}", "give a value, or leave it out")
    if isinstance(value, (int, float)):
        return repr(value)
    if hasattr(value, "keys"):
        value = [f"{key}={value[key]}" for key in value.keys()]
    try:
        parts = [str(part) for part in value]
    except TypeError:
        raise InputTypeError(f"`{name}` is of type {type(value).__name__}", "give a number, a text or a list") from None
    comma = next((part for part in parts if "," in part), None)
    if comma is not None:
        raise InputError(f"`{name}` has {comma!r}", "names with commas cannot be listed: rename them")
    return ",".join(parts)


def _data_flags(name: str, data: Any, task: str, scratch: str) -> list[str]:
    """The flags for a data set, which is written to a file first if it is in memory."""
    files = [_data.write(data, task, name, scratch)] if _data.is_in_memory(data) else _data.paths(data)
    return [f"--{name}={file}" for file in files]


def _call(function: str, given: Mapping[str, Any]) -> str:
    """The call, for the record. It names what data is in memory instead of showing it."""
    parts: list[str] = []
    for name, value in given.items():
        if value is None or name in ("threads", "save_every"):
            continue
        if name in ("train", "dev") and _data.is_in_memory(value):
            shown = f"<{type(value).__name__}>"
        else:
            shown = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
        parts.append(f"{'max_length' if name == 'max_len' else name}={shown}")
    return f"qbert.{function}({', '.join(parts)})"
