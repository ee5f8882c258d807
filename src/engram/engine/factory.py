"""Networks, data on the device and learners of runs; what equal runs share is made once."""

from __future__ import annotations

from typing import Any

import torch

from engram import keys
from engram.engine.batches.latents import latents_of, need_root
from engram.engine.prologue import streams_of
from engram.engine.run import Run
from engram.learner.feed import Feed
from engram.learner.layout import Networks
from engram.learner.learner import Learner
from engram.learner.likeness import ByIdentity, likeness
from engram.learner.network import modules_of, settings_of
from engram.methods.base import RootFile, overrides
from engram.models.adapter import adapt
from engram.models.build import build
from engram.models.classifier import Classifier
from engram.models.weights import load_root
from engram.streams.outline import StreamOutline

DTYPES = {
    "float32": torch.float32, "tf32": torch.float32, "float64": torch.float64,
    "bf16": torch.float32,
}  # fmt: skip


class LearnerFactory:
    """Makes learners on a device; images lie there with `channels_last` where that is wanted."""

    def __init__(self, device: torch.device, *, channels_last: bool = False) -> None:
        self.device, self.channels_last = device, channels_last
        self._feeds: dict[Any, Feed] = {}
        self._weights: dict[Any, Networks] = {}
        self._skeletons: dict[Any, Networks] = {}
        self._forms: dict[Any, int] = {}

    def learner(self, run: Run) -> Learner:
        """A fresh learner for a run."""
        networks = self.networks(run)
        feed = self.feed(run, networks)
        skeleton = self._skeletons.setdefault(self.shape(run, networks), networks)
        return Learner(
            networks=skeleton.of_run(networks), stream=streams_of(run)[0], feed=feed, seed=run.seed,
            scope=run.scope, reads=run.method.reads,
        )  # fmt: skip

    def feed(self, run: Run, networks: Networks) -> Feed:
        """The data of a run's stream on the device."""
        key = (
            ByIdentity(run.stream.data), ByIdentity(run.stream.view), run.training.augment,
            run.training.precision, networks.sample_axes,
        )  # fmt: skip
        if key not in self._feeds:
            self._feeds[key] = Feed(
                run.stream.data, device=self.device, dtype=DTYPES[run.training.precision],
                view=run.stream.view, augment=run.training.augment,
                axes=networks.sample_axes,
            )  # fmt: skip
        return self._feeds[key]

    def networks(self, run: Run) -> Networks:
        """Skeleton with initial weights; equal seeds share one."""
        by_name = isinstance(run.model, (str, dict))
        key = (
            likeness(run.model) if by_name else ByIdentity(run.model), likeness(run.method.head),
            run.seed, len(run.stream.order), run.loss, run.training.precision,
            ByIdentity(run.stream.data), _of_the_method(run), _root_file(run),
        )  # fmt: skip
        if key not in self._weights:
            self._weights[key] = self._build(run)
        known: Any = self._weights[key].train.get_submodule("net")
        need_root(run.method, len(run.stream), known)
        return self._weights[key]

    def _build(self, run: Run) -> Networks:
        shape = run.stream.data.sample_shape
        net = build(
            run.model, sample_shape=shape, classes=len(run.stream.order), seed=run.seed,
            head=run.method.head,
        )  # fmt: skip
        need_root(run.method, len(run.stream), net)
        asked = run.method.prologue()
        if isinstance(asked, RootFile) and not run.begun:
            load_root(net, asked.path, asked.sha256)
        with torch.random.fork_rng(devices=[]):  # a method's own networks follow the seed, too
            key_of_run = keys.fold(run.seed, "networks")
            torch.default_generator.manual_seed(keys.torch_seed(key_of_run))
            own = run.method.networks(_outline(run, net))
        further = {name: adapt(module) for name, module in modules_of(own).items()}
        networks = Networks({"net": net, **further}, run.loss, settings_of(own))
        return networks.to(
            self.device, DTYPES[run.training.precision],
            channels_last=self.channels_last and len(shape) == 3,
        )  # fmt: skip

    def shape(self, run: Run, networks: Networks) -> Any:
        """What runs must share to be trained with one skeleton."""
        key = ByIdentity(networks)
        if key not in self._forms:  # a number in place of a form, which is long to compare
            self._forms[key] = self._forms.setdefault(networks.form, len(self._forms))
        return self._forms[key], run.loss, run.training.precision


def _outline(run: Run, net: Classifier) -> StreamOutline:
    """What the further networks of a method may follow from."""
    outline = StreamOutline.of(run.stream)
    if not overrides(run.method, "networks"):
        return outline
    return outline.above(latents_of(net, run.stream.data.sample_shape))


def _root_file(run: Run) -> RootFile | None:
    asked = run.method.prologue()
    return asked if isinstance(asked, RootFile) else None


def _of_the_method(run: Run) -> Any:
    """What decides the further networks of a method: nothing, or the method and its stream."""
    if not overrides(run.method, "networks"):
        return None
    return likeness(run.method), run.stream.fingerprint()
