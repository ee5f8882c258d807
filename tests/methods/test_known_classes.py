"""Streams whose tasks show classes that are not new: every method learns them, or refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from engram import methods
from engram.checks.check_report import BrokenRule, DoesNotApply, run_check
from engram.checks.check_suite import make_default
from engram.checks.learning_rules import (
    ENOUGH_KNOWN_CLASS_ACCURACY,
    LEARNS,
    check_known_classes_are_learnt,
    make_domain_stream,
    train_unless_refused,
)
from engram.checks.toy_runs import accuracies, make_clouds, make_runs, shrink_settings, train_runs
from engram.errors import BadArgument
from engram.learner.objectives import SCOPES
from engram.memory import Memory
from engram.methods import AGEM, CLSER, ER, MAS, SSIL, Finetune, ICaRL, Join, LwF, XdG
from engram.methods.method import Method
from engram.streams import Stream, blurry, new_instances, permuted

EQUAL = (24, 24, 24, 24)
STREAMS: dict[str, Any] = {
    "permuted": lambda: permuted(make_clouds(EQUAL), tasks=3, seed=4),
    "domain_incremental": make_domain_stream,
    "blurry": lambda: blurry(make_clouds(EQUAL), tasks=2, mix=0.5),
    "new_instances": lambda: new_instances(make_clouds(EQUAL), tasks=3),
}
DEFAULTS = {name: shrink_settings(make_default(getattr(methods, name))) for name in methods.__all__}
LIBRARY = dict(DEFAULTS)
# a penalty of strength 1 holds so small a network that no other domain can be learnt
LIBRARY["MAS"] = MAS(strength=0.01)
# asked about rows of another domain, the old network holds its classes where they were
LIBRARY["SSIL"] = SSIL(kd_inputs="replay")
# what answers is an average over more steps than a task has
LIBRARY["CLSER"] = CLSER(plastic_decay=0.9, stable_decay=0.9)
# of the few units of this network, a fifth is too little
LIBRARY["XdG"] = XdG(share=0.4)
VARIANTS = LIBRARY | {
    "MAS, new data": MAS(strength=0.01, data="new"),
    "MAS, new data, CGLB": MAS(data="new", importance="batch_sq", accum="avg_by_count"),
    "ICaRL, cnn": ICaRL(variant="cnn"),
    "ICaRL, norm": ICaRL(variant="norm"),
    "ICaRL, sum": ICaRL(bce_reduction="sum"),
    "AGEM, masks": AGEM(masks=True),
    "AGEM, masks, few": AGEM(masks=True, size=4),
    "LwF, zero_pad": LwF(kd_new_classes="zero_pad"),
    "LwF, per task": LwF(blocks="per_task", weighting="task_count"),
    "Join, masks": Join(AGEM(masks=True), LwF()),
    "Join, iCaRL": Join(ICaRL(variant="cnn"), MAS(strength=0.01, data="new")),
}


# they correct or align what is new, or give the columns of a task to it alone
REFUSING = ("BiC", "EASE", "FeCAM", "FOSTER", "HAT", "PackNet", "SupSup", "WA", "XDER")
# features stand still after the first task, and a class has one mean over all its domains
ONE_MEAN = ("APER",)


def own_accuracies(method: Method, stream: Stream) -> list[float]:
    """Accuracy on each task right after its training; raises for what is refused at once."""
    trained = train_unless_refused(make_runs(method, [stream], training=LEARNS))
    return [accuracies(after)[-1] for after in trained.values()]


LEARNT = [name for name in VARIANTS if name not in REFUSING + ONE_MEAN]
# of a method's defaults, other domains are learnt by its contract: tests/test_contracts.py
CHANGED = [name for name in LEARNT if VARIANTS[name] is not DEFAULTS.get(name)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in LEARNT for kind in STREAMS
     if kind != "domain_incremental" or name in CHANGED],
)  # fmt: skip
def test_streams_with_known_classes_are_learnt(name: str, kind: str) -> None:
    found = own_accuracies(VARIANTS[name], STREAMS[kind]())
    assert min(found) > ENOUGH_KNOWN_CLASS_ACCURACY, found  # guessing gives 0.25


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("name", REFUSING)
def test_what_rests_on_new_classes_refuses_before_training(name: str, kind: str) -> None:
    with pytest.raises(DoesNotApply, match=r"not new|new classes|all new"):
        own_accuracies(LIBRARY[name], STREAMS[kind]())


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("method", [LwF(ce_scope="new"), Join(ER(), LwF(ce_scope="new"))])
def test_what_needs_new_classes_refuses_before_training(method: Method, kind: str) -> None:
    with pytest.raises(DoesNotApply, match="shows classes that are not new"):
        own_accuracies(method, STREAMS[kind]())


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", [Finetune(), ER(), AGEM(masks=True)], ids=str)
def test_known_classes_in_every_training_scope(method: Method, scope: str) -> None:
    training = replace(LEARNS, scope=scope)
    trained = train_runs(make_runs(method, [make_domain_stream()], training=training))
    assert min(accuracies(after)[-1] for after in trained.values()) > ENOUGH_KNOWN_CLASS_ACCURACY


@pytest.mark.parametrize(
    "memory",
    [Memory(per_class=6, policy="herding"), Memory(total=36), Memory(total=36, shared_by="task"),
     Memory(fraction=0.5), Memory(total=36, policy="reservoir")],
    ids=str,
)  # fmt: skip
def test_memories_keep_rows_of_every_domain(memory: Memory) -> None:
    last = train_runs(make_runs(ER(memory=memory), [make_domain_stream()], training=LEARNS))[0, 2]
    kept = torch.bincount(last.exemplars.stages, minlength=3)
    assert int(kept.min()) >= 4, kept
    assert set(last.exemplars.columns.tolist()) == {0, 1, 2, 3}


def test_importance_of_new_data_runs_through_the_outputs_of_the_task_before() -> None:
    trained = train_runs(
        make_runs(MAS(data="new", strength=0.01), [make_domain_stream()], training=LEARNS)
    )
    stages = [trained[0, stage].stage.learner for stage in range(3)]
    weight = [
        stages[k].layout(trained[0, k].state["importance"])["net.head.weight"] for k in (1, 2)
    ]
    # every class was shown by the task before: every row of the head gains importance in each task
    assert bool((weight[0].sum(1) > 0).all())
    assert bool((weight[1].sum(1) > weight[0].sum(1)).all())


@pytest.mark.parametrize("method", [AGEM(masks=True), ICaRL(), MAS(data="new", strength=0.01)])
def test_runs_with_other_known_classes_train_together_as_alone(method: Method) -> None:
    data = make_clouds((24,) * 6)
    # mixed by other seeds, the tasks of the streams show other classes
    streams = [blurry(data, tasks=3, mix=0.05, seed=seed) for seed in (1, 2)]
    assert not torch.equal(streams[0].visible, streams[1].visible)
    runs = make_runs(method, streams, training=replace(LEARNS, optimizer="sgd", epochs=2))
    alone, together = (train_runs(runs, together=flag) for flag in (False, True))
    for place, one in alone.items():
        torch.testing.assert_close(one.vector, together[place].vector, rtol=0, atol=1e-10)


@dataclass(frozen=True, kw_only=True)
class OnlyNew(Method):
    """The fault itself: the loss covers the classes opened by the task."""

    def loss(self, net: Any, batch: Any, state: Any) -> Any:
        return {"task": net.task(batch._replace(open=batch.open & batch.new))}


@dataclass(frozen=True, kw_only=True)
class LateRefusal(Method):
    """It notices in the second task that nothing is new there."""

    def start(self, learner: Any, task: Any) -> None:
        if not task.new:
            raise BadArgument("stream: expected new classes in every task")


class TestTheCheck:
    def test_finds_a_loss_over_new_classes(self) -> None:
        with pytest.raises(BrokenRule, match="need not be new"):
            check_known_classes_are_learnt(OnlyNew())

    def test_a_refusal_must_come_first(self) -> None:
        with pytest.raises(BrokenRule, match="after 1 task "):
            check_known_classes_are_learnt(LateRefusal())

    def test_a_refusal_at_once_is_fine(self) -> None:
        found = run_check(check_known_classes_are_learnt, LwF(ce_scope="new"))
        assert found.passed
        assert "refuses such streams" in found.message

    def test_a_stiff_penalty_is_no_fault(self) -> None:
        assert run_check(check_known_classes_are_learnt, MAS()).passed


def test_the_toy_streams_show_known_classes() -> None:
    for make in STREAMS.values():
        one: Stream = make()
        stages = torch.arange(len(one))[:, None]
        assert bool((one.visible & (one.opening < stages)).any())
