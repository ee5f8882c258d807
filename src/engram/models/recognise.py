"""Whether a user's network answers features or classes: told by its last layer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engram.errors import bad, choose

ENDS = ("features", "classes")
HOW = "model={'name': ..., 'ends': 'classes'} confirms this, 'ends': 'features' keeps it"


@dataclass(frozen=True)
class DryRun:
    """What a network answers to two rows of zeros."""

    answer: Tensor
    last: str | None  # path of the linear layer whose output is the answer, None if it is no such

    @property
    def width(self) -> int:
        return int(self.answer.shape[1])


@torch.no_grad()
def dry_run(module: nn.Module, shape: tuple[int, ...]) -> DryRun:
    """Try a network, which also sizes lazy layers; its modes stay as they are."""
    first = next(module.parameters(), torch.zeros(()))
    lazy = isinstance(first, nn.parameter.UninitializedParameter)
    rows = torch.zeros(2, *shape, dtype=torch.float32 if lazy else first.dtype, device=first.device)
    modes = [(layer, layer.training) for layer in module.modules()]
    outputs: list[tuple[nn.Module, Any]] = []
    leaves = [one for one in module.modules() if not list(one.children())]
    hooks = [one.register_forward_hook(lambda m, _i, out: outputs.append((m, out)))
             for one in leaves]  # fmt: skip
    try:
        found = module.eval()(rows)
    except Exception as error:
        raise bad("model", f"a network for samples of shape {shape}", str(error)) from error
    finally:
        for hook in hooks:
            hook.remove()
        for layer, training in modes:
            layer.training = training
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise bad("model", "a network that returns features [B, F]", what)
    return DryRun(found, _linear_at_the_end(module, outputs, found))


def _linear_at_the_end(
    module: nn.Module, outputs: list[tuple[nn.Module, Any]], found: Tensor
) -> str | None:
    """The path of a linear layer that ran once and gave the answer itself."""
    ends = [layer for layer, out in outputs if out is found]
    if not ends or not isinstance(ends[-1], nn.Linear):
        return None
    if sum(layer is ends[-1] for layer, _ in outputs) > 1:  # shared: it cannot be taken out
        return None
    paths: dict[nn.Module, str] = {layer: name for name, layer in module.named_modules()}
    return paths[ends[-1]]


def without_head(
    module: nn.Module, shape: tuple[int, ...], classes: int, *, ends: str | None, asked: bool
) -> tuple[nn.Module, int, nn.Linear | None]:
    """A backbone, its width, and the last layer of the network if that was a head.

    A linear layer at the end is a head, whatever its size: a second one above it would add nothing,
    and a rule that compared its size with the number of classes would change its mind as classes
    come.

    Parameters
    ----------
    ends
        What the network is said to answer, ``features`` or ``classes``; None to find out.
    asked
        Whether the network was made for a number of classes, so that it cannot answer features.
    """
    if ends is not None:
        choose("model.ends", ends, ENDS)
    elif isinstance(getattr(module, "features", None), int) or hasattr(module, "root_modules"):
        ends = "features"  # it says so itself
    tried = dry_run(module, shape)
    if ends is None and tried.width == classes and _are_probabilities(tried.answer):
        expected = "logits or features (leave out the softmax at its end)"
        raise bad("model", expected, f"{classes} probabilities")
    if tried.last is None and (ends == "classes" or (ends is None and asked)):
        expected = "a network whose last layer is a torch.nn.Linear (or model.ends=features)"
        raise bad("model", expected, type(module).__name__)
    if tried.last is None or ends == "features":
        return module, tried.width, None
    head: Any = module.get_submodule(tried.last)
    if ends is None:
        words = "becomes the head and is reinitialised, one row per class"
        _say(f"{_shown(tried, head)} {words} ({HOW})")
    backbone = _taken_out(module, tried.last)
    return backbone, dry_run(backbone, shape).width, head


def _shown(tried: DryRun, layer: nn.Linear) -> str:
    name = f" {tried.last}" if tried.last else ""
    return f"model: its last layer{name} (Linear {layer.in_features} -> {layer.out_features})"


def _say(words: str) -> None:
    warnings.warn(words, stacklevel=2)


def _taken_out(module: nn.Module, path: str) -> nn.Module:
    """The network without its last layer."""
    if not path:
        return nn.Flatten()
    above, _, name = path.rpartition(".")
    module.get_submodule(above)._modules[name] = nn.Identity()
    return module


def _are_probabilities(answer: Tensor) -> bool:
    if answer.shape[1] < 2:
        return False
    ones = torch.ones(len(answer), dtype=answer.dtype, device=answer.device)
    plain = bool((answer >= 0).all()) and torch.allclose(answer.sum(1), ones, atol=1e-5)
    return plain or torch.allclose(answer.exp().sum(1), ones, atol=1e-5)
