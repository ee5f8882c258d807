"""Widening: more output columns, and networks of a further task, for a learner and its method's
state; old entries stay bit-exact.

The method itself lays out its state for a wider head: a fresh learner of the new width goes through
`start`, what phases call before them, and `finish` on a few made-up rows, without training. Its
values for closed columns are the initial values of the new columns, and the axes along which its
tensors are longer are those that count classes or parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.deploy.new_task import LearnerSettings, OpenEndedStream, make_placeholder_stream
from engram.engine.factory import LearnerFactory
from engram.engine.loop import finish_task, open_task
from engram.engine.phases import call_before, list_phases
from engram.engine.portable_state import PortableState, restore_state
from engram.engine.run_definition import Run
from engram.errors import EngramError
from engram.learner.parameter_layout import Layout
from engram.learner.tensor_tree import flatten
from engram.novelty.detector import Detector, gather_facts

ROWS = 1024  # exemplars passed through the network at once


def widen_learner(
    found: PortableState,
    settings: LearnerSettings,
    stream: OpenEndedStream,
    detectors: Mapping[str, Detector],
) -> PortableState:
    """Widen a state to the columns and tasks of `stream`; old entries stay bit-exact."""
    grows = settings.method.implements("networks")
    width, room = len(stream.order), max(len(stream.tasks), stream.room) if grows else 0
    wide = _WiderState(found, settings, width, detectors, room)
    tensors = dict(found.tensors)
    for name in tensors.keys() & wide.fresh.keys():
        tensors[name] = wide.widen_tensor(name, tensors[name], wide.fresh[name])
    for name, fresh in wide.params.items():
        tensors[name] = embed_tensor(tensors[name], fresh) if name in tensors else fresh
    facts = dict(found.facts)
    if more := {k: v for k, v in wide.learner.buffers.items() if f"buffers/{k}" not in tensors}:
        tensors |= {f"buffers/{name}": value for name, value in more.items()}
        parts = facts["structure"]["dict"]
        own = {"dict": {**parts.get("buffers", {"dict": {}})["dict"], **dict.fromkeys(more)}}
        facts["structure"] = {"dict": {**parts, "buffers": own}}
    if wide.learner.networks.grows:
        facts["room"] = room
    opened = torch.full((width,), -1, dtype=torch.long)
    tensors["opened"] = embed_tensor(tensors["opened"], opened)
    _refuse_unknown(found, tensors, wide, settings)
    layout = [[name, list(shape)] for name, shape in wide.new.shapes.items()]
    made = PortableState(tensors, {**facts, "layout": layout})
    widen_values(made, found, settings, stream)
    return made


class _WiderState:
    """State of a fresh learner of the new width, and the old and new layouts."""

    def __init__(
        self,
        found: PortableState,
        settings: LearnerSettings,
        width: int,
        detectors: Mapping[str, Detector],
        room: int,
    ) -> None:
        self.method, self.columns, self.width = settings.method, found.columns, width
        stream = make_placeholder_stream(found, width, min(2, found.columns), room)
        self.training = replace(  # nothing is trained, so nothing is validated
            settings.training, schedule="constant", stop_lr=0.0, patience=0, restore_best=False
        )
        run = Run(
            stream=stream, method=settings.method, model=settings.model, seed=settings.seed,
            training=self.training, begun=True,
        )  # fmt: skip
        self.learner = LearnerFactory(torch.device("cpu")).learner(run)
        self.params = {k: v.clone() for k, v in self.learner.params.items()}
        self.old = Layout({name: torch.Size(shape) for name, shape in found.facts["layout"]})
        self.new = self.learner.networks.layout
        self.fresh = self._state(settings, detectors)

    def _state(
        self, settings: LearnerSettings, detectors: Mapping[str, Detector]
    ) -> dict[str, Tensor]:
        """Return the tensors of a learner that started and finished a task without training."""
        one, methods = self.learner, [settings.method]
        open_task([one], methods, self.training, 0)
        for number, _ in list_phases(settings.method, 0, one.networks):
            call_before([one], methods, number)
        finish_task([one], methods)
        probes = {
            key: dict(detector.start(gather_facts(one))) for key, detector in detectors.items()
        }
        return flatten({"state": one.state, "opt": one.opt, "probes": probes})

    def widen_tensor(self, name: str, old: Tensor, fresh: Tensor) -> Tensor:
        """Widen a tensor of the state along the axes that count classes."""
        if old.shape == fresh.shape:
            return old
        if old.shape[-1:] == (len(self.old),) and fresh.shape[-1:] == (len(self.new),):
            return self.widen_vector(old, fresh)
        if old.ndim != fresh.ndim:
            raise _growth_error(self.method, name, old)
        pairs = list(zip(old.shape, fresh.shape, strict=True))
        classes = [pair == (self.columns, self.width) for pair in pairs]
        if not any(classes):  # no axis counts classes, but perhaps rows seen
            return old
        if not all(a == b or counts for (a, b), counts in zip(pairs, classes, strict=True)):
            raise _growth_error(self.method, name, old)
        return embed_tensor(old, fresh)

    def widen_vector(self, old: Tensor, fresh: Tensor) -> Tensor:
        """Widen numbers per parameter, [..., P]."""
        parts, grown = old.split(self.old.sizes, -1), fresh.clone()
        ends = dict(zip(self.new.shapes, grown.split(self.new.sizes, -1), strict=True))
        for (name, shape), part in zip(self.old.shapes.items(), parts, strict=True):
            lead = old.shape[:-1]
            target = ends[name].reshape(*lead, *self.new.shapes[name])
            ends[name].copy_(embed_tensor(part.reshape(*lead, *shape), target).reshape(*lead, -1))
        return grown


def widen_values(
    found: PortableState, old: PortableState, settings: LearnerSettings, stream: OpenEndedStream
) -> None:
    """Widen the values stored with exemplars in place, by the network's present outputs.

    The outputs for new columns at the time of storing are unknown.
    """
    names = [name for name in old.tensors if name.startswith("values/")]
    if not names or not len(old.tensors["exemplars/rows"]):
        return
    learner = LearnerFactory(torch.device("cpu")).learner(settings.run(stream))
    bare = {k: v for k, v in found.tensors.items() if k not in names}
    facts = found.facts["structure"]["dict"]
    structure = {"dict": {**facts, "values": {"dict": {}}}}
    restore_state(learner, PortableState(bare, {**found.facts, "structure": structure}))
    learner.enter(found.stage)
    kept, parts = learner.exemplars, []
    with torch.no_grad():
        shapes = settings.method.remember(
            learner.net(), learner.batch(kept.rows[:1], kept.stages[:1]), learner.state
        )
        grow = [n for n in names if shapes[_strip_prefix(n)].shape[1:] != old.tensors[n].shape[1:]]
        if not grow:
            return
        for rows, stages in zip(kept.rows.split(ROWS), kept.stages.split(ROWS), strict=True):
            batch = learner.batch(rows, stages)
            parts.append(settings.method.remember(learner.net(), batch, learner.state))
    for name in grow:
        said = torch.cat([part[_strip_prefix(name)] for part in parts])
        found.tensors[name] = embed_tensor(old.tensors[name], said)


def _strip_prefix(name: str) -> str:
    return name.removeprefix("values/")


def lacks_room(found: PortableState, settings: LearnerSettings, stream: OpenEndedStream) -> bool:
    """Whether a state has fewer columns or networks than the tasks of a stream need."""
    if found.columns < len(stream.order):
        return True
    if not settings.method.implements("networks"):
        return False
    made = LearnerFactory(torch.device("cpu")).learner(settings.run(stream)).networks
    wanted = [[name, list(shape)] for name, shape in made.layout.shapes.items()]
    own: list[Any] = [[name, list(shape)] for name, shape in found.facts["layout"]]
    return own != wanted


def embed_tensor(old: Tensor, fresh: Tensor) -> Tensor:
    """Copy `old` into the beginning of every axis of `fresh`.

    Examples
    --------
    >>> embed_tensor(torch.ones(1, 2), torch.zeros(2, 3)).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    found = fresh.to(old.device, old.dtype, copy=True)
    found[tuple(slice(size) for size in old.shape)] = old
    return found


def _refuse_unknown(
    found: PortableState, tensors: dict[str, Tensor], wide: _WiderState, settings: LearnerSettings
) -> None:
    """Raise for state that a fresh learner does not have, whose growth is unknown.

    Teachers made in a later task are recognised by their structure: weights and buffers.
    """
    for path in found.tensors:
        if not path.startswith(("state/", "opt/", "probes/")) or path in wide.fresh:
            continue
        old, around = tensors[path], path.rpartition("/")[0]
        if path == f"{around}/vector" and old.shape == (len(wide.old),):
            initial = wide.new.flatten(wide.params.values())
            tensors[path] = wide.widen_vector(old, initial)
        elif old.shape == (len(wide.old),):
            zeros = torch.zeros(len(wide.new), dtype=old.dtype)
            tensors[path] = wide.widen_vector(old, zeros)
        elif wide.columns < wide.width and wide.columns in old.shape:
            raise _growth_error(settings.method, path, old)


def _growth_error(method: Any, name: str, old: Tensor) -> EngramError:
    return EngramError(
        f"{type(method).__name__} keeps {name} {tuple(old.shape)}, and it cannot be told how that "
        "grows with the number of classes: begin with room for all of them (capacity=...)"
    )
