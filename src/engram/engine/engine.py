"""From run specifications to stage outcomes: who trains alone, who trains together."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from engram import keys
from engram.engine.batches.latents import latents_of, need_root
from engram.engine.checkpoints.resume_point import Saver
from engram.engine.driver import Progress
from engram.engine.evaluation.evaluate import answers
from engram.engine.groups.hyperparameters import varying
from engram.engine.groups.prefixes import Prefixes, copy_learner
from engram.engine.groups.rollback import Kept
from engram.engine.loop import StageOutcome, run_stage
from engram.engine.run import Run
from engram.engine.trainers.tracing import need_compiler
from engram.errors import bad, choose
from engram.learner.feed import Feed
from engram.learner.layout import Networks
from engram.learner.learner import Learner
from engram.learner.likeness import Same, likeness
from engram.learner.network import manners_of, modules_of
from engram.learner.tree import shapes
from engram.methods.base import overrides
from engram.models.adapter import adapt
from engram.models.build import build
from engram.models.classifier import Classifier
from engram.streams.outline import StreamOutline

DTYPES = {
    "float32": torch.float32, "tf32": torch.float32, "float64": torch.float64,
    "bf16": torch.float32,
}  # fmt: skip
# below this many multiply-adds a step's cost is overhead, which mapping shares between runs
TINY_STEP = 3_000_000
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SIDE_BY_SIDE = 1  # 4 once tests/engine/test_cuda.py has passed with it on a device


@dataclass
class Stage:
    """One finished stage of one run."""

    run: int  # place in the list of runs
    stage: int
    outcome: StageOutcome
    learner: Learner
    last_of_group: bool = True  # whether all runs trained together have been yielded


def _declared(run: Run) -> Any:
    """What a method says before it trains; floats that differ may decide it."""
    method = run.method
    stages = range(len(run.stream))
    replays, phases = [method.replay(k) for k in stages], [method.phases(k) for k in stages]
    # the host fills memories run by run; only a reservoir on the device must have one size for all
    budget = method.memory_budget if any(one.renew == "step" for one in replays) else None
    return likeness((method.reads, budget, replays, phases))


def device_of(name: str | torch.device) -> torch.device:
    """``auto`` takes CUDA where there is one.

    Examples
    --------
    >>> device_of("cpu")
    device(type='cpu')
    """
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.split(":")[0]
    choose("device", kind, ("auto", "cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise bad("device", "cpu, because no CUDA device is available here", name)
    return torch.device(name)


class Engine:
    """Trains runs, alone or in lockstep, and yields every finished stage.

    Parameters
    ----------
    together
        True: runs of equal shapes in lockstep; False: one after the other; None: what pays.
    capture
        Replay steps as CUDA graphs; None: on CUDA.
    compile
        Fuse the operations of a step with ``torch.compile``. It takes seconds to a minute per kind
        of step and pays in long runs; single runs are mapped for it, too.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        device: str | torch.device = "auto",
        together: bool | None = None,
        capture: bool | None = None,
        compile: bool = False,
        group_size: int = 0,
    ) -> None:
        if not runs:
            raise bad("runs", "at least one run", "none")
        self.runs = list(runs)
        self.device = device_of(device)
        self.together = together
        self.capture = self.device.type == "cuda" if capture is None else capture
        self.compile = compile
        if compile:
            need_compiler(self.device)
        self.group_size = group_size
        self._feeds: dict[Any, Feed] = {}
        self._weights: dict[Any, Networks] = {}
        self._skeletons: dict[Any, Networks] = {}
        self._forms: dict[Any, int] = {}
        self._prefixes = Prefixes(lambda run: self._networks(run).start)
        self._saver: Saver | None = None

    # -- preparation -----------------------------------------------------------------------------
    def learner(self, run: Run) -> Learner:
        """A fresh learner for a run."""
        networks = self._networks(run)
        feed = self._feed(run, networks)
        skeleton = self._skeletons.setdefault(self._shape(run, networks), networks)
        return Learner(
            networks=skeleton.of_run(networks), stream=run.stream, feed=feed, seed=run.seed,
            scope=run.scope, reads=run.method.reads,
        )  # fmt: skip

    def _feed(self, run: Run, networks: Networks) -> Feed:
        key = (
            Same(run.stream.data), Same(run.stream.view), run.training.augment,
            run.training.precision, networks.memory_order,
        )  # fmt: skip
        if key not in self._feeds:
            self._feeds[key] = Feed(
                run.stream.data, device=self.device, dtype=DTYPES[run.training.precision],
                view=run.stream.view, augment=run.training.augment,
                order=networks.memory_order,
            )  # fmt: skip
        return self._feeds[key]

    def _networks(self, run: Run) -> Networks:
        """Skeleton with initial weights; equal seeds share one."""
        spoken = isinstance(run.model, (str, dict))
        key = (
            likeness(run.model) if spoken else Same(run.model), likeness(run.method.head),
            run.seed, len(run.stream.order), run.loss, run.training.precision,
            Same(run.stream.data), self._brought(run),
        )  # fmt: skip
        if key not in self._weights:
            net = build(
                run.model, sample_shape=run.stream.data.sample_shape,
                classes=len(run.stream.order), seed=run.seed, head=run.method.head,
            )  # fmt: skip
            need_root(run.method, len(run.stream), net)
            with torch.random.fork_rng(devices=[]):  # a method's own networks follow the seed, too
                key_of_run = keys.fold(run.seed, "networks")
                torch.default_generator.manual_seed(keys.torch_seed(key_of_run))
                brought = run.method.networks(self._outline(run, net))
            further = {name: adapt(module) for name, module in modules_of(brought).items()}
            networks = Networks({"net": net, **further}, run.loss, manners_of(brought))
            self._weights[key] = networks.to(
                self.device, DTYPES[run.training.precision],
                channels_last=self._channels_last(run),
            )  # fmt: skip
        known: Any = self._weights[key].train.get_submodule("net")
        need_root(run.method, len(run.stream), known)
        return self._weights[key]

    def _outline(self, run: Run, net: Classifier) -> StreamOutline:
        """What the further networks of a method may follow from."""
        outline = StreamOutline.of(run.stream)
        if not overrides(run.method, "networks"):
            return outline
        return outline.above(latents_of(net, run.stream.data.sample_shape))

    def _channels_last(self, run: Run) -> bool:
        """Images of runs that train unmapped on CUDA; a mapped convolution wants them as usual."""
        image = len(run.stream.data.sample_shape) == 3
        return image and self.device.type == "cuda" and not self.together and not self.compile

    def _brought(self, run: Run) -> Any:
        """What decides the further networks of a method: nothing, or the method and its stream."""
        if not overrides(run.method, "networks"):
            return None
        return likeness(run.method), run.stream.fingerprint()

    def _shape(self, run: Run, networks: Networks) -> Any:
        """What runs must share to be trained with one skeleton."""
        key = Same(networks)
        if key not in self._forms:  # a number in place of a form, which is long to compare
            self._forms[key] = self._forms.setdefault(networks.form, len(self._forms))
        return self._forms[key], run.loss, run.training.precision

    def groups(self) -> list[list[int]]:
        """Places of runs that train together."""
        return [list(group) for group in self._groups]

    @cached_property  # asked for more than once, and thousands of runs are compared
    def _groups(self) -> list[list[int]]:
        found: dict[Any, list[list[int]]] = {}
        for place, run in enumerate(self.runs):
            networks = self._networks(run)
            key = (self._shape(run, networks), run.training, run.scope, len(run.stream),
                   Same(self._feed(run, networks)), len(run.stream.order),
                   _declared(run))  # fmt: skip
            for group in found.setdefault(key, []):
                room = not self.group_size or len(group) < self.group_size
                if room and varying([self.runs[group[0]].method, run.method]) is not None:
                    group.append(place)
                    break
            else:
                found[key].append([place])
        return [group for groups in found.values() for group in groups]

    def maps(self, group: Sequence[int]) -> bool:
        """Whether a group trains in lockstep."""
        run = self.runs[group[0]]
        if reasons := self._networks(run).unmappable:
            company = len(group) > 1 and self.together is not False
            if company or self.together or self.compile:
                how = "one run at a time" + (" and is not compiled" if self.compile else "")
                warnings.warn(f"the model trains {how}: {'; '.join(reasons)}", stacklevel=2)
            return False
        if self.compile:
            return True
        if len(group) == 1 or self.together is False:
            return False
        if self.together or self.device.type == "cuda":
            return True
        return self._tiny(group)

    def apart(self, group: Sequence[int]) -> bool:
        """Whether mapped runs go one by one all the same.

        Mapped convolutions become grouped ones, which CUDA does more slowly than one after the
        other (measured for 3 runs of the CIFAR network).
        """
        if self.together is not None:
            return not self.together
        modules = self._networks(self.runs[group[0]]).train.modules()
        if self.device.type == "cuda":
            return any(isinstance(one, CONVOLUTIONS) for one in modules)
        return self.compile and not self._tiny(group)

    @property
    def side_by_side(self) -> int:
        """How many runs that are not mapped go on at once, each in a CUDA stream of its own."""
        return SIDE_BY_SIDE if self.capture and self.together is None else 1

    def _tiny(self, group: Sequence[int]) -> bool:
        run = self.runs[group[0]]
        work = len(self._networks(run).layout) * (run.training.batch_size or 256)
        return work < TINY_STEP

    # -- running ---------------------------------------------------------------------------------
    def stages(
        self,
        *,
        resume: Callable[[int, Learner], int] | None = None,
        progress: Callable[[Sequence[int], int], Progress] | None = None,
        deadline: float | None = None,
        stop_inside: bool = False,
        saver: Saver | None = None,
    ) -> Iterator[Stage]:
        """Train everything; yields each stage of each run as soon as it is finished.

        `resume(place, learner)` may load a checkpoint into a fresh learner and returns the first
        stage still to be done. After `deadline` (``time.monotonic``) no further group is begun,
        and with `stop_inside` no further stage. `saver` keeps runs that are inside a task.
        """
        self._saver = saver
        for part, mapped in self.parts():
            if deadline is not None and time.monotonic() > deadline:
                return
            inner = deadline if stop_inside else None
            yield from self._group(part, mapped, resume, progress, inner)

    def parts(self) -> Iterator[tuple[list[int], bool]]:
        """Places of runs that go together: mapped, or each for itself side by side."""
        for group in self.groups():
            mapped, width = self.maps(group), len(group)
            if not mapped or self.apart(group):
                mapped = mapped and self.compile  # else a single run gains nothing from it
                width = 1 if mapped else self.side_by_side
            for start in range(0, len(group), width):
                yield group[start : start + width], mapped

    def _group(
        self,
        group: Sequence[int],
        mapped: bool,
        resume: Callable[[int, Learner], int] | None,
        progress: Callable[[Sequence[int], int], Progress] | None,
        deadline: float | None,
    ) -> Iterator[Stage]:
        learners = {place: self.learner(self.runs[place]) for place in group}
        if not mapped and len(group) > 1:  # each binds a module to its own weights
            for one in learners.values():
                one.networks = one.networks.twin()
        first = {p: resume(p, one) if resume else 0 for p, one in learners.items()}
        for stage in range(len(self.runs[group[0]].stream)):
            if deadline is not None and time.monotonic() > deadline:
                return
            here = [p for p in group if first[p] <= stage and learners[p].diverged < 0]
            for part in self._same_state(here, learners):
                report = progress(part, stage) if progress else None
                yield from self._stage(part, learners, stage, mapped, report)

    def _stage(
        self,
        places: Sequence[int],
        learners: dict[int, Learner],
        stage: int,
        mapped: bool,
        progress: Progress | None,
    ) -> Iterator[Stage]:
        """Train those that differ, copy the rest."""
        followers = {place: list[int]() for place in places}
        if not self.runs[places[0]].training.evaluate_every:  # curves are a run's own
            # whoever is inside the task leads: it has the shortest way to go
            farthest = sorted(places, key=lambda place: learners[place].midway is None)
            followers = self._prefixes.leaders(farthest, self.runs, stage)
        done: list[Stage] = []
        for one in self._at_their_places(list(followers), learners, stage, mapped, progress):
            done.append(one)
            for place in followers[one.run]:
                copy_learner(one.learner, learners[place])
                done.append(Stage(place, stage, one.outcome, learners[place]))
        yield from self._own_scores(done, {p for many in followers.values() for p in many})

    def _at_their_places(
        self, places: Sequence[int], learners: dict[int, Learner], stage: int, mapped: bool,
        progress: Progress | None,
    ) -> Iterator[Stage]:  # fmt: skip
        """Runs that were interrupted inside the task go on with those that were as far."""
        parts: dict[Any, list[int]] = {}
        if not mapped:
            parts[()] = list(places)
        for place in places if mapped else ():
            midway = learners[place].midway
            logs = [] if midway is None else [entry[0] for entry in midway.facts["logs"]]
            where = () if midway is None else (*midway.position, *logs)
            parts.setdefault(where, []).append(place)
        for part in parts.values():
            yield from self._split(part, learners, stage, mapped, progress)

    def _own_scores(self, done: list[Stage], copied: set[int]) -> Iterator[Stage]:
        """Copies are evaluated on their own stream, whose tasks stand in another order."""
        again = [one for one in done if one.run in copied]
        if again:
            methods = [self.runs[one.run].method for one in again]
            learners, features = [one.learner for one in again], self._features(again)
            for one, found in zip(
                again, answers(learners, methods, features=features), strict=True
            ):
                one.outcome = replace(one.outcome, **found._asdict())
        share = sum(one.outcome.seconds for one in done if one.run not in copied) / len(done)
        for place, one in enumerate(done):
            one.outcome = replace(one.outcome, seconds=share)
            one.last_of_group = place == len(done) - 1
            yield one

    def _features(self, done: Sequence[Stage]) -> bool:
        """Whether anyone asks for features of the test items."""
        return any(self.runs[one.run].features for one in done)

    def _same_state(self, places: Sequence[int], learners: dict[int, Learner]) -> list[list[int]]:
        """Groups whose method states can be stacked (they always can, unless a resume differs)."""
        found: dict[Any, list[int]] = {}
        for place in places:
            found.setdefault(shapes(learners[place].state), []).append(place)
        return list(found.values())

    def _split(
        self, places: Sequence[int], learners: dict[int, Learner], stage: int, mapped: bool,
        progress: Progress | None,
    ) -> Iterator[Stage]:  # fmt: skip
        """One stage; when memory runs out, the two halves of the group go on alone."""
        chosen = [learners[p] for p in places]
        methods = [self.runs[p].method for p in places]
        before = [Kept(one) for one in chosen]
        try:
            outcomes = run_stage(
                chosen, methods, self.runs[places[0]].training, stage, mapped=mapped,
                capture=self.capture, compile=self.compile, progress=progress, saver=self._saver,
                places=places, features=any(self.runs[p].features for p in places),
            )  # fmt: skip
        except torch.OutOfMemoryError:
            if len(places) == 1:
                raise
            for kept in before:
                kept.restore()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            half = len(places) // 2
            yield from self._split(places[:half], learners, stage, mapped, progress)
            yield from self._split(places[half:], learners, stage, mapped, progress)
            return
        for place, learner, outcome in zip(places, chosen, outcomes, strict=True):
            yield Stage(place, stage, outcome, learner)
