"""`LearnerFactory`: networks, data on the device and learners, shared between equal runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from engram import keys
from engram.engine.backend import inference_numerics
from engram.engine.pretraining import split_stream
from engram.engine.run_definition import Run
from engram.engine.stored_values import check_model_root, latent_outline
from engram.engine.training import PRECISIONS
from engram.learner.feed import FeatureFeed, Feed
from engram.learner.learner import RunLearner
from engram.learner.objectives import Objective
from engram.learner.parameter_layout import Networks, network_modules, network_settings
from engram.learner.row_features import RowFeatures
from engram.learner.structural_key import ByIdentity, structural_key
from engram.methods.method import (
    FROZEN_TRANSFORMER,
    RootFile,
    check_networks,
    rereads_rows,
    tells_task,
)
from engram.models.adapter import adapt
from engram.models.block_views import need_blocks, outline_blocks
from engram.models.build import build
from engram.models.classifier import Classifier, Encoder
from engram.models.image_input import check_pixels
from engram.models.pretrained_weights import load_root
from engram.models.transformer import check_tokens
from engram.models.user_networks import is_user_network_name
from engram.streams.stream_outline import StreamOutline

MOST_KEPT_BYTES = 1 << 28  # of initial weights cached for further runs of the same seed
# below this many multiply-adds the time of a step is overhead, which mapping divides between runs
TINY_STEP = 3_000_000


class LearnerFactory:
    """Make learners on a device.

    With `channels_last` images have that memory format if it is faster; `fused` uses custom kernels
    for layers that can be fused, which need channels-last, too.
    """

    def __init__(
        self, device: torch.device, *, channels_last: bool = False, fused: bool = False
    ) -> None:
        self.device, self.channels_last, self.fused = device, channels_last, fused
        self._feeds: dict[Any, Feed] = {}
        self._weights: dict[Any, Networks] = {}  # least recently used first
        self._kept = 0  # their size in bytes
        self._skeletons: dict[Any, Networks] = {}
        self._first: dict[Any, Networks] = {}  # shared by runs that differ in their seeds only
        # kinds with constant parameters, which are structure and may follow the seed
        self._with_constants: set[Any] = set()
        self._constant: dict[Any, Networks] = {}  # networks with such parameters, by form
        self._kinds: dict[ByIdentity, Any] = {}
        self._forms: dict[Any, int] = {}  # numbers of forms, which are slow to compare
        self._starts: dict[Any, bytes] = {}
        self._row_features: dict[Any, RowFeatures] = {}

    def learner(self, run: Run) -> RunLearner:
        """Make a new learner for a run."""
        networks = self.networks(run)
        skeleton = self._skeletons.setdefault(self.shape(run), networks)
        own = skeleton.with_weights_of(networks)
        own.row_features = self._find_row_features(run, own)
        return RunLearner(
            networks=own,
            stream=split_stream(run)[0],
            feed=self.feed(run),
            seed=run.seed,
            scope=run.scope,
            reads=run.method.reads,
            answer=run.method.answer if run.method.implements("answer") else None,
            tells_task=tells_task(run.method, run.stream.head),
            rereads=rereads_rows(run.method),
        )

    def feed(self, run: Run) -> Feed:
        """Return the data of a run's stream on the device."""
        axes = self.skeleton(run).sample_axes
        frozen = self._frozen(run)
        key = (
            ByIdentity(run.stream.data), ByIdentity(run.stream.view), run.training.augment,
            run.training.precision, axes, None if frozen is None else frozen.digest,
        )  # fmt: skip
        if key not in self._feeds:
            made = Feed(
                run.stream.data, device=self.device, dtype=PRECISIONS[run.training.precision][0],
                view=run.stream.view, augment=run.training.augment, axes=axes,
            )  # fmt: skip
            with inference_numerics(run.training.precision):
                precision = run.training.precision
                self._feeds[key] = made if frozen is None else FeatureFeed(made, frozen, precision)
        return self._feeds[key]

    def _find_row_features(self, run: Run, networks: Networks) -> RowFeatures | None:
        """Return where features of rows under a frozen transformer are kept, if they can be.

        They are found by inputs, which must be at hand, and be the same in every pass.
        """
        feed, autocast = self.feed(run), PRECISIONS[run.training.precision][1]
        if run.method.needed_model != FROZEN_TRANSFORMER or self.device.type != "cpu":
            return None
        if not feed.on_device or feed.view is not None or feed.augment or autocast is not None:
            return None
        key = id(feed), networks.constants_digest  # feeds live as long as the factory
        return self._row_features.setdefault(key, RowFeatures(feed))

    def _frozen(self, run: Run) -> Encoder | None:
        """Return the frozen backbone of a run, if any; its weights follow the seed."""
        if not isinstance(run.model, Mapping) or not run.model.get("freeze"):
            return None
        net: Any = self.networks(run).train.get_submodule("net")
        found: Encoder | None = net.frozen
        return found

    def networks(self, run: Run) -> Networks:
        """Return networks with initial weights; cached for runs with equal seeds."""
        key = self._kind(run), run.seed
        found = self._weights.pop(key, None)
        if found is None:
            found = self._build(run)
            if found.constant_names:
                found = self._share_skeleton(found)
                self._with_constants.add(self._kinds[ByIdentity(run)])
                key = self._kind(run), run.seed
            self._kept += found.nbytes
        self._weights[key] = found
        self._make_room()
        self._need_root(run, found)
        return found

    def _share_skeleton(self, found: Networks) -> Networks:
        """Let networks with constants, which may be large, share those of equal networks."""
        known = self._constant.setdefault((found.form, found.channels_last), found)
        return found if known is found else known.with_weights_of(found)

    def skeleton(self, run: Run) -> Networks:
        """Return the networks of a run, with weights that may be those of another seed."""
        key = self._kind(run)
        if key not in self._first:
            found = self.networks(run)
            key = self._kind(run)  # it follows the seed if there are constants
            self._first[key] = found
            form = found.form, found.channels_last
            self._forms[key] = self._forms.setdefault(form, len(self._forms))
        self._need_root(run, self._first[key])
        return self._first[key]

    def start(self, run: Run) -> bytes:
        """Return a hash of the initial weights of a run."""
        key = self._kind(run), run.seed
        if key not in self._starts:
            self._starts[key] = self.networks(run).start
        return self._starts[key]

    def _kind(self, run: Run) -> Any:
        """Return a key of everything that decides the networks of a run besides its seed."""
        key = ByIdentity(run)
        if key not in self._kinds:
            self._kinds[key] = self._network_key(run)
        kind = self._kinds[key]
        return (kind, run.seed) if kind in self._with_constants else kind

    @staticmethod
    def _network_key(run: Run) -> Any:
        name = run.model.get("name") if isinstance(run.model, Mapping) else run.model
        # networks made by user code may differ between seeds in more than their weights
        ours = isinstance(name, str) and not is_user_network_name(name)
        made = None if ours or isinstance(name, nn.Module) else run.seed
        return (
            _model_key(run.model),
            made,
            structural_key(run.method.head),
            len(run.stream.order),
            (run.loss, run.training.label_smoothing),
            run.training.precision,
            ByIdentity(run.stream.data),
            _method_key(run),
            run.method.needed_model,
            _root_file(run),
            run.training.batch_size,
        )

    def _make_room(self) -> None:
        """Evict the least recently used weights."""
        while self._kept > MOST_KEPT_BYTES and len(self._weights) > 1:
            self._kept -= self._weights.pop(next(iter(self._weights))).nbytes

    @staticmethod
    def _need_root(run: Run, networks: Networks) -> None:
        known: Any = networks.train.get_submodule("net")
        check_model_root(run.method, len(run.stream), known)

    def _build(self, run: Run) -> Networks:
        shape = run.stream.data.sample_shape
        net = build(
            run.model, sample_shape=shape, classes=len(run.stream.order), seed=run.seed,
            head=run.method.head, scaling=(run.stream.data.mean, run.stream.data.std),
        )  # fmt: skip
        lowest = net if net.frozen is None else net.frozen.module
        check_tokens(run.model, lowest, run.stream.data)
        check_pixels(lowest, run.stream.data)
        check_model_root(run.method, len(run.stream), net)
        if run.method.needed_model == FROZEN_TRANSFORMER:
            need_blocks(net.backbone, type(run.method).__name__)
            net.backbone.requires_grad_(False)  # constants, which all runs share
        asked = run.method.prologue()
        if isinstance(asked, RootFile) and not run.begun:
            load_root(net, asked.path, asked.sha256)
        with torch.random.fork_rng(devices=[]):  # networks of a method follow the seed, too
            key_of_run = keys.fold(run.seed, "networks")
            torch.default_generator.manual_seed(keys.torch_seed(key_of_run))
            own = check_networks(run.method, run.method.networks(_outline(run, net)))
        further = {name: adapt(module) for name, module in network_modules(own).items()}
        # the skeletons of another seed serve as well, and copying modules takes longer than
        # making them; a frozen backbone, unless all seeds share it, is in the skeleton itself
        known = self._first.get(self._kind(run))
        former: Any = None if known is None else known.train.get_submodule("net")
        if known is not None and net.frozen is former.frozen:
            return known.with_modules({"net": net, **further})
        objective = Objective(run.loss, run.training.label_smoothing)
        networks = Networks({"net": net, **further}, objective, network_settings(own))
        fused = self.fused and networks.fusable
        last = self.channels_last and (
            self.device.type == "cuda" or _channels_last_pays(run, networks)
        )
        return networks.to(
            self.device, PRECISIONS[run.training.precision][0], fused=fused,
            channels_last=(last or fused) and len(shape) == 3,
        )  # fmt: skip

    def shape(self, run: Run) -> Any:
        """Return what runs must have in common to share a skeleton."""
        self.skeleton(run)
        return self._forms[self._kind(run)], run.loss, run.training.precision


