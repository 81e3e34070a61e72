"""The ``qbert`` command, also as ``python -m qbert``."""

from __future__ import annotations

import signal
import sys

from . import _qbert


def main() -> None:
    """Runs the command with the arguments of the process and exits with its code."""
    # The command handles Ctrl-C itself. Python's handler would raise after the command has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_qbert.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
