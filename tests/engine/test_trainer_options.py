"""What any trainer has, against torch: accumulation, averages, schedules, half precision."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

import engram
from engram import methods
from engram.checks.toy_runs import (
    CLOSE,
    EXACT,
    copy_stage,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    train_runs,
)
from engram.engine.engine import Engine
from engram.engine.optim import Optimizer, Schedule
from engram.engine.trainers import compiled
from engram.engine.trainers.step import adapt_loss_scale_
from engram.engine.training import Training
from engram.learner.batch import Batch
from engram.learner.objectives import Objective
from engram.memory import Memory
from engram.methods.method import Method
from engram.streams import class_incremental
from tests.experiments.test_step_checkpoints import Crash, crash_after, every_slice, same  # noqa: F401
from tests.refusals import refuses

MEMORY = Memory(total=12)
TOGETHER = pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])


@dataclass(frozen=True, kw_only=True)
class Walk(Method):
    """Notes the weights, the gradient and the update of every step of a run that is alone."""

    def start(self, learner, task):
        WALKED.append([learner.vector.clone()])
        learner.state = {"steps": torch.zeros((), dtype=torch.long)}

    def step(self, update, state):
        if update.after.untyped_storage().size() > 0:  # not inside of a mapped function
            WALKED[-1] += [update.grad.clone(), update.after.clone()]
        return {"steps": update.number}


WALKED: list[list[torch.Tensor]] = []


def walk(**training):
    """(weights before, gradients, weights after each step, the learner) of one run's first task."""
    WALKED.clear()
    run = make_runs(Walk(), make_streams()[:1], training=replace(EXACT, **training))
    stage = next(Engine(run, device="cpu").stages())
    start, *rest = WALKED[-1]
    return start, rest[::2], rest[1::2], stage.learner


