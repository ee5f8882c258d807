"""Known classes: a task whose classes are not new is learnt like any other, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engram import keys
from engram.checks.learning import LEARNS
from engram.checks.report import Broken, DoesNotApply, require
from engram.checks.tamed import tame, varied
from engram.checks.toys import SAMPLE, TESTS, accuracies, copied, runs_of
from engram.data.core import Data
from engram.engine.engine import Engine
from engram.errors import BadArgument
from engram.methods.base import Method
from engram.spelling import plural
from engram.streams import Stream, domain_incremental

CLASSES, DOMAINS, ROWS = 4, 3, 18
ENOUGH = 0.6  # chance is 0.25


def domains() -> Stream:
    """The same classes in every task, each time at other places."""
    key, groups = keys.fold(0, "domains"), CLASSES * DOMAINS
    centres = 3 * keys.normal(keys.fold(key, "centres"), groups, *SAMPLE)
    parts = []
    for purpose, rows in (("train", ROWS), ("test", TESTS)):
        group = torch.arange(groups).repeat_interleave(rows)
        noise = keys.normal(keys.fold(key, purpose), len(group), *SAMPLE)
        parts.append(((centres[group] + noise).float(), group))
    (x, group), (test_x, test_group) = parts
    domain = torch.cat([group, test_group]) // CLASSES
    data = Data.from_arrays(
        x, group % CLASSES, test=(test_x, test_group % CLASSES), name="domains",
        attributes={"domain": domain},
    )  # fmt: skip
    return domain_incremental(data, by="domain")


def own_accuracies(method: Method, stream: Stream) -> list[float]:
    """Accuracy on each task right after its training; `BadArgument` if the method refuses.

    A refusal must come before any training, not in the middle of the stream.
    """
    found: list[float] = []
    try:
        for stage in Engine(runs_of(method, [stream], training=LEARNS), device="cpu").stages():
            found.append(accuracies(copied(stage))[-1])
    except BadArgument as error:
        require(not found, f"it refuses the stream after {plural(len(found), 'task')} ({error})")
        raise
    return found


def check_known_classes_are_learnt(method: Method) -> None:
    """Tasks that show classes of earlier tasks in another domain are learnt, or refused at once."""
    try:
        worst = 0.0
        for one in mild(tame(method, LEARNS)):  # the second only where the first is not enough
            worst = max(worst, min(own_accuracies(one, domains())))
            if worst > ENOUGH:
                return
    except BadArgument as error:
        raise DoesNotApply(f"it refuses such streams ({error})") from error
    raise Broken(
        f"accuracy on a further domain of known classes is {worst:.2f} right after its training, "
        f"guessing gives {1 / CLASSES:.2f}: classes that a task shows need not be new "
        "(learner.stream.visible[learner.stage], not batch.new), or raise BadArgument in start",
    )


def mild(method: Method) -> Iterator[Method]:
    """The method, and with much smaller numbers: a penalty may be too stiff for a new domain."""
    yield method
    *_, smaller = varied(method, 7)  # 1 / 64
    if smaller != method:
        yield smaller
