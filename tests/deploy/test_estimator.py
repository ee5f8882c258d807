"""The manners that scikit-learn expects of an estimator."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted

import engram
from engram import Learner
from tests.deploy.conftest import FAST, MODEL
from tests.refusals import refuses


def test_parameters_and_clones(six):
    learner = Learner("EWC", MODEL, seed=3, **FAST)
    given = learner.get_params()
    assert given["method"] == "EWC"
    assert given["epochs"] == FAST["epochs"]
    x, y, test, _ = six
    learner.fit(x, y)
    twin = clone(learner)
    assert twin.get_params() == given
    check_is_fitted(learner)
    with pytest.raises(NotFittedError):
        check_is_fitted(twin)
    with pytest.raises(NotFittedError, match="nothing has been learnt"):
        twin.predict(test)
    assert twin.set_params(lr=0.02, capacity=32).get_params()["lr"] == 0.02
    with refuses("set_params", near="capacity"):
        twin.set_params(capacty=3)
    before, share = learner.get_params(), learner.predict_proba(test)
    for wrong in ({"lr": 0.5, "epochs": -1}, {"seed": 7, "capacty": 3}):
        with pytest.raises(engram.BadArgument):
            learner.set_params(**wrong)
        assert learner.get_params() == before
    assert (learner.predict_proba(test) == share).all()
    assert is_classifier(learner)
    assert "EWC" in repr(learner)


def test_in_a_pipeline_and_a_search(six):
    x, y, test, _ = six
    pipe = make_pipeline(StandardScaler(), Learner("Finetune", MODEL, **{**FAST, "epochs": 4}))
    search = GridSearchCV(pipe, {"learner__lr": [1e-6, 0.02]}, cv=2).fit(x, y)
    assert search.best_params_ == {"learner__lr": 0.02}
    assert search.score(test, y) > 0.7


def test_fit_begins_anew_and_partial_fit_goes_on(six):
    x, y, test, _ = six
    learner = Learner("ER", MODEL, capacity=2, **FAST)
    learner.partial_fit(x[:24], y[:24], classes=np.arange(6))
    assert learner._portable.columns == 6
    learner.partial_fit(x[24:], y[24:])
    assert learner.classes_.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(engram.BadArgument, match="labels among classes"):
        learner.partial_fit(x[:24], y[:24], classes=[1, 2])
    assert learner.fit(x[:24], y[:24]).classes_.tolist() == [0, 1]
    assert learner.tasks == 1
    again = pickle.loads(pickle.dumps(learner))
    assert (again.predict_proba(test) == learner.predict_proba(test)).all()


REFUSED_AT_ONCE = {
    "check_do_not_raise_errors_in_init_or_set_params": (
        "a wrong argument is refused where it is given, before any work: not when fit is called"
    ),
}


@pytest.mark.filterwarnings("ignore")  # many checks provoke one
def test_checks_of_scikit_learn():
    model = {"name": "mlp", "hidden": [16]}
    learner = Learner("Finetune", model, epochs=2, batch_size=16, lr=0.02, device="cpu")
    found = check_estimator(
        learner, expected_failed_checks=REFUSED_AT_ONCE, on_skip=None, on_fail=None
    )
    count = Counter(one["status"] for one in found)
    assert [one["check_name"] for one in found if one["status"] == "failed"] == []
    assert [one["check_name"] for one in found if one["status"] == "xfail"] == [*REFUSED_AT_ONCE]
    assert count["passed"] > 50


def test_cross_validation_and_every_parameter_round_trip(six):
    x, y, _, _ = six
    learner = Learner("ER", MODEL, memory=30, calibration=2, **{**FAST, "epochs": 6})
    assert cross_val_score(learner, x, y, cv=2).min() > 0.5
    twin = Learner().set_params(**learner.get_params())
    assert twin.get_params() == learner.get_params()
    assert (twin.fit(x, y).predict_proba(x) == clone(learner).fit(x, y).predict_proba(x)).all()
    assert learner.notes == {}
    assert not hasattr(clone(learner), "n_features_in_")
    images = twin.fit(np.float32(x).reshape(-1, 1, 2, 4), y)
    assert not hasattr(images, "n_features_in_")
