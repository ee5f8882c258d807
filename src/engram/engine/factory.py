"""Networks, data on the device and learners of runs; what equal runs share is made once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from engram import keys
from engram.engine.backend import inference_numerics
from engram.engine.pretraining import split_stream
from engram.engine.run_definition import Run
from engram.engine.stored_values import check_model_root, latent_outline
from engram.learner.feed import FeatureFeed, Feed
from engram.learner.learner import RunLearner
from engram.learner.parameter_layout import Networks, network_modules, network_settings
from engram.learner.structural_key import ByIdentity, structural_key
from engram.methods.method import RootFile, check_networks
from engram.models.adapter import adapt
from engram.models.build import build
from engram.models.classifier import Classifier, Encoder
from engram.models.pretrained_weights import load_root
from engram.models.user_networks import is_user_network_name
from engram.streams.stream_outline import StreamOutline

MOST_KEPT_BYTES = (
    1 << 28
)  # bytes of starting weights that are kept for further runs of the same seed
# below this many multiply-adds a step's cost is overhead, which mapping shares between runs
TINY_STEP = 3_000_000
DTYPES = {
    "float32": torch.float32, "tf32": torch.float32, "float64": torch.float64,
    "bf16": torch.float32,
}  # fmt: skip


class LearnerFactory:
    """Makes learners on a device; images lie there with `channels_last` where that pays.

    `fused` does layers at once that can be done so, which wants the channels last, too.
    """

    def __init__(
        self, device: torch.device, *, channels_last: bool = False, fused: bool = False
    ) -> None:
        self.device, self.channels_last, self.fused = device, channels_last, fused
        self._feeds: dict[Any, Feed] = {}
        self._weights: dict[Any, Networks] = {}  # the last ones used come last
        self._kept = 0  # bytes of these
        self._skeletons: dict[Any, Networks] = {}
        self._first: dict[Any, Networks] = {}  # of runs that differ in nothing but their seeds
        self._kinds: dict[ByIdentity, Any] = {}
        self._forms: dict[Any, int] = {}  # a number in place of a form, which is long to compare
        self._starts: dict[Any, bytes] = {}

    def learner(self, run: Run) -> RunLearner:
        """A fresh learner for a run."""
        networks = self.networks(run)
        skeleton = self._skeletons.setdefault(self.shape(run), networks)
        return RunLearner(
            networks=skeleton.with_weights_of(networks),
            stream=split_stream(run)[0],
            feed=self.feed(run),
            seed=run.seed,
            scope=run.scope,
            reads=run.method.reads,
        )

    def feed(self, run: Run) -> Feed:
        """The data of a run's stream on the device."""
        axes = self.skeleton(run).sample_axes
        frozen = self._frozen(run)
        key = (
            ByIdentity(run.stream.data), ByIdentity(run.stream.view), run.training.augment,
            run.training.precision, axes, None if frozen is None else frozen.digest,
        )  # fmt: skip
        if key not in self._feeds:
            made = Feed(
                run.stream.data, device=self.device, dtype=DTYPES[run.training.precision],
                view=run.stream.view, augment=run.training.augment, axes=axes,
            )  # fmt: skip
            with inference_numerics(run.training.precision):
                self._feeds[key] = made if frozen is None else FeatureFeed(made, frozen)
        return self._feeds[key]

    def _frozen(self, run: Run) -> Encoder | None:
        """The backbone of a run that stands beside its network; its weights follow the seed."""
        if not isinstance(run.model, Mapping) or not run.model.get("freeze"):
            return None
        net: Any = self.networks(run).train.get_submodule("net")
        found: Encoder | None = net.frozen
        return found

    def networks(self, run: Run) -> Networks:
        """Skeleton with initial weights; equal seeds share one while there is room for it."""
        key = self._kind(run), run.seed
        found = self._weights.pop(key, None)
        if found is None:
            found = self._build(run)
            self._kept += found.nbytes
        self._weights[key] = found
        self._make_room()
        self._need_root(run, found)
        return found

    def skeleton(self, run: Run) -> Networks:
        """The networks of a run but for their weights, which may be those of another seed."""
        key = self._kind(run)
        if key not in self._first:
            self._first[key] = found = self.networks(run)
            form = found.form, found.channels_last
            self._forms[key] = self._forms.setdefault(form, len(self._forms))
        self._need_root(run, self._first[key])
        return self._first[key]

    def start(self, run: Run) -> bytes:
        """A hash of the weights that a run begins with."""
        key = self._kind(run), run.seed
        if key not in self._starts:
            self._starts[key] = self.networks(run).start
        return self._starts[key]

    def _kind(self, run: Run) -> Any:
        """What decides the networks of a run besides its seed."""
        key = ByIdentity(run)
        if key not in self._kinds:
            self._kinds[key] = self._network_key(run)
        return self._kinds[key]

    @staticmethod
    def _network_key(run: Run) -> Any:
        name = run.model.get("name") if isinstance(run.model, Mapping) else run.model
        # what a function of the user's own makes may differ from seed to seed in more than weights
        ours = isinstance(name, str) and not is_user_network_name(name)
        made = None if ours or isinstance(name, nn.Module) else run.seed
        return (
            _model_key(run.model),
            made,
            structural_key(run.method.head),
            len(run.stream.order),
            run.loss,
            run.training.precision,
            ByIdentity(run.stream.data),
            _method_key(run),
            _root_file(run),
            run.training.batch_size,
        )

    def _make_room(self) -> None:
        """Forget weights that were not asked for lately: thousands of runs begin with their own."""
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
            head=run.method.head,
        )  # fmt: skip
        check_model_root(run.method, len(run.stream), net)
        asked = run.method.prologue()
        if isinstance(asked, RootFile) and not run.begun:
            load_root(net, asked.path, asked.sha256)
        with torch.random.fork_rng(devices=[]):  # a method's own networks follow the seed, too
            key_of_run = keys.fold(run.seed, "networks")
            torch.default_generator.manual_seed(keys.torch_seed(key_of_run))
            own = check_networks(run.method, run.method.networks(_outline(run, net)))
        further = {name: adapt(module) for name, module in network_modules(own).items()}
        networks = Networks({"net": net, **further}, run.loss, network_settings(own))
        fused = self.fused and networks.fusable
        last = self.channels_last and (
            self.device.type == "cuda" or _channels_last_pays(run, networks)
        )
        return networks.to(
            self.device, DTYPES[run.training.precision], fused=fused,
            channels_last=(last or fused) and len(shape) == 3,
        )  # fmt: skip

    def shape(self, run: Run) -> Any:
        """What runs must share to be trained with one skeleton."""
        self.skeleton(run)
        return self._forms[self._kind(run)], run.loss, run.training.precision


