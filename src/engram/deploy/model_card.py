"""The card of a kept model: what it knows, and which rows of training it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engram.deploy.calibration import CalibrationRows
from engram.engine.portable_state import PortableState
from engram.errors import plural

if TYPE_CHECKING:
    from engram.deploy.deployed_learner import Learner

SHOWN = 20  # names of classes


def write_card(learner: Learner) -> str:
    """Describe a learner in Markdown.

    Examples
    --------
    >>> import numpy as np
    >>> from engram import Learner
    >>> x, y = np.eye(4, dtype=np.float32).repeat(10, 0), np.arange(4).repeat(10)
    >>> learner = Learner("ER", {"name": "mlp", "hidden": [8]}, device="cpu", iterations=3)
    >>> print(learner.learn(x, y).card())
    # Model: ER, mlp
    <BLANKLINE>
    - Classes: 4 (0, 1, 2, 3)
    - Tasks: 1, of 40 rows
    - Inputs: rows of shape (4,), float32
    - Raw rows held: 40 rows of the memory
    - Encrypted: no
    - Computed from rows and held: nothing but weights
    """
    found = learner._now_portable
    facts, tasks = found.facts, found.facts["tasks"]
    settings = learner._settings
    model = settings.model["name"] if isinstance(settings.model, dict) else settings.model
    names = [str(one) for one in learner.classes_.tolist()]
    more = ", ..." if len(names) > SHOWN else ""
    about = facts["inputs"]
    rows = sum(task["rows"] for task in tasks)
    lines = [
        f"# Model: {type(settings.method).__name__}, {getattr(model, '__name__', model)}", "",
        f"- Classes: {len(names)} ({', '.join(names[:SHOWN])}{more})",
        f"- Tasks: {len(tasks)}, of {plural(rows, 'row')}",
        f"- Inputs: rows of shape {tuple(about['shape'])}, {about['dtype']}",
        f"- Raw rows held: {describe_raw_rows(found)}",
        f"- Encrypted: {'yes' if learner._key else 'no'}",
        f"- Computed from rows and held: {', '.join(list_derived(found)) or 'nothing but weights'}",
    ]  # fmt: skip
    closed = facts.get("forgotten", [])
    if closed:
        lines.append(f"- Forgotten: {', '.join(facts['classes'][c] for c in closed)}")
    return "\n".join(lines)


def describe_raw_rows(found: PortableState) -> str:
    """Say which rows a state holds as they were learnt."""
    if found.facts["rows_left_out"]:
        return f"none that can be read: {found.facts['rows_left_out']}"
    held, parts = CalibrationRows.from_state(found), []
    if count := len(found.tensors["rows/x"]):
        parts.append(f"{plural(count, 'row')} of the memory")
    if held is not None and len(held.y):
        parts.append(plural(len(held.y), "calibration row"))
    return " and ".join(parts) or "none"


def list_derived(found: PortableState) -> list[str]:
    """List what a state holds that was computed from rows, beside weights, with its bytes.

    Latents and logits of exemplars, prototypes and importances of methods, banks of detectors.
    """
    sizes: dict[str, int] = {}
    for name, tensor in found.tensors.items():
        kind, _, rest = name.partition("/")
        if kind in ("values", "state", "probes") and tensor.nbytes:
            words = {"values": "beside exemplars", "state": "by the method", "probes": "detector"}
            own = f"{rest.partition('/')[0]} ({words[kind]})"
            sizes[own] = sizes.get(own, 0) + tensor.nbytes
    return [f"{name}, {plural(size, 'byte')}" for name, size in sizes.items()]
