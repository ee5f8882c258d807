"""The package as a whole: its names, its weight."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engram import metrics


def test_every_public_name_exists_once_and_is_documented() -> None:
    assert len(set(metrics.__all__)) == len(metrics.__all__)
    for name in metrics.__all__:
        assert getattr(metrics, name).__doc__, name


@pytest.mark.parametrize(
    "name",
    [
        "average_accuracy",
        "forgetting",
        "backward_transfer",
        "forward_transfer",
        "intransigence",
        "forgetting_bound",
        "order_disparity",
        "exact_match",
        "jaccard",
        "precision_weighted_jaccard",
        "auroc",
        "aupr_in",
        "detection_error",
    ],
)
def test_promised_names(name: str) -> None:
    assert name in metrics.__all__


def test_import_needs_numpy_only() -> None:
    code = (
        "import sys, importlib.util as u, pathlib, types\n"
        # The parent package may import more; what counts is what the metrics themselves pull in.
        "spec = u.find_spec('engram'); parent = types.ModuleType('engram')\n"
        "parent.__path__ = list(spec.submodule_search_locations); sys.modules['engram'] = parent\n"
        "import engram.metrics\n"
        "heavy = {'scipy', 'torch', 'pandas', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
