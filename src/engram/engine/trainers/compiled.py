"""`CompiledTrainer`: runs in lockstep whose step is traced and fused by torch.compile.

A trace is valid for all stages, seeds and groups whose tensors have the same shapes. Therefore
everything whose shape changes from stage to stage stays outside of it.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from engram.engine.batches import select_step
from engram.engine.sampler import StepRows
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.learner import RunLearner
from engram.learner.structural_key import ByIdentity, structural_key
from engram.learner.tensor_tree import leaves, tree_map, tree_shapes
from engram.methods.method import Method
from engram.models.forward_pass import PLAIN

OPTIONAL_FIELDS = ("fixed_batch", "_now", "_free", "_restore_all", "whole")


class CompiledTrainer(LockstepTrainer):
    """A `LockstepTrainer` whose step is one compiled function of the tensors it uses."""

    lists_frozen = False  # use a mask, since the length of a list changes as classes open
    caches_teachers = False  # a trace must be valid for all stages

    def __init__(
        self,
        learners: Sequence[RunLearner],
        methods: Sequence[Method],
        training: Training,
        *,
        capture: bool = False,
        slots: int = 0,
        phase: str = "task",
    ) -> None:
        super().__init__(learners, methods, training, capture=capture, slots=slots, phase=phase)
        self._unit = torch.ones_like(self.lr)  # [R]
        self._powers = self.optimizer.powers(self.opt["t"])  # [2, R] of the step to come
        self._scales = self.optimizer.scales(self._powers, self.lr)
        self._betas = torch.tensor(training.betas, device=self.lr.device).double()[:, None]
        self._now: StepRows | None = None  # the rows of one step, at fixed addresses
        self._fetches = not learners[0].feed.on_device
        traces = self.networks.traces
        self._compiled = CompiledStep(self._step_on, self._places, self._decides, traces)
        self._compiled_interval = CompiledStep(
            self._interval_on, self._interval_places, self._interval_decides, traces
        )

    def load(self, rows: StepRows, fixed: bool) -> None:
        before = self._rows
        super().load(rows, fixed)
        if self._rows is not before:  # other shapes
            self._now = tree_map(torch.clone, super()._step_rows())
        if (
            self.fixed_batch is not None and not self._fetches
        ):  # read by address, so no leaf may be a broadcast view
            self.fixed_batch = tree_map(_make_dense, self.fixed_batch)

    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        rates = torch.as_tensor(lr, dtype=self.lr.dtype, device=self.lr.device)
        self._powers.copy_(self.optimizer.powers(self.opt["t"] + 1))
        self._scales.copy_(self.optimizer.scales(self._powers, rates))
        super().run(start, stop, lr, live)

    def _forget(self) -> None:
        super()._forget()
        self._compiled.forget()
        self._compiled_interval.forget()

    def _repeated(self) -> tuple[Callable[[], None], Callable[[], None]]:
        return self._one, self._one_interval

    def _one(self) -> None:
        """Select the rows of a step outside of the trace, which does not depend on their number."""
        if (self.fixed_batch is None or self.verbs.remembers) and self._now is not None:
            found = select_step(self._rows, self.step_number)  # type: ignore[arg-type]
            for place, value in zip(leaves(self._now), leaves(found), strict=True):
                place.copy_(value)
        self._compiled()

    def _one_interval(self) -> None:
        self._compiled_interval()

    def _step_rows(self) -> StepRows:
        return self._now if self._now is not None else super()._step_rows()

    def _update_uniform(self, total: Tensor) -> None:
        """Update without a fused optimiser kernel, so that it fuses with surrounding operations.

        The factor of 1 per run gives all loops over [R, P] the same shape, so that they fuse.
        Scales are computed in the previous step, since in such a loop they would be computed for
        every parameter.
        """
        total = total * self._unit[:, None]
        self.optimizer.update_(self.vector, total, self.opt, self.lr, self._scales)
        self._powers.mul_(self._betas)
        self._scales.copy_(self.optimizer.scales(self._powers, self.lr))

    # -- the step as a function of tensors -------------------------------------------------------
    def _tensors(self) -> dict[str, Any]:
        """Return all tensors that may differ between steps, stages or groups."""
        found = {name: getattr(self, name) for name in OPTIONAL_FIELDS}
        return {
            "vector": self.vector, "buffers": self.buffers, "state": self.state, "opt": self.opt,
            "lr": self.lr, "live": self.live, "step_number": self.step_number, "sums": self.sums,
            "hyper": self.hyper, "_unit": self._unit, "_powers": self._powers,
            "_scales": self._scales, "collate": self.collate.tensors(),
            **{name: () if value is None else value for name, value in found.items()},
        }  # fmt: skip

    def _places(self) -> list[Tensor]:
        return list(leaves(self._tensors()))

    def _decides(self) -> tuple[Any, ...]:
        """Return what a trace depends on besides shapes; the networks hold the traces."""
        return (
            structural_key(self.method), self.training, tree_shapes(self._tensors()),
            ByIdentity(self.collate.feed),
            self.collate.alone, self.verbs.padded, self._uniform, self.verbs.touches,
            self.verbs.phase, tuple(self.moving.names),
        )  # fmt: skip

    def _step_on(self, *tensors: Tensor) -> None:
        """Take one step on the given tensors instead of the trainer's own."""
        twin = self._twin(self._tensors(), tensors)
        twin._step()
        self.sums.update((k, v) for k, v in twin.sums.items() if k not in self.sums)

    def _twin(self, own: dict[str, Any], tensors: Sequence[Tensor]) -> CompiledTrainer:
        """Return a copy of the trainer with the given tensors."""
        rest, twin = iter(tensors), copy.copy(self)
        given = tree_map(lambda _: next(rest), own)
        if "collate" in given:
            twin.collate = self.collate.with_tensors(given.pop("collate"))
        for name, value in given.items():
            absent = isinstance(value, tuple) and not value
            setattr(twin, name, None if absent else value)
        return twin

    # -- an interval as a function of tensors ----------------------------------------------------
    def _interval_tensors(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("vector", "state", "hyper", "live")}

    def _interval_places(self) -> list[Tensor]:
        return list(leaves(self._interval_tensors()))

    def _interval_decides(self) -> tuple[Any, ...]:
        """Like `_decides`; the first entry distinguishes these traces from those of steps."""
        found = self._interval_tensors()
        return "interval", structural_key(self.method), tree_shapes(found), self._uniform

    def _interval_on(self, *tensors: Tensor) -> None:
        self._twin(self._interval_tensors(), tensors)._interval()


