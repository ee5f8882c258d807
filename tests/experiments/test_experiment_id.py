"""A run's id stands for the experiment: data, code, weights and options, however they are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from dataclasses import dataclass, field, make_dataclass, replace

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import engram
from engram.data.packed import write_packed
from engram.engine.training import Training
from engram.errors import BadArgument, RecordError
from engram.experiments import Recipe, experiment_id, make_plans
from engram.experiments.build_methods import method_label
from engram.experiments.experiment_id import describe
from engram.experiments.recipe_sections import check_orders
from engram.memory import Memory
from engram.methods import ER, Finetune
from engram.methods.method import Method
from engram.report import from_result
from engram.report.report_data import build_report_data
from engram.streams.task_orders import random_class_orders

FEW = {"epochs": 1, "batch_size": 32, "device": "cpu"}


def blobs(seed=0):
    return engram.load("blobs", classes=4, per_class=20, seed=seed)


def stream(seed=0):
    return engram.class_incremental(blobs(seed))


def small(hidden=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, hidden), nn.ReLU())


def ran(out, over=None, **more):
    """The result and how many runs were finished before."""
    done = []

    class Counting(engram.experiments.Callback):
        def begin(self, plans, finished):
            done.append(finished)

    result = engram.run(over or stream(), out=out, callback=Counting(), **{**FEW, **more})
    return result, done[0]


def id_of(**more):
    result = engram.run(more.pop("over", None) or stream(), **{**FEW, **more})
    return result.runs[0].recipe


# -- data ----------------------------------------------------------------------------------------


def test_other_data_under_the_same_path_is_another_run(tmp_path):
    file = tmp_path / "set.npz"
    recipe = {"stream": {"data": str(file)}, "method": "Finetune", "seeds": [0]}
    write_packed(blobs(0), file)
    first = engram.sweep([recipe], out=tmp_path / "out", device="cpu")
    write_packed(blobs(1), file)
    with pytest.warns(UserWarning, match=r"Finetune: the data \('.*set.npz'\) has changed since"):
        second = engram.sweep([recipe | {"seeds": [0, 1]}], out=tmp_path / "out", device="cpu")
    assert len(second) == 2  # both seeds on the new data, neither of the old run
    assert {run.recipe for run in second.runs}.isdisjoint(run.recipe for run in first.runs)
    alone = engram.sweep([recipe | {"seeds": [0, 1]}], device="cpu")
    np.testing.assert_array_equal(second.matrix, alone.matrix)
    assert len(engram.read(tmp_path / "out").summary()) == 2  # no mean over both
    report = from_result(engram.read(tmp_path / "out"))
    assert build_report_data(report).runs["stream"].nunique() == 2  # nor one place in a ranking


def test_other_data_under_the_same_name_is_another_run(tmp_path):
    pair = [
        engram.class_incremental(engram.Data.from_arrays(x, [0, 1, 2, 3] * 10, name="mine"))
        for x in (np.eye(40, 16, dtype="float32"), np.ones((40, 16), "float32"))
    ]
    ran(tmp_path, pair[0])
    with pytest.warns(UserWarning, match="the data"):
        changed = engram.run(pair[1], out=tmp_path, **FEW)
    assert changed.runs[0].recipe != id_of(over=pair[0])


@pytest.mark.parametrize("part", ["x", "y", "train", "classes", "attributes", "mean"])
def test_everything_a_run_reads_is_in_the_fingerprint(part):
    data = replace(blobs(), mean=(0.0,), std=(1.0,), attributes={"a": torch.zeros(80).long()})
    other = {
        "x": data.x + 1, "y": data.y.flip(0), "train": data.train[:-1], "mean": (0.5,),
        "classes": ("a", "b", "c", "d"), "attributes": {"a": torch.ones(80).long()},
    }[part]  # fmt: skip
    assert replace(data, **{part: other}).fingerprint() != data.fingerprint()
    assert replace(data, name="other", notes=("x",)).fingerprint() == data.fingerprint()


def test_data_changed_in_place_has_another_fingerprint():
    data = blobs()
    before = data.fingerprint()
    data.x.mul_(2)
    assert data.fingerprint() != before


def test_a_moved_file_is_the_same_experiment(tmp_path):
    write_packed(blobs(), tmp_path / "a.npz")
    ids = {id_of()}
    for name in ("a.npz", "b.npz"):
        (tmp_path / "a.npz").rename(tmp_path / name)
        (tmp_path / name).rename(tmp_path / "a.npz") if name == "a.npz" else None
        ids.add(Recipe.of({"stream": {"data": str(tmp_path / name)}, "method": "Finetune",
                           "training": {"epochs": 1, "batch_size": 32}}).id)  # fmt: skip
    assert len(ids) == 1


# -- code ----------------------------------------------------------------------------------------

MODULE = """
from dataclasses import dataclass
from engram.methods.method import Method
SCALE = {scale}

