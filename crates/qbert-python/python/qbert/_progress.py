"""Progress of long jobs: one line in a terminal, one line in a notebook's cell, plain lines in a log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

if TYPE_CHECKING:
    from typing import Union

    #: How progress is shown: automatically, not at all, or by a function.
    ProgressOption = Union[bool, Callable[["Progress"], object], None]

#: The seconds between two lines in a log.
_LINE_EVERY = 15.0


class Progress(NamedTuple):
    """What a job tells the function that is given as ``progress``.

    ``stage`` is ``None`` for a message; otherwise ``done`` of ``total`` are done in that stage.

    >>> seen = []
    >>> found = qbert.analyze(tuned, task="classify", text="note", label="condition", data="train.tsv", runs=2,
    ...                       max_examples=8, progress=seen.append)
    >>> seen[-1].stage, seen[-1].done == seen[-1].total
    ('analyze', True)
    """

    stage: Optional[str]
    done: int
    total: int
    message: str

    @property
    def share(self) -> float:
        """The share that is done, from 0 to 1."""
        return self.done / self.total if self.total else 0.0


def teller(progress: ProgressOption) -> Callable[[str | None, int, int, str], None]:
    """What the compiled part calls."""
    if progress is False:
        return lambda stage, done, total, message: None
    if callable(progress):
        show = progress
        return lambda stage, done, total, message: void(show(Progress(stage, done, total, message)))
    return _notebook() or _Lines(sys.stderr).tell


def void(_: object) -> None:
    """Drops what a function returned."""


class _Lines:
    """Lines on a stream; on a terminal the last one is written over."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.is_terminal = bool(getattr(stream, "isatty", lambda: False)())
        self.width = 0
        self.last = time.monotonic()

    def tell(self, stage: str | None, done: int, total: int, message: str) -> None:
        if stage is None:
            self.write(message, stays=True)
            return
        text = f"{stage} {done}/{total} {message}"
        if self.is_terminal:
            self.write(text, stays=False)
        elif done == total or time.monotonic() - self.last >= _LINE_EVERY:
            self.last = time.monotonic()
            self.write(text, stays=True)

    def write(self, text: str, stays: bool) -> None:
        if not self.is_terminal:
            self.stream.write(text + "\n")
        else:
            if not stays:
                import shutil

                text = text[: max(20, shutil.get_terminal_size().columns - 1)]
            self.stream.write("\r" + text.ljust(self.width) + ("\n" if stays else ""))
            self.width = 0 if stays else len(text)
        self.stream.flush()


def _notebook() -> Callable[[str | None, int, int, str], None] | None:
    """A bar below the cell, if this is a notebook. IPython is not imported for that: in a notebook it already is."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Any = __import__("IPython.display", fromlist=["display", "HTML"])
    handle = display.display(display.HTML(""), display_id=True)
    lines: list[str] = []

    def tell(stage: str | None, done: int, total: int, message: str) -> None:
        if stage is None:
            lines.append(message)
        bar = "" if stage is None else f"<progress value='{done}' max='{total}'></progress> {_safe(f'{stage} {done}/{total} {message}')}"
        handle.update(display.HTML("<br>".join([*map(_safe, lines[-8:]), bar])))

    return tell


def _safe(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")