def _make_dense(leaf: Tensor) -> Tensor:
    return leaf.clone()  # keeps a dense order of axes, makes others contiguous


# -- compiling a lockstep step: element-wise passes are fused into few kernels ---------------------
# The step is traced with mapping and differentiation already applied, then passed to
# ``torch.compile``. Equal traces on equal shapes share one compiled function, so later stages and
# other seeds do not compile again.

COMPILERS = ("g++", "clang++", "c++", "cl")
_KNOWN: dict[Any, Callable[..., Any]] = {}


def check_compiler(device: torch.device) -> None:
    """Refuse to compile where nothing can: Triton for CUDA, a C++ compiler for the CPU."""
    if device.type == "cuda":
        found = importlib.util.find_spec("triton") is not None
        wanted = "False, because the package triton is not installed"
    else:
        found = any(map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS)))
        wanted = f"False, because no C++ compiler was found ({', '.join(COMPILERS)} or $CXX)"
    if not found:
        raise bad("compile", wanted, True)


class CompiledStep:
    """Calls `step` eagerly once, then traces and compiles it.

    Parameters
    ----------
    step
        ``step(*tensors)`` does everything in place on its arguments and returns nothing.
    places
        Gives the tensors. The step may read others too, such as the data, if those never change.
    decides
        Gives whatever else the trace depends on; equal answers with equal shapes share a trace.
    traces
        Steps compiled before, None for those that torch cannot compile; kept by the owner of what
        they read besides `places`.
    """

    def __init__(
        self,
        step: Callable[..., None],
        places: Callable[[], Sequence[Tensor]],
        decides: Callable[[], tuple[Any, ...]],
        traces: dict[Any, tuple[Callable[..., Any], list[Tensor]] | None],
    ) -> None:
        self._step, self._places, self._decides = step, places, decides
        self._traces = traces
        self._warm = False
        self._run: Callable[..., Any] | None = None
        self._inputs: list[Tensor] = []

    def __call__(self) -> None:
        with torch.no_grad():
            if not self._warm:  # lets sums appear and caches fill, so that a trace is complete
                self._step(*self._places())
                self._warm = True
                return
            if self._run is not None:
                self._run(*self._inputs)
                return
            run, inputs = self._compile()
            try:
                with warnings.catch_warnings():
                    # precision is a setting of the training; torch need not recommend another
                    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
                    run(*inputs)  # torch compiles here, before anything is computed
            except _compiler_errors() as error:
                reason = str(error).strip().splitlines()[0]
                text = f"a step could not be compiled and runs without: {reason}"
                warnings.warn(text, stacklevel=2)
                run, inputs = self._step, list(self._places())
                self._traces[self._key(inputs)] = None
                run(*inputs)
            self._run, self._inputs = run, inputs

    def forget(self) -> None:
        """Look again: shapes or static choices changed."""
        self._run, self._inputs, self._warm = None, [], False

    def _key(self, places: Sequence[Tensor]) -> tuple[Any, ...]:
        return self._decides(), tuple(map(_tensor_kind, places)), _torch_settings()

    def _compile(self) -> tuple[Callable[..., Any], list[Tensor]]:
        places, known = list(self._places()), self._traces
        key = self._key(places)
        if key not in known:
            from torch.fx.experimental.proxy_tensor import make_fx  # takes a second to import

            # tracing runs the step for real, on copies; a trace cannot hold kernels of our own
            token = PLAIN.set(True)
            try:
                graph = make_fx(self._step)(*(place.clone() for place in places))
            finally:
                PLAIN.reset(token)
            constants = _lift_constants(graph)
            known[key] = _compile_graph(graph, [*places, *constants]), constants
        found = known[key]
        return (self._step, places) if found is None else (found[0], [*places, *found[1]])