def scaled(value):
    return value * SCALE

def unused(value):
    return value{unused}

@dataclass(frozen=True)
class Own(Method):
    {comment}
    size: int = 3

    def loss(self, net, batch, state):
        terms = super().loss(net, batch, state){space}
        return {{name: {scaled}(term) for name, term in terms.items()}}
"""


def own(tmp_path, monkeypatch, **changes):
    """The class of a module in a file, imported anew."""
    filled = {"scale": "1.0", "unused": "", "comment": "", "space": "", "scaled": "scaled"}
    text = MODULE.format(**(filled | changes))
    (tmp_path / "own_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    __import__("own_module")
    return sys.modules["own_module"].Own


def test_an_edited_method_is_run_anew(tmp_path, monkeypatch):
    first, _ = ran(tmp_path / "out", method=own(tmp_path, monkeypatch)())
    assert ran(tmp_path / "out", method=own(tmp_path, monkeypatch)())[1] == 1
    edited = own(tmp_path, monkeypatch, scaled="0 * scaled")
    with pytest.warns(UserWarning, match=r"source or an option of the method \(own_module:Own\)"):
        second = engram.run(stream(), method=edited(), out=tmp_path / "out", **FEW)
    assert not np.array_equal(first.matrix, second.matrix)
    assert len(engram.read(tmp_path / "out").summary()) == 2


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"comment": '"""Now explained."""'}, True),
        ({"space": "  # the usual ones\n\n"}, True),
        ({"unused": " + 1"}, True),  # nothing that the class uses
        ({"scale": "2.0"}, False),  # a number that a helper uses
        ({"scaled": "-scaled"}, False),
    ],
)
def test_what_code_does_counts_and_how_it_is_written_does_not(tmp_path, monkeypatch, changes, same):
    before = describe(own(tmp_path, monkeypatch)(), "method")
    after = describe(own(tmp_path, monkeypatch, **changes)(), "method")
    assert (before == after) is same


RICH = """
import enum, functools, logging, re
import numpy as np, torch
from torch import nn
WORDS, PATTERN, LOG = {"b", "a", "c"}, re.compile("a+"), logging.getLogger("x")
TABLE = {"x": np.arange(3), "y": (1, 2.5)}

class Mode(enum.Enum):
    A = 1
    B = "two"

def traced(f):
    @functools.wraps(f)
    def inner(*args):
        LOG.info("called")
        return f(*args)
    return inner

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.mode = nn.Linear(4, 4), Mode.B
        self.register_forward_hook(lambda *args: None)

    @traced
    @torch.no_grad()
    def forward(self, x):
        try:
            return self.first(x) if PATTERN.match("a") or 1 in {"p", "q"} else TABLE[WORDS]
        except (KeyError, ValueError):
            return Mode.A

    @functools.cached_property
    def other(self):
        return self.forward
