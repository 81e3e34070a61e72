"""The ``qbert`` command, also as ``python -m qbert``."""

from __future__ import annotations

import sys

from . import _qbert


def main() -> None:
    """Runs the command with the arguments of the process and exits with its code."""
    sys.exit(_qbert.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
