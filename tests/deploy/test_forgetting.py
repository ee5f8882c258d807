"""What is forgotten is nowhere in the learner's state or files; what cannot be is said."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from engram import Learner, Memory, ModelStore
from engram.cli import app
from engram.data.fingerprint import hash_rows
from engram.deploy.forgetting import close_gaps
from engram.errors import BadArgument, EngramError
from engram.experiments.model_file import load_model
from tests.deploy.conftest import FAST, MODEL, world

CLASSES, ROWS = 4, 30


@pytest.fixture(scope="module")
def rows():
    x, y, test = world(CLASSES, rows=ROWS)
    return x, y, test


def taught(rows, method="DERpp", **options):
    x, y, _ = rows
    learner = Learner(method, MODEL, **{**FAST, "calibration": 8, **options})
    return learner.learn(x[y < 2], y[y < 2]).learn(x[y >= 2], y[y >= 2])


@pytest.fixture(scope="module")
def learner(rows):
    return taught(rows)


def kept(state):
    """Hashes of all rows in a state."""
    tensors = state.tensors
    return {
        one
        for name in ("rows/x", "calibration/x")
        for one in hash_rows(tensors[name].numpy()).tolist()
    }


def hashes(x):
    return set(hash_rows(x).tolist())


def test_rows_are_gone_and_learning_goes_on(learner, rows, tmp_path):
    x, y, test = rows
    one, before = learner.copy(), learner._portable
    gone = x[::2]
    wanted = len(kept(before) & hashes(gone))
    found = one.forget(rows=gone)
    state = one._portable
    assert not kept(state) & hashes(gone)
    assert kept(state) == kept(before) - hashes(gone)
    assert (found.rows + found.calibration, found.retrained) == (wanted, False)
    assert any("weights were trained" in text for text in found.remains)
    # the other rows keep their labels, tasks and stored values
    old, new = before.tensors, state.tensors
    stay = ~np.isin(hash_rows(old["rows/x"].numpy()), list(hashes(gone)))
    for name in ("rows/x", "rows/y", "rows/stage"):
        assert torch.equal(new[name], old[name][torch.from_numpy(stay)])
    entries = torch.from_numpy(stay)[old["exemplars/rows"]]
    assert torch.equal(new["rows/x"][new["exemplars/rows"]],
                       old["rows/x"][old["exemplars/rows"]][entries])  # fmt: skip
    assert torch.equal(new["values/logits"], old["values/logits"][entries])
    assert (one.predict(test) == learner.predict(test)).all()
    assert kept(learner._portable) == kept(before)  # the copy alone has forgotten
    again = Learner.load(one.save(tmp_path / "m.engram"), device="cpu")
    for each in (one, again):
        each.learn(x[y == 0] + 1, y[y == 0])
    assert (again.predict_proba(test) == one.predict_proba(test)).all()


@pytest.mark.parametrize(
    ("method", "memory"),
    [("ER", None), ("ER", Memory(total=40, policy="reservoir")), ("NaiveRehearsal", None),
     ("ICaRL", None), ("CBRS", None), ("IncrementalJoint", None)],
)  # fmt: skip
def test_memories_of_every_kind_go_on(method, memory, rows):
    """By class, as a reservoir, of tasks, by herding, row by row, and without a budget."""
    x, y, _ = rows
    one = taught(rows, method, calibration=0, memory=memory)
    found = one.forget(rows=x[:20], classes=[3])
    assert found.rows
    one.learn(x[y == 0] + 1, y[y == 0]).learn(x[y == 3], y[y == 3])
    assert one.classes_.tolist() == [0, 1, 2, 3]


def test_a_forgotten_class_is_not_predicted_until_it_is_learnt_again(learner, rows, tmp_path):
    x, y, test = rows
    one = learner.copy()
    found = one.forget(classes=2)
    assert found.classes == ("2",)
    again = Learner.load(one.save(tmp_path / "m.engram"), device="cpu")
    for each in (one, again):
        assert each.classes_.tolist() == [0, 1, 3]
        assert each.predict_proba(test).shape == (len(test), 3)
        assert set(each.predict(test)) <= {0, 1, 3}
        assert not each.alarm(test, rate=0.1).p_value.max() > 1
        each.learn(x[y == 1] + 0.5, y[y == 1])  # still forgotten
        assert each.classes_.tolist() == [0, 1, 3]
        each.learn(x[y == 2], y[y == 2])
        assert each.classes_.tolist() == [0, 1, 2, 3]
        assert (each.predict(test[y == 2]) == 2).mean() > 0.5
    with pytest.raises(BadArgument, match="unknown name '9'"):
        one.forget(classes=[9])
    with pytest.raises(BadArgument, match="some of the classes"):
        one.forget(classes=[0, 1, 2, 3])
    with pytest.raises(BadArgument, match="rows to forget, or classes"):
        one.forget()


def test_training_anew_unlearns(rows):
    x, y, test = rows
    one = taught(rows, "ER", epochs=8)
    found = one.forget(classes=[1], rows=x[y == 3][:5], retrain=True)
    assert found.retrained
    assert found.remains == ()
    assert one.classes_.tolist() == [0, 2, 3]
    assert "forgotten" not in one._portable.facts
    known = y != 1
    assert (one.predict(test[known]) == y[known]).mean() > 0.6
    labels = one.snapshot.labels[one.snapshot.calibration.y.numpy()]
    assert sorted(set(labels.tolist())) == [0, 2, 3]
    # the weights are those of a learner that never met the forgotten rows
    other = taught(rows, "ER", epochs=8)
    other.forget(classes=[1], rows=x[y == 3][:5], retrain=True)
    assert (other.predict_proba(test) == one.predict_proba(test)).all()
    bare = taught(rows, "EWC")
    with pytest.raises(EngramError, match="retrain: needs rows of the memory"):
        bare.forget(classes=[1], retrain=True)
    assert bare.classes_.tolist() == [0, 1, 2, 3]


def test_rows_with_several_labels(rows):
    x, y, _ = rows
    labels = [["pet", ("cat", "dog")[c]] if c < 2 else [("oak", "elm")[c - 2]] for c in y]
    one = Learner("ER", MODEL, **FAST).learn(x, labels)
    before = len(one._portable.tensors["rows/x"])
    assert one.forget(classes="cat").rows == ROWS
    assert len(one._portable.tensors["rows/x"]) == before - ROWS
    assert one.classes_.tolist() == ["dog", "elm", "oak", "pet"]
    assert not any("cat" in said for said in one.predict(x))
    assert one.learn(x, labels).classes_.tolist() == ["cat", "dog", "elm", "oak", "pet"]


def test_detectors_are_fitted_to_what_remains(rows):
    x, _, test = rows
    one = taught(rows, "IncrementalJoint", detectors=["Mahalanobis", "KNN"])
    before = {name: one.novelty(test, detector=name) for name in ("Mahalanobis", "KNN")}
    found = one.forget(rows=x[:20])
    assert not any("after the next learning" in text for text in found.remains)
    for name, scores in before.items():
        now = one.novelty(test, detector=name)
        assert np.isfinite(now).all()
        assert (now != scores).any()
    # KNN's bank holds one row less for each that is forgotten
    ranks = [value for name, value in one._portable.tensors.items() if name.endswith("rank")]
    assert int((ranks[0] > 0).sum()) == len(one._portable.tensors["rows/x"])
    bare = taught(rows, "EWC", detectors=["Energy", "KNN"])
    assert bare.forget(rows=x[:20]).remains[-1].endswith("can be used after the next learning")
    with pytest.raises(BadArgument, match="has seen all tasks"):
        bare.novelty(test, detector="KNN")


def test_ranks_have_no_gaps():
    stages, columns = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1])
    assert close_gaps(stages, columns, torch.tensor([3, 1, 5, 7, 0])).tolist() == [1, 0, 0, 1, 0]


# -- in a store ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def made(rows, tmp_path_factory):
    """A store of two accepted versions and one refused."""
    x, y, _ = rows
    folder = tmp_path_factory.mktemp("store") / "store"
    store = ModelStore.create(folder, taught(rows, "ER"), gate=None)
    store.learn(x + 1, y)
    store._write_state(gate={})
    store.learn(x[:40], y[:40])
    return folder


@pytest.fixture
def store(made, tmp_path):
    return ModelStore(shutil.copytree(made, tmp_path / "store"), device="cpu")


def every_row(folder):
    """Hashes of the rows in all files of a store."""
    found = set()
    for path in folder.glob("versions/*.engram"):
        found |= kept(load_model(path)[0])
    for path in folder.glob("aside/*"):
        from safetensors.torch import load_file

        found |= hashes(load_file(path)["x"].numpy())
    return found


def test_no_file_of_a_store_holds_forgotten_rows(store, rows):
    x, y, test = rows
    gone = np.concatenate([x[:25], x[:25] + 1])
    assert every_row(store.folder) & hashes(gone)
    found = store.forget(rows=gone, note="asked by letter")
    assert not every_row(store.folder) & hashes(gone)
    assert every_row(store.folder)
    assert found.remains[-1].startswith("weights of 2 other versions stay")
    version = store.current
    assert (version.number, version.how, version.note) == (4, "forgot", "asked by letter")
    assert version.metrics["removed"]["rows"] == found.rows
    assert store._state["forgetting"] is None
    assert store.refused_rows(3)[1].tolist() == y[25:40].tolist()
    assert store.rollback(1).state == "current"
    assert store.learn(test, y, check=False).accepted


def test_classes_and_training_anew_in_a_store(store):
    store.forget(classes=[3])
    assert store.learner.classes_.tolist() == [0, 1, 2]
    assert store.open(1).classes_.tolist() == [0, 1, 2]
    store.forget(classes=[2], retrain=True)
    assert store.versions().state.tolist() == ["pruned", "pruned", "refused", "pruned", "current"]
    assert store.learner.classes_.tolist() == [0, 1]


def test_what_one_process_began_to_forget_the_next_completes(store, rows):
    x, _, _ = rows
    wanted = store.learner.find_wanted(rows=x[:25])
    order = {"number": 4, "parent": 2, "note": "", "retrain": False, "classes": [],
             "hashes": [str(one) for one in wanted.hashes.tolist()]}  # fmt: skip
    store._write_state(forgetting=order)
    again = ModelStore(store.folder, device="cpu")
    assert again.current.how == "forgot"
    assert not every_row(store.folder) & hashes(x[:25])
    assert again._state["forgetting"] is None


def test_command(learner, rows, store, tmp_path):
    def shell(*words):
        told = CliRunner().invoke(app, ["forget", *map(str, words)])
        assert told.exit_code == 0, told.output
        return told.output

    x, _, _ = rows
    np.save(tmp_path / "gone.npy", x[:9])
    model = learner.save(tmp_path / "m.engram")
    assert "forgot" in shell(model, "--rows", tmp_path / "gone.npy", "--class", "3")
    found = Learner.load(model, device="cpu")
    assert found.classes_.tolist() == [0, 1, 2]
    assert not kept(found._portable) & hashes(x[:9])
    assert "version 4" in shell(store.folder, "--class", "3")
    assert ModelStore(store.folder, device="cpu").learner.classes_.tolist() == [0, 1, 2]
