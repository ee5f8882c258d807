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
from engram.engine.trainers.step import StepTensors
from engram.engine.training import Training
from engram.errors import bad
from engram.learner.learner import RunLearner
from engram.learner.structural_key import ByIdentity, structural_key
from engram.learner.tensor_tree import leaves, tree_map, tree_shapes
from engram.methods.method import Method
from engram.models.forward_pass import PLAIN


class CompiledTrainer(LockstepTrainer):
    """A `LockstepTrainer` whose step is one compiled function of its `StepTensors`."""

    lists_frozen = False  # use a mask, since the length of a list changes as classes open
    caches_teachers = False  # a trace must be valid for all stages
    _records = True

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
        t, device = self.tensors, learners[0].device
        powers = self.optimizer.powers(t.opt["t"])  # [2, R] of the step to come
        t.corrections = {
            "unit": torch.ones_like(t.lr), "powers": powers,
            "scales": self.optimizer.scales(powers, t.lr),
        }  # fmt: skip
        self._betas = torch.tensor(training.betas, dtype=torch.float64, device=device)[:, None]
        self._fetches = not learners[0].feed.on_device
        self._compiled: dict[tuple[int, ...], CompiledStep] = {}  # by the periods that end

    def load(self, rows: StepRows, fixed: bool) -> None:
        before, t = self._rows, self.tensors
        super().load(rows, fixed)
        if self._rows is not before:  # other shapes
            t.rows = tree_map(torch.clone, super()._step_rows())
        if t.batch is not None and not self._fetches:
            # read by address, so no leaf may be a broadcast view
            t.batch = tree_map(_make_dense, t.batch)

    def run(self, start: int, stop: int, lr: np.ndarray, live: np.ndarray) -> None:
        t = self.tensors
        self._set_rates(lr[:, 0])
        t.corrections["powers"].copy_(self.optimizer.powers(t.opt["t"] + 1))
        self._scale_ahead()
        super().run(start, stop, lr, live)

    def _set_rates(self, lr: np.ndarray) -> None:
        changed = not np.array_equal(lr, self._lr)
        super()._set_rates(lr)
        if changed:
            self._scale_ahead()

    def _scale_ahead(self) -> None:
        """Compute Adam's corrections of the next step."""
        given = self.tensors.corrections
        given["scales"].copy_(self.optimizer.scales(given["powers"], self.tensors.lr))

    def _forget(self) -> None:
        super()._forget()
        self._compiled.clear()

    def _step(self) -> None:
        """Select the rows of a step outside of the trace, which does not depend on their number."""
        t = self.tensors
        if (t.batch is None or self._recall.own) and t.rows is not None:
            found = select_step(self._rows, t.number)  # type: ignore[arg-type]
            for place, value in zip(leaves(t.rows), leaves(found), strict=True):
                place.copy_(value)
        due = self._due()
        if due not in self._compiled:
            self._compiled[due] = CompiledStep(
                self._step_on, self._inputs, self._decides, self.networks.traces
            )
        self._compiled[due]()

    def _step_rows(self) -> StepRows:
        rows = self.tensors.rows
        return rows if rows is not None else super()._step_rows()

    def _rate(self) -> float | Tensor | None:
        return None  # an update without a fused kernel fuses with the operations around it

    def _update_each(self, grad: Tensor) -> None:
        """Update so that all loops over [R, P] have the same shape, and fuse.

        That is what the factor of 1 per run is for. Corrections are computed in the previous step,
        since in such a loop they would be computed for every parameter.
        """
        t, given = self.tensors, self.tensors.corrections
        grad = grad * given["unit"][:, None]
        self.optimizer.update_(t.vector, grad, t.opt, t.lr, given["scales"])
        given["powers"].mul_(self._betas)
        given["scales"].copy_(self.optimizer.scales(given["powers"], t.lr))

    # -- the step as a function of tensors -------------------------------------------------------
    def _tree(self) -> dict[str, Any]:
        """Return all tensors that may differ between steps, stages or groups."""
        return {"step": self.tensors.tree(), "collate": self.collate.tensors()}

    def _inputs(self) -> list[Tensor]:
        return list(leaves(self._tree()))

    def _decides(self) -> tuple[Any, ...]:
        """Return what a trace depends on besides shapes; the networks hold the traces."""
        return (
            structural_key(self.method), self.training, tree_shapes(self._tree()),
            ByIdentity(self.collate.feed), self.collate.alone, self.verbs.padded,
            self.verbs.touches, self.phase, tuple(self.moving.names), self._recall, self._due(),
        )  # fmt: skip

    def _step_on(self, *tensors: Tensor) -> None:
        """Take one step on the given tensors instead of the trainer's own."""
        rest, twin = iter(tensors), copy.copy(self)
        given = tree_map(lambda _: next(rest), self._tree())
        twin.tensors = StepTensors.from_tree(given["step"])
        twin.collate = self.collate.with_tensors(given["collate"])
        super(CompiledTrainer, twin)._step()
        sums = self.tensors.sums
        sums.update((k, v) for k, v in twin.tensors.sums.items() if k not in sums)


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
                    warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")
                    run(*inputs)  # torch compiles here, before anything is computed
            except _compiler_errors() as error:
                # the first line only names the compiler
                reason = " ".join(str(error).split("\n\n")[0].split()[:60])
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
