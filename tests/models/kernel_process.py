"""Kernels of Triton, tried in a process of their own: on a GPU, or by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_kernels = pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED),
    reason="needs a GPU, or triton's interpreter: TRITON_INTERPRET=1",
)


def assert_equal(code: str) -> None:
    """Run code that compares kernels on DEVICE with formulas and prints "equal" at its end."""
    code = f"DEVICE = {'cpu' if INTERPRETED else 'cuda'!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr
