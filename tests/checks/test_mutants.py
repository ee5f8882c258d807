"""Known bugs of other libraries, put into our own code: some check finds each of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engram import keys
from engram.checks import (
    equality_rules,
    leakage_rules,
    learning_rules,
    method_family_rules,
    policy_rules,
)
from engram.checks.check_report import run_check
from engram.checks.toy_runs import (
    make_runs,
    make_streams,
    shrink_memory,
    train_runs,
)
from engram.engine import checkpoints as checkpoint
from engram.engine import evaluation, host_verbs, loop, stored_values
from engram.engine.engine import SharedPrefixes
from engram.engine.optim import Optimizer
from engram.engine.trainers import lockstep, step
from engram.engine.trainers.step import TrainingStep
from engram.learner import gradients
from engram.learner import learner as learners
from engram.learner.bound_module import BoundNet
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet, Net
from engram.learner.parameter_layout import Network, Networks
from engram.losses import mean
from engram.memory import Memory, budget, ranking_policies
from engram.methods import AGEM, CBRS, DGR, ER, EWC, GSS, LGR, PNN, SI, XDER, ICaRL, LwF, PackNet
from engram.methods.method import Method, ReplaySpec
from engram.methods.quadratic_penalty import quadratic_penalty
from engram.models import layers
from engram.per_run import PerRun

Check = Callable[[Any], None]
ROOM = Memory(total=12, policy="admit")


def killed(check: Check, mutant: Any) -> str:
    """The message by which a check rejects a mutant."""
    found = run_check(check, mutant)
    assert not found.passed, f"{found.check} lets the mutant live"
    return found.message


def healthy(check: Check, original: Any) -> None:
    found = run_check(check, original)
    assert found.passed, found.message
    assert "does not apply" not in found.message


class TestImportance:
    def test_square_of_the_batch_mean_sold_as_per_sample(self, monkeypatch):
        check, original = (
            method_family_rules.check_importance_is_per_sample,
            RunLearner.average_gradient,
        )
        healthy(check, EWC())

        def batched(self: RunLearner, term: Any, **options: Any) -> Tensor:
            return original(self, term, **{**options, "group": 16})

        monkeypatch.setattr(RunLearner, "average_gradient", batched)
        assert "square each sample's gradient" in killed(check, EWC())

    def test_fisher_pass_in_training_mode(self, monkeypatch):
        check, original = method_family_rules.check_importance_is_per_sample, FunctionalNet.__init__
        healthy(check, EWC())

        def training(self: Any, *args: Any, **options: Any) -> None:
            original(self, *args, **{**options, "training": True})

        monkeypatch.setattr(gradients.FunctionalNet, "__init__", training)
        assert not run_check(check, EWC()).passed

    def test_fisher_pass_moves_batch_norm(self):
        @dataclass(frozen=True, kw_only=True)
        class Moving(EWC):
            def finish(self, learner, task):
                net = FunctionalNet(learner.networks, learner.vector, learner.buffers)
                net(learner.batch().x)
                learner.buffers = net.buffers
                super().finish(learner, task)

        check = learning_rules.check_finish_leaves_statistics_alone
        healthy(check, EWC())
        assert "finish moves running statistics" in killed(check, Moving())

    def test_network_left_in_eval_mode(self, monkeypatch):
        check, original = learning_rules.check_finish_leaves_statistics_alone, Networks.__init__
        healthy(check, EWC())

        def sleepy(self: Networks, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            self.train.eval()

        monkeypatch.setattr(Networks, "__init__", sleepy)
        assert "training moves no running statistics" in killed(check, EWC())


class TestPenalty:
    check = staticmethod(equality_rules.check_it_does_something)

    def test_saved_weights_compared_with_saved_weights(self):
        @dataclass(frozen=True, kw_only=True)
        class SavedWithSaved(EWC):
            def loss(self, net, batch, state):
                terms = {"task": net.task(batch)}
                if "importance" in state:
                    old = state["anchor"]
                    terms["penalty"] = quadratic_penalty(
                        old, old, state["importance"], self.factor()
                    )
                return terms

        healthy(self.check, EWC())
        assert "no effect" in killed(self.check, SavedWithSaved())

    def test_penalty_is_zero(self):
        @dataclass(frozen=True, kw_only=True)
        class Weightless(EWC):
            def finish(self, learner, task):
                super().finish(learner, task)
                nothing = torch.zeros_like(learner.vector)
                learner.state = {**learner.state, "importance": nothing}

        assert "no effect" in killed(self.check, Weightless())

    def test_distillation_over_no_class(self):
        @dataclass(frozen=True, kw_only=True)
        class WrongKey(LwF):
            def start(self, learner, task):
                super().start(learner, task)
                if "blocks" in learner.state:
                    none = torch.zeros_like(learner.state["blocks"])
                    learner.state = {**learner.state, "blocks": none}

        healthy(self.check, LwF())
        assert "no effect" in killed(self.check, WrongKey())


class TestPlainGradient:
    check = staticmethod(method_family_rules.check_step_gets_the_plain_gradient)

    def test_si_fed_the_regularised_gradient_by_the_method(self):
        @dataclass(frozen=True, kw_only=True)
        class Regularised(SI):
            def loss(self, net, batch, state):
                terms = {"task": net.task(batch)}
                if "importance" in state:
                    weights = net.networks.layout.flatten(net.params.values())
                    old, importance = state["anchor"], state["importance"]
                    terms["penalty"] = quadratic_penalty(weights, old, importance, self.factor())
                return terms

        healthy(self.check, SI())
        assert "write penalties on net.vector" in killed(self.check, Regularised())

    def test_si_fed_the_regularised_gradient_by_the_engine(self, monkeypatch):
        def weights(self: FunctionalNet) -> Tensor:
            self.touched = True
            return self.networks.layout.flatten(self.params.values())

        monkeypatch.setattr(FunctionalNet, "vector", property(weights))
        assert "write penalties on net.vector" in killed(self.check, SI())


class TestTeacher:
    def test_teacher_in_training_mode(self, monkeypatch):
        check, original = method_family_rules.check_old_networks_are_in_eval_mode, Net.frozen
        healthy(check, LwF())

        def awake(self: Net, snapshot: Any) -> Callable[..., Any]:
            asleep, self.networks.eval = self.networks.eval, self.networks.train
            call = original(self, snapshot)

            def answer(*args: Any) -> Any:
                self.networks.eval = self.networks.train
                try:
                    return call(*args)
                finally:
                    self.networks.eval = asleep

            self.networks.eval = asleep
            return answer

        monkeypatch.setattr(Net, "frozen", awake)
        assert "use net.frozen" in killed(check, LwF())
        assert not run_check(equality_rules.check_lockstep_with_dropout, LwF()).passed


class TestRehearsal:
    check = staticmethod(leakage_rules.check_exemplars_are_trained_on)

    @pytest.mark.parametrize("kind", [ER, ICaRL, AGEM])
    def test_exemplars_stored_but_in_no_batch(self, kind):
        mutant = type("Stored", (kind,), {"replay": lambda self, stage: ReplaySpec()})
        healthy(self.check, kind())
        assert "no batch of the next task holds any" in killed(self.check, mutant())

    def test_exemplars_in_batches_but_not_in_the_loss(self):
        @dataclass(frozen=True, kw_only=True)
        class Ignored(ER):
            def loss(self, net, batch, state):
                return {"task": net.task(batch._replace(w=batch.w * (1 - batch.old)))}

        assert "does not depend on them" in killed(self.check, Ignored())

    def test_memory_gradients_never_asked_for(self):
        @dataclass(frozen=True, kw_only=True)
        class Deaf(AGEM):
            def gradient(self, grad, batch, state):
                return grad(batch)

        assert "does not depend on them" in killed(self.check, Deaf())


class TestMemory:
    def test_reservoir_off_by_one(self, monkeypatch):
        check = policy_rules.check_reservoir_is_uniform
        healthy(check, "reservoir")

        def short(key: keys.Key, seen: int, count: int) -> Tensor:
            place = torch.arange(seen, seen + count)
            return keys.randint(keys.fold(key, place), place.clamp(min=1))  # below n - 1, not n

        monkeypatch.setattr(ranking_policies, "draw_slots", short)
        assert "chi-square" in killed(check, "reservoir")

    def test_labels_of_exemplars_are_refreshed(self, monkeypatch):
        check = learning_rules.check_stored_labels_stay_incomplete
        healthy(check, ER())

        def all_of_them(stream, rows, stages):
            y = stream.targets[rows]
            return learners.move_hidden_last(y, y >= 0)

        monkeypatch.setattr(learners, "visible_labels", all_of_them)
        assert "labels they were stored with" in killed(check, ER())

    @pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
    def test_memory_exceeds_its_budget(self, guarded, monkeypatch):
        @dataclass(frozen=True, kw_only=True)
        class Greedy(ER):
            def finish(self, learner, task):
                more = replace(self.memory, total=3 * self.memory.total)
                learner.exemplars = more.update(learner, task.train)

        if not guarded:  # the check finds it even where the engine does not
            monkeypatch.setattr(loop, "check_budget", lambda learner, method: None)
        healthy(leakage_rules.check_memory_within_budget, ER())
        killed(leakage_rules.check_memory_within_budget, Greedy())

    def test_exemplars_of_the_test_set(self):
        @dataclass(frozen=True, kw_only=True)
        class Peeping(ER):
            def finish(self, learner, task):
                kept = self.memory.update(learner, task.train)
                learner.exemplars = kept._replace(rows=task.test[: len(kept)][kept.ranks])

        killed(leakage_rules.check_memory_within_budget, Peeping())

    def test_class_ids_as_keys(self, monkeypatch):
        check, mine = equality_rules.check_class_ids_do_not_matter, shrink_memory(ER())
        healthy(check, mine)

        def by_id(learner: Any, column: int) -> keys.Key:
            return keys.fold(learner.seed, "memory", learner.stage, learner.stream.order[column])

        monkeypatch.setattr(budget, "group_key", by_id)
        assert "never ids" in killed(check, mine)
        assert "never ids" in killed(policy_rules.check_policy_ignores_class_ids, "random")


class TestAdmission:
    """Memories that a method fills row by row."""

    check = staticmethod(equality_rules.check_lockstep_is_the_loop)

    def test_more_slots_than_the_budget_allows(self, monkeypatch):
        check, original = leakage_rules.check_memory_within_budget, loop.build_sampler
        healthy(check, CBRS())

        def generous(*args: Any, **options: Any) -> Any:
            made = original(*args, **options)
            made.admits *= 2
            return made

        monkeypatch.setattr(loop, "build_sampler", generous)
        assert "exemplars" in killed(check, CBRS())

    def test_padding_is_offered(self, monkeypatch):
        mine, original = CBRS(memory=ROOM), lockstep.admit_rows
        healthy(self.check, mine)

        def blind(*args: Any) -> Any:
            *before, rows, passes, values, key, state = args
            return original(*before, rows, passes | (rows.w == 0), values, key, state)

        monkeypatch.setattr(lockstep, "admit_rows", blind)
        assert "lockstep" in killed(self.check, mine)

    def test_rows_outside_the_memory_decide(self):
        @dataclass(frozen=True, kw_only=True)
        class Peeps(CBRS):
            memory: Memory = ROOM

            def start(self, learner, task):
                super().start(learner, task)
                stream = learner._learner.stream  # by force
                odd = stream.data.x[task.test].double().sum().mul(1e6).long() % 2
                learner.state = {**learner.state, "odd": odd}

            def admit(self, row, memory, state):
                slot, found = super().admit(row, memory, state)
                here = row.target % 2 == state["odd"]
                return torch.where(here, slot, -1), {**found, "odd": state["odd"]}

        check = leakage_rules.check_test_and_future_rows_do_not_matter
        healthy(check, CBRS(memory=ROOM))
        assert "depends on test rows or on later tasks" in killed(check, Peeps())

    def test_rows_kept_outside_the_memory(self):
        @dataclass(frozen=True, kw_only=True)
        class Hoards(CBRS):
            memory: Memory = ROOM

            def start(self, learner, task):
                super().start(learner, task)
                if "kept" not in learner.state:
                    few = torch.zeros(4, learner.batch().x[0].numel(), dtype=torch.double)
                    learner.state = {**learner.state, "kept": few}

            def remember(self, net, batch, state):
                return {"x": batch.x.flatten(1)}

            def admit(self, row, memory, state):
                slot, found = super().admit(row, memory, state)
                kept = torch.cat([state["kept"][1:], row.values["x"][None]])
                return slot, {**found, "kept": kept}

        check = leakage_rules.check_keeps_no_samples_outside_its_memory
        healthy(check, CBRS(memory=ROOM))
        assert "learner.state/kept holds" in killed(check, Hoards())

    def test_free_slots_tell_nothing(self):
        @dataclass(frozen=True, kw_only=True)
        class Looks(CBRS):
            memory: Memory = field(default=Memory(total=400, policy="admit"))

            def admit(self, row, memory, state):
                slot, found = super().admit(row, memory, state)
                free = memory.y[-1, 0] + memory.stage[-1]
                return torch.where(free + 2 == 0, slot, -1), found

        stream = make_streams()[0]
        after = train_runs(make_runs(Looks(), [stream]))[0, 0]
        assert len(after.exemplars) == len(stream.tasks[0].train)  # none was refused

    def test_values_of_the_next_row(self, monkeypatch):
        mine, original = GSS(memory=ROOM), lockstep.admit_rows
        healthy(self.check, mine)

        def shifted(*args: Any) -> Any:
            *before, values, key, state = args
            others = {name: value.roll(1, 0) for name, value in values.items()}
            return original(*before, others, key, state)

        monkeypatch.setattr(lockstep, "admit_rows", shifted)
        assert "lockstep" in killed(self.check, mine)

    def test_values_written_behind_another_row(self, monkeypatch):
        mine, original = GSS(memory=ROOM), step.write_slots_

        def shifted(table: Tensor, into: Tensor, values: Tensor) -> None:
            original(table, into.roll(into.ndim - 1, -1), values)  # in lockstep alone

        monkeypatch.setattr(step, "write_slots_", shifted)
        assert "lockstep" in killed(self.check, mine)


class TestRewrittenValues:
    """Stored values that steps replace."""

    check = staticmethod(equality_rules.check_rewritten_values_stay_in_their_rows)

    def test_values_of_the_next_row(self):
        class Shifted(XDER):
            def remember(self, net, batch, state):
                found = super().remember(net, batch, state)
                return {name: value.roll(1, 0) for name, value in found.items()}

        healthy(self.check, XDER())
        assert "a row's values are its own" in killed(self.check, Shifted())

    def test_one_mean_for_all_rows(self):
        class Mixed(XDER):
            def remember(self, net, batch, state):
                found = super().remember(net, batch, state)
                mixed = found["logits"].mean(0, keepdim=True).expand_as(found["logits"])
                return {**found, "logits": torch.where(batch.known, found["logits"], mixed)}

        assert "'logits'" in killed(self.check, Mixed())

    @pytest.mark.parametrize("mutant", ["next", "also padding and free slots"])
    def test_values_written_behind_another_row(self, mutant, monkeypatch):
        original = stored_values.write_slots_

        def astray(table: Tensor, into: Tensor, values: Tensor) -> None:
            last = table.shape[into.ndim - 1] - 2
            wrong = into.roll(1, -1) if mutant == "next" else torch.where(into < 0, last, into)
            original(table, wrong, values)

        monkeypatch.setattr(stored_values, "write_slots_", astray)
        assert "other values than" in killed(self.check, XDER())

    def test_steps_that_a_run_does_not_take(self, monkeypatch):
        check, original = equality_rules.check_lockstep_is_the_loop, step.rewrite_values_
        healthy(check, XDER())
        monkeypatch.setattr(step, "rewrite_values_", lambda *given: original(*given[:-1], None))
        assert "lockstep" in killed(check, XDER())


class TestTasks:
    """What knows the task of a row, or comes before its task, and must not."""

    def test_the_task_told_on_streams_that_do_not_give_it(self, monkeypatch):
        check = equality_rules.check_the_task_stays_unknown

        @dataclass(frozen=True, kw_only=True)
        class Told(Method):
            task_identity = "used"

            def answer(self, net, x, state, stage):
                return net(x)

        healthy(check, Told())
        monkeypatch.setattr(evaluation, "tells_task", lambda method, head: True)
        assert "told the task of a row" in killed(check, Told())

    def test_the_task_guessed_from_the_company_of_a_row(self):
        @dataclass(frozen=True, kw_only=True)
        class Guesses(Method):
            def answer(self, net, x, state, stage):
                output = net(x)
                common = output.logits.softmax(-1).mean(0).log()
                return output._replace(logits=output.logits + 10 * common)

        assert "the order in which rows" in killed(
            equality_rules.check_the_task_stays_unknown, Guesses()
        )

    def test_a_task_that_was_not_asked_for(self):
        @dataclass(frozen=True, kw_only=True)
        class Hopes(Method):
            def answer(self, net, x, state, stage):
                output = net(x)
                return output._replace(logits=output.logits + stage)

        assert "declares task_identity" in killed(
            equality_rules.check_the_task_stays_unknown, Hopes()
        )

    def test_networks_used_before_their_task(self):
        check = leakage_rules.check_closed_networks_wait
        healthy(check, PNN())

        @dataclass(frozen=True, kw_only=True)
        class Early(PNN):
            def start(self, learner, task):
                super().start(learner, task)
                if not learner.stage and len(learner.stream) > 1:  # takes what a later column knows
                    learner.params.backbone["lower.0.weight"].copy_(
                        learner.params.column1.model.backbone["lower.0.weight"]
                    )

        assert "task 0 depends on networks" in killed(check, Early())

    def test_growth_beyond_the_declared_bytes(self):
        @dataclass(frozen=True, kw_only=True)
        class Hides(PNN):
            def finish(self, learner, task):
                if learner.stage < 2:  # inputs, where no bytes count yet
                    place = learner.params.column2.model.backbone["lower.0.weight"]
                    place[: len(place)] = learner.batch().x.flatten(1)[: len(place)]

        assert "change in task 0: their bytes" in killed(
            leakage_rules.check_closed_networks_wait, Hides()
        )

    def test_networks_trained_before_their_task(self):
        @dataclass(frozen=True, kw_only=True)
        class Late(PNN):
            def networks(self, stream):
                late = {"opens": len(stream) - 1}
                found = super().networks(stream).items()
                return {name: Network(one.module, **late) for name, one in found}

        assert "task 1 depends on networks that task 2 opens" in killed(
            leakage_rules.check_closed_networks_wait, Late()
        )

    def test_growth_that_is_not_declared(self):
        @dataclass(frozen=True, kw_only=True)
        class Grows(Method):
            def finish(self, learner, task):
                learner.state = {**learner.state, f"task{learner.stage}": torch.zeros(1)}

        check = learning_rules.check_state_is_a_tree_of_tensors
        healthy(check, Method())
        assert "state grows by 32 bytes" in killed(check, Grows())

    @pytest.mark.parametrize(
        ("told", "words"),
        [
            (lambda learner, method, stage: stage, "a task to come"),
            (lambda learner, method, stage: learner.stage, "about rows of another one"),
        ],
        ids=["to come", "later"],
    )
    def test_masks_of_other_tasks(self, told, words, monkeypatch):
        check = equality_rules.check_the_task_stays_unknown
        healthy(check, PackNet())
        monkeypatch.setattr(evaluation, "told_task", told)
        assert words in killed(check, PackNet())


class TestLeaks:
    def test_test_rows_through_the_door(self):
        @dataclass(frozen=True, kw_only=True)
        class Reader(ER):
            def finish(self, learner, task):
                super().finish(learner, task)
                learner.outputs(task.test)

        healthy(leakage_rules.check_reads_only_what_it_may, ER())
        assert "a test row" in killed(leakage_rules.check_reads_only_what_it_may, Reader())

    @pytest.mark.parametrize("part", ["test", "future"])
    def test_rows_past_the_door(self, part):
        @dataclass(frozen=True, kw_only=True)
        class Thief(Method):
            def start(self, learner, task):
                stream = learner._learner.stream  # python cannot be sealed, but results tell
                tasks = stream.tasks
                later = tasks[min(learner.stage + 1, len(tasks) - 1)].train
                rows = task.test if part == "test" else later
                learner.vector += 1e-3 * stream.data.x[rows].double().mean()

        check = leakage_rules.check_test_and_future_rows_do_not_matter
        healthy(check, Method())
        assert "depends on test rows or on later tasks" in killed(check, Thief())

    def test_past_rows_without_saying_so(self):
        @dataclass(frozen=True, kw_only=True)
        class Nostalgic(Method):
            def finish(self, learner, task):
                if learner.stage:
                    rows = learner.stream.tasks[0].train
                    learner.batch(rows, torch.zeros_like(rows))

        assert 'reads = "past"' in killed(leakage_rules.check_reads_only_what_it_may, Nostalgic())


@dataclass(frozen=True, kw_only=True)
class Brings(Method):
    """A network of its own, one number of which is a setting, and a way home."""

    slope: PerRun = 0.5

    def networks(self, stream):
        return {"own": nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(self.slope), nn.Linear(4, 1))}

    def start(self, learner, task):
        learner.state = {"home": learner.networks.initial()[0]}

    def loss(self, net, batch, state):
        found = net.own(batch.x.flatten(1)).squeeze(-1)
        away = (net.vector - state["home"]).square().sum()
        own = mean((found - 1).square(), batch.w)
        return {"task": net.task(batch), "own": 0.1 * own, "home": 0.1 * away}


@dataclass(frozen=True, kw_only=True)
class Weighs(Method):
    """Row weights of its own."""

    def loss(self, net, batch, state):
        logits = net(batch.x, batch.w * (batch.target % 2 == 0)).logits
        return {"task": net.networks.objective(logits, batch)}


class TestGenerators:
    @pytest.mark.parametrize("distill", [False, True], ids=["hard", "soft"])
    def test_replayed_rows_compete_among_old_classes_only(self, distill):
        @dataclass(frozen=True, kw_only=True)
        class Sheltered(LGR):
            def start(self, learner, task):
                super().start(learner, task)
                if learner.state:
                    learner.state = {**learner.state, "rivals": learner.state["heads"]}

        check = method_family_rules.check_replayed_classes_meet_new_ones
        healthy(check, LGR(distill=distill))
        assert "run over the new classes too" in killed(check, Sheltered(distill=distill))

    def test_replayed_rows_go_through_the_last_head_only(self):
        @dataclass(frozen=True, kw_only=True)
        class LastHead(DGR):
            def start(self, learner, task):
                super().start(learner, task)
                last = {k: v[-1:] for k, v in learner.state.items() if k in ("heads", "rivals")}
                learner.state = {**learner.state, **last}

        check = method_family_rules.check_replayed_rows_meet_every_head
        healthy(check, DGR())
        assert "the head of task 0 stands still" in killed(check, LastHead())


class TestCompany:
    def test_networks_alike_by_names_and_shapes(self, monkeypatch):
        check = equality_rules.check_other_settings_beside_it
        healthy(check, Brings())

        def loosely(self: Networks) -> Any:
            kinds = tuple(type(module).__name__ for module in self.train.modules())
            return kinds, tuple(self.layout.shapes.items())

        monkeypatch.setattr(Networks, "form", property(loosely))
        assert "between lockstep and loop" in killed(check, Brings())

    def test_initial_weights_of_another_run(self, monkeypatch):
        check = equality_rules.check_lockstep_is_the_loop
        healthy(check, Brings())
        monkeypatch.setattr(Networks, "with_weights_of", lambda self, own: _handed_out(self, own))
        assert "between lockstep and loop" in killed(check, Brings())

    def test_row_weights_ignored_where_nothing_is_padded(self, monkeypatch):
        check = equality_rules.check_lockstep_with_batch_norm
        healthy(check, Weighs())

        def deaf(self: BoundNet, path: str, w: Tensor | None = None) -> Callable[..., Any]:
            return Net._bind(self, path)

        monkeypatch.setattr(BoundNet, "_bind", deaf, raising=False)
        assert "between lockstep and loop" in killed(check, Weighs())

    def test_beginnings_shared_by_methods_of_one_name(self, monkeypatch):
        check = equality_rules.check_other_settings_beside_it
        monkeypatch.setattr(
            SharedPrefixes, "key", lambda self, run, stage: (run.seed, run.method.reads)
        )
        assert "between lockstep and loop" in killed(check, EWC(strength=1.0))

    def test_terms_alike_by_their_code(self, monkeypatch):
        check = equality_rules.check_lockstep_is_the_loop

        @dataclass(frozen=True, kw_only=True)
        class Closes(EWC):
            def finish(self, learner, task):
                by = 1 + learner.seed
                found = learner.average_gradient(
                    lambda net, batch: mean(by * net(batch.x, batch.w).logits.sum(-1), batch.w)
                )
                learner.state = {"anchor": learner.vector.clone(), "importance": found}

        healthy(check, Closes(strength=0.01))
        alike = host_verbs.structural_key
        monkeypatch.setattr(
            host_verbs,
            "structural_key",
            lambda asked: alike(asked if isinstance(asked, Method) else 0),
        )
        assert "between lockstep and loop" in killed(check, Closes(strength=0.01))


def _handed_out(skeleton: Networks, own: Networks) -> Networks:
    """The skeleton for a run, whose `initial` is the first run's after the run has begun."""
    given = iter([own.initial()])
    twin = copy.copy(skeleton)
    twin.initial = lambda: next(given, skeleton.initial())  # type: ignore[method-assign]
    return twin


