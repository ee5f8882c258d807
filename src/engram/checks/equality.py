"""Equalities: alone or in lockstep, at once or resumed, under any class ids."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from engram.checks.advice import why_lockstep_matters, why_nothing_differs
from engram.checks.report import Broken, DoesNotApply, require
from engram.checks.tamed import tame, varied
from engram.checks.toys import (
    CLOSE,
    EXACT,
    ORDERS,
    SIZES,
    Trained,
    clouds,
    finite,
    gap,
    runs_of,
    same,
    streams,
    train,
    train_each,
)
from engram.data.core import Data
from engram.engine.checkpoints import single as checkpoint
from engram.engine.engine import Engine
from engram.engine.run import Run
from engram.learner.learner import Learner
from engram.methods.base import Method
from engram.methods.finetune import Finetune
from engram.streams import class_incremental

TAME = "lower its strengths: the runs of this check explode (SGD, learning rate 0.02)"


def compare(runs: Sequence[Run]) -> None:
    """In lockstep, and each alone in an engine of its own, runs end with the same numbers."""
    group = Engine(runs, device="cpu", together=True).groups()
    require(
        len(group) == 1,
        "the runs do not train together: fields of one method may differ in "
        "floats only, networks(stream) must be the same but for its weights",
    )
    match(runs)


def match(runs: Sequence[Run], alone: Trained | None = None) -> None:
    """Each run ends every stage alone, in an engine of its own, as it does beside the others.

    `alone` is what `train_each` gives, where that is known.
    """
    alone = train_each(runs) if alone is None else alone
    together = train(runs, together=True)
    for key, one in alone.items():
        require(finite(one.vector), TAME)
        other = together[key]
        for name in one.tensors:
            away = gap(other.tensors[name], one.tensors[name])
            if away >= CLOSE:
                differ = any(run.method != runs[0].method for run in runs)
                raise Broken(
                    f"{name} of run {key[0]} after task {key[1]} differ by {away:.1e} between "
                    f"lockstep and loop: {why_lockstep_matters(runs[key[0]], differ)}"
                )
        away = gap(torch.as_tensor(other.scores), torch.as_tensor(one.scores))
        require(away < 1e-5, f"scores after task {key[1]} differ by {away:.1e}")
        kept = same(tuple(one.exemplars[:4]), tuple(other.exemplars[:4]))
        require(kept, f"exemplars after task {key[1]} differ: draw by learner.seed and stage only")


def check_lockstep_is_the_loop(method: Method) -> None:
    """Three runs with tasks of unequal size: the same numbers together and one by one."""
    compare(runs_of(tame(method), streams()))


def check_lockstep_with_batch_norm(method: Method) -> None:
    """The same with batch normalisation, whose statistics must leave padding out."""
    compare(runs_of(tame(method), streams(), model="normed"))


def check_lockstep_with_dropout(method: Method) -> None:
    """The same with dropout, and with tasks smaller than a batch."""
    compare(
        runs_of(tame(method), streams(), model="dropped", training=replace(EXACT, batch_size=40))
    )


def check_lockstep_with_strengths(method: Method) -> None:
    """The same with another value of every float field in each run."""
    methods = varied(tame(method), len(ORDERS))
    if methods[1] == methods[0]:
        raise DoesNotApply("no float field")
    match(runs_of(methods, streams()))  # not one group, if a float decides what networks compute


def check_resume_is_uninterrupted(method: Method) -> None:
    """Stopped after any task and resumed from its file, a run ends bitwise as one at a stretch."""
    training = replace(EXACT, optimizer="adam", lr=1e-3, optim_reset=False)
    runs = runs_of(tame(method), streams()[:1], model="normed", training=training)
    with tempfile.TemporaryDirectory() as name:
        whole, last = {}, 0
        for stage in Engine(runs, device="cpu", together=False).stages():
            folder = Path(name) / str(stage.stage)
            checkpoint.save(stage.learner, folder)
            whole, last = stage.learner.__dict__.copy(), stage.stage
        for cut in range(last):
            after = _resumed(runs, Path(name) / str(cut), cut)
            for part in ("vector", "buffers", "state", "opt", "free"):
                equal = same(getattr(after, part), whole[part])
                require(
                    equal,
                    f"{part} differ after a resume behind task {cut}: keep all that "
                    "later tasks need in learner.state, none of it on self",
                )
            kept = same(tuple(after.exemplars[:4]), tuple(whole["exemplars"][:4]))
            require(kept, f"exemplars differ after a resume behind task {cut}")


def _resumed(runs: Sequence[Run], folder: Path, cut: int) -> Learner:
    def resume(_place: int, learner: Learner) -> int:
        return checkpoint.load(learner, folder, range(cut + 1))

    stages = list(Engine(runs, device="cpu", together=False).stages(resume=resume))
    return stages[-1].learner


def check_class_ids_do_not_matter(method: Method) -> None:
    """Other ids for the same classes in the same order: the same numbers, bitwise."""
    rename = (3, 5, 0, 1, 4, 2)
    orders = ORDERS[1], tuple(rename[c] for c in ORDERS[1])
    both = []
    for data, order in zip((clouds(), clouds(rename=rename)), orders, strict=True):
        stream = class_incremental(data, order=list(order))
        both.append(train(runs_of(tame(method), [stream])))
    for key, one in both[0].items():
        other = both[1][key]
        equal = same(one.tensors, other.tensors) and (one.scores == other.scores).all()
        require(
            bool(equal),
            f"results after task {key[1]} depend on class ids: use output columns "
            "(places in order of introduction), never ids",
        )


def check_a_diverging_run_harms_no_other(method: Method) -> None:
    """A run whose numbers explode is marked; the runs beside it do not change by a bit."""
    data = _one_broken_class()
    calm, wild = (0, 1, 2, 3), (5, 1, 2, 3)  # the broken class is in one run only
    good = _group(method, data, (calm, (3, 1, 0, 2), (2, 0, 1, 3)))
    bad = _group(method, data, (calm, wild, (2, 0, 1, 3)))
    marks = [after.diverged for (run, _), after in bad.items() if run == 1]
    require(marks[-1] >= 0, "a run with infinite loss was not marked as diverged")
    for (run, stage), one in good.items():
        if run != 1:
            require((run, stage) in bad, f"run {run} ended when its neighbour diverged")
            # later the group is smaller by one, and matrix products may round in another way
            away = gap(bad[run, stage].tensors, one.tensors)
            require(
                away == 0 if stage == 0 else away < CLOSE,
                f"run {run} changes by {away:.1e} in task {stage} when its neighbour diverges: "
                "nothing may be summed over runs",
            )


def _group(method: Method, data: Data, orders: Sequence[Sequence[int]]) -> Trained:
    return train(runs_of(tame(method), streams(data, orders)), together=True)


def _one_broken_class() -> Data:
    data = clouds()
    x = torch.as_tensor(data.x).clone()
    x[data.y[:, 0] == len(SIZES) - 1] = torch.nan  # what a loss becomes in the end
    return replace(data, x=x)


def check_it_does_something(method: Method) -> None:
    """From the second task on, weights or scores differ from those of plain finetuning."""
    verbs = ("replay", "loss", "gradient", "step", "interval", "scores", "start", "between",
             "finish")  # fmt: skip
    if not any(method.implements(verb) for verb in (*verbs, "networks")):
        raise DoesNotApply("it is finetuning")
    mine, plain = train(runs_of(tame(method), streams()[:1])), _finetuned()
    last = max(mine)
    vectors = mine[last].vector, plain[last].vector
    if vectors[0].shape != vectors[1].shape:
        return
    same_scores = bool((mine[last].scores == plain[last].scores).all())
    if torch.equal(*vectors) and same_scores:
        raise Broken(
            "after three tasks all numbers equal those of plain finetuning, so it has no effect: "
            + why_nothing_differs(method)
        )


@cache  # the same for every method
def _finetuned() -> Trained:
    return train(runs_of(Finetune(), streams()[:1]))