def _compiler_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    return TorchDynamoException, InductorError


def _compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    key = (graph.code, tuple(map(_tensor_kind, inputs)), _torch_settings())
    if key not in _KNOWN:
        _KNOWN[key] = torch.compile(graph.forward, fullgraph=True, dynamic=False)
    return _KNOWN[key]


def _lift_constants(graph: fx.GraphModule) -> list[Tensor]:
    """Make every constant of a traced graph an argument; returns their values in order."""
    found: dict[str, fx.Node] = {}
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in found:
            with graph.graph.inserting_after(last):
                last = found[node.target] = graph.graph.placeholder(f"constant_{len(found)}")
        node.replace_all_uses_with(found[node.target])
        graph.graph.erase_node(node)
    values = [getattr(graph, name) for name in found]
    for name in found:  # compiled functions outlive the data, so they must not hold it
        delattr(graph, name)
    graph.recompile()
    return values


def _tensor_kind(one: Tensor) -> tuple[Any, ...]:
    return tuple(one.shape), one.stride(), one.dtype, one.device


def _torch_settings() -> tuple[Any, ...]:
    """Settings of torch that compiled code depends on."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    exact = torch.are_deterministic_algorithms_enabled()
    return matmul.allow_tf32, cudnn.allow_tf32, torch.get_num_threads(), exact
