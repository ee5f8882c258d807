"""Every reader of bytes that may come from elsewhere, with a good file for each."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml
from hypothesis import strategies as st
from PIL import Image

import engram
from engram.data.memory_maps import MappedWriter
from engram.data.pickles import read_pickle
from engram.engine import checkpoints as checkpoint
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.experiments.build_methods import build_method
from engram.experiments.overrides import set_value
from engram.experiments.recipe import Recipe
from engram.experiments.recipe_sections import check_model_section
from engram.records.reading import from_csv
from engram.records.table_parts import read_part, write_part
from engram.records.tombstones import write_mark
from tests.fuzz.edits import edited, misplaced, npy_headers, resealed, with_sum, zipped
from tests.loose_files import unpack

Near = Callable[[bytes], st.SearchStrategy[bytes]]
RECIPE = {
    "stream": {"data": "digits", "kind": "class_incremental", "classes_per_task": 2,
               "order": [1, 0], "data_options": {"resize": 8}},
    "method": {"name": "EWC", "strength": 10.0},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"epochs": 1, "batch_size": 4, "lr": 0.1, "optimizer": "adam"},
    "seeds": [0, 1], "label": "one", "keep": "scores", "detectors": ["Energy"],
}  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """What reads a file of a scene, and what stands near to the good one."""

    scene: str
    file: str
    read: Callable[[Path], object]
    near: tuple[Near, ...] = (edited,)

    def content(self, scene: Path) -> bytes:
        """The good file."""
        return (scene / self.place(scene)).read_bytes()

    def place(self, scene: Path) -> str:
        """The name of the file, some of which have times in theirs."""
        return str(min(scene.glob(self.file)).relative_to(scene))


def slug(name: str) -> str:
    """The name of a reader as part of a file name.

    Examples
    --------
    >>> slug("run results-*.parquet")
    'run-results-parquet'
    """
    return re.sub(r"[^a-z]+", "-", name)


def _whole(folder: Path) -> None:
    """Read a run directory as commands do."""
    result = engram.read(folder)
    result.summary()
    _ = result.matrix, result.ledger, result.environment, result.recipes
    for run in result.runs:
        result.items(run.recipe, run.order)
        result.predictions.get(*run, 0)
    for key, probe in result.stored:
        result.stored.get(key, probe)


def _model(folder: Path) -> None:
    (path,) = folder.glob("checkpoint/*/model.engram")
    engram.Learner.load(path, device="cpu").predict(np.zeros((2, 3), np.float32))


def _plain(kind: str, seed: bytes) -> st.SearchStrategy[bytes]:
    """The same values with nonsense in some places."""
    load, dump = {"json": (json.loads, json.dumps),
                  "yaml": (yaml.safe_load, yaml.safe_dump)}[kind]  # fmt: skip
    return misplaced(load(seed)).map(lambda value: dump(value).encode())


def _assigned(folder: Path) -> None:
    """Each line is one ``key=value`` of a command line."""
    text = (folder / "set.txt").read_bytes().decode("utf-8", "surrogateescape")
    content = json.loads(json.dumps(RECIPE))
    for line in text.split("\n"):
        set_value(content, line)
    Recipe.of(content)


def _load(name: str, folder: Path, **options: Any) -> None:
    data = engram.load(str(folder / name) if name else str(folder), **options)
    data.fingerprint()
    _ = data.gather(data.train[:2])


def make_scenes(root: Path) -> None:
    """Write the good files, a folder for each kind."""
    rng = np.random.default_rng(0)
    for name in ("tables", "images", "texts", "killed"):
        (root / name).mkdir(parents=True)
    table = pd.DataFrame({"a": rng.normal(size=8), "b": list("uvuvuvuv"), "n": range(8),
                          "kind": ["x", "y"] * 4})  # fmt: skip
    table.to_csv(root / "tables/t.csv", index=False)
    table.to_parquet(root / "tables/t.parquet")
    x, y = rng.integers(0, 255, (6, 1, 4, 4)).astype(np.uint8), np.array([0, 1, 0, 1, 0, 1])
    np.save(root / "tables/x.npy", x.reshape(6, 16).astype(np.float32))
    np.save(root / "tables/y.npy", y)
    np.savez(root / "tables/p.npz", x=x, label=y, split=y, names=np.array(["u", "v"]),
             mean=np.array([0.5]), std=np.array([0.5]), group=y, crop=np.array([2, 2]))  # fmt: skip
    batch = {b"data": x, b"labels": y.tolist(), b"n": y[0], b"names": ["u", "v"]}
    (root / "tables/b.pickle").write_bytes(pickle.dumps(batch, 2))
    np.savez_compressed(root / "tables/q.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    joints = rng.normal(size=(12, 20, 3)).astype(np.float32)
    np.savez(root / "tables/s.npz", joints=joints, offsets=np.array([0, 6, 12]), label=y[:2])
    with MappedWriter(root / "tables/m.npz", x.shape) as writer:
        writer.write(x)
        writer.finish(label=y)
    for name, mode in {"u/a.png": "L", "u/b.jpg": "RGB", "v/c.gif": "P", "v/d.bmp": "RGB",
                       "v/e.tif": "L", "u/f.webp": "RGB", "u/g.ppm": "RGB"}.items():  # fmt: skip
        (root / "images" / name).parent.mkdir(exist_ok=True)
        Image.fromarray(x[0, 0]).resize((8, 8)).convert(mode).save(root / "images" / name)
    (root / "texts/r.yaml").write_text(yaml.safe_dump(RECIPE))
    (root / "texts/set.txt").write_text("lr=1e-3\nmodel.hidden=[3]\nstrength=2\nseeds=[1]")
    (root / "texts/acc.csv").write_text("stage,task 1,task 2\n1,0.9,\n2,0.3,0.8\n")
    _make_run(root / "run")
    first = next(_engine().stages()).learner
    checkpoint.save_checkpoint(first, root / "killed/checkpoint/one")


def _stream() -> Any:
    rng = np.random.default_rng(0)
    x, y = np.float32(rng.normal(size=(24, 3))), np.repeat(np.arange(4), 6)
    data = engram.Data.from_arrays(x, y, test=(x + 1, y))
    return engram.class_incremental(data, classes_per_task=2)


@cache
def _engine() -> Engine:
    method, training = build_method("ER"), Training(epochs=1, batch_size=8)
    model = check_model_section({"name": "mlp", "hidden": [4]})
    run = Run(stream=_stream(), method=method, model=model, training=training)
    return Engine([run], device="cpu")


def _resumed(folder: Path) -> None:
    """Load a checkpoint; one that is bad is named in a note, and the run begins anew."""
    engine, notes = _engine(), list[str]()
    fresh = engine.learner(engine.runs[0])
    before = fresh.vector.clone()
    stage = checkpoint.load_checkpoint(fresh, folder / "checkpoint/one", {0}, notes.append)
    assert stage == 1 or (notes and bool((fresh.vector == before).all())), (stage, notes)


def _make_run(folder: Path) -> None:
    stream = _stream()
    engram.run(stream, method="ER", model={"name": "mlp", "hidden": [4]}, epochs=1, batch_size=8,
               out=folder, device="cpu", detectors=["Energy"])  # fmt: skip
    shutil.copytree(folder, folder.parent / "journal")
    for path in unpack(folder).glob("results-*.parquet"):  # seconds differ, and examples with them
        table = read_part(path)
        place = table.column_names.index("value")
        steady = table.set_column(place, "value", pa.array(np.arange(len(table)) / 1000))
        write_part(path, steady)
    write_mark(folder, "0", [("another", 0, "")])


_RUN: dict[str, tuple[Near, ...]] = {
        "results-*.parquet": (edited, lambda seed: edited(seed).map(with_sum)),
        "ledger-*.json": (edited, partial(_plain, "json")),
        "environment-*.json": (edited, partial(_plain, "json")),
        "listed-*.json": (edited, partial(_plain, "json")),
        "recipes/*.yaml": (edited, partial(_plain, "yaml")),
        "items-*.safetensors": (edited, resealed),
        "arrays-*.safetensors": (edited, resealed),
        "probes-*.json": (edited, partial(_plain, "json")),
        "superseded-*.json": (edited, partial(_plain, "json")),
        "predictions-*.safetensors": (edited, resealed)}  # fmt: skip
READERS: Mapping[str, Reader] = {
    "recipe": Reader("texts", "r.yaml", lambda f: Recipe.read(f / "r.yaml"),
                     (edited, partial(_plain, "yaml"))),
    "assignments": Reader("texts", "set.txt", _assigned),
    "accuracies": Reader("texts", "acc.csv", lambda f: from_csv(f / "acc.csv").summary()),
    "csv": Reader("tables", "t.csv", lambda f: _load("t.csv", f, label="kind")),
    "parquet": Reader("tables", "t.parquet", lambda f: _load("t.parquet", f, label="kind")),
    "npy": Reader("tables", "x.npy", lambda f: _load("x.npy", f), (edited, npy_headers)),
    "npy labels": Reader("tables", "y.npy", lambda f: _load("x.npy", f), (edited, npy_headers)),
    "npz": Reader("tables", "p.npz", lambda f: _load("p.npz", f), (edited, zipped)),
    "npz parts": Reader("tables", "q.npz", lambda f: _load("q.npz", f), (edited, zipped)),
    "npz joints": Reader("tables", "s.npz", lambda f: _load("s.npz", f), (edited, zipped)),
    "pickle": Reader("tables", "b.pickle", lambda f: read_pickle((f / "b.pickle").read_bytes())),
    "npz mapped": Reader("tables", "m.npz", lambda f: _load("m.npz", f), (edited, zipped)),
    **{f"image {file}": Reader("images", file, lambda f: _load("", f, resize=8))
       for file in ("u/a.png", "u/b.jpg", "v/c.gif", "v/d.bmp", "v/e.tif", "u/f.webp", "u/g.ppm")},
    "image lazy": Reader("images", "u/a.png", lambda f: _load("", f, resize=8, lazy=True)),
    **{f"run {file}": Reader("run", file, _whole, near) for file, near in _RUN.items()},
    "journal": Reader("journal", "results-*.tar", _whole),
    "checkpoint": Reader("killed", "checkpoint/one/*.safetensors", _resumed, (edited, resealed)),
    "model": Reader("run", "checkpoint/*/model.engram", _model, (edited, resealed)),
}  # fmt: skip
