"""Networks of the package timm, without their head: the extra ``vision``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from engram.errors import bad
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
    **options: Any,
) -> nn.Module:  # fmt: skip
    """A network of timm for images of this shape, from scratch or with the weights of a file.

    Nothing is downloaded. `weights` is a path to safetensors or a ``state_dict``; all tensors of
    the network must be in it, those of its head are not looked at. `sha256`, if given, must be the
    file's. Further options are those of ``timm.create_model``.
    """
    package, known = _timm(name), name.removeprefix(PREFIX)
    if not package.is_model(known):
        near = package.list_models(f"*{known.split('_')[0]}*")[:5]
        raise bad("model", f"a model of timm, such as {', '.join(near) or 'resnet18'}", known)
    if len(shape) != 3:
        raise bad("sample_shape", f"images [C, H, W] for {name}", shape)
    settings = {"in_chans": shape[0], **options, "pretrained": False, "num_classes": 0}
    try:
        net: nn.Module = package.create_model(known, **settings)
    except (TypeError, RuntimeError, AssertionError) as error:
        raise bad(f"options of {name}", "those of timm.create_model", str(error)) from error
    if weights is not None:
        _fill(net, weights, sha256)
    elif sha256 is not None:
        raise bad("weights", "the path of a file of weights with this sha256", None)
    return net


def _timm(name: str) -> Any:
    try:
        import timm
    except ImportError as error:
        how = f"the package timm for {name!r}: pip install 'engram[vision]'"
        raise bad("model", how, f"none ({error})") from None
    return timm


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
