"""Parameters with requires_grad=False: constants outside of the vector, shared by runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import engram
from engram import methods
from engram.checks import toy_runs
from engram.engine.checkpoints import load_checkpoint, save_checkpoint
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.learner.parameter_layout import Networks
from tests.refusals import refuses

STREAM = engram.class_incremental(engram.load("blobs"))
SHAPE = STREAM.data.sample_shape


@pytest.fixture(autouse=True)
def _same_weights():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Net(nn.Module):
    """A frozen layer, a layer whose bias alone is frozen, and batch norm."""

    features = 8

    def __init__(self):
        super().__init__()
        self.body, self.top = nn.Linear(16, 12), nn.Linear(12, 8)
        self.norm = nn.BatchNorm1d(12)
        self.body.requires_grad_(False)
        self.top.bias.requires_grad_(False)

    def forward(self, x):
        return self.top(self.norm(self.body(x.flatten(1))).relu())


class Fixed(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


FIXED = ["net.backbone.body.weight", "net.backbone.body.bias", "net.backbone.top.bias"]


def make_runs(method, model, count=2, **changes):
    training = replace(toy_runs.EXACT, weight_decay=0.1, **changes)
    return [Run(stream=STREAM, method=method, model=model, seed=seed, training=training)
            for seed in range(count)]  # fmt: skip


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("together", [False, True])
def test_frozen_parameters_stay_and_are_in_no_vector(together, optimizer):
    built = Net()
    runs = make_runs(methods.EWC(strength=1e-3), built, optimizer=optimizer)
    learners = [s.learner for s in Engine(runs, device="cpu", together=together).stages()]
    for one in learners:
        assert not {*FIXED} & {*one.params}
        assert one.networks.constants.keys() == {*FIXED}
        for name in FIXED:
            kept = built.get_parameter(name.removeprefix("net.backbone."))
            assert torch.equal(one.networks.constants[name], kept.detach().double())
        moments = [value for value in one.opt.values() if value.ndim]
        assert all(value.shape == one.vector.shape for value in moments)
    # one copy for all runs, and for both modes of the network
    for name in FIXED:
        held = {id(one.networks.constants[name]) for one in learners}
        held |= {id(dict(one.networks.eval.named_buffers())[name]) for one in learners}
        assert len(held) == 1


METHODS = [
    methods.EWC(strength=1e-3), methods.SI(), methods.MAS(), methods.RWalk(strength=1e-3),
    methods.DERpp(), methods.LwF(), methods.GEM(), methods.ICaRL(),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda one: type(one).__name__)
def test_lockstep_is_the_loop_with_frozen_parameters(method):
    runs = make_runs(method, Net())
    found = [
        {(s.run, s.stage): s.learner.vector.clone() for s in engine.stages()}
        for engine in (Engine(runs, device="cpu", together=t) for t in (False, True))
    ]
    assert all(torch.allclose(found[0][k], found[1][k], atol=1e-9) for k in found[0])


def test_the_same_as_a_plain_loop_in_torch():
    """A frozen body: the numbers of a network that is given the body's answers."""

    class Top(nn.Module):
        features = 8

        def __init__(self, top):
            super().__init__()
            self.top = top

        def forward(self, x):
            return self.top(x.flatten(1))

    body, top = nn.Linear(16, 12).double().requires_grad_(False), nn.Linear(12, 8)
    data = STREAM.data
    answers = body(data.gather(torch.arange(len(data))).double().flatten(1)).float()
    whole = nn.Sequential(body.float(), top)
    whole.features = 8
    inputs = data.gather(torch.arange(len(data)))
    seen = {}
    for name, x, net in (("whole", inputs, whole), ("top", answers, Top(top))):
        own = engram.Data.from_arrays(x.numpy(), data.y[:, 0].numpy())
        run = Run(stream=engram.class_incremental(own), method=methods.ER(), model=net, seed=3,
                  training=toy_runs.EXACT)  # fmt: skip
        *_, last = Engine([run], device="cpu").stages()
        seen[name] = last.learner.params["net.head.weight"]
    assert torch.allclose(seen["whole"], seen["top"], atol=1e-4)


@pytest.mark.parametrize("together", [False, True])
def test_only_the_head_trains_where_all_is_frozen(together):
    runs = make_runs(methods.EWC(strength=1e-3), Fixed)
    for stage in Engine(runs, device="cpu", together=together).stages():
        assert [*stage.learner.params] == ["net.head.weight", "net.head.bias"]


