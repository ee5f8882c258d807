"""A reservoir renewed with every step, against one that lets rows pass by one at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch

from engram import keys
from engram.checks import toy_runs
from engram.engine.engine import Engine
from engram.engine.sampler import Reservoir
from engram.engine.stored_values import read_slots, write_slots_
from engram.errors import BadArgument
from engram.learner.learner import RunLearner
from engram.memory import Memory
from engram.methods import ER, DERpp
from engram.methods.method import Method, Phase, ReplaySpec

ROOM = 5


class Plain:
    """Algorithm R, row by row."""

    def __init__(self, seed: int) -> None:
        self.key, self.slots, self.seen = keys.fold(seed, "memory", "reservoir"), [], 0

    def take(self, row: int) -> None:
        if len(self.slots) < ROOM:
            self.slots.append(row)
        else:
            drawn = int(keys.randint(keys.fold(self.key, self.seen), self.seen + 1, 1))
            if drawn < ROOM:
                self.slots[drawn] = row
        self.seen += 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("chunks", [1, 3])
def test_content_before_every_step(seed, chunks):
    sizes, steps, batch = (23, 14), 6, 4
    index = torch.stack([keys.permutation(keys.fold(seed, r), 24, n) for r, n in enumerate(sizes)])
    index = index.view(2, steps, batch)
    real = torch.stack([torch.arange(24) < n for n in sizes]).view(2, steps, batch)
    reservoir = Reservoir(torch.zeros(2).long(), ROOM, torch.tensor([seed, seed + 1]))
    parts = [reservoir.insert(i, w) for i, w in zip(index.chunk(chunks, 1), real.chunk(chunks, 1))]
    holder, filled, into = (torch.cat(part, 1) for part in zip(*parts))
    for run in range(2):
        plain = Plain(seed + run)
        for step in range(steps):
            assert filled[run, step] == len(plain.slots)
            assert holder[run, step, : len(plain.slots)].tolist() == plain.slots
            rows = index[run, step][real[run, step]].tolist()
            for row in rows:
                plain.take(row)
            entered = {int(s): int(r) for s, r in zip(into[run, step], index[run, step]) if s >= 0}
            assert entered == {s: r for s, r in enumerate(plain.slots) if r in rows}
        assert reservoir.holder[run, : len(plain.slots)].tolist() == plain.slots
        assert int(reservoir.seen[run]) == sizes[run]


def test_tables_read_and_write_for_one_run_and_for_many():
    table = torch.zeros(2, 4, 3)
    into = torch.tensor([[2, -1, 0], [-1, -1, 1]])
    values = torch.arange(18.0).view(2, 3, 3)
    write_slots_(table, into, values)
    single = [torch.zeros(4, 3), torch.zeros(4, 3)]
    for run in range(2):
        write_slots_(single[run], into[run], values[run])
        assert torch.equal(single[run][:3], table[run, :3])
        slot = torch.tensor([1, -1, 2])
        assert torch.equal(
            read_slots(single[run], slot), read_slots(table, slot.expand(2, -1))[run]
        )
    assert table[0, 2].tolist() == [0, 1, 2]
    assert read_slots(table, torch.full((2, 1), -1)).abs().sum() == 0


RESERVOIR = Memory(total=7, policy="reservoir")


@dataclass(frozen=True, kw_only=True)
class Diary(Method):
    """Remembers each row's own input, so that a value which is not its row's is found out."""

    renew: str = "step"
    fills: str = "finish"  # the verb that fills a memory which is not renewed by step
    memory: Memory = field(default=RESERVOIR)

    def replay(self, stage):
        return ReplaySpec("pair", renew=self.renew)

    def remember(self, net, batch, state):
        return {"x": batch.x.flatten(1)}

    def loss(self, net, batch, state):
        wrong = torch.zeros((), dtype=batch.w.dtype)
        if "x" in batch.values:
            away = (batch.values["x"] - batch.x.flatten(1)).abs().sum(-1)
            wrong = (away * (batch.slot >= 0) * batch.w).sum() * 1e9
        return {"task": net.task(batch), "wrong": wrong}

    def phases(self, stage):
        if self.fills != "before":
            return (Phase(),)
        return Phase(epochs=1), Phase(epochs=1, before=partial(self._fill, "before"))

    def start(self, learner, task):
        self._fill("start", learner, task)

    def finish(self, learner, task):
        self._fill("finish", learner, task)

    def _fill(self, verb, learner, task):
        if (self.renew, self.fills) == ("task", verb):
            learner.exemplars = self.memory.update(learner, task.train)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "method",
    [
        Diary(), Diary(renew="task"), Diary(renew="task", memory=Memory(total=12)),
        Diary(renew="task", memory=Memory(total=9, shared_by="task", shrink="random")),
        Diary(renew="task", fills="start", memory=Memory(total=12)),
        Diary(renew="task", fills="before", memory=Memory(total=12)),
    ],
    ids=str,
)  # fmt: skip
class TestValues:
    def test_values_stay_with_their_rows(self, method, together):
        runs = toy_runs.make_runs(method, toy_runs.make_streams())
        seen = 0
        for stage in Engine(runs, device="cpu", together=together).stages():
            assert all(terms.get("wrong", 0) == 0 for _, terms in stage.losses)
            learner: RunLearner = stage.learner
            kept = learner.exemplars
            x = learner.feed(kept.rows, kept.stages).flatten(1)
            assert torch.equal(learner.values["x"], x)
            assert len(learner.values["x"]) == len(kept) <= 12
            assert learner.nbytes()["exemplars"] == kept.nbytes(24) + x.numel() * 8
            seen += 1
        assert seen == 9


class TestEngine:
    def test_the_memory_after_a_task_is_a_reservoir_of_it(self):
        method = ER(memory=Memory(total=9, policy="reservoir"), renew="step")
        for stage in Engine(
            toy_runs.make_runs(method, toy_runs.make_streams()), device="cpu"
        ).stages():
            kept, stream = stage.learner.exemplars, stage.learner.stream
            passed = sum(len(task.train) for task in stream.tasks[: stage.stage + 1])
            assert (len(kept), kept.seen) == (9, passed)
            for row, of, column in zip(kept.rows, kept.stages, kept.columns):
                assert row in stream.tasks[of].train
                assert stream.targets[row, 0] == column

    def test_rows_pass_by_once_however_many_epochs(self):
        method = ER(memory=Memory(total=9, policy="reservoir"), renew="step")
        kept = []
        for epochs in (1, 3):
            training = replace(toy_runs.EXACT, epochs=epochs)
            runs = toy_runs.make_runs(method, toy_runs.make_streams()[:1], training=training)
            kept.append([s.learner.exemplars for s in Engine(runs, device="cpu").stages()])
        assert all(toy_runs.trees_equal(a[:4], b[:4]) for a, b in zip(*kept))

    def test_iterations_let_pass_what_they_show(self):
        training = replace(toy_runs.EXACT, iterations=2, batch_size=4)
        method = ER(memory=Memory(total=50, policy="reservoir"), renew="step")
        runs = toy_runs.make_runs(method, toy_runs.make_streams()[:1], training=training)
        stages = list(Engine(runs, device="cpu").stages())
        assert stages[-1].learner.exemplars.seen == 3 * 2 * 4

    def test_other_policies_are_refused(self):
        with pytest.raises(BadArgument, match="reservoir"):
            ER(renew="step")
        runs = toy_runs.make_runs(DERpp(memory=Memory(total=9)), toy_runs.make_streams()[:1])
        with pytest.raises(BadArgument, match="policy='reservoir'"):
            list(Engine(runs, device="cpu").stages())
