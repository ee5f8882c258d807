"""Runs over images that stay on disk end with the bits of runs over the same images in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import engram
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.experiments.callbacks import Callback
from engram.memory import Memory
from engram.methods import ER, EWC, DERpp, ICaRL

Image = pytest.importorskip("PIL.Image")
MODEL = {"name": "mlp", "hidden": [8]}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The same pictures in memory, as files through a small cache, and as a memory map."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for k in range(4):
        (folder / "all" / f"c{k}").mkdir(parents=True)
        for i in range(15):
            picture = rng.integers(0, 256, (5, 4, 3), np.uint8) // 2 + 30 * k
            Image.fromarray(picture.astype(np.uint8)).save(folder / "all" / f"c{k}" / f"{i}.png")
    lazy = engram.load(folder / "all", lazy=True, cache=600, threads=2)  # ten pictures
    packed = engram.load(engram.data.pack(lazy, folder / "packed.npz"))
    return engram.load(folder / "all"), lazy, packed


def streams(sets):
    return [engram.class_incremental(one, classes_per_task=2, valid=0.2) for one in sets]


def vectors(stream, methods, together, **options):
    training = Training(epochs=2, batch_size=5, augment=("flip",), **options)
    runs = [Run(stream=stream, method=one, model=MODEL, training=training, seed=k)
            for one in methods for k in range(2 if together else 1)]  # fmt: skip
    found = {}
    for stage in Engine(runs, device="cpu", together=together).stages():
        one = stage.learner
        kept = (one.vector.tolist(), one.exemplars.rows.tolist(), stage.scores.tolist())
        found[stage.run, stage.stage] = kept
    return found


@pytest.mark.parametrize("together", [False, True])
def test_methods_end_with_the_same_bits(sets, together):
    memory = Memory(total=8, policy="herding")
    reservoir = Memory(total=6, policy="reservoir")
    methods = [ICaRL(memory=memory), EWC(strength=2.0), DERpp(memory=reservoir),
               ER(memory=Memory(total=6))]  # fmt: skip
    options = {"patience": 3} if not together else {}
    plain, *others = [vectors(one, methods, together, **options) for one in streams(sets)]
    assert len(plain) == (16 if together else 8)
    assert all(other == plain for other in others)
    lazy = sets[1].x
    assert lazy.cache.slots == 10
    assert 0 < lazy.cache.hits < lazy.cache.reads


class Recorded:
    """Stands for a captured or compiled step: what it calls must not fetch rows."""

    def __init__(self, step, *_):
        self.step = step

    def __call__(self):
        with pytest.MonkeyPatch.context() as now:
            now.setattr("engram.learner.feed.Feed._read_images", None)
            self.step(*self.places())

    def places(self):
        return ()

    def forget(self):
        pass


class Traced(Recorded):
    def __init__(self, step, places, *_):
        self.step, self.places = step, places


@pytest.mark.parametrize("kind", ["captured alone", "captured together", "compiled"])
def test_steps_that_are_recorded_fetch_their_rows_before(sets, kind, monkeypatch):
    from engram.engine.trainers import captured, compiled, lockstep

    training = Training(epochs=2, batch_size=5)
    memory = Memory(total=6, policy="reservoir")
    ends = []
    for stream in streams(sets)[:2]:
        runs = [Run(stream=stream, method=DERpp(memory=memory), model=MODEL, training=training,
                    seed=k) for k in range(2 if "together" in kind else 1)]  # fmt: skip
        lazy = stream.data is sets[1]
        engine = Engine(runs, device="cpu", capture=lazy and "captured" in kind,
                        together=len(runs) > 1)  # fmt: skip
        if lazy:
            monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
            for module in (captured, lockstep):
                monkeypatch.setattr(module, "CapturedStep", Recorded)
            monkeypatch.setattr(compiled, "CompiledStep", Traced)
            engine.compile = kind == "compiled"
        ends.append([one.learner.vector for one in engine.stages()][-1])
    assert (ends[0] - ends[1]).abs().max() < 1e-6  # rates are tensors in what is recorded


def test_a_run_in_a_directory_goes_on_over_files(sets, tmp_path):
    """Detectors, probes and a resume; the recipe names the folder, not its bytes."""
    stream = engram.class_incremental(sets[1], classes_per_task=2)
    options = {"method": ER(memory=Memory(total=6)), "model": MODEL, "epochs": 1, "batch_size": 5,
               "device": "cpu", "detectors": ["Softmax", "KNN"]}  # fmt: skip

    class Stop(Callback):
        def stage(self, plan, stage, rows):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engram.run(stream, out=tmp_path / "runs", callback=Stop(), **options)
    again = engram.run(stream, out=tmp_path / "runs", **options)
    plain = engram.run(engram.class_incremental(sets[0], classes_per_task=2), **options)
    assert np.array_equal(again.full_matrix, plain.full_matrix, equal_nan=True)
    figures = [one.novelty().select_dtypes("number").to_numpy() for one in (again, plain)]
    assert figures[0].size
    assert np.array_equal(*figures, equal_nan=True)
