"""A learner learns as the engine does, is never seen half-learnt, and survives being saved."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

import engram
from engram import Learner, Memory, methods
from engram.deploy import deployed_learner as learning
from engram.engine.backend import inference_numerics, training_numerics
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from tests.deploy.conftest import FAST, MODEL, world
from tests.refusals import refuses


def engine_run(stream, method, model=MODEL, **training):
    """The last stage of a run of the engine."""
    settings = {k: v for k, v in FAST.items() if k != "device"} | training
    run = Run(stream=stream, method=method, model=model, training=Training(**settings))
    *_, last = Engine([run], device="cpu", together=False).stages()
    return last


def taught(learner, six, tasks):
    x, y, _, stream = six
    for task in tasks:
        rows = stream.tasks[task].train.numpy()
        learner.learn(x[rows], y[rows])
    return learner


def same(a, b):
    """Whether two learners know the same, bit by bit."""
    one, other = a._portable, b._portable
    facts = {k: v for k, v in one.facts.items() if k != "ledger"}
    assert facts == {k: v for k, v in other.facts.items() if k != "ledger"}
    assert one.tensors.keys() == other.tensors.keys()
    return all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


def test_twenty_tasks_with_four_readers_all_the_while():
    x, y, test = world(40, rows=10)
    data = engram.Data.from_arrays(x, y, test=(test, y))
    stream = engram.class_incremental(data, classes_per_task=2)
    method = methods.ER(memory=Memory(total=80))
    learner = Learner(method, MODEL, capacity=40, **FAST)
    probe, said, problems, over = test[:3], [], [], threading.Event()

    def read():
        try:
            while not over.is_set():
                said.append(learner.predict_proba(probe).tobytes())
                learner.novelty(probe)
                time.sleep(0.005)
        except Exception as problem:
            problems.append(problem)

    readers = [threading.Thread(target=read) for _ in range(4)]
    published = set()
    for k, task in enumerate(stream.tasks):
        rows = task.train.numpy()
        learner.learn(x[rows], y[rows])
        published.add(learner.predict_proba(probe).tobytes())
        if k == 0:
            for one in readers:
                one.start()
    over.set()
    for one in readers:
        one.join()
    assert not problems
    assert set(said) <= published, "a reader saw weights that no finished task has"
    assert len(set(said)) > 1
    last = engine_run(stream, method)
    weights = learner._portable.tensors
    assert all(torch.equal(weights[name], value) for name, value in last.learner.params.items())
    engine_accuracy = (last.scores.argmax(1) == np.arange(40).repeat(10)).mean()
    assert learner.score(test, y) == engine_accuracy > 0.1


SAVED = [
    methods.EWC(), methods.LwF(), methods.ICaRL(), methods.DERpp(), methods.Joint(),
    methods.Join(methods.ER(), methods.MAS()),
]  # fmt: skip
GROWN = [methods.EWC(), methods.ICaRL(), methods.BiC()]


@pytest.mark.parametrize("method", SAVED, ids=lambda one: type(one).__name__)
def test_saved_and_loaded_it_goes_on_as_the_engine_would(method, six, tmp_path):
    learner = taught(Learner(method, MODEL, capacity=6, **FAST), six, [0, 1])
    learner.save(tmp_path / "model.engram")
    again = Learner.load(tmp_path / "model.engram", device="cpu")
    assert same(learner, again)
    assert same(taught(learner, six, [2]), taught(again, six, [2]))
    last = engine_run(six[3], method).learner
    assert all(torch.equal(again._portable.tensors[k], v) for k, v in last.params.items())


@pytest.mark.parametrize("method", GROWN, ids=lambda m: type(m).__name__)
def test_room_doubles_and_nothing_else_changes(method, six):
    """From 1 column to 8; wider products round otherwise, so weights agree to the last digits."""
    small = taught(Learner(method, MODEL, capacity=1, **FAST), six, [0, 1, 2])
    assert small._portable.columns == 8
    large = taught(Learner(method, MODEL, capacity=8, **FAST), six, [0, 1, 2])
    pairs = ((small._portable.tensors[k], v) for k, v in large._portable.tensors.items())
    for one, other in pairs:
        assert one.shape == other.shape
        assert torch.allclose(one.double(), other.double(), atol=1e-3), (one - other).abs().max()
    assert (small.predict(six[2]) == large.predict(six[2])).all()


def test_old_rows_are_bit_exact_when_room_is_made(six, monkeypatch):
    from engram.deploy import deployed_learner as module

    seen, real = [], module.widen_learner

    def watched(found, *rest):
        seen.append((found, real(found, *rest)))
        return seen[-1][1]

    monkeypatch.setattr(module, "widen_learner", watched)
    taught(Learner(methods.DERpp(), MODEL, capacity=2, **FAST), six, [0, 1])
    ((old, new),) = seen
    assert (old.columns, new.columns) == (2, 4)
    for name, before in old.tensors.items():
        after = new.tensors[name][tuple(slice(size) for size in before.shape)]
        assert torch.equal(before, after), name
    assert new.tensors["values/logits"].shape[1] == 4
    assert new.tensors["values/logits"][:, 2:].abs().sum() > 0


def test_only_the_memory_stays(six):
    learner = taught(Learner("ER", MODEL, memory=10, **FAST), six, [0, 1, 2])
    kept = learner._portable.tensors["rows/x"]
    assert len(kept) == 6  # one for each class of 10 // 6
    assert all(row.tolist() in six[0].tolist() for row in kept)
    bare = taught(Learner("EWC", MODEL, **FAST), six, [0, 1])
    assert len(bare._portable.tensors["rows/x"]) == 0


def test_known_classes_again_and_names(six):
    x, y, test, _ = six
    names = np.array([f"class {c}" for c in y])
    learner = Learner("ER", MODEL, **FAST).learn(x[:24], names[:24]).learn(x[12:36], names[12:36])
    assert learner.classes_.tolist() == ["class 0", "class 1", "class 2"]
    assert learner.tasks == 2
    learner.learn(x[:36], names[:36])  # nothing new at all
    assert learner.predict_proba(test).sum(1) == pytest.approx(1)
    assert learner.score(test[:36], names[:36]) > 0.8


def test_validation_rows_are_watched(six):
    x, y, test, _ = six
    learner = Learner("Finetune", MODEL, patience=1, restore_best=True, **FAST)
    with pytest.raises(engram.BadArgument, match="validation rows"):
        learner.learn(x[:24], y[:24])
    assert learner.learn(x[:24], y[:24], valid=(test[:24], y[:24])).tasks == 1


def test_what_goes_wrong_leaves_it_as_it_was(six):
    x, y, test, _ = six
    learner = Learner("ER", MODEL, **FAST)
    with pytest.raises(engram.EngramError, match="nothing has been learnt yet"):
        learner.predict(test)
    taught(learner, six, [0])
    before = learner.predict_proba(test)
    wrong = {
        r"x: expected rows of shape \(8,\)": (x[24:48, :7], y[24:48]),
        "y: expected one label for each of 24 rows": (x[24:48], y[24:40]),
        "y: expected labels of the kind learnt before": (x[24:48], y[24:48].astype(str)),
        "nan or inf in row 0": (x[24:48] * np.nan, y[24:48]),
        "training diverged": (x[24:48] * 1e30, y[24:48]),
    }
    for words, (inputs, labels) in wrong.items():
        with pytest.raises(engram.EngramError, match=words):
            learner.learn(inputs, labels)
    assert learner.tasks == 1
    assert (learner.predict_proba(test) == before).all()


@pytest.mark.parametrize("pair", [["z", "z\0"], [1, True], [[1, 2], [True]], [["z\0"], ["z"]]])
def test_labels_that_would_become_one_class_are_refused(pair):
    with refuses("y"):
        Learner("ER", MODEL, **FAST).learn(np.eye(4, 8), pair * 2)


def test_bad_arguments_are_refused_at_once():
    for words, arguments in {
        "method: unknown name 'EWK', did you mean 'EWC'": {"method": "EWK"},
        "memory: expected None, because LwF keeps no exemplars": {"method": "LwF", "memory": 5},
        "capacity: expected a whole number of at least 1": {"capacity": 0},
        "capacity: expected a whole number of at most 1000000": {"capacity": 2**40},
        "unknown name 'epoch', did you mean 'epochs'": {"epoch": 3},
        "detectors": {"detectors": ["Enrgy"]},
    }.items():
        with pytest.raises(engram.BadArgument, match=words):
            Learner(**arguments)


def test_novelty_of_what_was_never_seen(six):
    test = six[2]
    learner = Learner("ER", MODEL, capacity=2, detectors=["Mahalanobis", "KNN"], **FAST)
    taught(learner, six, [0, 1])
    found = learner.novelty(test)
    assert np.median(found[48:]) > np.median(found[:48])  # classes of a task to come
    for name in ("KNN", "Softmax"):
        assert np.isfinite(learner.novelty(test, detector=name)).all()
    with pytest.raises(engram.BadArgument, match="while tasks were learnt"):
        learner.novelty(test, detector="VAE")


def test_images_and_batch_norm(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(4).repeat(8)
    x = np.clip(rng.integers(0, 60, (32, 3, 8, 8)) + 50 * y[:, None, None, None], 0, 255)
    x = x.astype(np.uint8)
    learner = Learner("ER", "resnet18_slim", **{**FAST, "epochs": 1}).learn(x[:16], y[:16])
    learner.save(tmp_path / "new" / "m.engram")  # makes the folder
    again = Learner.load(tmp_path / "new" / "m.engram", device="cpu")
    as_json = again.predict_proba(x.tolist())  # whole numbers that are no bytes
    assert (as_json == learner.predict_proba(x)).all()
    with pytest.raises(engram.BadArgument, match="whole numbers from 0 to 255"):
        again.predict(x / 255)


def test_networks_answer_in_the_precision_they_were_trained_in(six, monkeypatch):
    flags, x, y = (torch.backends.cuda.matmul, torch.backends.cudnn), six[0], six[1]
    seen, fit = [], learning.fit_detectors
    now = lambda: [one.allow_tf32 for one in flags]  # noqa: E731
    monkeypatch.setattr(learning, "fit_detectors", lambda *args: seen.append(now()) or fit(*args))
    for precision in ("float32", "tf32"):
        usual = now()
        learner = Learner("ER", MODEL, detectors=["KNN"], precision=precision, **FAST)
        learner.learn(x[:24], y[:24])
        learner.snapshot.bundle.get_submodule("net").register_forward_pre_hook(
            lambda *_: seen.append(now())
        )
        learner.predict(x), learner.features(x), learner.novelty(x)
        fast = precision == "tf32"
        asked, measured = [fast, fast], [False, fast]  # distances keep all their digits
        assert seen == [measured, asked, asked, measured]
        assert now() == usual
        seen.clear()


def test_scopes_of_two_threads_may_end_in_any_order():
    flag, usual = torch.backends.cudnn, torch.backends.cudnn.allow_tf32
    reader, trainer = inference_numerics("float32"), training_numerics("tf32")
    reader.__enter__(), trainer.__enter__()  # a training begins while a network is asked
    assert flag.allow_tf32
    reader.__exit__(None, None, None)
    assert flag.allow_tf32  # the end of the question does not change it
    trainer.__exit__(None, None, None)
    assert flag.allow_tf32 == usual
