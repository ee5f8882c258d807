"""Faulty methods: what does nothing, or not what its author meant, fails one check, in words."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from engram import Memory, Method, ReplaySpec, keys
from engram.checks import check, equality_rules, form_rules, learning_rules
from engram.checks.check_report import BrokenRule, run_check, run_checks
from engram.checks.check_suite import METHOD_CHECKS, REQUIRED_CHECKS, ROOT_CHECKS, required_checks
from engram.checks.toy_runs import make_runs, make_streams, train_runs
from engram.errors import BadArgument
from engram.losses import masked_ce
from engram.methods import Finetune
from engram.per_run import PerRun


def the_fault(kind: type[Method]) -> tuple[str, str]:
    """The only check that fails, and what it says."""
    # classes made inside a function have no name that a recipe could write down
    found = [one for one in check(kind).failed if one.check != "recipe round trip"]
    assert len(found) == 1, [one.check for one in found]
    return found[0].check, found[0].message


def method(**verbs: object) -> type[Method]:
    kind = type("Mine", (Method,), dict(verbs))
    return dataclass(frozen=True, kw_only=True)(kind)


def twice(self, net, batch, state):
    return {"task": 2 * net.task(batch)}


# -- names -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("los", "loss"), ("Loss", "loss"), ("compute_loss", "loss"), ("finnish", "finish"),
        ("on_start", "start"), ("training_step", "step"), ("answers", "answer"),
        ("gradients", "gradient"), ("network", "networks"),
    ],
)  # fmt: skip
def test_misspelt_verbs_are_failures(name, verb):
    rest = {} if verb == "loss" else {"loss": twice}
    found, message = the_fault(method(**{name: twice}, **rest))
    assert found == "verbs are known"
    assert f"did you mean {verb!r}" in message
    assert message.startswith("test_faulty_methods.py:")


def test_a_misspelt_declaration_is_a_failure():
    assert "did you mean 'reads'" in the_fault(method(loss=twice, read="past"))[1]
    assert "did you mean 'grows'" in the_fault(method(loss=twice, grow=True))[1]


def test_helpers_beside_a_verb_are_no_misspellings():
    kind = method(loss=twice, losses=lambda self: 1, _los=lambda self: 1, strength=1.0)
    form_rules.check_verbs_are_known(kind())


def test_a_subclass_that_overrides_nothing_is_a_failure():
    found, message = the_fault(method(strength=1.0))
    assert found == "verbs are known"
    assert "plain finetuning" in message
    assert run_check(form_rules.check_verbs_are_known, Finetune()).passed


@pytest.mark.parametrize(
    "verb", [lambda self, net, batch: {}, lambda self, net, batch, state, more: {}, 3]
)
def test_wrong_arguments_are_named(verb):
    found, message = the_fault(method(loss=verb))
    assert found == "verbs are known"
    assert "(net, batch, state)" in message


# -- memory ----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Unfilled(Method):
    memory: Memory = field(default=Memory(total=50))

    def replay(self, stage):
        return ReplaySpec("union")


@dataclass(frozen=True, kw_only=True)
class Buffer(Method):
    buffer: Memory = field(default=Memory(total=50))

    def replay(self, stage):
        return ReplaySpec("union")


@dataclass(frozen=True, kw_only=True)
class Undeclared(Method):
    def replay(self, stage):
        return ReplaySpec("union")

    def finish(self, learner, task):
        learner.exemplars = Memory(total=50).update(learner, task.train)


def test_a_memory_that_is_never_filled_is_a_failure():
    found, message = the_fault(Unfilled)
    assert found == "exemplars are trained on"
    assert "self.memory.update" in message


def test_a_memory_under_another_name_is_a_failure():
    assert the_fault(Buffer)[0] == "declarations"
    found, message = the_fault(Undeclared)
    assert found == "memory within budget"
    assert "declare a field `memory: Memory`" in message


# -- precision -------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Noise(Method):
    single: bool = False

    def loss(self, net, batch, state):
        noise = keys.normal(batch.key, *batch.x.shape)
        noise = noise.to(batch.x.dtype) if self.single else noise
        return {"task": net.task(batch._replace(x=batch.x + 0.1 * noise))}


def test_a_float64_draw_fails_in_float32():
    found, message = the_fault(Noise)
    assert found == "single precision"
    assert "engram.keys draws float64" in message
    assert run_check(form_rules.check_single_precision, Noise(single=True)).passed


def test_a_state_that_changes_its_precision_is_a_failure():
    @dataclass(frozen=True, kw_only=True)
    class Drifts(Method):
        def start(self, learner, task):
            learner.state = {"sum": torch.zeros_like(learner.vector)}

        def step(self, update, state):
            moved = torch.ones((), dtype=torch.float64) * (update.after - update.before)
            return {"sum": state["sum"] + moved}

    @dataclass(frozen=True, kw_only=True)
    class Counts(Method):
        def start(self, learner, task):
            learner.state = {"sum": torch.zeros((2,))}

        def step(self, update, state):
            return {"sum": state["sum"] + keys.uniform(3, 2)}

    # a scalar of another precision is cast, as always in torch; a tensor with axes is not
    assert run_check(form_rules.check_single_precision, Drifts()).passed
    found = run_check(form_rules.check_single_precision, Counts())
    assert not found.passed
    assert "dtypes" in found.message


# -- return values ---------------------------------------------------------------------------------
def counting(self, learner, task):
    learner.state = {"n": torch.zeros(())}


RETURNS = {
    "a tensor": (method(loss=lambda self, net, batch, state: net.task(batch)), "{name: term}"),
    "a list of terms": (
        method(loss=lambda self, net, batch, state: {"task": [net.task(batch)]}), "without axes",
    ),
    "rows": (
        method(loss=lambda self, net, batch, state: {"task": net(batch.x).logits.sum(1)}),
        "without axes, it is a float64 tensor of shape (16,)",
    ),
    "start": (method(start=lambda self, learner, task: {"n": 1}), "returns nothing"),
    "step": (
        method(start=counting, step=lambda self, update, state: None), "(None)",
    ),
    "keys": (
        method(start=counting, step=lambda self, update, state: {}), "the keys",
    ),
    "classes": (
        method(answer=lambda self, net, x, state, stage: net(x)._replace(
            logits=net(x).logits.argmax(-1))), "[rows, classes]",
    ),
    "direction": (
        method(gradient=lambda self, grad, batch, state: (grad(batch),)), "a vector [P]",
    ),
    "modules": (method(networks=lambda self, stream: [torch.nn.Linear(2, 2)]), "{name: module}"),
    "weights": (
        method(finish=lambda self, learner, task: setattr(learner, "vector", torch.ones(3))),
        "learner.vector",
    ),
    "state": (
        method(finish=lambda self, learner, task: setattr(learner, "state", {"n": [1]})),
        "a list",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RETURNS)
def test_wrong_return_types_are_named_once(case):
    kind, words = RETURNS[case]
    found, message = the_fault(kind)
    assert found == "verbs return what they should"
    assert words in message


KEPT = {"memory": Memory(total=9), "__annotations__": {"memory": Memory}}
DECLARED = {
    "replay": (method(replay=lambda self, stage: "pair"), "a ReplaySpec, not 'pair'"),
    "phases": (method(phases=lambda self, stage: "task"), "a tuple of Phase, not 'task'"),
    "no phase": (method(phases=lambda self, stage: ()), "a tuple of Phase, not ()"),
    "prologue": (method(prologue=lambda self: 3, loss=twice), "a Prologue, a RootFile or None"),
}


@pytest.mark.parametrize("case", DECLARED)
def test_wrong_declarations_are_named_once(case):
    kind, words = DECLARED[case]
    found, message = the_fault(kind)
    assert found == "declarations"
    assert words in message


def test_exemplars_of_another_type_are_named_once():
    def keeps(self, learner, task):
        learner.exemplars = task.train[:5]

    pair = ReplaySpec("pair")
    found, message = the_fault(method(finish=keeps, replay=lambda self, stage: pair, **KEPT))
    assert found == "verbs return what they should"
    assert "as Memory.update returns them" in message


# -- divergence ------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Explodes(Method):
    def start(self, learner, task):
        learner.state = {"anchor": learner.vector.clone()}

    def loss(self, net, batch, state):
        pull = 1e3 * (net.vector - state["anchor"]).square().sum()
        return {"task": net.task(batch), "pull": pull}


@dataclass(frozen=True, kw_only=True)
class LogOfZero(Method):
    def loss(self, net, batch, state):
        return {"task": net.task(batch), "odd": batch.old.sum().log() * net.vector.sum()}


@dataclass(frozen=True, kw_only=True)
class BadScores(Method):
    def answer(self, net, x, state, stage):
        output = net(x)
        return output._replace(logits=output.logits / 0)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Explodes, "term 'pull' is .* it grows from step to step, so lower its strength"),
        (LogOfZero, "term 'odd' is -inf in step 0 .* the logarithm of 0"),
        (BadScores, "scores hold infinite numbers .* look at answer"),
    ],
)
def test_divergence_is_named_once(kind, words):
    found, message = the_fault(kind)
    assert found == "stays finite"
    assert re.search(words, message)


# -- advice ----------------------------------------------------------------------------------------
def advice(rule: Any, kind: type[Method]) -> str:
    """What one check says about a method that breaks it."""
    found = run_check(rule, kind())
    assert not found.passed
    return found.message


def frozen(self, learner, task):
    learner.free = torch.zeros_like(learner.free)


def anchored(self, learner, task):
    learner.state = {"anchor": learner.vector.clone()}


def stiff(self, net, batch, state):
    pull = 10 * (net.vector - state["anchor"]).square().sum() if state else 0 * net.vector.sum()
    return {"task": net.task(batch), "pull": pull}


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"loss": lambda self, net, batch, state: {"task": 0 * net.task(batch)}},
         "the loss does not reach the networks"),
        ({"answer": lambda self, net, x, *_: net(x)._replace(logits=-net(x).logits)},
         "look at answer"),
        ({"start": frozen}, "the weights do not move: look at start"),
        ({"gradient": lambda self, grad, batch, state: 0 * grad(batch)},
         "the weights do not move: look at gradient"),
        ({"loss": lambda self, net, batch, state: {"task": -net.task(batch)}},
         "hardly towards the labels"),
        ({"loss": stiff, "finish": anchored}, "later ones are not: .*'pull' pulls .* as hard"),
    ],
)  # fmt: skip
def test_what_keeps_a_task_from_being_learnt_is_tried_out(own, words):
    assert re.search(words, advice(learning_rules.check_beats_chance, method(**own)))


def unweighted(self, net, batch, state):
    return {"task": 2 * net.task(batch._replace(w=torch.ones_like(batch.w)))}


def unpadded(self, net, batch, state):
    return {"task": 2 * net.networks.objective(net(batch.x).logits, batch)}


def test_advice_on_padding_is_true():
    plain = advice(equality_rules.check_lockstep_is_the_loop, method(loss=unweighted))
    assert "sum(w * l) / sum(w)" in plain
    assert run_check(equality_rules.check_lockstep_is_the_loop, method(loss=unpadded)()).passed
    normed = advice(equality_rules.check_lockstep_with_batch_norm, method(loss=unpadded))
    assert "call net(batch.x, batch.w)" in normed


def test_padding_is_blamed_though_a_term_is_nothing_where_a_task_begins():
    def kept(self, learner, task):
        learner.state = {"before": learner.snapshot()} if learner.stage else {}

    def taught(self, net, batch, state):
        terms = {"task": net.task(batch)}
        if "before" in state:
            said = net.frozen(state["before"])(batch.x).logits
            terms["same"] = (net(batch.x, batch.w).logits - said).square().mean()
        return terms

    kind = method(start=kept, loss=taught)
    assert "sum(w * l) / sum(w)" in advice(equality_rules.check_lockstep_is_the_loop, kind)


def test_advice_does_not_blame_padding_for_everything():
    seen: list[int] = []

    def numbered(self, learner, task):
        seen.append(1)
        learner.state = {"turn": torch.tensor(len(seen) % 5, dtype=learner.vector.dtype)}

    def turned(self, net, batch, state):
        return {"task": (1 + 0.1 * state["turn"]) * net.task(batch)}

    kind = method(start=numbered, loss=turned)
    assert "does not feel padding" in advice(equality_rules.check_lockstep_is_the_loop, kind)


def test_a_term_without_gradient_is_named():
    def idle(self, net, batch, state):
        return {"task": net.task(batch), "penalty": 0 * net.vector.sum()}

    said = advice(equality_rules.check_it_does_something, method(loss=idle))
    assert "the gradient of 'penalty' is 0" in said


def test_words_of_a_users_own_error_are_no_sign():
    def proud(self, learner, task):
        raise ValueError("no nonzero .item() of randomness, one_hot, same dtype")

    found, message = the_fault(method(finish=proud))
    assert found == "verbs return what they should"
    assert len(message.splitlines()) == 2  # the line and the error, no hint


# -- once, at the root -----------------------------------------------------------------------------
def test_checks_that_would_repeat_a_fault_are_not_run():
    report = check(method(loss=lambda self, net, batch, state: net.task(batch)))
    assert len(report.failed) == 2  # the other one: it has no name that a recipe could write down
    idle = {one.check: one.message for one in report.not_run}
    assert idle["loss is pure"] == "verbs return what they should"
    assert len(str(report).splitlines()) < 14


def test_a_step_that_does_not_map_is_named_once():
    def decides(self, grad, batch, state):
        found = grad(batch)
        return found if bool(found.sum() > 0) else 2 * found

    found, message = the_fault(method(gradient=decides))
    assert found == "maps without host decisions"
    assert "torch.where" in message


def test_state_whose_shape_follows_the_rows_is_named_once():
    def finish(self, learner, task):
        learner.state = {"inner": {"seen": torch.zeros(len(task.train), dtype=torch.float64)}}

    def loss(self, net, batch, state):
        held = state["inner"]["seen"].sum() if state else 0.0
        return {"task": net.task(batch) + held, "penalty": 0.01 * (net.vector**2).sum()}

    found, message = the_fault(method(finish=finish, loss=loss))
    assert found == "state has one shape"
    assert "state['inner/seen']" in message
    assert "(43,)" in message
    assert "(21,)" in message


def test_the_same_error_is_named_once():
    def check_first(_target):
        raise BrokenRule("a rule")

    def check_second(target):
        target.finish(None, None)

    def check_third(target):
        target.finish(None, None)

    def broken(self, learner, task):
        raise KeyError("mine")

    one, two, three = run_checks(
        (check_first, check_second, check_third), method(finish=broken)(), lambda _check: []
    )
    assert (one.ran, two.ran, three.ran) == (True, True, False)
    assert two.raised
    assert three.message == "second"


def test_needs_stand_before_what_needs_them():
    places = {one: place for place, one in enumerate(METHOD_CHECKS)}
    assert set(ROOT_CHECKS) | set(REQUIRED_CHECKS) <= set(METHOD_CHECKS)
    for one in METHOD_CHECKS:
        assert all(places[other] < places[one] for other in required_checks(one))
    assert required_checks(METHOD_CHECKS[-1])
    # a loss that keeps something to itself differs from training to training, whatever is compared
    assert equality_rules.check_loss_is_pure in required_checks(
        equality_rules.check_resume_is_uninterrupted
    )


# -- runs ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"loss": lambda self, net, batch, state: net.task(batch)}, "Mine.loss: expected {name"),
        ({"step": lambda self, update, state: None}, "Mine.step: expected a state"),
        ({"loss": lambda self, net, batch: {}}, "Mine.loss is called with (net, batch, state)"),
    ],
)  # fmt: skip
def test_runs_refuse_wrong_verbs_in_one_line(own, words, together):
    with pytest.raises(BadArgument, match=re.escape(words)):
        train_runs(make_runs(method(**own)(), make_streams()[:2]), together=together)


def test_a_run_says_that_a_loss_is_constant():
    kind = method(loss=lambda self, net, batch, state: {"task": net.task(batch).detach()})
    with pytest.raises(BadArgument, match="terms that depend on the weights"):
        train_runs(make_runs(kind(), make_streams()[:1]))


# -- the command -----------------------------------------------------------------------------------
def test_check_ends_with_2_where_own_code_raises(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from engram.cli import app

    text = (
        "from dataclasses import dataclass\nfrom engram import Method\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(Method):\n"
        "    def finish(self, learner, task):\n        learner.batch(3, 4, 5, 6)\n"
    )
    (tmp_path / "mine_that_raises.py").write_text(text)
    (tmp_path / "mine_that_is_not_python.py").write_text(text + "    )\n")
    (tmp_path / "mine_thawed.py").write_text(text.replace("(frozen=True, kw_only=True)", ""))
    monkeypatch.chdir(tmp_path)
    try:
        raises = CliRunner().invoke(app, ["check", "mine_that_raises:Mine"])
        syntax = CliRunner().invoke(app, ["check", "mine_that_is_not_python.py:Mine"])
        thawed = CliRunner().invoke(app, ["check", "mine_thawed.py:Mine"])
    finally:
        sys.modules.pop("mine_that_raises", None)
    assert raises.exit_code == syntax.exit_code == thawed.exit_code == 2
    assert "write @dataclass(frozen=True, kw_only=True) above the class" in thawed.stderr
    assert "mine_that_raises.py:7: learner.batch(3, 4, 5, 6)" in raises.stdout
    assert raises.stdout.count("TypeError") == 1
    assert syntax.stderr.startswith("engram: mine_that_is_not_python.py:8: SyntaxError")


# -- sets of labels --------------------------------------------------------------------------------
def softmax(self, net, batch, state):
    logits = net(batch.x, batch.w).logits
    return {"task": 2 * masked_ce(logits, batch.target, batch.open, batch.w)}


def nearest(self, net, x, state, stage):
    output = net(x)  # the best at 0, none above
    return output._replace(logits=output.logits - output.logits.amax(-1, keepdim=True))


@pytest.mark.parametrize("own", [{"loss": softmax}, {"answer": nearest}], ids=["loss", "answer"])
def test_a_threshold_that_is_declared_and_not_learnt_is_a_failure(own):
    found, message = the_fault(method(decides=("argmax", "threshold"), **own))
    assert found == "label sets"
    assert "declares a threshold on its scores" in message
    message = run_check(learning_rules.check_label_sets, method(**own)()).message
    assert message == "does not apply: it decides by argmax, so streams with label sets are refused"


def test_unknown_decisions_are_a_failure():
    for wrong in ("argmax", ("threshold",), ("argmax", "sigmoid")):
        found, message = the_fault(method(loss=twice, decides=wrong))
        assert found == "declarations"
        assert "decides must be" in message


# -- causes of a difference between lockstep and loop ---------------------------------------------
def test_a_field_in_single_precision_is_named():
    def tensor_or_number(self, net, batch, state):
        factor = self.factor
        if not isinstance(factor, torch.Tensor):
            factor = torch.tensor(factor, dtype=torch.float32)
        return {"task": factor.double() * net.task(batch)}

    kind = type("Mine", (Method,), {"loss": tensor_or_number, "factor": 0.7,
                                    "__annotations__": {"factor": PerRun}})  # fmt: skip
    mine = dataclass(frozen=True, kw_only=True)(kind)()
    equality_rules.check_lockstep_is_the_loop(mine)
    with pytest.raises(BrokenRule, match="a PerRun option is a number in a run alone"):
        equality_rules.check_lockstep_with_strengths(mine)


def two_views(joined):
    """A loss on two views of every row, made one batch by `joined`."""

    def loss(self, net, batch, state):
        other = batch.x + 0.1 * keys.normal(batch.key, *batch.x.shape).to(batch.x)
        x, w, y = (joined(a, b) for a, b in ((batch.x, other), [batch.w] * 2, [batch.target] * 2))
        logits = net(x, w).logits
        return {"task": masked_ce(logits, y, joined(batch.open, batch.open), w)}

    return method(loss=loss)


def test_views_lie_side_by_side_where_masks_are_drawn_by_place():
    behind = two_views(lambda a, b: torch.cat([a, b]))
    with pytest.raises(BrokenRule, match="several views of a row go side by side"):
        equality_rules.check_lockstep_with_dropout(behind())
    beside = two_views(lambda a, b: torch.stack([a, b], 1).flatten(0, 1))
    equality_rules.check_lockstep_with_dropout(beside())


def test_a_run_that_diverged_needs_no_scores_of_its_own():
    """Its state lacks what `finish` would have added."""

    def finish(self, learner, task):
        learner.state = {"scale": torch.ones_like(learner.vector[:1])}

    def answer(self, net, x, state, stage):
        output = net(x)
        return output._replace(logits=output.logits * state["scale"])

    equality_rules.check_a_diverging_run_harms_no_other(method(finish=finish, answer=answer)())
