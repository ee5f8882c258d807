"""Ten methods against plain PyTorch on image sets of their own, task- and class-incremental.

The two sides share the pictures and the settings, and no random number: weights, shuffles and
memories differ from seed to seed and from side to side. So means over seeds are compared. Both
sides are draws from one distribution if they are the same method; a mean may then be off by a few
standard errors of the difference, with the spread of the seeds taken from both sides together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch.nn.functional as F
from torch import nn

import engram
from engram.memory import Memory
from engram.methods import AGEM, ER, EWC, GEM, MAS, SI, Finetune, ICaRL, Joint, LwF
from engram.methods.method import Method
from tests.plain import distillation, loop, penalties, projections, rehearsal
from tests.plain.images import Images, scenes, shapes

SETTINGS = loop.Settings()
OURS, THEIRS = 12, 6  # seeds: lockstep makes ours cheap
ERRORS, MARGIN = 3.0, 0.02
HEADS = pytest.mark.parametrize("multi", [False, True], ids=["class", "task"])


class Pair(NamedTuple):
    """A method of Engram and its hand-written twin."""

    ours: Method
    plain: type[loop.Finetune]
    options: dict[str, Any] = {}  # noqa: RUF012


PAIRS = {
    "Finetune": Pair(Finetune(), loop.Finetune),
    "Joint": Pair(Joint(), loop.Joint),
    "ER": Pair(ER(memory=Memory(total=12)), rehearsal.ER, {"total": 12}),
    "EWC": Pair(EWC(strength=300.0), penalties.EWC, {"strength": 300.0}),
    "SI": Pair(SI(strength=50.0), penalties.SI, {"strength": 50.0}),
    "MAS": Pair(MAS(strength=0.5), penalties.MAS, {"strength": 0.5}),
    "LwF": Pair(
        LwF(strength=30.0, temperature=2.0),
        distillation.LwF,
        {"strength": 30.0, "temperature": 2.0},
    ),
    "AGEM": Pair(AGEM(memory=Memory(total=12)), projections.AGEM, {"total": 12}),
    "GEM": Pair(
        GEM(margin=0.5, memory=Memory(fraction=0.1)),
        projections.GEM,
        {"margin": 0.5, "fraction": 0.1},
    ),
    "ICaRL": Pair(
        ICaRL(memory=Memory(per_class=3, policy="herding")), rehearsal.ICaRL, {"per_class": 3}
    ),
}


def trunk(shape: tuple[int, ...]) -> nn.Module:
    return loop.Trunk()


def statistics(matrices: np.ndarray) -> np.ndarray:
    """[n, 3] of accuracies [n, T, T]: at the end, on new tasks, on earlier tasks at every stage."""
    earlier = matrices[(slice(None), *np.tril_indices(matrices.shape[-1], -1))]
    own = np.diagonal(matrices, axis1=1, axis2=2)
    return np.stack([matrices[:, -1].mean(-1), own.mean(-1), earlier.mean(-1)], 1)


def by_engram(images: Images, method: Method, multi: bool, seeds: int) -> np.ndarray:
    data = engram.Data.from_arrays(
        images.x.numpy(), images.y.numpy(), test=(images.test_x.numpy(), images.test_y.numpy())
    )
    make = engram.task_incremental if multi else engram.class_incremental
    result = engram.run(
        make(data, classes_per_task=loop.CLASSES_PER_TASK), method=method, model=trunk,
        seeds=seeds, device="cpu", together=True, epochs=SETTINGS.epochs,
        batch_size=SETTINGS.batch_size, lr=SETTINGS.lr, optimizer="adam",
    )  # fmt: skip
    return statistics(np.asarray(result.matrix))


def by_hand(
    images: Images, kind: Callable[..., loop.Finetune], multi: bool, seeds: int, **options: Any
) -> np.ndarray:
    return _by_hand(images, kind, multi, seeds, tuple(options.items()))


@cache  # plain training is a fault of several methods
def _by_hand(
    images: Images, kind: Callable[..., loop.Finetune], multi: bool, seeds: int, given: Any
) -> np.ndarray:
    options = dict(given)
    runs = [kind(images, multi, 100 + seed, SETTINGS, **options) for seed in range(seeds)]
    return statistics(np.stack([run.matrix() for run in runs]))


def apart(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[3] by how much the means differ, over what chance and the margin allow; above 1 is too far.

    Examples
    --------
    >>> spread = np.array([[-0.1], [0.0], [0.1]])  # three seeds: standard deviation 0.1
    >>> apart(spread, spread + 0.2)  # its error is 0.082
    array([0.7549])
    """
    n, m = len(ours), len(theirs)
    squares = ((ours - ours.mean(0)) ** 2).sum(0) + ((theirs - theirs.mean(0)) ** 2).sum(0)
    error = np.sqrt(squares / (n + m - 2) * (1 / n + 1 / m))
    found: np.ndarray = abs(ours.mean(0) - theirs.mean(0)) / (ERRORS * error + MARGIN)
    return found


