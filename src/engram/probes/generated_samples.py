"""Samples that a run's generator draws after every stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.learner.learner import RunLearner
from engram.probes.probe import Probe
from engram.probes.stage_view import StageView
from engram.records.long_table import Rows
from engram.records.stage_result import StageResult

LARGEST_SIDE = 50  # height and width of a stored picture
MOST_SAMPLES = 256  # samples whose classes are counted


@dataclass(frozen=True)
class Generated(Probe):
    """Store samples of the generator from fixed codes after every stage, with predicted classes.

    For runs with a further network that has `decode` (codes to samples), `noise` (the width of a
    code) and `shape` (of a sample), where samples are inputs of the main network or latents of its
    root. There are no rows, only arrays: ``result.arrays("generated", stage=2)`` has
    ``drawn`` [256], the classes of so many samples. If they are images, it also has the first
    few as ``pictures`` uint8 [count, C, H, W] and their ``classes`` [count]; those larger than 50
    pixels are stored at a fraction of their size. Latents have no picture, since no network maps
    them back to inputs.

    Parameters
    ----------
    count
        Number of pictures.
    """

    needs: ClassVar[tuple[str, ...]] = ("networks",)

    count: int = 6

    def after_stage(self, view: StageView) -> Rows:
        learners = view.learners
        name, top = _find_generator(learners[0]) if len(learners) == len(view) else ("", False)
        if name and not any(one.diverged for one in view.members):
            drawn = [self._drawn(one, name, top) for one in view.members]
            view.store("drawn", torch.stack([classes for _, classes in drawn]))
            if _is_image(drawn[0][0].shape[1:]) and not top:
                data = view.members[0].stream.data
                first = [samples[: self.count] for samples, _ in drawn]
                view.store("pictures", torch.stack([_to_bytes(one, data) for one in first]))
                view.store("classes", torch.stack([all_[: self.count] for _, all_ in drawn]))
        return view.rows()

    @torch.no_grad()
    def _drawn(self, run: StageResult, name: str, top: bool) -> tuple[Tensor, Tensor]:
        """Draw samples and predict their classes by the network or its top."""
        learner = run.learner
        net, width = learner.net(), _draw_noise(learner, name)
        key, many = keys.fold(run.seed, "generated"), max(self.count, MOST_SAMPLES)
        codes = keys.normal(key, many, width, device=learner.device).to(learner.vector.dtype)
        samples = getattr(net, name).decode(codes)
        open_now = torch.from_numpy(run.items.opening <= run.stage).to(learner.device)
        logits = (net.top if top else net)(samples).logits
        column = logits.masked_fill(~open_now, -torch.inf).argmax(-1).cpu()
        return samples, torch.from_numpy(run.items.classes)[column]


def _find_generator(learner: RunLearner) -> tuple[str, bool]:
    """Find a further network that generates, or "", and whether the top takes its samples."""
    takes = {learner.feed.data.sample_shape: False}
    if learner.networks.splits:
        takes.setdefault(_latent_shape(learner), True)
    for name, module in learner.networks.eval.named_children():
        shape, noise = getattr(module, "shape", None), getattr(module, "noise", None)
        draws = callable(getattr(module, "decode", None)) and isinstance(noise, int)
        if name != "net" and draws and isinstance(shape, tuple) and shape in takes:
            return name, takes[shape]
    return "", False


@torch.no_grad()
def _latent_shape(learner: RunLearner) -> tuple[int, ...]:
    shape = learner.feed.data.sample_shape
    blank = torch.zeros(1, *shape, device=learner.device, dtype=learner.vector.dtype)
    return tuple(learner.net().root(blank).shape[1:])


def _is_image(shape: Any) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3)


def _draw_noise(learner: RunLearner, name: str) -> int:
    module: nn.Module = learner.networks.eval.get_submodule(name)
    return int(module.noise)  # type: ignore[arg-type]


def _to_bytes(samples: Tensor, data: Any) -> Tensor:
    """Undo the scaling of samples and convert them to uint8 pictures."""
    x = samples.float().cpu()
    if data.mean:
        x = x * torch.tensor(data.std)[:, None, None] + torch.tensor(data.mean)[:, None, None]
    side = max(x.shape[-2:])
    if side > LARGEST_SIDE:
        x = F.avg_pool2d(x, -(-side // LARGEST_SIDE))
    return (x * 255).round().clamp(0, 255).to(torch.uint8)
