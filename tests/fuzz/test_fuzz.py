"""Readers of foreign bytes return or complain; many more examples: ``python -m tests.fuzz``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.guard import Broke, guarded, outcome
from tests.fuzz.readers import READERS, make_scenes, slug

EXAMPLES = int(os.environ.get("ENGRAM_FUZZ", "6"))  # of each kind of edit
FOUND = sorted(Path(__file__).with_name("found").iterdir())


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    make_scenes(root)
    return root


@pytest.mark.parametrize("name", READERS)
def test_a_file_near_to_a_good_one_is_read_or_refused(name, scenes):
    reader = READERS[name]
    scene = scenes / reader.scene
    place, good = reader.place(scene), reader.content(scene)
    assert outcome(reader.read, scene, place, good) == "read"
    for near in reader.near:

        @settings(max_examples=EXAMPLES, phases=[Phase.generate], database=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(near(good))
        def holds(content):
            outcome(reader.read, scene, place, content)

        holds()


@pytest.mark.parametrize("found", FOUND, ids=lambda path: path.name)
def test_what_was_found_once_stays_mended(found, scenes):
    """Each of these made a reader fail in another way than by a complaint."""
    (reader,) = (one for name, one in READERS.items()
                 if slug(name) == found.name.rpartition("-")[0])  # fmt: skip
    scene = scenes / reader.scene
    outcome(reader.read, scene, reader.place(scene), found.read_bytes())


@pytest.mark.parametrize(
    ("read", "words"),
    [(lambda folder: np.load(folder / "bad.npy", allow_pickle=True), "pickle.find_class"),
     (lambda folder: (folder / "../../stray").write_text(""), "outside"),
     (lambda folder: os.system("true"), "os.system")],
)  # fmt: skip
def test_the_guard_hears_what_no_reader_may_do(read, words, tmp_path):
    np.save(tmp_path / "bad.npy", np.array([Path("x")]), allow_pickle=True)
    (tmp_path / "in").mkdir()
    with pytest.raises(Broke, match=words), guarded(tmp_path / "in"):
        read(tmp_path if "pickle" in words else tmp_path / "in")


def test_the_guard_limits_memory(tmp_path):
    with pytest.raises(MemoryError), guarded(tmp_path):
        np.ones(1 << 29)