def _model_key(model: Any) -> Any:
    """Return the key of a model: names and options by value, objects by identity."""
    if isinstance(model, Mapping) and not isinstance(model.get("name"), str):
        rest = {key: value for key, value in model.items() if key != "name"}
        return ByIdentity(model.get("name")), structural_key(rest)
    if isinstance(model, Mapping):
        return structural_key(dict(model))
    return structural_key(model) if isinstance(model, str) else ByIdentity(model)


def _outline(run: Run, net: Classifier) -> StreamOutline:
    """Return the outline of the stream that a method's networks may depend on."""
    outline = StreamOutline.from_stream(run.stream)
    if net.frozen is not None:
        outline = outline.with_input_shape((net.frozen.width,))
    if not run.method.implements("networks"):
        return outline
    latents = latent_outline(net, outline.data.sample_shape)
    numbers = itertools.count()

    def build_model() -> nn.Module:
        seed = int(keys.fold(run.seed, "further model", next(numbers)))
        return build(
            run.model, sample_shape=run.stream.data.sample_shape, classes=len(run.stream.order),
            seed=seed, head=run.method.head,
            scaling=(run.stream.data.mean, run.stream.data.std),
        )  # fmt: skip

    blocks = outline_blocks(net.backbone)
    return outline.with_features(net.features, latents, build_model, blocks)


def _root_file(run: Run) -> RootFile | None:
    asked = run.method.prologue()
    return asked if isinstance(asked, RootFile) else None


def _method_key(run: Run) -> Any:
    """Return what decides a method's networks: nothing, or the method and its stream."""
    if not run.method.implements("networks"):
        return None
    return structural_key(run.method), run.stream.fingerprint()


def has_tiny_steps(run: Run, networks: Networks) -> bool:
    """Whether a training step is so small that mapping several runs on the CPU is faster."""
    return len(networks.layout) * (run.training.batch_size or 256) < TINY_STEP


def _channels_last_pays(run: Run, networks: Networks) -> bool:
    """Whether the channels-last format is faster on the CPU.

    Not in float64, which oneDNN does not support, and not for tiny runs: several of them are
    mapped, and a single one must give the same numbers.
    """
    return run.training.precision != "float64" and not has_tiny_steps(run, networks)
