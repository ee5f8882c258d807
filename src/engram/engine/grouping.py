"""`RunGrouping`: which runs can train together, and whether they are mapped or run one by one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from engram.engine.backend import resolve_device
from engram.engine.factory import LearnerFactory, has_tiny_steps
from engram.engine.hyperparameters import explain_apart, varying_values
from engram.engine.pretraining import PRETRAINING_STAGE, declared_pretraining, pending_pretraining
from engram.engine.run_definition import Run
from engram.engine.trainers.compiled import check_compiler
from engram.errors import bad, check_int
from engram.learner.learner import RunLearner
from engram.learner.parameter_layout import Networks
from engram.learner.structural_key import ByIdentity, structural_key
from engram.methods.method import Method

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class ExecutionMode(NamedTuple):
    """How a group of runs is trained on a task."""

    mapped: bool
    width: int  # number of runs that train at once


class RunGrouping:
    """Decide which runs train in lockstep, and share equal networks and data between runs.

    Parameters
    ----------
    together
        True: runs of equal shapes in lockstep; False: one after the other; None: whichever is
        faster.
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

    def networks(self, run: Run) -> Networks:
        """Return the networks of a run with their initial weights."""
        return self._factory.networks(run)

    def learner(self, run: Run) -> RunLearner:
        """Make a new learner for a run."""
        return self._factory.learner(run)

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
        return self._tiny(group)

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
