"""A paper's protocol on another data set of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from engram.data import Data
from engram.errors import bad

GREY, COLOUR, FACES, VECTORS = "grey images", "colour images", "facial expressions", "vectors"
SETS = "images with sets of labels"
JOINTS = {20: "skeletons of 20 joints", 25: "skeletons of 25 joints"}
EXPRESSIONS = frozenset({"Neutral", "Anger", "Disgust", "Happiness", "Sadness"})
# What the papers' own data sets are.
KINDS = {
    "mnist": GREY, "cifar100": COLOUR, "tiny_imagenet": COLOUR, "eight_task": COLOUR,
    "imagenet": COLOUR, "nw_ucla": JOINTS[20], "ntu60": JOINTS[25], "ck_plus": FACES,
    "raf_db": FACES, "affectnet": FACES, "fer2013": FACES, "icv_mefed": FACES, "baum1": FACES,
}  # fmt: skip


def kinds_of(data: Data) -> list[str]:
    """What a data set is, by its inputs and classes; faces are images, too.

    Examples
    --------
    >>> from engram import load
    >>> kinds_of(load("digits")), kinds_of(load("blobs")), kinds_of(load("skeletons"))
    (['grey images'], ['vectors'], ['skeletons of 20 joints'])
    >>> kinds_of(load("faces"))
    ['facial expressions', 'colour images']
    """
    shape = data.sample_shape
    if int((data.y >= 0).sum(1).max()) > 1:
        return [SETS]
    if len(shape) < 3:
        return [VECTORS]
    # images are stored as bytes, or have as few channels as a skeleton has coordinates
    if "uint8" not in str(data.x.dtype) and shape[0] == 3 and shape[2] in JOINTS:
        return [JOINTS[shape[2]]]
    found = [FACES] if set(data.classes) >= EXPRESSIONS else []
    return [*found, GREY if shape[0] == 1 else COLOUR]


def moved(protocols: Mapping[str, tuple[str, Any]], data: Data, name: str) -> dict[str, Any]:
    """Field of a preset to its protocol on other data, None where the data is of another kind.

    `protocols` has field to the name under which the paper's own data set is loaded, and how it is
    learnt. Refused where no kind fits.
    """
    wanted = {
        field: KINDS.get(official, official)
        for field, (official, protocol) in protocols.items()
        if protocol is not None
    }
    fitting = set(wanted.values()) & set(kinds_of(data))
    if not fitting:
        expected = " or ".join(dict.fromkeys(wanted.values()))
        raise bad("on", f"{expected}, which this paper is about", f"{name}: {kinds_of(data)[0]}")
    return {
        field: _on(protocol, data, name) if wanted.get(field) in fitting else None
        for field, (_, protocol) in protocols.items()
    }


def _on(protocol: Any, data: Data, name: str) -> Any:
    """The protocol with other data, and as many classes as those have."""
    if protocol.data == name:
        return protocol
    own = getattr(protocol, "on", None)
    if own is not None:
        return own(data, name)
    names = {f.name for f in fields(protocol)}
    changed: dict[str, Any] = {"data": name}
    changed |= {option: {} for option in ("options", "data_options") if option in names}
    if "classes" in names:
        changed["classes"] = data.n_classes
    if "classes_per_task" in names:
        tasks = _tasks(protocol)
        changed["classes_per_task"] = per_task(data, protocol.classes_per_task, tasks, name)
        if "stages" in names:
            changed["stages"] = data.n_classes // changed["classes_per_task"]
    return replace(protocol, **changed)


def _tasks(protocol: Any) -> int:
    stages: int = getattr(protocol, "stages", 0)
    return stages or protocol.classes // protocol.classes_per_task


def per_task(data: Data, size: int, tasks: int, name: str) -> int:
    """Classes of a task: as many as in the paper if they go into two tasks or more, else fewer.

    Examples
    --------
    >>> from engram import load
    >>> per_task(load("digits"), 2, 5, "digits"), per_task(load("digits"), 10, 5, "digits")
    (2, 2)
    """
    classes = data.n_classes
    if classes % size == 0 and classes > size:
        return size
    if classes % tasks == 0:
        return classes // tasks
    expected = f"a set whose classes go into tasks of {size}, or into {tasks} equal tasks"
    raise bad("on", expected, f"{name} with {classes} classes")


def need_classes(data: Data, name: str, classes: Iterable[str] | int) -> None:
    """Refuse data without the classes that a protocol names, or with another number of them."""
    if isinstance(classes, int):
        if data.n_classes != classes:
            raise bad("on", f"a set of {classes} classes", f"{name} with {data.n_classes}")
        return
    absent = [one for one in classes if one not in data.classes]
    if absent:
        raise bad("on", f"a set with the classes {', '.join(absent)} as well",
                  f"{name} with {', '.join(data.classes)}")  # fmt: skip
