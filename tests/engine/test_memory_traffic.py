"""A step reads and writes large tensors no more often than it must, counted by operation."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engram.data import Data
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.trainers.single import SingleTrainer
from engram.engine.training import Training
from engram.methods import Finetune
from engram.models.kernels import graph_ops
from engram.reproduce import find_table, plan
from engram.reproduce.papers.cgl_paper import UCLA
from engram.streams import class_incremental

STEPS, EPOCHS = 2, 8
SHARE = 1000  # tensors of fewer numbers per run are small: they are not what a step waits for


class Watch(TorchDispatchMode):
    """Counts operations by name and by how many numbers their large tensors hold."""

    def __init__(self, least):
        super().__init__()
        self.least, self.seen = least, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answer = func(*args, **(kwargs or {}))
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        places = {one.untyped_storage().data_ptr() for one in given}
        made = [one for one in tree_leaves(answer) if isinstance(one, Tensor)]
        if made and all(one.untyped_storage().data_ptr() in places for one in made):
            made = []  # a view, or written in place
            if not str(func).split(".")[1].endswith("_"):
                return answer
        sizes = [one.numel() for one in (*given, *made) if one.numel() >= self.least]
        if sizes and not any(one in str(func) for one in ("empty", "index_select")):
            self.seen[str(func).removeprefix("aten."), sum(sizes)] += 1
        return answer


def test_a_step_passes_over_its_large_layer_as_often_as_it_must():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (1200, 3, 16, 16), dtype=torch.uint8, generator=generator)
    y = torch.arange(1200) % 4
    stream = class_incremental(
        Data.from_arrays(x, y, test=(x[:64], y[:64]), name="noise"), classes_per_task=2
    )
    training = Training(
        iterations=STEPS, batch_size=4, optimizer="adam", lr=2.5e-4, optim_reset=False, scope="seen"
    )
    run = Run(stream=stream, method=Finetune(), model="lenet", training=training)
    stages = Engine([run], device="cpu").stages()
    watch, plain = Watch(20_000), SingleTrainer.run  # 20 x 50 x 5 x 5, and a layer of 50 x 500
    next(stages)

    def watched(self, *rest):
        with watch:
            plain(self, *rest)

    with patch.object(SingleTrainer, "run", watched):
        next(stages)
    found = watch.seen
    each = {name: times for (name, _), times in found.items() if "convolution" not in name}
    forward_and_back = {"addmm.default": 2, "mm.default": 4}
    assert each == {"_fused_adam_.default": 2, **forward_and_back}
    assert ("_fused_adam_.default", 4 * 50_000) in found  # weights, gradient and both moments


def study(method, count):
    """The first runs of a method in random class orders, with few epochs."""
    few = ["seeds=1", "task_orders=1", f"class_orders={count}", f"epochs={EPOCHS}"]
    table = find_table("cgl/2", embedded=True, assignments=[*few, "precision=float32"])
    made = plan(table, None, cells=f"dataset={UCLA},method={method}", measure=False)
    return [one.run for one in made.runs][-count:]


def last_step(runs):
    """What the last step of the second task passes over, of all runs."""
    seen, plain = Counter(), LockstepTrainer._step

    def step(self):
        if self.learners[0].stage != 1 or self.steps.max() < EPOCHS - 1:
            return plain(self)
        watch = Watch(SHARE * len(self.learners))

        def on(name, *args):
            """An operation that is one kernel on CUDA counts as one."""
            before = watch.seen.copy()
            answer = graph_ops.PLAIN_FUNCTIONS[name](*args)
            tensors = [one for one in (*args, *answer) if isinstance(one, Tensor)]
            size = sum(one.numel() for one in tensors if one.numel() >= watch.least)
            watch.seen = before + Counter({(f"graph_ops.{name}", size): 1})
            return answer

        with patch.object(graph_ops, "_dispatch", on), patch.object(graph_ops, "applies"), watch:
            plain(self)
        return seen.update(watch.seen)

    with patch.object(LockstepTrainer, "_step", step):
        for one in Engine(runs, device="cpu", together=True).stages():
            if one.stage == 1:
                break
    return seen


def test_a_teacher_of_whole_tasks_passes_over_nothing_in_late_steps():
    moved = {}
    for method in ("BARE", "LwF"):
        found = last_step(study(method, 2))
        moved[method] = sum(size * times for (_, size), times in found.items())
        ours = {name: times for (name, _), times in found.items() if "graph_ops" in name}
        each = {"mix": 2, "mix_back": 2, "read": 1, "read_back": 1}
        assert ours == {f"graph_ops.{name}": times for name, times in each.items()}
    assert moved["BARE"] <= moved["LwF"] < 1.05 * moved["BARE"]
