"""The package pytorch-ood imports torchvision, which lacks operators beside some torch builds."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def ood():
    """The detectors of pytorch-ood; the test is skipped where it is not installed."""
    import torch

    for name in ("nms", "qnms"):
        definition = f"torchvision::{name}"
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(definition, "(Tensor dets, Tensor scores, float t) -> Tensor")
    return pytest.importorskip("pytorch_ood.detector", exc_type=ImportError)
