"""`RunGrouping`: which runs can train together, and whether they are mapped or run one by one, by
rule or by measurement.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from engram.engine import backend
from engram.engine.backend import resolve_device, training_numerics
from engram.engine.factory import LearnerFactory, has_tiny_steps
from engram.engine.hyperparameters import explain_apart, varying_values
from engram.engine.loop import PhaseTraining, open_task
from engram.engine.phases import list_phases, prepare_phase
from engram.engine.pretraining import PRETRAINING_STAGE, declared_pretraining, pending_pretraining
from engram.engine.run_definition import Run
from engram.engine.trainers.compiled import check_compiler
from engram.errors import bad, check_int, is_out_of_memory
from engram.learner import torch_startup
from engram.learner.learner import RunLearner
from engram.learner.parameter_layout import Networks
from engram.learner.structural_key import ByIdentity, structural_key
from engram.methods.method import Method

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# the choice between lockstep and one run after another
CLEAR_MARGIN = 0.15  # of time that the other way must save, so that noise does not decide
LEAST_STEPS = 400  # of each run, so that the measurement takes less than a twentieth of the time
TIMED_RUNS, TIMED_STEPS, TIMED_REPEATS = 32, 2, 3


class ExecutionMode(NamedTuple):
    """How a group of runs is trained on a task."""

    mapped: bool
    width: int  # number of runs that train at once


class MeasuredMode(NamedTuple):
    """How a group of runs trains whose way was left open, and why."""

    places: list[int]
    mapped: bool
    ratio: float  # time of a run's step in lockstep over that alone; NaN where it was known before


class RunGrouping:
    """Decide which runs train in lockstep, and share equal networks and data between runs.

    Parameters
    ----------
    together
        True: runs of equal shapes in lockstep; False: one after the other; None: whichever should
        be faster, by the size of a step, or is, after `measure_modes`.
    capture
        Replay steps as CUDA graphs; None: on CUDA.
    compile
        Fuse the operations of a step with ``torch.compile``, which takes seconds to a minute per
        kind of step and pays off in long runs; single runs are mapped, too. Networks whose layers
        have custom CUDA kernels are not compiled and train one run at a time.
    plan_for
        Device type for which to decide, for planning on another machine; by default that of
        `device`.
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
        plan_for: str = "",
    ) -> None:
        if not runs:
            raise bad("runs", "at least one run", "none")
        self.runs = list(runs)
        self.device = resolve_device(device)
        self.together = together
        self.capture = self.device.type == "cuda" if capture is None else capture
        self.compile = compile
        self.kind = plan_for or self.device.type
        if compile and not plan_for:
            check_compiler(self.device)
        self.group_size = check_int("group_size", group_size)
        # channels-last is fastest unless mapped: mapped convolutions need contiguous images
        self._factory = LearnerFactory(
            self.device, channels_last=not together and not compile,
            fused=not together and self.device.type == "cuda",
        )  # fmt: skip
        self._kin: dict[ByIdentity, Any] = {}
        self._declared: dict[Any, Any] = {}  # runs of a study share their method
        self._measured: dict[int, bool] = {}  # by the first run of a group: whether it is mapped

    def networks(self, run: Run) -> Networks:
        """Return the networks of a run with their initial weights."""
        return self._factory.networks(run)

    def learner(self, run: Run) -> RunLearner:
        """Make a new learner for a run."""
        made = self._factory.learner(run)
        made.scores_unseen = run.unseen
        return made

    def groups(self) -> list[list[int]]:
        """Return the numbers of the runs of each group that trains together."""
        return [list(group) for group in self._groups]

    def compatibility_key(self, run: Run) -> Any:
        """Return what runs must have in common to train together; raise for an invalid run."""
        key = ByIdentity(run)
        if key not in self._kin:
            self._kin[key] = (
                self._factory.shape(run),
                _shared_settings(run, self._factory.skeleton(run)),
                run.scope,
                len(run.stream),
                ByIdentity(self._factory.feed(run)),
                len(run.stream.order),
                self._of_method(run),
            )
        return self._kin[key]

    def _of_method(self, run: Run) -> Any:
        key = ByIdentity(run.method), len(run.stream)
        if key not in self._declared:
            self._declared[key] = _method_declarations(run.method, len(run.stream))
        return self._declared[key]

    @cached_property  # needed more than once, and thousands of runs are compared
    def _groups(self) -> list[list[int]]:
        found: dict[Any, list[list[int]]] = {}
        for place, run in enumerate(self.runs):
            for group in found.setdefault(self.compatibility_key(run), []):
                fits = not self.group_size or len(group) < self.group_size
                if fits and varying_values([self.runs[group[0]].method, run.method]) is not None:
                    group.append(place)
                    break
            else:
                found[self.compatibility_key(run)].append([place])
        for groups in found.values():
            self._warn_of_undeclared(groups)
        return [group for groups in found.values() for group in groups]

    def _warn_of_undeclared(self, groups: Sequence[Sequence[int]]) -> None:
        """Say once what would let groups of equal shapes train together."""
        if self.together is False or self.group_size or len(groups) == 1:
            return
        first, other = (groups[place][0] for place in (0, 1))
        why = explain_apart([self.runs[first].method, self.runs[other].method])
        # if they would not train together anyway, there is nothing to say
        if why and not self._factory.skeleton(self.runs[first]).unmappable:
            if self.maps([first, other]):
                warnings.warn(why, stacklevel=2)

    def maps(self, group: Sequence[int]) -> bool:
        """Whether a group trains in lockstep."""
        run = self.runs[group[0]]
        if reasons := self._factory.skeleton(run).unmappable:
            several = len(group) > 1 and self.together is not False
            if several or self.together or self.compile:
                how = "one run at a time" + (" and is not compiled" if self.compile else "")
                warnings.warn(f"the model trains {how}: {'; '.join(reasons)}", stacklevel=2)
            return False
        if self.compile:
            return True
        if len(group) == 1 or self.together is False:
            return False
        if self.together or self.kind == "cuda":
            return True
        return self._measured.get(group[0], self._tiny(group))

    # -- choosing by measurement ------------------------------------------------------------------
    def measure_modes(self, known: Mapping[int, bool] | None = None) -> list[MeasuredMode]:
        """Choose by the time of some steps how groups train on the CPU whose way is left open.

        The steps are those of the first task, of learners made for this. The rule by the size of a
        step holds unless the other way saves a clear part of the time. `known` says of runs whether
        they were mapped before, which then stays so.

        Examples
        --------
        >>> from engram.methods import Finetune
        >>> from engram import class_incremental, load
        >>> from engram.engine.training import Training
        >>> stream, long = class_incremental(load("blobs")), Training(epochs=100)
        >>> runs = [Run(stream=stream, method=Finetune(), training=long, seed=s) for s in (0, 1)]
        >>> grouping = RunGrouping(runs, device="cpu")
        >>> (found,) = grouping.measure_modes()
        >>> found.mapped == grouping.maps([0, 1]) and found.ratio > 0
        True
        """
        return [one for group in self.groups() if (one := self._measure_group(group, known or {}))]

    def _measure_group(self, group: list[int], known: Mapping[int, bool]) -> MeasuredMode | None:
        if not self._is_open(group):
            return None
        before = {known[place] for place in group if place in known}
        if len(before) == 1:
            found = MeasuredMode(group, before.pop(), math.nan)
        else:
            timed = group[:TIMED_RUNS]
            # equally much work, so that what else the machine does slows both alike
            alone = self._seconds_of_step(timed[:1], False, len(timed))
            mapped = self._seconds_of_step(timed, True)
            if not (alone and mapped):
                return None
            found = MeasuredMode(group, _prefers_lockstep(mapped / alone, self._tiny(group)),
                                 mapped / alone)  # fmt: skip
        self._measured[group[0]] = found.mapped
        return found

    def _is_open(self, group: Sequence[int]) -> bool:
        """Whether a group may train either way, and long enough for a measurement."""
        run = self.runs[group[0]]
        if len(group) == 1 or self.together is not None or self.compile or self.kind != "cpu":
            return False
        if self._factory.skeleton(run).unmappable or pending_pretraining(run) is not None:
            return False
        return self._factory.feed(run).on_device and _count_steps(run) >= LEAST_STEPS

    def _seconds_of_step(self, group: Sequence[int], mapped: bool, times: int = 1) -> float:
        """Return the seconds of a step for each run of a group; 0 if they cannot be measured.

        Steps are taken so many `times` before the clock is read.
        """
        learners = [self.learner(self.runs[place]) for place in group]
        methods, training = [self.runs[p].method for p in group], self.runs[group[0]].training
        phases = list_phases(methods[0], 0, learners[0].networks)
        if not phases or phases[0][0]:
            return 0.0
        number, phase = phases[0]
        backend.set_threads(learners, training, mapped=mapped)
        (torch_startup.warm_up_mapped if mapped else torch_startup.warm_up)(self.device)
        # with one thread, its own time: what else runs on the machine does not count
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        try:
            with training_numerics(training.precision):
                open_task(learners, methods, training, 0, mapped=mapped)
                with prepare_phase(learners, training, phase, number, False) as (settings, _):
                    now = PhaseTraining(
                        learners, methods, settings, phase, number, mapped=mapped,
                        rates=[self.runs[place].training.lr for place in group],
                    )  # fmt: skip
                    now.load(0)
                    steps, spent = min(TIMED_STEPS, now.live.shape[1]), list[float]()
                    for _ in range(1 + TIMED_REPEATS):  # the first warms up
                        began = clock()
                        for _ in range(times):
                            now.trainer.run(0, steps, now.rates(0, steps), now.live)
                        spent.append(clock() - began)
                    now.trainer.close()
        except (RuntimeError, MemoryError) as problem:
            if is_out_of_memory(problem):
                return 0.0
            raise
        return min(spent[1:]) / (steps * len(group) * times) if steps else 0.0

    def runs_separately(self, group: Sequence[int], stage: int = PRETRAINING_STAGE) -> bool:
        """Whether mapped runs go one by one all the same, in the prologue or in a task.

        Mapped convolutions become grouped ones, which CUDA does more slowly than one after the
        other (measured for 3 runs of the CIFAR network). A task that is learnt from latents has
        none where the root has them all.
        """
        if self.together is not None:
            return not self.together
        if self.kind == "cuda":
            return self._convolves(group, stage)
        return self.compile and not self._tiny(group)

    def _convolves(self, group: Sequence[int], stage: int) -> bool:
        run = self.runs[group[0]]
        networks = self._factory.skeleton(run)
        latent = stage != PRETRAINING_STAGE and run.method.replay(stage).latent
        root = networks.root_prefixes if latent else ()
        return any(
            isinstance(one, CONVOLUTIONS) and not f"{name}.".startswith(root)
            for name, one in networks.train.named_modules()
        )

    def _compiles_alone(self, group: Sequence[int], stage: int) -> bool:
        """Whether the compiled step of a run alone is mapped; fused layers are not."""
        run = self.runs[group[0]]
        fused = self.kind == "cuda" and self._factory.skeleton(run).fusable
        return self.compile and not (fused and self._convolves(group, stage))

    def _execution_modes(self, group: Sequence[int]) -> dict[int, ExecutionMode]:
        """For each task of a group: whether runs are mapped, and how many go on at once."""
        run, maps = self.runs[group[0]], self.maps(group)
        first = 0 if pending_pretraining(run) is None else PRETRAINING_STAGE
        found = {}
        for stage in range(first, len(run.stream)):
            if maps and not self.runs_separately(group, stage):
                found[stage] = ExecutionMode(True, len(group))
            elif maps and self._compiles_alone(group, stage):
                found[stage] = ExecutionMode(True, 1)
            else:  # a single run gains nothing else from being mapped
                found[stage] = ExecutionMode(False, 1)
        return found

    def lockstep(self, group: Sequence[int]) -> bool:
        """Whether several runs of a group train at once, in some task at least."""
        return any(way.mapped and way.width > 1 for way in self._execution_modes(group).values())

    def lockstep_groups(self) -> list[list[int]]:
        """Return the numbers of the runs of each group of which several train at once.

        Halves of a group that did not fit into memory are decided on later.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what trains alone is warned of when it trains
            return [group for group in self.groups() if len(group) > 1 and self.lockstep(group)]

    def _tiny(self, group: Sequence[int]) -> bool:
        run = self.runs[group[0]]
        return has_tiny_steps(run, self._factory.skeleton(run))

    def parameters(self, run: Run) -> int:
        """How many numbers a run trains."""
        return len(self._factory.skeleton(run).layout)

    def parts(self) -> Iterator[tuple[list[int], dict[int, ExecutionMode]]]:
        """Places of runs that go together, and in which way in each task.

        The prologue is task -1. In a task in which runs are not mapped, each goes for itself.
        """
        for group in self.groups():
            ways = self._execution_modes(group)
            width = max(way.width for way in ways.values())
            for start in range(0, len(group), width):
                yield group[start : start + width], ways


def _count_steps(run: Run) -> int:
    """Count the steps of all tasks, without further phases of a method."""
    found = 0
    for stage, task in enumerate(run.stream.tasks):
        epochs, iterations = run.training.length(stage)
        found += iterations or epochs * run.training.count_epoch_steps(len(task.train))
    return found


def _prefers_lockstep(ratio: float, usual: bool) -> bool:
    """Whether to map, by the time of lockstep over that alone; `usual` unless it loses clearly.

    Examples
    --------
    >>> [_prefers_lockstep(ratio, usual=True) for ratio in (0.5, 1.1, 1.5)]
    [True, True, False]
    >>> [_prefers_lockstep(ratio, usual=False) for ratio in (0.5, 0.9, 1.5)]
    [True, False, False]
    """
    if usual:
        return ratio * (1 - CLEAR_MARGIN) < 1
    return ratio < 1 - CLEAR_MARGIN


def _method_declarations(method: Method, tasks: int) -> Any:
    """What a method says before it trains; floats that differ may decide it."""
    stages = range(tasks)
    replays = [method.replay(k) for k in stages]
    # functions are bound to methods, which are compared for themselves
    phases = [
        [(replace(one, before=None), one.before is None) for one in method.phases(k)]
        for k in stages
    ]
    # the host fills memories run by run; only a reservoir on the device must have one size for all
    budget = method.memory if any(one.renew == "step" for one in replays) else None
    before = declared_pretraining(method)
    rhythm = before and (before.iterations, before.batch_size, before.lr)
    return structural_key((method.reads, budget, replays, phases, rhythm))


def _shared_settings(run: Run, networks: Networks) -> Any:
    """The settings that runs must share: learning rates may differ, unless others depend on them.

    A further network has a multiple of the rate, and a prologue may have the rate itself.
    """
    depends = declared_pretraining(run.method) is not None or any(
        n.lr for n in networks.settings.values()
    )
    own = vars(run.training)
    return tuple(value for name, value in own.items() if depends or name != "lr")
