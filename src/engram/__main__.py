"""``python -m engram`` is the command line."""

from __future__ import annotations

from engram.cli import main

if __name__ == "__main__":
    main()