"""


def test_ids_are_the_same_in_another_process(tmp_path, monkeypatch):
    (tmp_path / "rich_module.py").write_text(RICH)
    monkeypatch.syspath_prepend(tmp_path)
    import rich_module

    here = json.dumps(describe(rich_module.Net(), "model"), sort_keys=True)
    code = "import rich_module; from engram.experiments.experiment_id import describe; import json"
    code += "; print(json.dumps(describe(rich_module.Net(), 'model'), sort_keys=True))"
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": other},
    ).stdout  # fmt: skip
    assert there.strip() == here
    assert "0x" not in here  # no place in memory


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path):
    text = (
        "from dataclasses import dataclass\nfrom engram.methods.method import Method\n"
        "@dataclass(frozen=True)\nclass Twin(Method):\n    size: int = {}\n"
    )
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "twin_module.py"
        file.write_text(text.format(len(found)))
        found.append(Recipe.of({"stream": "blobs", "method": f"{file}:Twin"}).method.size)
    assert found == [0, 1]
    (tmp_path / "json.py").write_text(text.format(3))
    with pytest.raises(BadArgument, match="not named like the module 'json'"):
        Recipe.of({"stream": "blobs", "method": f"{tmp_path / 'json.py'}:Twin"})


def test_helpers_in_other_own_modules_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for number in (1, 2):
        (tmp_path / "helper_module.py").write_text(f"def f(x):\n    return x + {number}\n")
        monkeypatch.delitem(sys.modules, "helper_module", raising=False)
        scope: dict = {"__name__": "__main__"}
        exec("import helper_module\ndef g(x):\n    return helper_module.f(x)", scope)
        exec("def h(x):\n    from helper_module import f\n    return f(x)", scope)
        found.append((describe(scope["g"], "g"), describe(scope["h"], "h")))
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def in_a_script(text):
    scope: dict = {"__name__": "__main__"}
    exec(textwrap.dedent(text), scope)
    return scope


def test_classes_of_scripts_and_notebooks_are_known_by_what_they_do():
    base = """
        from engram.methods.method import Method
        from dataclasses import dataclass
        @dataclass(frozen=True)
        class Own(Method):
            def loss(self, net, batch, state):
                return {name: term * %s for name, term in super().loss(net, batch, state).items()}
    """
    ids = [id_of(method=in_a_script(base % number)["Own"]()) for number in (1.0, 1.0, 2.0)]
    assert ids[0] == ids[1] != ids[2]


def test_another_lambda_is_another_model():
    ids = [
        id_of(model=lambda shape: small(8)), id_of(model=lambda shape: small(16)),
        id_of(model=lambda shape: (small(8))),
    ]  # fmt: skip
    assert ids[0] == ids[2] != ids[1]


def test_what_a_factory_holds_counts():
    def factory(hidden):
        return lambda shape: small(hidden)

    assert id_of(model=factory(8)) == id_of(model=factory(8)) != id_of(model=factory(9))


def test_another_network_of_the_same_class_is_another_run(tmp_path):
    torch.manual_seed(0)
    first, second = small(), small()
    ran(tmp_path, model=first)
    assert ran(tmp_path, model=first)[1] == 1
    with pytest.warns(UserWarning, match="starting weights of the model"):
        engram.run(stream(), model=second, out=tmp_path, **FEW)
    second.load_state_dict(first.state_dict())
    assert ran(tmp_path, model=second)[1] == 1  # other objects, the same weights


def test_structure_of_a_network_counts():
    def net(activation, *, tied=False):
        torch.manual_seed(0)
        first, last = nn.Linear(16, 16), nn.Linear(16, 16)
        last.load_state_dict(first.state_dict())
        return nn.Sequential(first, activation, first if tied else last)

    made = [net(nn.ReLU()), net(nn.ReLU()), net(nn.Tanh()), net(nn.ReLU(), tied=True),
            net(nn.LeakyReLU(0.1)), net(nn.LeakyReLU(0.2))]  # fmt: skip
    texts = [str(describe(one, "model")) for one in made]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 5


@pytest.mark.parametrize(
    "module", [nn.LSTM(4, 4), nn.LazyLinear(4), nn.MultiheadAttention(4, 2), nn.BatchNorm1d(3)]
)
def test_usual_modules_can_be_known(module):
    assert describe(module, "model") == describe(module, "model")


class FromFront:
    def __init__(self, step=1):
        self.step = step

    def rank(self, learner, rows, column, count):
        return torch.arange(0, len(rows), self.step)


def backwards(learner, rows, column, count):
    return torch.arange(len(rows)).flip(0)


def test_own_policies_count_with_their_options():
    policies = [FromFront(), FromFront(), FromFront(2), backwards, "random"]
    ids = [describe(ER(memory=Memory(total=20, policy=one)), "method") for one in policies]
    assert ids[0] == ids[1]
    assert len({str(one) for one in ids}) == 4


def test_options_of_a_memory_count_where_they_differ_from_the_defaults():
    def made(**memory):
        return Recipe.of({"stream": "blobs", "method": {"name": "ER", "memory": memory}})

    plain, spelt, other = made(total=20), made(total=20, policy="random"), made(total=21)
    assert (plain.id, plain.key) == (spelt.id, spelt.key)
    assert other.id != plain.id
    assert other.key != plain.key


@dataclass(frozen=True)
class Locked(Method):
    lock: object = None


def test_what_cannot_be_known_is_refused_before_any_work(tmp_path):
    with pytest.raises(BadArgument, match=r"method\.lock: expected something .* recognised"):
        engram.run(stream(), method=Locked(threading.Lock()), out=tmp_path / "out", **FEW)
    assert not (tmp_path / "out").exists()


# -- one identity --------------------------------------------------------------------------------


def test_objects_recipes_and_spelt_defaults_have_one_id():
    recipe = {"stream": {"data": "blobs", "data_options": {"classes": 4, "per_class": 20}},
              "method": "ER", "training": {"epochs": 1, "batch_size": 32}}  # fmt: skip
    spelt = recipe | {
        "stream": recipe["stream"] | {"kind": "class_incremental", "classes_per_task": 2,
                                      "valid": 0, "online": False},
        "model": {"name": "mlp", "hidden": [256, 256]},
        "method": {"name": "ER", "memory": {"total": 500}},
        "training": recipe["training"] | {"lr": 1e-3}, "label": "other", "seeds": [5],
        "keep": "labels",
    }  # fmt: skip
    ids = {
        id_of(method="ER"), id_of(method=ER(), model={"name": "mlp"}), id_of(method="ER", seeds=2),
        engram.sweep([recipe], device="cpu").runs[0].recipe, Recipe.of(spelt).id,
        make_plans([Recipe.of(recipe)])[0].recipe, id_of(over=blobs(), method="ER"),
    }  # fmt: skip
    assert len(ids) == 1
    assert Recipe.of(recipe | {"training": {"lr": 0.1}}).id not in ids


def test_auto_and_what_it_stands_for_have_one_id(tmp_path):
    """By labels and head of the stream: ce and seen here, own where tasks have heads."""
    over = stream()
    plain = id_of(over=over, method="ER")
    assert id_of(over=over, method="ER", loss="ce") == plain
    assert id_of(over=over, method="ER", loss="ce", scope="seen") == plain
    assert id_of(over=over, method="ER", loss="balanced") != plain
    assert id_of(over=over, method="ER", scope="own") != plain
    heads = engram.task_incremental(over.data)
    assert id_of(over=heads, method="ER", scope="own") == id_of(over=heads, method="ER")
    assert id_of(over=heads, method="ER", scope="seen") != id_of(over=heads, method="ER")
    few = {"method": "ER", "out": tmp_path, "device": "cpu"}
    first = engram.run(over, **few)
    with warnings.catch_warnings():  # a note would say that the experiment had changed
        warnings.simplefilter("error")
        second = engram.run(over, loss="ce", **few)
    assert first.runs == second.runs
    assert len(list(tmp_path.glob("recipes/*.yaml"))) == 1


def test_orders_stay_outside_and_names_of_classes_are_their_ids():
    data = blobs()
    by_id = engram.class_incremental(data, order=[3, 2, 1, 0])
    by_name = engram.class_incremental(data, order=[data.classes[c] for c in (3, 2, 1, 0)])
    runs = {engram.run(one, **FEW).runs[0] for one in (by_id, by_name)}
    assert {(run.order, run.recipe) for run in runs} == {("3-2-1-0", id_of())}


def test_online_streams_are_made_from_recipes_as_well():
    section = {"data": "blobs", "data_options": {"classes": 4, "per_class": 20}, "online": True,
               "task_labels": False}  # fmt: skip
    recipe = Recipe.of({"stream": section, "method": "Finetune",
                        "training": {"epochs": 1, "batch_size": 32}})  # fmt: skip
    assert recipe.id == id_of(over=engram.streams.online(stream(), task_labels=False))
    assert recipe.id != id_of()


def test_a_stream_made_by_hand_is_known_by_its_rows():
    whole = stream()
    assert whole.origin is not None
    for changed in (whole[:2], replace(whole, head="multi"), whole[:1] + whole[1:]):
        assert changed.origin is None
    assert id_of(over=whole[:1]) == id_of(over=stream()[:1]) != id_of(over=whole)


def test_a_directory_of_an_earlier_version_is_read_and_not_added_to(tmp_path):
    ran(tmp_path)
    (file,) = (tmp_path / "recipes").iterdir()
    content = yaml.safe_load(file.read_text())
    del content["identity"]
    file.write_text(yaml.safe_dump(content))
    assert len(engram.read(tmp_path)) == 1
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RecordError, match=r"another version.*can be read.*another directory"):
        ran(tmp_path, seeds=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_one_experiment_is_run_once_and_has_one_label():
    base = {"stream": {"data": "blobs", "data_options": {"classes": 4}}, "method": "Finetune"}
    assert len(engram.sweep([base | {"seeds": [0, 1]}, base | {"seeds": [1, 2]}])) == 3
    assert len(engram.run(stream(), method=["ER", ER()], **FEW)) == 1
    with pytest.raises(BadArgument, match="'a' and 'b' are the same one"):
        engram.sweep([base | {"label": "a"}, base | {"label": "b"}])


def test_an_option_may_be_called_parts():
    @dataclass(frozen=True)
    class Divided(Method):
        parts: int = 3

        def loss(self, net, batch, state):
            return {"task": net.task(batch)}

    assert method_label(Divided(parts=2)) == "Divided parts=2"


@pytest.mark.parametrize("way", ["study", "recipes"])
def test_a_study_of_orders_is_identified_once(monkeypatch, way):
    calls = []
    usual = experiment_id.describe
    monkeypatch.setattr(experiment_id, "describe", lambda *args: calls.append(args) or usual(*args))
    recipe = Recipe.of({"stream": {"data": "blobs", "data_options": {"classes": 6}},
                        "method": "EWC", "keep": "counts"})  # fmt: skip
    chosen = random_class_orders(6, 200)
    if way == "study":
        plans = make_plans([recipe.change(orders=check_orders({"class_orders": chosen}))])
    else:
        plans = make_plans([recipe.in_order(order) for order in chosen])
    assert len({plan.recipe for plan in plans}) == 1
    assert len(plans) == 200
    assert len(calls) < 12


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([1, 1, 1], "every seed only once, got '1 more than once'"),
        ([1.7], r"seeds\[0\]: expected a whole number.*1.7"),
        ([1.0], r"seeds\[0\]: expected a whole number"),
        ([0, True], r"seeds\[1\]: expected a whole number"),
        (True, "a number of seeds"),
        (2.0, "a number of seeds"),
        ([0, -1], r"seeds\[1\]"),
    ],
)
def test_seeds_are_whole_numbers_each_once(seeds, words):
    with pytest.raises(BadArgument, match=words):
        engram.run(stream(), seeds=seeds, **FEW)
    with pytest.raises(BadArgument, match=words):
        Recipe.of({"stream": "blobs", "method": "Finetune", "seeds": seeds})


def test_seeds_may_come_from_numpy_or_range():
    recipe = Recipe.of({"stream": "blobs", "method": Finetune(), "seeds": list(np.arange(2, 4))})
    assert recipe.seeds == (2, 3)
    assert recipe.change(seeds=(0,)).key == recipe.key
    assert Recipe.of({"stream": "blobs", "method": "ER", "seeds": range(3)}).seeds == (0, 1, 2)


# -- options that come later ---------------------------------------------------------------------


def with_option(kind, value):
    """An object of a library class as it would be with one option more."""
    later = make_dataclass(
        kind.__name__, [("later", type(value), field(default=0.5))], bases=(kind,), frozen=True,
        kw_only=True, namespace={"__module__": kind.__module__, "__qualname__": kind.__qualname__},
    )  # fmt: skip
    return later(later=value)


@pytest.mark.parametrize("value", [0.5, 0.7])
@pytest.mark.parametrize("place", ["method", "training", "stream", "model"])
def test_a_new_option_changes_an_id_where_it_is_used_only(place, value, monkeypatch):
    def identity(**changes):
        rest = {"method": ER(), "model": "mlp", "training": Training(), "average": "micro"}
        return experiment_id.identify(stream_, **{**rest, **changes})

    stream_ = stream()
    before = identity()
    asked = experiment_id.options_hash(before.content)
    if place == "method":
        after = identity(method=with_option(ER, value))
    elif place == "training":
        monkeypatch.setattr(experiment_id, "Training", lambda: with_option(Training, 0.5))
        after = identity(training=with_option(Training, value))
    elif place == "stream":
        usual = experiment_id._scenario_defaults("class_incremental")
        monkeypatch.setattr(
            experiment_id, "_scenario_defaults", lambda kind: {**usual, "later": 0.5}
        )
        stream_ = replace(stream_)
        object.__setattr__(stream_, "origin", stream().origin.change(later=value))
        after = identity()
    else:
        usual = experiment_id.model_defaults
        monkeypatch.setattr(
            experiment_id, "model_defaults", lambda name: {**usual(name), "later": 0.5}
        )
        after = identity(model={"name": "mlp", "later": value})
    assert (after.id == before.id) is (value == 0.5)
    if place != "method":  # there the options of the class that is known by its name count
        assert (experiment_id.options_hash(after.content) == asked) is (value == 0.5)


def test_a_changed_default_keeps_the_meaning_of_ids(monkeypatch):
    def method_id(method):
        return id_of(method=method)

    plain, strong = method_id(ER()), method_id(ER(size=8))
    monkeypatch.setitem(experiment_id.FORMER_DEFAULTS, "ER.size", 8)
    assert method_id(ER(size=8)) != strong  # as if 8 had been the default when the option came
    assert method_id(ER(size=8)) == plain
    assert method_id(ER()) != plain


def test_a_former_default_is_the_same_in_a_recipe_and_as_an_object(monkeypatch):
    former = {"name": "ER", "memory": {"per_class": 7}}
    recipe = {"stream": {"data": "blobs"}, "method": "ER"}
    plain = Recipe.of(recipe).id, Recipe.of(recipe).key
    monkeypatch.setitem(experiment_id.FORMER_DEFAULTS, "ER.memory", Memory(per_class=7))
    for method in (former, ER(memory=Memory(per_class=7))):
        found = Recipe.of({**recipe, "method": method})
        assert (found.id, found.key) == plain  # as if it had been the default
    assert Recipe.of(recipe).id != plain[0]
    assert Recipe.of(recipe).key != plain[1]


def test_a_method_with_a_memory_of_its_own_is_the_same_however_it_is_spelt(tmp_path):
    written = {
        "stream": {"data": "blobs"}, "method": {"name": "ER", "memory": {"per_class": 2}},
    }  # fmt: skip
    built = Recipe.of({**written, "method": ER(memory=Memory(per_class=2))})
    assert Recipe.of(written).key == built.key
    assert Recipe.of(written).id == built.id
    other = Recipe.of({**written, "method": {"name": "ER", "memory": {"per_class": 3}}})
    assert other.key != built.key
    assert other.id != built.id
