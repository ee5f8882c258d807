"""Rules of equal numbers: alone or in lockstep, uninterrupted or resumed, under any class ids;
pure losses and steps; independence of runs with other settings.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from engram import keys
from engram.checks.check_report import BrokenRule, DoesNotApply, explain, require
from engram.checks.failure_causes import (
    UNKNOWN_CAUSE,
    explain_lockstep_difference,
    explain_no_difference,
)
from engram.checks.toy_runs import (
    CLOSE,
    EXACT,
    ORDERS,
    OWN_NETWORK,
    SIZES,
    OwnNetwork,
    StageCopy,
    TaskStart,
    Trained,
    all_finite,
    change_parts,
    choose_model,
    copy_stage,
    enter_task,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    replace_field,
    shrink_settings,
    spy_on,
    train_runs,
    train_runs_alone,
    trees_equal,
    vary_options,
)
from engram.data.dataset import Data
from engram.engine import checkpoints as checkpoint
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items, told_task
from engram.engine.run_definition import Run
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.structural_key import structural_key
from engram.learner.tensor_tree import leaves, tree_map
from engram.methods.finetune import Finetune
from engram.methods.join import Join
from engram.methods.method import Method, check_step
from engram.streams import class_incremental

FEW_ROWS = 7  # of a pass whose rows are mixed
LAST_BITS = 1e-15  # relative change of weights, of the size of their rounding
MOST_ROUNDING = 10.0  # times as far as rounding takes a run, a difference still is rounding
TOO_STRONG_HINT = "lower its strengths: the runs of this check explode (SGD, learning rate 0.02)"


def require_lockstep_is_alone(runs: Sequence[Run]) -> None:
    """Require that runs end with the same numbers in lockstep and alone."""
    group = Engine(runs, device="cpu", together=True).groups()
    require(
        len(group) == 1,
        "the runs do not train together: fields of one method may differ in "
        "floats only, networks(stream) must be the same but for its weights",
    )
    require_equal_alone(runs)


def require_equal_alone(runs: Sequence[Run], alone: Trained | None = None) -> None:
    """Require that each run ends every stage alone as it does with the others.

    `alone` is the result of `train_runs_alone`, if known.
    """
    alone = train_runs_alone(runs) if alone is None else alone
    together = train_runs(runs, together=True)
    for key, one in alone.items():
        require(all_finite(one.vector), TOO_STRONG_HINT)
        other = together[key]
        for name in one.tensors:
            away = largest_gap(other.tensors[name], one.tensors[name])
            if away >= CLOSE:
                run = runs[key[0]]
                cause = explain_lockstep_difference(
                    run, any(each.method != runs[0].method for each in runs)
                )
                if cause is UNKNOWN_CAUSE and away <= MOST_ROUNDING * _rounding_gap(run, one):
                    raise DoesNotApply(
                        f"{name} differ by {away:.1e} between lockstep and loop, and as much "
                        f"between runs alone whose weights begin {LAST_BITS:.0e} apart: something "
                        "jumps (abs, sign, round, a largest value), which rounding decides"
                    )
                raise BrokenRule(
                    f"{name} of run {key[0]} after task {key[1]} differ by {away:.1e} between "
                    f"lockstep and loop: {cause}"
                )
        away = largest_gap(torch.as_tensor(other.scores), torch.as_tensor(one.scores))
        require(away < 1e-5, f"scores after task {key[1]} differ by {away:.1e}")
        kept = trees_equal(tuple(one.exemplars[:4]), tuple(other.exemplars[:4]))
        require(kept, f"exemplars after task {key[1]} differ: draw by learner.seed and stage only")


def _rounding_gap(run: Run, alone: StageCopy) -> float:
    """How far a run ends from `alone` if its first weights differ in their last bits.

    0 if it does not even end there from the same weights, so that something else decides.
    """
    ends = []
    for size in (0.0, LAST_BITS, 0.0):  # what changes from run to run may meet itself once

        def nudge(_place: int, learner: RunLearner, size: float = size) -> int:
            places = torch.arange(len(learner.vector))
            learner.vector = learner.vector * (1 + size * keys.normal(keys.fold(0, places)))
            return 0

        stages = Engine([run], device="cpu", together=False).stages(resume=nudge)
        ends.append(next(copy_stage(s) for s in stages if s.stage == alone.stage.stage))
    again, nudged, last = (largest_gap(one.tensors, alone.tensors) for one in ends)
    return 0.0 if again or last else nudged


def check_lockstep_is_the_loop(method: Method) -> None:
    """Three runs with tasks of unequal size: the same numbers together and one by one."""
    require_lockstep_is_alone(make_runs(shrink_settings(method), make_streams()))


def check_lockstep_with_batch_norm(method: Method) -> None:
    """The same with batch normalisation, whose statistics must leave padding out."""
    method = shrink_settings(method)
    if choose_model(method, "normed") == choose_model(method, "plain"):
        raise DoesNotApply("its networks are those of the check before")
    require_lockstep_is_alone(make_runs(method, make_streams()[:2], model="normed"))


def check_lockstep_with_dropout(method: Method) -> None:
    """The same with dropout, and with tasks smaller than a batch."""
    require_lockstep_is_alone(
        make_runs(
            shrink_settings(method),
            make_streams()[:2],
            model="dropped",
            training=replace(EXACT, batch_size=40),
        )
    )


def check_lockstep_with_strengths(method: Method) -> None:
    """The same with another value of every `PerRun` option in each run."""
    mine = shrink_settings(method)
    methods = vary_options(mine, len(ORDERS))
    if methods[1] == methods[0]:
        raise DoesNotApply(_suggest_per_run(mine))
    require_equal_alone(
        make_runs(methods, make_streams())
    )  # not one group, if an option decides what networks compute


def _suggest_per_run(method: Method) -> str:
    parts = method.parts if isinstance(method, Join) else (method,)
    found = [f.name for part in parts for f in fields(part) if type(getattr(part, f.name)) is float]
    if not found:
        return "no option is a float"
    return (
        f"no option is declared PerRun; with `{found[0]}: engram.PerRun`, runs that differ in it "
        "train together"
    )


def check_resume_is_uninterrupted(method: Method) -> None:
    """A run stopped after any task and resumed from its file ends bitwise as uninterrupted."""
    training = replace(EXACT, optimizer="adam", lr=1e-3, optim_reset=False)
    runs = make_runs(shrink_settings(method), make_streams()[:1], model="normed", training=training)
    with tempfile.TemporaryDirectory() as name:
        whole, last = {}, 0
        for stage in Engine(runs, device="cpu", together=False).stages():
            folder = Path(name) / str(stage.stage)
            checkpoint.save_checkpoint(stage.learner, folder)
            whole, last = stage.learner.__dict__.copy(), stage.stage
        for cut in range(last):
            after = _resume_run(runs, Path(name) / str(cut), cut)
            for part in ("vector", "buffers", "state", "opt", "free"):
                equal = trees_equal(getattr(after, part), whole[part])
                require(
                    equal,
                    f"{part} differ after a resume behind task {cut}: keep all that "
                    "later tasks need in learner.state, none of it on self",
                )
            kept = trees_equal(tuple(after.exemplars[:4]), tuple(whole["exemplars"][:4]))
            require(kept, f"exemplars differ after a resume behind task {cut}")


def _resume_run(runs: Sequence[Run], folder: Path, cut: int) -> RunLearner:
    def resume(_place: int, learner: RunLearner) -> int:
        return checkpoint.load_checkpoint(learner, folder, range(cut + 1))

    stages = list(Engine(runs, device="cpu", together=False).stages(resume=resume))
    return stages[-1].learner


def check_class_ids_do_not_matter(method: Method) -> None:
    """Other ids for the same classes in the same order: the same numbers, bitwise."""
    rename = (3, 5, 0, 1, 4, 2)
    renamed = class_incremental(make_clouds(rename=rename), order=[rename[c] for c in ORDERS[1]])
    both = [
        train_runs(make_runs(shrink_settings(method), [stream]))
        for stream in (make_streams()[1], renamed)
    ]
    for key, one in both[0].items():
        other = both[1][key]
        equal = trees_equal(one.tensors, other.tensors) and (one.scores == other.scores).all()
        require(
            bool(equal),
            f"results after task {key[1]} depend on class ids: use output columns "
            "(places in order of introduction), never ids",
        )


def check_a_diverging_run_harms_no_other(method: Method) -> None:
    """A diverging run is marked; the runs in lockstep with it do not change by a bit."""
    data = _data_with_broken_class()
    calm, wild = (0, 1, 2, 3), (5, 1, 2, 3)  # the broken class is in one run only
    good = _train_orders(method, data, (calm, (3, 1, 0, 2), (2, 0, 1, 3)))
    bad = _train_orders(method, data, (calm, wild, (2, 0, 1, 3)))
    marks = [after.diverged for (run, _), after in bad.items() if run == 1]
    require(marks[-1] >= 0, "a run with infinite loss was not marked as diverged")
    for (run, stage), one in good.items():
        if run != 1:
            require((run, stage) in bad, f"run {run} ended when its neighbour diverged")
            # later the group is smaller by one, and matrix products may round in another way
            away = largest_gap(bad[run, stage].tensors, one.tensors)
            require(
                away == 0 if stage == 0 else away < CLOSE,
                f"run {run} changes by {away:.1e} in task {stage} when its neighbour diverges: "
                "nothing may be summed over runs",
            )


def _train_orders(method: Method, data: Data, orders: Sequence[Sequence[int]]) -> Trained:
    return train_runs(make_runs(shrink_settings(method), make_streams(data, orders)), together=True)


def _data_with_broken_class() -> Data:
    data = make_clouds()
    x = torch.as_tensor(data.x).clone()
    x[data.y[:, 0] == len(SIZES) - 1] = torch.nan  # makes the loss NaN
    return replace(data, x=x)


def check_it_does_something(method: Method) -> None:
    """From the second task on, weights or scores differ from those of plain finetuning."""
    verbs = ("replay", "loss", "gradient", "step", "answer", "start", "phases", "finish")
    if not any(method.implements(verb) for verb in (*verbs, "networks")):
        raise DoesNotApply("it is finetuning")
    mine, plain = (
        train_runs(make_runs(shrink_settings(method), make_streams()[:1])),
        _train_finetune(OWN_NETWORK.get()),
    )
    last = max(mine)
    vectors = mine[last].vector, plain[last].vector
    if vectors[0].shape != vectors[1].shape:
        return
    same_scores = bool((mine[last].scores == plain[last].scores).all())
    if torch.equal(*vectors) and same_scores:
        raise BrokenRule(
            "after three tasks all numbers equal those of plain finetuning, so it has no effect: "
            + explain_no_difference(method)
        )


@cache  # the same for every method
def _train_finetune(_on: OwnNetwork | None) -> Trained:
    return train_runs(make_runs(Finetune(), make_streams()[:1]))


# Pure verbs: functions of their tensors only, so that they can be mapped, resumed and captured.


def random_states() -> tuple[Any, ...]:
    """Return the states of all global generators."""
    numbers = repr(np.random.get_state())  # noqa: NPY002 - the global state is the point
    return torch.get_rng_state().tolist(), numbers, random.getstate()


def _loss_terms(method: Method, at: TaskStart, batch: Batch) -> dict[str, Tensor]:
    return method.loss(at.net(batch), batch, at.learners[0].state)


def check_loss_is_pure(method: Method) -> None:
    """The same inputs give the same terms; nothing is modified, no global generator is used."""
    at = enter_task(shrink_settings(method))
    method, learner = at.method, at.learners[0]
    for batch in at.own_batches():
        tree = (learner.vector, learner.buffers, learner.state, *batch.per_row, *batch.shared)
        kept, drawn = tree_map(torch.clone, tree), random_states()
        first = _loss_terms(method, at, batch)
        require(
            random_states() == drawn,
            "loss uses a global generator: draw with engram.keys, batch.key",
        )
        require(
            trees_equal(tree, kept), "loss modifies its inputs: work on copies, return new tensors"
        )
        second = _loss_terms(method, at, batch)
        require(
            trees_equal(first, second), "loss gives other terms for the same inputs: keep no memory"
        )
        _require_valid_terms(first)


def _require_valid_terms(terms: Any) -> None:
    require(isinstance(terms, dict) and len(terms) > 0, "loss must return {name: term}")
    for name, term in terms.items():
        require(isinstance(name, str), f"names of loss terms are strings, not {name!r}")
        scalar = isinstance(term, Tensor) and term.ndim == 0
        require(scalar, f"term {name!r} must be a tensor without axes: take a weighted mean")
        require(bool(torch.isfinite(term)), f"term {name!r} is {float(term)} on harmless data")


def check_step_is_pure(method: Method) -> None:
    """`step` returns new weights and states of the same shapes and modifies nothing."""
    if not method.implements("step"):
        raise DoesNotApply("no step of its own")
    at = enter_task(shrink_settings(method))
    learner = at.learners[0]
    never_or_always: tuple[Callable[[int], bool], ...] = (lambda _: False, lambda _: True)
    for number, due in zip((1, 0), never_or_always, strict=True):  # 0 ends every period
        update = at.update(number, due)
        given = (update.before, update.after, update.grad, dict(update.kept), learner.state)
        kept, drawn = tree_map(torch.clone, given), random_states()
        first, second = (at.method.step(update, learner.state) for _ in range(2))
        require(trees_equal(given, kept), "step modifies its inputs: return {**state, name: new}")
        require(random_states() == drawn, "step uses a global generator")
        require(trees_equal(first, second), "step gives other states for the same inputs")
        _, state = check_step(at.method, first, update.after)
        shape = [leaf.shape for leaf in leaves(state)] == [leaf.shape for leaf in leaves(kept[-1])]
        require(shape, "step must return a state with the keys and shapes it was given")


def check_step_waits_for_each_run(method: Method) -> None:
    """Where `update.every(n)` is False for a run, `step` does what it does in other steps."""
    if not method.implements("step"):
        raise DoesNotApply("no step of its own")
    at = enter_task(shrink_settings(method))
    learner, asked = at.learners[0], list[int]()

    def note(period: int) -> bool:
        asked.append(period)
        return True

    beside = at.method.step(at.update(1, note), learner.state)
    if not any(period > 1 for period in asked):
        raise DoesNotApply("no period of its own")
    alone = at.method.step(at.update(1, lambda period: period == 1), learner.state)
    require(
        trees_equal(beside, alone),
        "step changes the state where a period ends for another run only: update.every(n) is a "
        "mask, so use torch.where",
    )


def check_scores_row_by_row(method: Method) -> None:
    """The scores of a row do not depend on the rows beside it."""
    at = enter_task(shrink_settings(method), stage=2)
    learner = at.learners[0]
    batch = learner.batch()
    told = torch.tensor(told_task(learner, at.method, learner.stage))
    whole = at.method.answer(learner.net(), batch.x, learner.state, told).logits
    columns = len(learner.opened)
    shape = tuple(whole.shape) == (len(batch.x), columns)
    require(shape, f"scores must be [rows, {columns}], they are {tuple(whole.shape)}")
    alone = at.method.answer(learner.net(), batch.x[:3], learner.state, told).logits
    require(
        largest_gap(alone, whole[:3]) < 1e-12, "scores mix rows: use no statistics of the batch"
    )


def check_rewritten_values_stay_in_their_rows(method: Method) -> None:
    """Stored values change for the rows of a batch alone, each by what its own row holds."""
    method = shrink_settings(method)
    stages = range(len(make_streams()[0]))
    if not any(method.replay(stage).rewrites for stage in stages):
        raise DoesNotApply("no stored values are rewritten")
    at = enter_task(method)
    learner, asked = at.learners[0], 0
    for batch in at.own_batches():
        for part in (batch, *batch.memory):
            asked += _require_own_values(method, learner, part)
    require(asked > 0, "no batch holds rows of the memory, whose values could be rewritten")
    held: dict[int, dict[str, Tensor]] = {}  # by slot, what the last step left there
    said: dict[int, dict[str, Tensor]] = {}  # in this step
    steps: list[tuple[int, int]] = []

    def compare(original: Callable[..., Any], net: Any, batch: Any, state: Any) -> Any:
        found = original(net, batch, state)
        time = (int(batch.now), int(batch.times[0])) if batch.times else (-1, -1)
        if not steps or time != steps[-1]:
            held.update(said)
            said.clear()
            if not steps or time[0] != steps[-1][0]:  # slots have other rows now
                held.clear()
            steps.append(time)
        real = (batch.slot >= 0) & (batch.w > 0)
        for place in real.nonzero()[:, 0].tolist() if batch.times else ():
            slot = int(batch.slot[place])
            require(
                slot not in held or all(
                    torch.equal(value[place], held[slot][name])
                    for name, value in batch.values.items()
                ),
                "a row comes with other values than those that remember returned for it",
            )  # fmt: skip
            said.setdefault(slot, {name: value[place] for name, value in found.items()})
        return found

    if all(method.replay(stage).renew == "task" for stage in stages):  # rows keep their slots
        train_runs(make_runs(spy_on(method, "remember", compare), make_streams()[:1]))


def _require_own_values(method: Method, learner: RunLearner, batch: Batch) -> int:
    """Ask what is remembered of rows beside others; returns how many rows are in the memory."""
    rows = torch.arange(len(batch.w))
    stored = (batch.slot >= 0) & (batch.w > 0)
    changes = {"every second": rows % 2 == 1, "the second half": rows >= len(rows) // 2}
    with torch.no_grad():
        whole = method.remember(learner.net(), batch, learner.state)
        for which, others in changes.items():
            beside = torch.where(others, rows.flip(0), rows)
            company = batch._replace(memory=()).select(beside)._replace(memory=batch.memory)
            found = method.remember(learner.net(), company, learner.state)
            for name, value in whole.items():
                mine = stored & ~others
                require(
                    largest_gap(found[name][mine], value[mine]) < 1e-12,
                    f"remember rewrites {name!r} of a row otherwise if {which} of the rows "
                    "differs: a row's values are its own",
                )
    return int(stored.sum())


def check_the_task_stays_unknown(method: Method) -> None:
    """Answers know the task of a row only where the stream gives it and the method declares it."""
    told: list[tuple[int, Tensor]] = []

    def listen(original: Callable[..., Any], *given: Any) -> Any:
        if not torch.is_grad_enabled():  # a loss knows the task that it trains
            told.append((int(given[3]), given[1]))
        return original(*given)

    method = shrink_settings(method)
    if not method.implements("answer"):
        raise DoesNotApply("it answers what its network does")
    stream, brief = make_streams()[0], replace(EXACT, epochs=1)
    if method.task_identity != "required":
        runs = make_runs(spy_on(method, "answer", listen), [stream], training=brief)
        after = train_runs(runs)[0, len(stream) - 1]
        require(
            {stage for stage, _ in told} == {-1},
            "answers are told the task of a row that no stream gives",
        )
        # what the order or the company of rows gives away is the task, too
        learner = after.stage.learner
        rows, stages = test_items(learner.stream)
        order = keys.permutation(keys.fold(0, "mixed"), len(rows), len(rows))
        x = learner.feed(rows[order], stages[order])
        parts = [
            method.answer(learner.net(), some, learner.state, torch.tensor(-1)).logits
            for some in x.split(FEW_ROWS)
        ]
        found = torch.cat(parts)
        gap = largest_gap(found.float(), torch.as_tensor(after.scores)[order])
        require(gap < 1e-5, "scores depend on the order in which rows of several tasks come")
    if method.task_identity != "ignored":
        given = replace(stream, head="multi")
        (run,) = make_runs(spy_on(method, "answer", listen), [given], training=brief)
        for now in Engine([replace(run, unseen=True)], device="cpu").stages():
            for stage, x in told:
                require(stage <= now.stage, "answers about a task to come are told which it is")
                own = stream.tasks[stage].test if stage >= 0 else stream.data.test
                known = now.learner.feed(own, torch.full_like(own, max(stage, 0)))
                same = (x[:, None] == known).flatten(2).all(-1).any(1).all()
                require(bool(same), f"answers are told task {stage} about rows of another one")
            told.clear()
    if method.task_identity == "ignored":
        at = enter_task(method, stage=1)
        learner = at.learners[0]
        x = learner.batch().x
        each = [
            method.answer(learner.net(), x, learner.state, torch.tensor(stage)).logits
            for stage in (-1, 0, 1)
        ]
        require(
            all(torch.equal(each[0], one) for one in each[1:]),
            "answer depends on the task of a row, which it is told only if the method declares "
            "task_identity = 'used' or 'required'",
        )


def check_maps_without_host_decisions(method: Method) -> None:
    """A mapped step traces with fake tensors: no `.item()`, no `if tensor`, fixed shapes."""
    at = enter_task(shrink_settings(method))
    trainer = at.trainer

    def step(vector: Tensor, buffers: Any, state: Any, batch: Batch) -> Any:
        t = replace(trainer.tensors, vector=vector, buffers=buffers, state=state)
        mapped = trainer.verbs.mapped()(*trainer.verbs.arguments(t, batch))
        found, _ = trainer.verbs.results(mapped)
        if at.method.implements("step"):
            assert found.flat is not None and found.data is not None  # noqa: PT018
            after = vector - found.flat
            weights = vector, after, found.data, t.taken
            beside = batch.key, batch.times[1:], found.kept
            state = trainer.verbs.after_step(lambda _: True, weights, beside, state, t.hyper)
        return found.flat, found.terms, state

    inputs = (trainer.tensors.vector, trainer.tensors.buffers, trainer.tensors.state, at.batch)
    try:
        make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except Exception as error:
        raise BrokenRule(f"a mapped step cannot be traced\n{explain(error, at.method)}") from error


# Other settings in the same engine.


# integers and booleans change shapes and code paths, floats the computed values
OTHER_VALUES: dict[type, Callable[[Any], Any]] = {
    int: lambda value: value + 1, bool: lambda value: not value, float: lambda value: value / 2,
}  # fmt: skip


def alter_fields(method: Method, *kinds: type) -> Method:
    """Change every field of these types to another valid value."""

    def other(part: Method) -> Method:
        for field in fields(part):
            value = getattr(part, field.name)
            if field.init and type(value) in kinds:
                part = replace_field(part, field.name, OTHER_VALUES[type(value)](value))
        return part

    return change_parts(method, other)


def check_other_settings_beside_it(method: Method) -> None:
    """With other settings and seeds in one engine, each run ends as it does alone."""
    mine = shrink_settings(method)
    others = [alter_fields(mine, *kinds) for kinds in ((float,), (int, bool), (float, int, bool))]
    stream, known = make_streams()[1], {structural_key(mine)}
    brief = partial(make_runs, training=replace(EXACT, epochs=1))
    # the same seed, since caches shared by seed must not hide differences
    runs, alone = brief(mine, [stream]), list[Trained]()
    for one in others:
        key = structural_key(one)
        if key not in known and (found := _train_or_none(brief(one, [stream]))) is not None:
            runs += brief(one, [stream])
            alone.append(found)
        known.add(key)
    if not alone:
        raise DoesNotApply("no number or switch among its fields")
    runs.append(brief([mine, mine], [stream, stream])[1])
    every = [train_runs(runs[:1]), *alone, train_runs(runs[-1:])]
    alone_of_each = {(p, k): after for p, one in enumerate(every) for (_, k), after in one.items()}
    with warnings.catch_warnings():  # which of its floats keep runs apart is said elsewhere
        warnings.simplefilter("ignore", UserWarning)
        require_equal_alone(runs, alone_of_each)


def _train_or_none(runs: Sequence[Run]) -> Trained | None:
    """Train a run alone; None if its settings are refused at the start."""
    try:
        return train_runs(runs)
    except Exception:  # fails alone too: nothing to compare
        return None