@cache
def drawn() -> Images:
    return shapes()


@cache
def engram_on_shapes(name: str, multi: bool) -> np.ndarray:
    return by_engram(drawn(), PAIRS[name].ours, multi, OURS)


@HEADS
@pytest.mark.parametrize("name", PAIRS)
def test_shapes(name, multi):
    ours = engram_on_shapes(name, multi)
    theirs = by_hand(drawn(), PAIRS[name].plain, multi, THEIRS, **PAIRS[name].options)
    assert ours.mean() > 0.2  # something was learnt
    assert (apart(ours, theirs) <= 1).all(), (ours.mean(0), theirs.mean(0))


@pytest.mark.parametrize(("number", "name"), [*enumerate(PAIRS)], ids=PAIRS)
def test_scenes(number, name, engram_data):
    """Other pictures: each method under one of the two heads, which `test_shapes` has both."""
    if not (engram_data / "multi_domain_64.npz").is_file():
        pytest.skip("ENGRAM_DATA holds no multi_domain_64.npz")
    images, pair, multi = _scenes(engram_data), PAIRS[name], number % 2 == 1
    ours = by_engram(images, pair.ours, multi, 4)
    theirs = by_hand(images, pair.plain, multi, 2, **pair.options)
    assert (apart(ours, theirs) <= 1).all(), (ours.mean(0), theirs.mean(0))


_scenes = cache(scenes)


class CurrentOnly(loop.Finetune):
    """The softmax of the loss covers the current task's classes only."""

    def cost(self, rows):
        first = self.task * loop.CLASSES_PER_TASK
        logits = self.net(self.images.x[rows])[:, first:]
        return F.cross_entropy(logits, self.images.y[rows] - first)


class FromOutputs(rehearsal.ICaRL):
    """Predicts with the network's outputs, not with class means."""

    def scores(self, x):
        return self.net(x)


class Unprojected(projections.AGEM):
    """Computes the reference and leaves the gradient as it was."""

    def backward(self, rows):
        self.put(self.gradient(rows))


class LastTaskOnly(projections.GEM):
    """Forgets that there were tasks before the last one."""

    def finish(self):
        self.kept.clear()
        super().finish()


FAULTS: list[tuple[str, bool, type[loop.Finetune], dict[str, Any]]] = [
    ("Finetune", False, CurrentOnly, {}),
    ("Joint", True, loop.Finetune, {}),
    ("ER", False, rehearsal.ER, {"total": 6}),
    ("ER", True, loop.Finetune, {}),
    ("EWC", False, penalties.EWC, {"strength": 3000.0}),
    ("EWC", True, penalties.EWC, {"strength": 3000.0}),
    ("SI", False, penalties.SI, {"strength": 50.0, "xi": 1e-3}),
    ("SI", True, penalties.SI, {"strength": 500.0}),
    ("MAS", False, penalties.MAS, {"strength": 5.0}),
    ("MAS", True, penalties.MAS, {"strength": 5.0}),
    ("LwF", False, distillation.LwF, {"strength": 30.0, "temperature": 0.25}),
    ("LwF", True, distillation.LwF, {"strength": 30.0, "temperature": 0.25}),
    ("AGEM", False, Unprojected, {"total": 12}),
    ("GEM", False, LastTaskOnly, {"margin": 0.5, "fraction": 0.1}),
    ("ICaRL", False, FromOutputs, {"per_class": 3}),
]


@pytest.mark.parametrize(
    ("name", "multi", "kind", "options"),
    FAULTS,
    ids=[f"{name}-{kind.__name__}-{number}" for number, (name, _, kind, _) in enumerate(FAULTS)],
)
def test_a_fault_falls_outside(name, multi, kind, options):
    """The comparison is not blind: a method that differs in one respect is told apart."""
    theirs = by_hand(drawn(), kind, multi, THEIRS, **options)
    assert apart(engram_on_shapes(name, multi), theirs).max() > 1
