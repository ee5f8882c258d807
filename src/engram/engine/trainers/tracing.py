"""A lockstep step as one compiled function: element-wise passes are fused into few kernels.

The step is first traced with its mapping and differentiation worked out, then handed to
``torch.compile``. A trace is a list of tensor operations; equal traces on equal shapes share one
compiled function, so later stages and other seeds do not compile again.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from engram.errors import bad
from engram.models.context import PLAIN

COMPILERS = ("g++", "clang++", "c++", "cl")
_KNOWN: dict[Any, Callable[..., Any]] = {}


def need_compiler(device: torch.device) -> None:
    """Refuse to compile where nothing can: Triton for CUDA, a C++ compiler for the CPU."""
    if device.type == "cuda":
        found = importlib.util.find_spec("triton") is not None
        wanted = "False, because the package triton is not installed"
    else:
        found = any(map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS)))
        wanted = f"False, because no C++ compiler was found ({', '.join(COMPILERS)} or $CXX)"
    if not found:
        raise bad("compile", wanted, True)


class Compiled:
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
                warnings.warn(
                    f"a step could not be compiled and runs uncompiled: {reason}", stacklevel=2
                )
                run, inputs = self._step, list(self._places())
                self._traces[self._key(inputs)] = None
                run(*inputs)
            self._run, self._inputs = run, inputs

    def forget(self) -> None:
        """Look again: shapes or static choices changed."""
        self._run, self._inputs, self._warm = None, [], False

    def _key(self, places: Sequence[Tensor]) -> tuple[Any, ...]:
        return self._decides(), tuple(map(_kind, places)), _settings()

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
            constants = _lift(graph)
            known[key] = _compiled(graph, [*places, *constants]), constants
        found = known[key]
        return (self._step, places) if found is None else (found[0], [*places, *found[1]])


def _compiler_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    return TorchDynamoException, InductorError


def _compiled(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    key = (graph.code, tuple(map(_kind, inputs)), _settings())
    if key not in _KNOWN:
        _KNOWN[key] = torch.compile(graph.forward, fullgraph=True, dynamic=False)
    return _KNOWN[key]


def _lift(graph: fx.GraphModule) -> list[Tensor]:
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


def _kind(one: Tensor) -> tuple[Any, ...]:
    return tuple(one.shape), one.stride(), one.dtype, one.device


def _settings() -> tuple[Any, ...]:
    """Settings of torch that compiled code depends on."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    exact = torch.are_deterministic_algorithms_enabled()
    return matmul.allow_tf32, cudnn.allow_tf32, torch.get_num_threads(), exact