# -- accumulation ----------------------------------------------------------------------------------
@TOGETHER
@pytest.mark.parametrize(
    "method",
    [
        methods.Finetune(), methods.ER(memory=MEMORY), methods.NaiveRehearsal(memory=MEMORY),
        methods.EWC(strength=1.0), methods.SI(), methods.RWalk(every=3), methods.LwF(),
        methods.AGEM(memory=MEMORY), methods.SSIL(memory=MEMORY),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_four_batches_are_one_of_four_times_the_rows(method, together):
    """Also where the last batch of an epoch is short, and where padding fills it."""
    ends = [
        train_runs(
            make_runs(method, make_streams(), training=replace(EXACT, **size)), together=together
        )
        for size in ({"batch_size": 16}, {"batch_size": 4, "accumulate": 4})
    ]
    for key, one in ends[0].items():
        assert largest_gap(ends[1][key].tensors, one.tensors) < CLOSE, key


def test_parts_of_a_batch_pass_one_after_the_other(monkeypatch):
    rows = []
    plain = Objective.__call__
    monkeypatch.setattr(
        Objective, "__call__", lambda self, x, batch: rows.append(len(x)) or plain(self, x, batch)
    )
    training = replace(EXACT, batch_size=4, accumulate=4, epochs=1)
    (stage, *_) = Engine(
        make_runs(methods.Finetune(), make_streams()[:1], training=training), device="cpu"
    ).stages()
    first = rows[: 4 * stage.steps]
    assert set(first[:-4]) == {4}
    assert sum(first) == len(stage.stream.tasks[0].train)


# -- averaged weights ------------------------------------------------------------------------------
@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_an_average_is_that_of_torch(decay):
    _, _, weights, learner = walk(ema=decay)
    module = torch.nn.ParameterList([weights[0].clone()])
    average = torch.optim.swa_utils.AveragedModel(
        module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
    )
    for one in weights:
        module[0].data.copy_(one)
        average.update_parameters(module)
    (expected,) = average.module.parameters()
    assert largest_gap(learner.vector, expected.detach()) < 1e-14
    assert largest_gap(learner.vector, weights[-1]) > 1e-3


def test_the_average_is_validated_evaluated_and_kept(tmp_path):
    stream = class_incremental(make_clouds(), valid=0.25)
    settings = {"ema": 0.9, "epochs": 3, "restore_best": True, "evaluate_every": 2, "lr": 0.05}
    result = engram.run(stream, method="ER", out=tmp_path, device="cpu", **settings)
    learner = result.model("ER", seed=0)
    rows = torch.cat([task.test for task in stream.tasks])
    predicted = torch.as_tensor(learner.predict(stream.data.gather(rows)))
    counted = float((predicted == stream.data.y[rows, 0]).double().mean())
    found = result.metric("average_accuracy").mean()
    assert counted == pytest.approx(found, abs=0.02)  # tasks differ a little in size
    plain = engram.run(stream, method="ER", device="cpu", **{**settings, "ema": 0.0})
    assert not result.frame()["value"].equals(plain.frame()["value"])


# -- learning rates --------------------------------------------------------------------------------
def rates_of(training, steps):
    schedule = Schedule(training, 1)
    schedule.totals[:] = steps
    return schedule.rates(torch.zeros(1).numpy().astype(int), torch.ones(1, steps).bool().numpy())


def test_a_cosine_is_that_of_torch():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for rate in rates_of(Training(lr=0.3, schedule="cosine"), 20)[0]:
        assert rate == pytest.approx(theirs.get_last_lr()[0], abs=1e-15)
        optimizer.step()
        theirs.step()


def test_a_warm_up_is_that_of_torch():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    theirs = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 5, total_iters=4)
    for rate in rates_of(Training(lr=0.3, warmup_steps=5), 8)[0]:
        assert rate == pytest.approx(theirs.get_last_lr()[0], abs=1e-15)
        optimizer.step()
        theirs.step()


def test_rates_reach_the_weights():
    """With plain gradient descent every update is the gradient times the rate of its step."""
    options = {"momentum": 0.0, "schedule": "cosine", "warmup_steps": 3, "lr": 0.1}
    start, grads, weights, _ = walk(**options)
    expected = rates_of(Training(**options), len(grads))[0]
    for rate, grad, before, after in zip(expected, grads, [start, *weights], weights, strict=False):
        assert largest_gap(after, before - rate * grad) < 1e-14
    assert expected[0] == pytest.approx(0.1 / 3)


# -- optimisers and clipping -----------------------------------------------------------------------
@pytest.mark.parametrize("how", ["one kernel", "rates per run"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_nesterov_is_that_of_torch(how, decay):
    ours = Optimizer.from_training(
        Training(optimizer="sgd", momentum=0.9, nesterov=True, weight_decay=decay)
    )
    grads = torch.randn(9, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vector = torch.linspace(-1, 1, 7, dtype=torch.float64)
    theirs, opt, rate = (
        vector.clone().requires_grad_(True),
        ours.fresh(vector),
        vector.new_tensor(0.1),
    )
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, nesterov=True, weight_decay=decay)
    for grad in grads:
        theirs.grad = grad.clone()
        optimizer.step()
        if how == "one kernel":
            ours.fused_([vector], [grad.clone()], [opt["m"]], [], opt["t"], 0.1)
        else:
            ours.update_(vector, grad.clone(), opt, rate)
    assert largest_gap(vector, theirs.detach()) < 1e-14


def test_values_are_clipped_as_in_torch():
    start, grads, weights, _ = walk(momentum=0.0, clip_value=0.01, lr=1.0)
    for grad, before, after in zip(grads, [start, *weights], weights, strict=False):
        parameter = torch.nn.Parameter(before.clone())
        parameter.grad = grad.clone()
        torch.nn.utils.clip_grad_value_([parameter], 0.01)
        assert largest_gap(after, before - parameter.grad) < 1e-14
    assert max(float(grad.abs().max()) for grad in grads) > 0.01


# -- half precision --------------------------------------------------------------------------------
def test_the_scale_of_the_loss_follows_torch():
    opt = {"scale": torch.tensor(2.0**16), "streak": torch.tensor(0)}
    scale, streak = torch.full((1,), 2.0**16), torch.zeros(1, dtype=torch.int32)
    overflows, seen = torch.arange(6000) % 2500 == 2400, set()
    for overflow in overflows:
        adapt_loss_scale_(opt, ~overflow, None)
        torch._amp_update_scale_(scale, streak, overflow.float()[None], 2.0, 0.5, 2000)
        assert float(opt["scale"]) == float(scale)
        seen.add(float(scale))
    assert len(seen) > 1


@TOGETHER
def test_half_precision_is_near_single_precision(together):
    def ends(precision):
        training = replace(EXACT, precision=precision)
        return train_runs(make_runs(methods.EWC(strength=0.1), make_streams(), training=training),
                          together=together)  # fmt: skip

    half, single = ends("fp16"), ends("float32")
    near = 0
    for key, one in single.items():
        assert half[key].vector.dtype == torch.float32
        if half[key].opt["t"] == one.opt["t"] and key[1] == 0:  # no step was left out
            assert 1e-6 < largest_gap(half[key].vector, one.vector) < 1e-3, key
            near += 1
    assert near


@TOGETHER
def test_a_step_that_overflows_is_left_out(together):
    """At first the scale is too large for a loss times 2000: it falls, then steps are taken."""

    @dataclass(frozen=True, kw_only=True)
    class Loud(Method):
        def loss(self, net, batch, state):
            return {"task": 2000 * net.task(batch)}

    training = replace(EXACT, precision="fp16", lr=1e-5, momentum=0.0, iterations=16)
    for stage in Engine(
        make_runs(Loud(), make_streams(), training=training), device="cpu", together=together
    ).stages():
        opt = stage.learner.opt
        assert float(opt["scale"]) < 2.0**16
        assert 0 < int(opt["t"]) < 16  # the optimiser's own count
        assert torch.isfinite(stage.learner.vector).all()


# -- label smoothing -------------------------------------------------------------------------------
def test_smoothed_labels_are_those_of_torch():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1, 0, 2])
    is_open = torch.tensor([True, True, True, False]).expand(6, 4)
    none = torch.zeros(6)
    batch = Batch(
        x=logits, y=labels[:, None], w=torch.ones(6, dtype=torch.float64), stage=none, old=none,
        open=is_open, slot=none, opened=torch.tensor([0, 0, 0, -1]), now=none[0], key=none[0],
    )  # fmt: skip
    found = Objective("ce", 0.2)(logits, batch)
    expected = F.cross_entropy(logits[:, :3], labels, label_smoothing=0.2)
    assert float(found) == pytest.approx(float(expected), abs=1e-14)


@TOGETHER
def test_a_loss_of_its_own_smooths_no_labels(together):
    training = replace(EXACT, label_smoothing=0.1)
    runs = make_runs(methods.ICaRL(memory=MEMORY), make_streams(), training=training)
    with refuses("label_smoothing"):
        train_runs(runs, together=together)


# -- all of them -----------------------------------------------------------------------------------
ALL = {
    "accumulate": 2, "batch_size": 4, "ema": 0.9, "schedule": "cosine", "warmup_steps": 3,
    "optimizer": "sgd", "nesterov": True, "clip_value": 0.05, "label_smoothing": 0.1,
}  # fmt: skip


@pytest.mark.skipif(
    not any(map(shutil.which, compiled.COMPILERS)), reason="no C++ compiler to test with"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled():
    data = make_clouds((16, 16, 16, 16))
    streams = make_streams(data, orders=([0, 2, 1, 3], [1, 3, 0, 2]))
    runs = make_runs(methods.ER(memory=MEMORY), streams, training=replace(EXACT, **ALL))
    plain = train_runs(runs, together=True)
    engine = Engine(runs, device="cpu", together=True, compile=True)
    for stage in engine.stages():
        one = copy_stage(stage)
        assert largest_gap(one.tensors, plain[stage.run, stage.stage].tensors) < CLOSE
        assert largest_gap(one.opt, plain[stage.run, stage.stage].opt) < CLOSE


@TOGETHER
@pytest.mark.parametrize("precision", ["float32", "fp16"])
@pytest.mark.parametrize("saves", [2, 9])
@pytest.mark.usefixtures("every_slice")
def test_a_killed_run_goes_on_bit_for_bit(precision, together, saves, tmp_path, monkeypatch):
    def run(out):
        return engram.run(
            make_streams()[1], method="ER", seeds=2, together=together, out=out, device="cpu",
            model={"name": "mlp", "hidden": (8,)}, epochs=3, lr=0.05, precision=precision,
            optim_reset=False, **ALL,
        )  # fmt: skip

    whole = run(tmp_path / "whole")
    heal = crash_after(monkeypatch, saves)
    with pytest.raises(Crash):
        run(tmp_path / "killed")
    heal()
    same(run(tmp_path / "killed"), whole)


@pytest.mark.parametrize(
    ("name", "value", "beside"),
    [
        ("accumulate", 0, {}), ("accumulate", 2, {"batch_size": 0}), ("ema", 1.5, {}),
        ("warmup_steps", -1, {}), ("nesterov", True, {"optimizer": "adam"}),
        ("nesterov", "yes", {}), ("clip_value", -1.0, {}), ("label_smoothing", 2.0, {}),
        ("stop_lr", 1e-5, {"schedule": "cosine"}), ("precision", "fp17", {}),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(name, value, beside):
    with refuses(name):
        Training(**{name: value}, **beside)
