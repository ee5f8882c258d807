"""`PortableState`: a trained run without its data set, to predict and to continue learning."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.data.standardization import compute_moments, filled_values
from engram.data.tables.table_schema import TableSchema
from engram.data.texts.tokenization import Tokenizer
from engram.engine.checkpoints import load_state_dict, state_dict
from engram.engine.run_definition import Run
from engram.errors import bad
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import nbytes
from engram.streams.stream_outline import StreamOutline

FORMAT = "engram-model-1"
CONSTANTS = "constants/"  # prefix of parameters that no run trains
CALIBRATION = "calibration/"  # prefix of rows that a deployed learner holds out of training
ROWS = ("rows/x", "rows/y", "rows/stage")  # rows of the data that are kept: inputs, columns, task


class PortableState(NamedTuple):
    """Named tensors and plain facts about them, which go into one file.

    Parameters have their own names (``net.head.weight``), those that are frozen with the prefix
    ``constants/``; method state, exemplars and their values
    are named as in a checkpoint. The rows of the memory are included, and exemplars are numbered
    from 0 among them.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    @property
    def columns(self) -> int:
        """Number of output columns, including those reserved for future classes."""
        return len(self.tensors["opened"])

    @property
    def stage(self) -> int:
        """Number of the last trained task, from 0."""
        return int(self.facts["stage"])


def export_state(
    learner: RunLearner, run: Run, *, most_bytes: float = float("inf")
) -> PortableState:
    """Export the state of a learner after a stage.

    Rows, or moments of the optimiser, that need more than `most_bytes` are left out.
    """
    anew = _why_not_optimizer(learner, most_bytes) if not run.training.optim_reset else ""
    left_out = ("free", "opt") if run.training.optim_reset or anew else ("free",)
    tensors, facts = state_dict(learner, left_out)
    layout, vector = learner.networks.layout, tensors.pop("vector")
    tensors |= {name: view.clone() for name, view in layout(vector).items()}
    constants = learner.networks.constants.items()
    tensors |= {f"{CONSTANTS}{name}": one.cpu().contiguous() for name, one in constants}
    rows, stages, place = _rows_to_keep(learner)
    tensors["exemplars/rows"] = place
    tensors["rows/y"], tensors["rows/stage"] = learner.stream.targets[rows].cpu(), stages
    why_not = _why_not(learner, len(rows), most_bytes)
    if not why_not:
        tensors["rows/x"] = learner.stream.data.gather(rows).cpu().contiguous()
    facts |= {
        "format": FORMAT,
        "layout": [[name, list(shape)] for name, shape in layout.shapes.items()],
        "rows_left_out": why_not, "optimizer_left_out": anew,
        **_describe_data(learner), **_describe_tasks(learner),
        # tasks for which there are networks
        **({"room": len(StreamOutline.from_stream(learner.stream))}
           if learner.networks.grows else {}),
    }  # fmt: skip
    return PortableState(tensors, facts)


