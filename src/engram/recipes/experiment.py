"""The pieces of an experiment besides its stream, checked: every way to a run begins here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engram.engine.training import Training
from engram.errors import bad, choose, whole
from engram.methods.base import Method
from engram.probes import Probe
from engram.recipes.names import build_method, method_label
from engram.recipes.outside import outside_section
from engram.recipes.plain import from_plain
from engram.recipes.probing import build_detectors, build_probes
from engram.recipes.sections import DEFAULT_MODEL, model_section
from engram.records import KEEP

AVERAGES = ("micro", "macro")


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment:
    """Method, model, training and seeds, and what is kept of the runs.

    Examples
    --------
    >>> made = Experiment.of({"method": "ER", "seeds": 2, "training": {"lr": 0.1}})
    >>> made.label, made.seeds, made.training.lr
    ('ER', (0, 1), 0.1)
    """

    method: Method
    model: Any = DEFAULT_MODEL
    training: Training = field(default_factory=Training)
    seeds: tuple[int, ...] = (0,)
    keep: str = "scores"
    average: str = "micro"
    label: str = ""
    probes: tuple[Probe, ...] = ()
    outside: Any = None  # data that is never trained on, or a mapping that names some

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Experiment:
        """From plain values or objects; what is left out has its default."""
        return cls(**checked(content))


def checked(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `Experiment`, or an error that names what is wrong."""
    method, detectors = build_method(content["method"]), build_detectors(content)
    keep = choose("keep", content.get("keep", "scores"), KEEP)
    if detectors and keep == "counts":
        expected = "labels, scores or parameters with detectors: scores are compared item by item"
        raise bad("keep", expected, keep)
    return {
        "method": method,
        "model": model_section(content.get("model", DEFAULT_MODEL)),
        "training": from_plain(Training, content.get("training", {}), path="training"),
        "seeds": seeds_of(content.get("seeds", 1)),
        "keep": keep,
        "average": choose("average", content.get("average", "micro"), AVERAGES),
        "label": label_of(content.get("label")) or method_label(method),
        "outside": outside_section(content.get("outside")),
        "probes": (*build_probes(content.get("probes") or ()), *detectors),
    }


def label_of(value: Any) -> str:
    """The name under which runs are shown; a recipe's file may give a number.

    Examples
    --------
    >>> label_of(None), label_of("mine"), label_of(2)
    ('', 'mine', '2')
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, float))):
        raise bad("label", "a name", value)
    return "" if value is None else str(value)


def seeds_of(value: Any) -> tuple[int, ...]:
    """A number of seeds, or the seeds themselves, each once.

    Examples
    --------
    >>> seeds_of(3), seeds_of([4, 5])
    ((0, 1, 2), (4, 5))
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return tuple(range(whole("seeds", int(value), 1)))
    if not isinstance(value, (list, tuple, range)) or not value:
        raise bad("seeds", "a number of seeds, or a list of them", value)
    seeds = [int(seed) if isinstance(seed, np.integer) else seed for seed in value]
    found = tuple(whole(f"seeds[{i}]", seed) for i, seed in enumerate(seeds))
    twice = sorted({seed for seed in found if found.count(seed) > 1})
    if twice:  # the same run again, which would count as one more in every mean
        raise bad("seeds", "every seed only once", f"{', '.join(map(str, twice))} more than once")
    return found
