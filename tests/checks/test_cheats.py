"""Cheats by name: the public doors refuse them, or a check finds them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.checks import METHOD_CHECKS, equality_rules, leakage_rules
from engram.checks.check_report import check_name, run_check
from engram.checks.toy_runs import make_runs, make_streams, train_runs
from engram.errors import AccessError, BadArgument, Forbidden
from engram.learner.learner_proxy import KNOWN, LearnerProxy, open_proxy
from engram.memory import Memory
from engram.methods import ER, EWC, Finetune, ICaRL, Joint, LwF
from engram.streams import class_incremental
from engram.streams.stream_outline import StreamOutline
from tests.checks import cheats

REFUSED = {
    cheats.ReadsTheData: "stream.data.x is not available",
    cheats.ReadsTheLabels: "stream.targets is not available",
    cheats.ReadsTheRawLabels: "stream.data.y is not available",
    cheats.FeedsItself: "learner.feed is not available",
    cheats.ReplacesTheGuard: "learner.guard is the engine's",
    cheats.ReplacesTheLedger: "learner.ledger is the engine's",
    cheats.WipesTheLedger: "learner.ledger is not available",
    cheats.DeclaresThePastLate: "learner.reads is the engine's",
    cheats.CompletesLabels: "learner.complete_items is not available",
    cheats.EntersTheNextTask: "learner.open_classes is not available",
    cheats.RewritesItsTask: "modified in place",
    cheats.NetworkOfTheData: "stream.data.x is not available",
    cheats.PolicyWithAView: "stream.targets is not available",
    cheats.BatchOfTestRows: "a test row of task 0",
    cheats.OutputsOfTestRows: "a test row of task 0",
    cheats.ImportanceOfTestRows: "a test row of task 0",
    cheats.BatchOfPastRows: "not in the memory",
    cheats.KeepsTestRows: "exemplars hold row .* a test row of task 0",
    cheats.KeepsPastRows: "exemplars hold row .* not in the memory",
    cheats.KeepsFutureRows: "exemplars hold row .* a train row of task 1",
    cheats.InventsStages: "exemplars hold row .* a future task",
    cheats.WritesIntoItsMemory: "exemplars hold row .* a test row of task 0",
    cheats.BorrowsItsMemory: "exemplars hold row .* a test row of task 0",
}  # fmt: skip

CAUGHT = {
    cheats.HoardsInItsState: leakage_rules.check_keeps_no_samples_outside_its_memory,
    cheats.HoardsHalfNumbers: leakage_rules.check_keeps_no_samples_outside_its_memory,
    cheats.HoardsBytes: leakage_rules.check_keeps_no_samples_outside_its_memory,
    cheats.HoardsInTheOptimiser: leakage_rules.check_keeps_no_samples_outside_its_memory,
    cheats.HoardsInBuffers: leakage_rules.check_keeps_no_samples_outside_its_memory,
    cheats.HoardsInParameters: leakage_rules.check_keeps_no_samples_outside_its_memory,
    cheats.HoardsOnItself: leakage_rules.check_keeps_no_samples_outside_its_memory,
    cheats.HoardsInItsModule: leakage_rules.check_keeps_no_samples_outside_its_memory,
    cheats.HoardsFeatures: leakage_rules.check_holds_no_more_for_more_rows,
    cheats.AnswersByPlace: leakage_rules.check_places_of_test_rows_do_not_matter,
    cheats.AnswersByCompany: equality_rules.check_scores_row_by_row,
    cheats.LooksAtTheAnswers: leakage_rules.check_labels_out_of_sight_do_not_matter,
    cheats.LooksAtHiddenLabels: leakage_rules.check_labels_out_of_sight_do_not_matter,
    cheats.RemembersWhereRowsLie: leakage_rules.check_lost_rows_do_not_matter,
}  # fmt: skip
HONEST = (Finetune(), ER(), EWC(strength=0.1), ICaRL(), LwF(), cheats.KeepsClassMeans())
RULES = tuple(
    dict.fromkeys(
        rule for rule in CAUGHT.values() if rule is not equality_rules.check_scores_row_by_row
    )
)


def cheat_id(kind: type) -> str:
    return kind.__name__


def fresh_streams(count: int = 1):
    """Streams that a cheat may spoil."""
    return [class_incremental(one.data, order=list(one.order)) for one in make_streams()[:count]]


class TestChecks:
    @pytest.mark.parametrize(("kind", "rule"), CAUGHT.items(), ids=map(cheat_id, CAUGHT))
    def test_a_check_finds_what_no_door_stops(self, kind, rule):
        cheats.KEPT.clear()
        found = run_check(rule, kind())
        assert not found.passed
        assert rule in METHOD_CHECKS

    @pytest.mark.parametrize("rule", RULES, ids=check_name)
    @pytest.mark.parametrize("method", HONEST, ids=lambda one: type(one).__name__)
    def test_the_honest_pass(self, method, rule):
        found = run_check(rule, method)
        assert found.passed, found.message

    def test_a_door_that_refuses_is_a_finding(self):
        found = run_check(leakage_rules.check_reads_only_what_it_may, cheats.FeedsItself())
        assert "learner.feed is not available to methods" in found.message

    def test_twenty_cheats_and_more(self):
        assert len(REFUSED) + len(CAUGHT) > 20


class TestAccess:
    @pytest.mark.parametrize("together", [False, True], ids=["alone", "in company"])
    @pytest.mark.parametrize(("kind", "words"), REFUSED.items(), ids=map(cheat_id, REFUSED))
    def test_a_closed_door_refuses_by_name(self, kind, words, together):
        with pytest.raises(AccessError, match=words):
            train_runs(make_runs(kind(), fresh_streams(2)), together=together)

    def test_the_public_names_of_a_learner_are_those_of_the_contract(self):
        seen = []

        class Looks(Finetune):
            def start(self, learner, task):
                seen.append(learner)
                assert sorted(dir(learner)) == sorted(KNOWN)
                assert not hasattr(learner, "feed")
                for name in KNOWN:
                    getattr(learner, name)

        train_runs(make_runs(Looks(), make_streams()[:1]))
        assert isinstance(seen[0], LearnerProxy)

    def test_a_stream_without_data(self):
        stream = make_streams()[0]
        outline = StreamOutline.from_stream(stream)
        outline.visible.fill_(True)
        assert not stream.visible.all()  # the mask that decides is the engine's
        assert outline.data.sample_shape == stream.data.sample_shape
        assert [task.train.tolist() for task in outline] == [t.train.tolist() for t in stream]
        with pytest.raises(AttributeError, match="did you mean 'order'"):
            outline.ordr  # noqa: B018

    def test_what_a_method_may_not_assign(self):
        class Assigns(Finetune):
            def start(self, learner, task):
                learner.mine = 1

        with pytest.raises(Forbidden, match=r"learner\.mine does not exist.*learner\.state"):
            train_runs(make_runs(Assigns(), make_streams()[:1]))

    def test_labels_of_a_batch_are_the_methods_own(self):
        class Scribbles(Finetune):
            def start(self, learner, task):
                learner.batch().y.zero_()
                learner.batch().stage.zero_()

        plain, other = (
            train_runs(make_runs(one, fresh_streams())) for one in (Finetune(), Scribbles())
        )
        assert all(torch.equal(plain[key].vector, other[key].vector) for key in plain)

    def test_who_reads_the_past_may_keep_it(self):
        class Late(Joint):
            @property
            def memory(self):
                return ER().memory

            def finish(self, learner, task):
                rows = learner.stream.tasks[0].train[:4]
                learner.exemplars = cheats.exemplars(rows, 0)

        assert len(train_runs(make_runs(Late(), make_streams()[:1]))[0, 2].exemplars) == 4

    def test_exemplars_of_another_form(self):
        def kept(**changes):
            class Odd(ER):
                def finish(self, learner, task):
                    items = cheats.exemplars(task.train[:4], learner.stage)
                    learner.exemplars = items._replace(**changes)

            return Odd()

        for changes, words in (
            ({"columns": torch.full((4,), 6)}, "output columns from -1 to 5"),
            ({"stages": torch.zeros(3, dtype=torch.long)}, r"exemplars.stages: .* numbers \[4\]"),
            ({"ranks": torch.zeros(4)}, "exemplars.ranks: expected int64"),
        ):
            with pytest.raises(ValueError, match=words):
                train_runs(make_runs(kept(**changes), make_streams()[:1]))

    @pytest.mark.parametrize("budget", [{"per_class": 2}, {"fraction": 0.1}, {"total": 6}], ids=str)
    def test_every_kind_of_budget_holds_in_a_run(self, budget):
        class Greedy(ER):
            def finish(self, learner, task):
                learner.exemplars = Memory(fraction=1.0).update(learner, task.train)

        train_runs(make_runs(ER(memory=Memory(**budget)), make_streams()[:1]))
        with pytest.raises(BadArgument, match="exemplars: expected at most"):
            train_runs(make_runs(Greedy(memory=Memory(**budget)), make_streams()[:1]))

    def test_a_proxy_that_was_kept_opens_nothing_later(self):
        held = []

        class Holds(Finetune):
            def start(self, learner, task):
                held.append((learner, task.train))
                first, rows = held[0]
                if learner.stage:
                    first.batch(rows, torch.zeros_like(rows))

        (run,) = make_runs(Finetune(), make_streams()[:1])
        with pytest.raises(AccessError, match="not in the memory"):
            train_runs([replace(run, method=Holds())])

    def test_the_engine_has_the_whole_learner(self):
        trained = train_runs(make_runs(ER(), make_streams()[:1]))
        learner = trained[0, 0].stage.learner
        with open_proxy(learner) as seen:
            assert seen.vector is learner.vector
            seen.state = {"a": torch.ones(1)}
        assert learner.state["a"] == 1
        assert learner.ledger.total("train") > 0
