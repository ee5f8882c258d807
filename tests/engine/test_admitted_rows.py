"""Memories that a method fills row by row, against lists that are filled row by row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
import torch

from engram import keys
from engram.checks import toy_runs
from engram.engine.engine import Engine
from engram.engine.loop import open_task
from engram.engine.sampler import build_sampler
from engram.memory import Memory
from engram.methods import CBRS, ER, Finetune, Join
from engram.methods.method import Method, ReplaySpec, Slots
from tests.refusals import refuses

ROOM = Memory(total=7, policy="admit")
SHORT = replace(toy_runs.EXACT, epochs=2, batch_size=8)


@dataclass(frozen=True, kw_only=True)
class Diary(Method):
    """Remembers each row's own input; lets rows in at random, far slots and refusals included."""

    kind: str = "pair"
    memory: Memory = field(default=ROOM)

    def replay(self, stage):
        return ReplaySpec(self.kind, 5, renew="step", draws=2 if self.kind == "separate" else 1)

    def remember(self, net, batch, state):
        return {"x": batch.x.flatten(1)}

    def loss(self, net, batch, state):
        wrong = torch.zeros((), dtype=batch.w.dtype)
        for part in (batch, *batch.memory):
            if "x" in part.values:
                away = (part.values["x"] - part.x.flatten(1)).abs().sum(-1)
                wrong = wrong + (away * (part.slot >= 0) * part.w).sum() * 1e9
        return {"task": net.task(batch), "wrong": wrong}

    def start(self, learner, task):
        learner.state = {"told": learner.state.get("told", torch.zeros((), dtype=torch.long))}

    def admit(self, row, memory, state):
        slot = keys.randint(row.key, 12) - 2  # -2 and -1: refused; from 7 on: no such slot
        return slot, {"told": state["told"] + 1}


def runs_of(method, count=3, training=SHORT):
    return toy_runs.make_runs(method, toy_runs.make_streams()[:count], training=training)


def plain_contents(run, admit):
    """(row, stage) by slot after every task: a list filled in the order in which rows pass by."""
    held, found = [], []
    learner = Engine([run], device="cpu").learner(run)
    for stage in range(3):
        open_task([learner], [Finetune()], run.training, stage)
        sampler = build_sampler([learner], Finetune(), run.training)
        rows = sampler.epoch(0)
        for step in range(rows.main.w.shape[1]):
            part, key = rows.main, int(rows.key[0, step])
            for place in range(part.rows.shape[2]):
                if part.w[0, step, place] == 0:
                    continue
                # memory rows that join a batch lie before those of the task
                here = place + (5 if held_before(held, found, rows, step) else 0)
                new = int(part.rows[0, step, place]), stage, int(part.y[0, step, place, 0])
                slot = admit(held, new, keys.fold(key, "admit", here))
                if slot >= 0 and len(held) < 7:
                    held.append(new)
                elif 0 <= slot < 7:
                    held[slot] = new
        found.append(list(held))
    return found


def held_before(held, found, rows, step):
    """Whether the memory had rows when the step began: it is empty in the very first one."""
    return bool(found) or step > 0


def at_random(held, new, key):
    return int(keys.randint(torch.tensor(key), 12)) - 2


class Balanced:
    """Class-balancing reservoir sampling on lists."""

    def __init__(self):
        self.seen, self.full = Counter(), set()

    def __call__(self, held, new, key):
        label = new[2]
        self.seen[label] += 1
        if len(held) < 7:
            return 0
        count = Counter(y for _, _, y in held)
        most = max(count.values())
        self.full |= {y for y, n in count.items() if n == most}
        if label in self.full:
            slots = [i for i, one in enumerate(held) if one[2] == label]
            drawn = float(keys.uniform(torch.tensor(keys.fold(key, "keep"))))
            if drawn * self.seen[label] > count[label]:
                return -1
        else:
            slots = [i for i, one in enumerate(held) if count[one[2]] == most]
        if not slots:
            return 0
        return slots[int(float(keys.uniform(torch.tensor(keys.fold(key, "slot")))) * len(slots))]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("method", "plain"), [(Diary(), lambda: at_random), (CBRS(memory=ROOM, size=5), Balanced)]
)
def test_the_memory_holds_what_a_list_would(method, plain, together):
    runs = runs_of(method)
    wanted = [plain_contents(run, plain()) for run in runs]
    for stage in Engine(runs, device="cpu", together=together).stages():
        kept = stage.learner.exemplars
        found = list(zip(kept.rows.tolist(), kept.stages.tolist(), kept.columns.tolist()))
        assert found == wanted[stage.run][stage.stage]
        tasks = stage.learner.stream.tasks[: stage.stage + 1]
        assert kept.seen == sum(len(task.train) for task in tasks)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", ["pair", "separate"])
def test_values_stay_with_their_rows(kind, together):
    seen = 0
    for stage in Engine(runs_of(Diary(kind=kind)), device="cpu", together=together).stages():
        assert all(terms.get("wrong", 0) == 0 for _, terms in stage.losses)
        learner = stage.learner
        kept = learner.exemplars
        assert torch.equal(learner.values["x"], learner.feed(kept.rows, kept.stages).flatten(1))
        tasks = learner.stream.tasks[: stage.stage + 1]
        assert int(learner.state["told"]) == sum(len(task.train) for task in tasks)
        seen += 1
    assert seen == 9


def test_a_joined_part_admits_with_its_own_state():
    for stage in Engine(runs_of(Join(Finetune(), Diary()), 1), device="cpu").stages():
        assert int(stage.learner.state["1"]["told"]) == stage.learner.exemplars.seen


def test_what_is_refused():
    with refuses("memory"):
        list(Engine(runs_of(Diary(memory=Memory(total=7)), 1), device="cpu").stages())
    with refuses("memory.policy"):
        list(Engine(runs_of(ER(memory=ROOM), 1), device="cpu").stages())
    with refuses("memory.policy"):
        CBRS(memory=Memory(total=7))

    class Wrong(Diary):
        def admit(self, row, memory, state):
            return 3

    with refuses("Wrong.admit"):
        list(Engine(runs_of(Wrong(), 1), device="cpu").stages())


def test_a_draw_follows_its_weights():
    weights = torch.tensor([0.0, 3.0, 1.0, 9.0])
    used = torch.tensor([True, True, True, False])
    memory = Slots(torch.zeros(4, 1), torch.zeros(4), {}, used, torch.tensor(3))
    count = Counter(int(memory.draw(weights, torch.tensor(keys.fold(0, n)))) for n in range(400))
    assert count.keys() == {1, 2}
    assert abs(count[1] - 300) < 30