def _model_key(model: Any) -> Any:
    """What equal models share: names and options by value, objects by themselves."""
    if isinstance(model, Mapping) and not isinstance(model.get("name"), str):
        rest = {key: value for key, value in model.items() if key != "name"}
        return ByIdentity(model.get("name")), structural_key(rest)
    if isinstance(model, Mapping):
        return structural_key(dict(model))
    return structural_key(model) if isinstance(model, str) else ByIdentity(model)


def _outline(run: Run, net: Classifier) -> StreamOutline:
    """What the further networks of a method may follow from."""
    outline = StreamOutline.from_stream(run.stream)
    if net.frozen is not None:
        outline = outline.with_input_shape((net.frozen.width,))
    if not run.method.implements("networks"):
        return outline
    return outline.with_features(net.features, latent_outline(net, outline.data.sample_shape))


def _root_file(run: Run) -> RootFile | None:
    asked = run.method.prologue()
    return asked if isinstance(asked, RootFile) else None


def _method_key(run: Run) -> Any:
    """What decides the further networks of a method: nothing, or the method and its stream."""
    if not run.method.implements("networks"):
        return None
    return structural_key(run.method), run.stream.fingerprint()


def has_tiny_steps(run: Run, networks: Networks) -> bool:
    """Whether a training step is so small that several runs on the CPU are better mapped."""
    return len(networks.layout) * (run.training.batch_size or 256) < TINY_STEP


def _channels_last_pays(run: Run, networks: Networks) -> bool:
    """Whether images with the channels last pay on the CPU.

    Not in float64, which oneDNN leaves to slower code, and not for tiny runs: several of them are
    mapped, and one alone must come out the same.
    """
    return run.training.precision != "float64" and not has_tiny_steps(run, networks)
