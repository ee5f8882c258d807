"""Pictures that a run's generator draws after every stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.learner.learner import Learner
from engram.probes.base import Probe
from engram.probes.run_stage import RunStage
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows

LARGEST = 50  # height and width of a stored picture


@dataclass(frozen=True)
class Generated(Probe):
    """A few pictures from the same codes after every stage, and what the network calls them.

    Of runs with a further network that has `decode` (codes to samples), `noise` (the width of a
    code) and `shape` (of a sample), where samples are images. They are no numbers, so there are no
    rows: ``result.arrays("generated", stage=2)`` has ``pictures`` uint8 [count, C, H, W] and
    ``classes`` [count]. Pictures larger than 50 pixels are stored at a fraction of their size.

    Parameters
    ----------
    count
        Number of pictures.
    """

    needs: ClassVar[tuple[str, ...]] = ("networks",)

    count: int = 6

    def after_stage(self, view: StageView) -> StageRows:
        learners = view.learners
        name = _generator(learners[0]) if len(learners) == len(view) else ""
        if name and not any(one.diverged for one in view.members):
            drawn = [self._drawn(one, name) for one in view.members]
            view.store("pictures", torch.stack([pictures for pictures, _ in drawn]))
            view.store("classes", torch.stack([classes for _, classes in drawn]))
        return view.rows()

    @torch.no_grad()
    def _drawn(self, run: RunStage, name: str) -> tuple[Tensor, Tensor]:
        learner = run.learner
        assert learner is not None
        net, width = learner.net(), _noise(learner, name)
        key = keys.fold(run.seed, "generated")
        codes = keys.normal(key, self.count, width, device=learner.device).to(learner.vector.dtype)
        samples = net.at(f"{name}.decode")(codes)
        open_now = torch.from_numpy(run.items.opening <= run.stage).to(learner.device)
        column = net(samples).logits.masked_fill(~open_now, -torch.inf).argmax(-1).cpu()
        classes = torch.from_numpy(run.items.classes)[column]
        return _bytes(samples, run.stream.data), classes


def _generator(learner: Learner) -> str:
    """The name of a further network that draws images, or nothing."""
    for name, module in learner.networks.eval.named_children():
        shape = getattr(module, "shape", None)
        has = callable(getattr(module, "decode", None)) and isinstance(shape, tuple)
        image = has and shape == learner.stream.data.sample_shape and _is_image(shape)
        if name != "net" and image and isinstance(getattr(module, "noise", None), int):
            return name
    return ""


def _is_image(shape: Any) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3)


def _noise(learner: Learner, name: str) -> int:
    module: nn.Module = learner.networks.eval.get_submodule(name)
    return int(module.noise)  # type: ignore[arg-type]


def _bytes(samples: Tensor, data: Any) -> Tensor:
    """uint8 pictures of samples, whose scaling is undone."""
    x = samples.float().cpu()
    if data.mean:
        x = x * torch.tensor(data.std)[:, None, None] + torch.tensor(data.mean)[:, None, None]
    side = max(x.shape[-2:])
    if side > LARGEST:
        x = F.avg_pool2d(x, -(-side // LARGEST))
    return (x * 255).round().clamp(0, 255).to(torch.uint8)
