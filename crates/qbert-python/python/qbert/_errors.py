"""What goes wrong, as exceptions. All are ``QbertError``; each is also the built-in exception that fits."""

from __future__ import annotations


class QbertError(Exception):
    """Anything that goes wrong in qbert.

    ``message`` says what is wrong and where, ``hint`` what to do about it (or ``None``).

    >>> try:
    ...     qbert.load("no-such-file.qbert")
    ... except qbert.QbertError as error:
    ...     print(type(error).__name__, error.hint is not None)
    MissingFileError True
    """

    message: str
    hint: str | None

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[type[QbertError], tuple[str, str | None]]:
        return (type(self), (self.message, self.hint))


class InputError(QbertError, ValueError):
    """The input is wrong: an argument, a file's content, a text that the model cannot answer."""


class InputTypeError(QbertError, TypeError):
    """A value of the wrong type, such as a number where a text should be."""


class MachineError(QbertError, OSError):
    """The machine failed: disk, permissions, network."""


class MissingFileError(MachineError, FileNotFoundError):
    """A file is not there."""


class InterruptedJobError(QbertError):
    """A job was stopped by something other than Ctrl-C, which raises ``KeyboardInterrupt``. What is done is kept."""


class MissedLimitError(QbertError):
    """No plan kept ``max_drop``. The run is done all the same: see ``run``."""

    #: The directory of the run; ``qbert.open_run`` opens it.
    directory: str | None = None