class TestEngine:
    def test_mask_on_the_gradient_alone(self, monkeypatch):
        check = learning_rules.check_unopened_columns_stand_still
        healthy(check, ER())
        monkeypatch.setattr(Optimizer, "moves_without_gradient", lambda self, reset: False)
        assert "not opened yet" in killed(check, ER())

    def test_a_step_moves_entries_that_are_frozen(self, monkeypatch):
        @dataclass(frozen=True, kw_only=True)
        class Shrinks(Method):
            def step(self, update, state):
                return 0.99 * update.after, state

        check = learning_rules.check_unopened_columns_stand_still
        healthy(check, Shrinks())

        def all_of_them(self: TrainingStep, moved: Tensor | None, alive: Tensor | None) -> None:
            self.tensors.vector.copy_(moved)  # type: ignore[arg-type]

        monkeypatch.setattr(TrainingStep, "_move", all_of_them)
        assert "not opened yet" in killed(check, Shrinks())

    def test_batch_norm_counts_padding(self, monkeypatch):
        check = equality_rules.check_lockstep_with_batch_norm
        healthy(check, ER())
        monkeypatch.setattr(layers, "ROW_WEIGHTS", SimpleNamespace(get=lambda: None))
        assert "between lockstep and loop" in killed(check, ER())

    def test_resume_loses_the_importances(self, monkeypatch):
        check, original = equality_rules.check_resume_is_uninterrupted, checkpoint.load_state_dict
        healthy(check, EWC())

        def forgetful(learner: RunLearner, *args: Any) -> None:
            original(learner, *args)
            learner.state = {}

        monkeypatch.setattr(checkpoint, "load_state_dict", forgetful)
        assert "after a resume" in killed(check, EWC())

    def test_resume_loses_the_optimiser(self, monkeypatch):
        check, original = equality_rules.check_resume_is_uninterrupted, checkpoint.load_state_dict

        def forgetful(learner: RunLearner, *args: Any) -> None:
            original(learner, *args)
            learner.opt = {}

        monkeypatch.setattr(checkpoint, "load_state_dict", forgetful)
        assert "after a resume" in killed(check, EWC())


def test_the_default_memory_of_a_mutant_is_small_enough_to_cut():
    assert shrink_memory(ER()).memory == Memory(total=12)
