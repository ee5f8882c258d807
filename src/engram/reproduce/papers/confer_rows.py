"""The recipes behind rows of the ConFER paper's tables, and the paper's orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engram.errors import bad, choose, unknown
from engram.recipes import Recipe
from engram.reproduce.papers.confer_preset import (
    CLASS,
    KIND,
    LATENT,
    ROWS,
    STARRED,
    TASK,
    Preset,
    printed_tasks,
)


def tasks_of(preset: Preset, dataset: str, setting: str, order: str) -> list[list[str]]:
    """The classes of every task, O1 to O3 of the paper's table 1.

    Examples
    --------
    >>> from engram.reproduce.papers.confer_preset import PAPER
    >>> tasks_of(PAPER, "FER-2013", "Task-IL", "O1")
    [['Neutral', 'Anger'], ['Disgust', 'Fearful'], ['Happiness', 'Sadness'], ['Surprised']]
    >>> len(tasks_of(PAPER, "CK+", "Class-IL", "O3"))
    8
    """
    choose("order", order, ("O1", "O2", "O3"))
    pairs = [list(pair) for pair in printed_tasks(order)]
    if not preset.protocol(dataset).contempt:
        pairs = [[name for name in pair if name != STARRED] for pair in pairs]
    names = [name for pair in pairs for name in pair]
    if setting == CLASS:
        return [[name] for name in names]
    if preset.drop == "in_place":
        return pairs
    return [names[place : place + 2] for place in range(0, len(names), 2)]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Where rows stand: data set, Task-IL or Class-IL, order, and which half of a table."""

    dataset: str
    setting: str
    order: str
    augmentation: str


def recipe(preset: Preset, block: Block, row: str) -> Recipe:
    """The recipe of a row.

    Examples
    --------
    >>> from engram.reproduce.papers.confer_preset import PAPER
    >>> block = Block(dataset="CK+", setting="Task-IL", order="O2", augmentation="with")
    >>> made = recipe(PAPER, block, "NR")
    >>> made.method.memory.total, made.training.batch_size, len(made.seeds)
    (1500, 32, 3)
    """
    protocol = preset.protocol(block.dataset)
    if block.augmentation not in protocol.conditions:
        raise unknown("augmentation", block.augmentation, protocol.conditions)
    condition = dict(protocol.conditions[block.augmentation])
    options = {"size": protocol.size, **protocol.options, **condition.pop("data_options", {})}
    tasks = tasks_of(preset, block.dataset, block.setting, block.order)
    shown = preset.shown(block.dataset)
    where = f"{shown}, {block.setting}, {block.order}, {block.augmentation}"
    return Recipe.of({
        "stream": {
            "data": protocol.data, "data_options": options, **_borders(preset, block, tasks),
            **condition,
        },
        "model": model_spec(preset, row),
        "method": method_spec(preset, row, block),
        "training": {
            "iterations": preset.iterations, "batch_size": protocol.batch_size,
            "optimizer": "adam", "lr": preset.learning_rate, "betas": [0.9, 0.999],
            "weight_decay": preset.weight_decay, "optim_reset": preset.optim_reset,
            "scope": "own" if block.setting == TASK else preset.scope,
            "precision": preset.precision,
        },
        "seeds": preset.seeds, "keep": preset.keep, "label": f"{row} ({where})",
    })  # fmt: skip


def model_spec(preset: Preset, row: str) -> dict[str, Any]:
    """The network of a row."""
    given = preset.model
    spec = dict(given) if isinstance(given, Mapping) else {"name": given}
    return {**spec, "latent": preset.latent} if row in LATENT else spec


def _borders(preset: Preset, block: Block, tasks: Sequence[Sequence[str]]) -> dict[str, Any]:
    """How the classes are cut into tasks."""
    order = {"order": [name for task in tasks for name in task]}
    if preset.blur and block.setting != CLASS:
        raise bad("blur", f"0 in {block.setting}: only steps of {CLASS} are blurred", preset.blur)
    if preset.blur:
        return {"kind": "blurry", "tasks": len(tasks), "mix": preset.blur, **order}
    sizes = {"classes_per_task": [len(task) for task in tasks]}
    return {"kind": KIND[block.setting], **sizes, **order}


def items_of(preset: Preset, row: str, block: Block) -> int:
    """How many samples the memory of a row holds.

    Examples
    --------
    >>> from engram.reproduce.papers.confer_preset import PAPER
    >>> block = Block(dataset="FER-2013", setting="Class-IL", order="O1", augmentation="without")
    >>> items_of(PAPER, "NR", block), items_of(Preset(memory_bytes=900_000), "NR", block)
    (1000, 30)
    """
    if preset.memory_bytes:
        image, latent = 3 * preset.protocol(block.dataset).size ** 2, 4 * preset.latent
        return max(1, preset.memory_bytes // (latent if row in LATENT else image))
    if row == "NR":
        return preset.nr_task if block.setting == TASK else preset.nr_class
    return {"LR": preset.lr_items, "A-GEM": preset.agem_items}[row]


def method_spec(preset: Preset, row: str, block: Block) -> dict[str, Any]:
    """The plain form of a row's method."""
    if row not in ROWS:
        raise unknown("method", row, ROWS)
    name, owner = ROWS[row]
    spec: dict[str, Any] = {"name": name}
    if row in ("NR", "LR"):  # of each new task its share enters, random old rows leave
        items = items_of(preset, row, block)
        spec["memory"] = {"total": items, "shared_by": "task", "shrink": "random"}
    elif row == "A-GEM":
        spec["memory"] = {"total": items_of(preset, row, block)}
    elif row in ("DGR", "LGR", "DGR+D", "LGR+D"):
        spec["distill"] = row.endswith("+D")
    return {**spec, **(getattr(preset, owner) if owner else {})}
