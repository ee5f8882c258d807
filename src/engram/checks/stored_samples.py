"""Samples outside the memory: inputs that lie in anything else a method holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.checks.report import DoesNotApply, require
from engram.checks.tamed import tame, tight
from engram.checks.task_start import spied
from engram.checks.toys import clouds, runs_of, same, train
from engram.data.core import Data
from engram.engine.engine import Engine
from engram.learner.learner import Learner
from engram.learner.tree import flatten, shapes, tree_map
from engram.methods.base import Method
from engram.streams import class_incremental

SIZES = (20, 12, 24, 16, 28, 9)
SAMPLE = (2, 8, 3)  # 48 numbers: as many do not agree by chance, in whatever scale they are kept
ALIKE = 0.995  # correlation; half precision and bytes stay above, a class mean is far below
FEW = 2  # a gradient of one row is that row times a number; two rows are no accident
MOST = 1 << 20  # entries of one tensor that are searched
DEPTH = 4


def wide_clouds() -> Data:
    """Separable classes of samples that cannot be mistaken for each other."""
    key, count, each = keys.fold(0, "hoards"), len(SIZES), torch.tensor(SIZES)
    tests = torch.arange(count).repeat_interleave(4)
    y = torch.arange(count).repeat_interleave(each)
    centres = 3 * keys.normal(keys.fold(key, "centres"), count, *SAMPLE)
    noise = keys.normal(keys.fold(key, "noise"), len(y) + len(tests), *SAMPLE)
    x = (centres[torch.cat([y, tests])] + noise).float()
    return Data.from_arrays(x[: len(y)], y, test=(x[len(y) :], tests), name="wide clouds")


def check_keeps_no_samples_outside_its_memory(method: Method) -> None:
    """No inputs lie in the state, weights, buffers or optimiser, on the method or in its module."""
    stream, left = class_incremental(wide_clouds()), [None]

    def around(original: Any, learner: Any, task: Any) -> None:
        left[0] = tree_map(_copied, learner.opt)
        original(learner, task)

    watched = spied(tame(method), "finish", around)
    engine = Engine(runs_of(watched, [stream]), device="cpu", together=False)
    for stage in engine.stages():
        learner = stage.learner
        rows = torch.cat([task.train for task in stream.tasks[: stage.stage + 1]])
        rows = rows[~torch.isin(rows, learner.exemplars.rows)]
        inputs = learner.feed(rows).flatten(1).double()
        for name, leaf in (*_of_learner(learner, left[0]), *_of_method(engine.runs[0].method)):
            found = rows[_inside(leaf, inputs)].tolist()
            require(
                len(found) < FEW,
                f"after task {stage.stage}, {name} holds {len(found)} inputs that the memory does "
                f"not (rows {', '.join(map(str, found[:3]))}{', ...' * (len(found) > 3)}): keep "
                "samples as learner.exemplars, under a declared memory",
            )


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _of_learner(learner: Learner, opt: Any) -> Iterator[tuple[str, Tensor]]:
    """What a learner holds; the optimiser only where it is not as training left it.

    The last gradient of a layer is made of the last batch's inputs, nearly one by one where few of
    them were still wrong.
    """
    written = shapes(learner.opt) != shapes(opt) or not same(learner.opt, opt)
    for part in ("state", "buffers", "vector", "free", *["opt"] * written):
        for name, leaf in flatten({part: getattr(learner, part)}).items():
            if isinstance(leaf, Tensor):
                yield f"learner.{name}", leaf


def _of_method(method: Method) -> Iterator[tuple[str, Tensor]]:
    """Tensors and arrays on a method, its classes and their modules."""
    yield from _walk("self", vars(method))
    for kind in type(method).__mro__:
        if kind is not object and not kind.__module__.startswith("engram."):
            yield from _walk(kind.__name__, dict(vars(kind)))
            yield from _walk(kind.__module__, vars(sys.modules[kind.__module__]))


def _walk(name: str, value: Any, depth: int = DEPTH) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        yield name, value
    elif depth and isinstance(value, dict):
        for key, inner in list(value.items()):
            if not str(key).startswith("__"):
                yield from _walk(f"{name}.{key}", inner, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for place, inner in enumerate(value):
            yield from _walk(f"{name}[{place}]", inner, depth - 1)


def _inside(leaf: Tensor, inputs: Tensor) -> Tensor:
    """[n] whether each input [n, d] lies in a tensor, in any scale, along or across its axes."""
    size = inputs.shape[1]
    found = torch.zeros(len(inputs), dtype=torch.bool)
    if not size <= leaf.numel() <= MOST or leaf.is_complex():
        return found
    whole = leaf.detach().cpu().double()
    forms = [whole.flatten()]
    if leaf.ndim > 1:
        forms += [whole.flatten(1).T.flatten(), whole.flatten(0, -2).T.flatten()]
    wanted = _scaled(inputs)
    for form in forms:
        for part in form.unfold(0, size, 1).split(1 << 14):
            found |= ((_scaled(part) @ wanted.T).abs() > ALIKE).any(0)
    return found


def _scaled(rows: Tensor) -> Tensor:
    """Rows with mean 0 and length 1, so that a product is a correlation."""
    centred = rows - rows.mean(1, keepdim=True)
    return torch.nan_to_num(centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12))


def check_holds_no_more_for_more_rows(method: Method) -> None:
    """With twice the rows in every task, a method holds no more beside its memory."""
    held, items = [], []
    for factor in (1, 2):
        stream = class_incremental(clouds([factor * size for size in SIZES]))
        trained = train(runs_of(tight(tame(method)), [stream]))
        learner = trained[max(trained)].stage.learner
        size = learner.nbytes()
        held.append({kind: count for kind, count in size.items() if kind != "exemplars"})
        items.append(len(learner.exemplars))
    if items[0] != items[1]:
        raise DoesNotApply("its memory grows with the rows, and what belongs to it may, too")
    grown = [kind for kind in held[0] if held[1][kind] > held[0][kind]]
    require(
        not grown,
        f"{', '.join(grown)} grow from {sum(held[0].values())} to {sum(held[1].values())} bytes "
        "when tasks have twice the rows: what is kept of single rows belongs into the memory",
    )