def test_random_constants_of_two_seeds_are_not_mixed_up():
    """A class draws its frozen layers anew for each seed: such runs share no network."""
    alone = {}
    for seed in range(2):
        run = make_runs(methods.ER(), Net)[seed]
        *_, last = Engine([run], device="cpu").stages()
        alone[seed] = last.learner
    engine = Engine(make_runs(methods.ER(), Net), device="cpu", together=True)
    for stage in engine.stages():
        last = alone[stage.seed]
        names = [k for k, v in last.networks.constants.items()
                 if torch.equal(v, stage.learner.networks.constants[k])]  # fmt: skip
        assert names == [*last.networks.constants]
    assert torch.equal(stage.learner.vector, alone[1].vector)


def test_bytes_count_constants():
    runs = make_runs(methods.ER(), Net())
    size = next(iter(Engine(runs, device="cpu").stages())).learner.nbytes()
    own = sum(p.numel() for p in Net().parameters()) + len(STREAM.order) * 9
    assert size["parameters"] == 8 * own
    assert size["networks"] == 0


def test_tied_and_recurrent_constants():
    first, lstm = nn.Linear(4, 4), nn.LSTM(4, 4)
    second = nn.Linear(4, 4)
    second.weight = first.weight
    net = nn.Sequential(first, second)
    net.lstm = lstm
    net.requires_grad_(False)
    net.head = nn.Linear(4, 2)
    net.class_rows = ("head.weight", "head.bias")
    networks = Networks({"net": net}).to(torch.device("cpu"), torch.float64)
    assert [*networks.layout.shapes] == ["net.head.weight", "net.head.bias"]
    for skeleton in (networks.train, networks.eval):
        part = skeleton.get_submodule("net")
        assert part[0].weight is part[1].weight
        assert part.lstm._flat_weights[0] is part.lstm.weight_ih_l0
        assert part.lstm.weight_ih_l0.dtype == torch.float64
    assert networks.train.get_submodule("net")[0].weight is networks.eval.net[0].weight


def test_a_learner_carries_its_constants_into_a_file(tmp_path: Path):
    torch.manual_seed(1)
    built, other = Net(), Net()
    x, y = STREAM.data.gather(torch.arange(60)), STREAM.data.y[:60, 0]
    learner = engram.Learner(model=built, method="ER", epochs=1)
    learner.learn(x.numpy(), y.numpy())
    path = learner.save(tmp_path / "model.engram")
    again = engram.Learner.load(path or tmp_path / "model.engram", model=other)
    assert torch.equal(
        torch.as_tensor(again.predict_proba(x.numpy())),
        torch.as_tensor(learner.predict_proba(x.numpy())),
    )
    again.learn(x.numpy(), y.numpy())
    learner.learn(x.numpy(), y.numpy())
    assert (again.predict_proba(x.numpy()) == learner.predict_proba(x.numpy())).all()


def test_a_checkpoint_refuses_other_constants(tmp_path: Path):
    run = make_runs(methods.ER(), Net())[0]
    engine = Engine([run], device="cpu")
    *_, last = engine.stages()
    folder = tmp_path / "checkpoint" / "a"
    folder.mkdir(parents=True)
    path = save_checkpoint(last.learner, folder)
    assert not any("body" in name for name in _names(path))
    assert load_checkpoint(engine.learner(run), folder, range(9)) == len(STREAM)
    other = make_runs(methods.ER(), Net())[0]
    notes: list[str] = []
    assert load_checkpoint(Engine([other], device="cpu").learner(other), folder, range(9),
                           notes.append) == 0  # fmt: skip
    assert "frozen" in notes[0]


def _names(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return [*file.keys()]


class Detached(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(True)

    def forward(self, x):
        with torch.no_grad():
            z = self.body(x.flatten(1))
        return self.top(self.norm(z).relu())


def make_hooked():
    net = Net().requires_grad_(True)
    net.body.weight.register_hook(torch.zeros_like)
    return net


def test_parameters_frozen_by_other_means_are_refused_by_name():
    for model in (Detached, Detached()):
        with refuses("model") as caught:
            engram.run(STREAM, model=model, device="cpu")
        assert "body.weight, body.bias" in str(caught.value)
    for model in (make_hooked, make_hooked()):
        with refuses("model") as caught:
            engram.run(STREAM, model=model, device="cpu")
        assert "a hook on body.weight" in str(caught.value)
    # where nothing of it trains, there is nothing to refuse
    engram.run(STREAM, model={"name": Detached, "freeze": True}, device="cpu", epochs=1)