def _rows_to_keep(learner: RunLearner) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows needed later with their tasks, each once, and the position of exemplars."""
    exemplars, span = learner.exemplars, len(learner.stream.data)
    codes = exemplars.stages * span + exemplars.rows
    if learner.reads == "past":
        tasks = learner.stream.tasks[: learner.stage + 1]
        codes = torch.cat([*(k * span + task.train.cpu() for k, task in enumerate(tasks)), codes])
    _, first, place = np.unique(codes.numpy(), return_index=True, return_inverse=True)
    order = np.argsort(first)  # the original order, on which draws depend
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    kept = codes[torch.from_numpy(first[order])]
    mine = torch.from_numpy(back[place.reshape(-1)])[len(codes) - len(exemplars) :]
    return kept % span, kept // span, mine.contiguous()


def _why_not(learner: RunLearner, rows: int, most: float) -> str:
    """Return why rows are left out; empty if they are not."""
    size = rows * learner.stream.data.sample_bytes
    if size > most:
        return f"{rows} rows of earlier tasks take {size / 2**20:.0f} MiB and were not kept"
    if rows and learner.stream.view is not None:
        return "rows of earlier tasks were seen through the stream's view and were not kept"
    return ""


def _why_not_optimizer(learner: RunLearner, most: float) -> str:
    """Return why the state of an optimiser is left out; empty if it is not."""
    size = nbytes(learner.opt)
    if size <= most:
        return ""
    return f"moments of the optimiser take {size / 2**20:.0f} MiB and were not kept"


def describe_inputs(data: Data) -> dict[str, Any]:
    """Describe the inputs of a data set, which later ones must match."""
    return {
        "shape": list(data.stored_shape), "dtype": str(data.x.dtype).removeprefix("torch."),
        "mean": list(data.mean), "std": list(data.std),
        "crop": None if data.crop is None else list(data.crop), "name": data.name,
        "channel_axis": data.channel_axis, "fill": list(filled_values(data)),
        "columns": list(data.columns),
        **({} if data.schema is None else {"schema": data.schema.facts()}),
        **({} if data.tokenizer is None else {"tokenizer": data.tokenizer.facts()}),
    }  # fmt: skip


def _describe_data(learner: RunLearner) -> dict[str, Any]:
    stream = learner.stream
    data = stream.data
    classes = [data.classes[c] for c in stream.order]
    about = describe_inputs(data)
    if data.schema is not None and data.schema.missing == "mean" and not about["fill"]:
        # later tables may have gaps where these have none
        first = stream.tasks[0].train
        about["fill"] = compute_moments(data, data.sources(first.cpu())).mean.tolist()
    return {
        "inputs": about, "classes": classes[: int((learner.opened >= 0).sum())],
        "head": stream.head, "labels": stream.labels, "information": stream.information,
    }  # fmt: skip


def _describe_tasks(learner: RunLearner) -> dict[str, Any]:
    """Describe every task so far: classes as columns, name, number of rows."""
    stream, stages = learner.stream, range(learner.stage + 1)
    return {
        "tasks": [
            {"new": (stream.opening == k).nonzero()[:, 0].tolist(),
             "visible": stream.visible[k].nonzero()[:, 0].tolist(),
             "domain": stream.tasks[k].domain, "rows": stream.train_sizes[k]}
            for k in stages
        ],
    }  # fmt: skip


_KINDS: dict[str, type] = {
    "structure": dict, "stage": int, "seed": int, "layout": list, "rows_left_out": str,
    "inputs": dict, "classes": list, "head": str, "labels": str, "tasks": list,
}  # fmt: skip
_OF_INPUTS: dict[str, type] = {
    "shape": list, "dtype": str, "mean": list, "std": list, "name": str, "channel_axis": int,
    "fill": list, "columns": list,
}  # fmt: skip


def check_portable_facts(found: PortableState) -> None:
    """Raise for invalid facts, some of which are used only later."""
    facts, about = found.facts, found.facts["inputs"]
    for place, kinds in ((facts, _KINDS), (about, _OF_INPUTS)):
        for name, kind in kinds.items():
            if not isinstance(place[name], kind):
                raise TypeError(f"{name}: {type(place[name]).__name__} in place of {kind.__name__}")
    if about["dtype"] not in ("uint8", "float32", *(["int32"] if "tokenizer" in about else [])):
        raise ValueError(f"inputs of type {about['dtype']}")
    if "tokenizer" in about:
        Tokenizer.from_facts(about["tokenizer"])
    if "schema" in about:
        made = TableSchema.from_facts(about["schema"]).columns
        if list(made) != about["columns"]:
            raise ValueError(f"a schema of the columns {made}")
    for name in ("mean", "std", "fill"):
        [float(one) for one in about[name]]
    for side in (*about["shape"], *(about["crop"] or ())):
        if not isinstance(side, int) or side < 0:
            raise ValueError(f"inputs of shape {about['shape']}, cut to {about['crop']}")
    if not all(isinstance(one, str) for one in (*facts["classes"], *about["columns"])):
        raise TypeError("names that are no text")
    opened = int((found.tensors["opened"] >= 0).sum())
    if len(facts["classes"]) != opened or facts["stage"] != len(facts["tasks"]) - 1:
        raise ValueError(f"{len(facts['classes'])} classes, {len(facts['tasks'])} tasks")
    if CALIBRATION + "x" in found.tensors:
        _check_calibration(found, opened)
    if not all(0 <= int(one) < opened for one in facts.get("forgotten", ())):
        raise ValueError(f"forgotten classes in the columns {facts['forgotten']}")
    for task in facts["tasks"]:
        if not all(0 <= int(one) < found.columns for one in (*task["new"], *task["visible"])):
            raise ValueError(f"a task of columns {task['visible']}")
        int(task["rows"])


def _check_calibration(found: PortableState, classes: int) -> None:
    x, y, seen = (found.tensors[CALIBRATION + name] for name in ("x", "y", "seen"))
    if list(x.shape[1:]) != found.facts["inputs"]["shape"] or y.shape != (len(x),):
        raise ValueError(f"calibration rows {tuple(x.shape)} with {tuple(y.shape)} labels")
    if y.dtype != torch.long or not bool(((y >= 0) & (y < classes)).all()) or len(seen) > classes:
        raise ValueError(f"calibration rows of other than {classes} classes")


def restore_state(learner: RunLearner, found: PortableState) -> int:
    """Load a state into a new learner of the same width; return the next stage."""
    shapes = {name: tuple(shape) for name, shape in found.facts["layout"]}
    own = {name: tuple(shape) for name, shape in learner.networks.layout.shapes.items()}
    if own != shapes:
        differ = sorted(k for k in {*own, *shapes} if own.get(k) != shapes.get(k))
        wanted = f"the network that was saved, with {differ[0]} {shapes.get(differ[0])}"
        raise bad("model", wanted, own.get(differ[0]))
    fixed = {k: v for k, v in found.tensors.items() if k.startswith(CONSTANTS)}
    learner.networks = learner.networks.with_constants(
        {name.removeprefix(CONSTANTS): value for name, value in fixed.items()}
    )
    apart = {*shapes, *ROWS, *fixed}
    rest = {
        name: one for name, one in found.tensors.items()
        if name not in apart and not name.startswith(CALIBRATION)
    }  # fmt: skip
    flat = [found.tensors[name].reshape(-1) for name in shapes]
    load_state_dict(learner, {**rest, "vector": torch.cat(flat)}, found.facts)
    return learner.stage + 1
