"""Networks of the package timm, without their head: the extra ``vision``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engram.errors import bad
from engram.models.image_input import ImageInput
from engram.models.pretrained_weights import file_sha256, read_weights

PREFIX = "timm/"


def is_timm(name: Any) -> bool:
    """Whether a model is named as one of timm.

    Examples
    --------
    >>> is_timm("timm/resnet18"), is_timm("resnet18")
    (True, False)
    """
    return isinstance(name, str) and name.startswith(PREFIX)


def build_timm_network(
    name: str, shape: tuple[int, ...], *, weights: str | None = None, sha256: str | None = None,
    size: int | None = None, **options: Any,
) -> nn.Module:  # fmt: skip
    """A network of timm for images of this shape, from scratch or with the weights of a file.

    Nothing is downloaded. `weights` is a path to safetensors or a ``state_dict``; all tensors of
    the network must be in it, those of its head are not looked at. `sha256`, if given, must be the
    file's. With `size`, images are resized to it and normalised as timm states for the network;
    without, the network sees them as the data has them. Further options are those of
    ``timm.create_model``.
    """
    package, known = _timm(name), name.removeprefix(PREFIX)
    if not package.is_model(known):
        near = package.list_models(f"*{known.split('_')[0]}*")[:5]
        raise bad("model", f"a model of timm, such as {', '.join(near) or 'resnet18'}", known)
    if len(shape) != 3:
        raise bad("sample_shape", f"images [C, H, W] for {name}", shape)
    channels = shape[0] if size is None else 3
    settings = {"in_chans": channels, **options, "pretrained": False, "num_classes": 0}
    try:
        net: nn.Module = package.create_model(known, **settings)
    except (TypeError, RuntimeError, AssertionError) as error:
        raise bad(f"options of {name}", "those of timm.create_model", str(error)) from error
    if weights is not None:
        _fill(net, weights, sha256)
    elif sha256 is not None:
        raise bad("weights", "the path of a file of weights with this sha256", None)
    if size is None:
        return net
    facts: Any = net.pretrained_cfg
    look = ImageInput(name, shape, size=size, mean=facts["mean"], std=facts["std"])
    return nn.Sequential(look, net)


def timm_version() -> str:
    """Return the version of timm, whose code is part of what a network computes."""
    return str(_timm(PREFIX).__version__)


def _timm(name: str) -> Any:
    try:
        return import_timm()
    except ImportError as error:
        how = f"the package timm for {name!r}: pip install 'engram-cl[vision]'"
        raise bad("model", how, f"none ({error})") from None


def import_timm() -> Any:
    """Import timm, which imports torchvision, also where torchvision's kernels cannot be loaded.

    This is so beside a build of torch other than the one torchvision was made for, such as a CPU
    build. Its Python part then describes operators that do not exist; declared, but without
    kernels, they satisfy it. No network of timm calls them.
    """
    try:
        import timm

        return timm
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [one for one in sys.modules if one.split(".")[0] in ("timm", "torchvision")]:
        del sys.modules[name]  # half imported
    operators = torch.library.Library("torchvision", "FRAGMENT")
    _DECLARED.append(operators)
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            scheme = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            operators.define(name + scheme)
    return importlib.import_module("timm")


_DECLARED: list[torch.library.Library] = []  # operators vanish with their library


def _fill(net: nn.Module, weights: str, sha256: str | None) -> None:
    if not isinstance(weights, str):
        raise bad("weights", "the path of a file of weights", weights)
    given = read_weights(weights, sha256 or file_sha256(weights))
    file = Path(weights).name
    with torch.no_grad():
        for key, mine in net.state_dict().items():
            if key not in given:
                raise bad("weights", f"a tensor called {key} in {file}", sorted(given)[:5])
            if given[key].shape != mine.shape:
                expected = f"{key} of shape {tuple(mine.shape)} in {file}"
                raise bad("weights", expected, tuple(given[key].shape))
            mine.copy_(given[key])
