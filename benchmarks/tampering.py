"""Tamper with copies of run directories and ask `engram.verify` what is wrong.

    python -m benchmarks.tampering [--tamperings 200] [--clean 50] [--seed 0] [--save FILE.csv]

Directories are trained once (several methods, seeds, ways of keeping and of interrupting). Each
tampering takes a copy of one and changes one thing, drawn from the seed: numbers, recipes,
predictions, ledgers, or files exchanged between runs. Whoever tampers makes checksums anew: of the
file (`own`), or of the file and of its part (`all`). Clean copies are left alone, moved, merged,
read with other labels. Every tampering must be found, and nothing in a clean copy.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import yaml

import engram
from engram.experiments.experiment_id import options_hash, short_hash
from engram.records import RunDirectory
from engram.records.journal import list_journals, pack_members, read_journal
from engram.records.predictions import Prediction, Predictions, pack_predictions
from engram.records.run_directory import CHECKSUMS
from engram.records.table_parts import pack_record, read_part

# Directories that are tampered with.


def train(folder: Path) -> dict[str, Path]:
    """Train a directory of each kind."""
    data, few = engram.load("blobs"), {"epochs": 2, "device": "cpu"}
    stream = engram.class_incremental(data, classes_per_task=2)

    def run(name: str, **options: Any) -> Path:
        out = folder / name
        given = {"method": "ER", **few, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engram.run(given.pop("stream", stream), out=out, **given)
        return out

    found = {"one": run("one", seeds=2)}
    found["several"] = run("several", seeds=2, method="EWC")
    run("several", seeds=2)
    run("several", method="ICaRL")
    found["labels"] = run("labels", keep="labels", seeds=2)
    run("labels", keep="labels", method="DERpp")
    found["heads"] = run("heads", stream=engram.task_incremental(data), method="LwF", seeds=2)
    order = engram.class_incremental(data, order=[3, 1, 0, 2, *range(4, 10)])
    found["order"] = run("order", stream=order)
    found["unseen"] = run("unseen", evaluate_unseen=True, seeds=2)
    found["together"] = run("together", seeds=4, together=True)
    found["resumed"] = run("resumed", seeds=1)
    run("resumed", seeds=3)
    found["past"] = run("past", method="Joint")
    return found


def train_clean(folder: Path) -> dict[str, Path]:
    """Train directories of further kinds, whose records have less to be checked."""
    data, few = engram.load("blobs"), {"epochs": 1, "device": "cpu"}
    stream = engram.class_incremental(data, classes_per_task=5)
    found: dict[str, Path] = {}

    def out(name: str) -> Path:
        found[name] = folder / name
        return found[name]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engram.run(stream, method="ER", seeds=2, keep="counts", out=out("counts"), **few)
        engram.run(stream, method="ER", seeds=2, out=out("rerun"), **few)
        engram.run(stream, method="ER", seeds=2, out=found["rerun"], rerun=True, **few)
        recipe = engram.Recipe.of({
            "stream": {"data": "blobs"}, "method": "ER", "training": {"epochs": 1},
        })  # fmt: skip
        engram.orders(recipe, task_orders=3, out=out("orders"), device="cpu")
        engram.run(stream, method="ER", out=out("probed"), keep="parameters", **few)
        engram.run(stream, method="ER", out=found["probed"], keep="parameters",
                   probes=[], detectors=["Energy"], **few)  # fmt: skip
        engram.run(stream, method="ER", seeds=2, label="mine", out=out("label"), **few)
        engram.run(stream, method="ER", seeds=3, label="other", out=found["label"], **few)
        engram.run(stream, method="SI", lr=1e6, out=out("diverged"), **few)
        engram.run(engram.class_incremental(data, valid=0.2), method="BiC", out=out("valid"), **few)
        engram.run(stream, method="ER+EWC", evaluate_every=1, out=out("curves"), **few)
        engram.run(stream, method="ER", seeds=2, **few).save(out("saved"))
        own = engram.Data.from_arrays(data.x.numpy(), data.y[:, 0].numpy())
        engram.run(engram.class_incremental(own), method="ER", out=out("arrays"), **few)
    return found


# Changing files.


def read_files(journal: Path) -> dict[str, bytes]:
    """The files of a journal by name, in their order; of equal names, later ones end with #."""
    found: dict[str, bytes] = {}
    for one in read_journal(journal).files:
        name = one.name
        while name in found:
            name += "#"
        found[name] = one.read()
    return found


def write_files(journal: Path, files: dict[str, bytes], anew: str = "all") -> None:
    """Write a journal; with `anew` = "all" the checksums of its parts are made again."""
    if anew == "all":
        whole: dict[str, dict[str, Any]] = {}
        for name in files:
            if name.startswith(CHECKSUMS):
                whole[name] = {**json.loads(files[name]), "sha256": {}}
            elif whole:
                told = next(reversed(whole.values()))["sha256"]
                told[name.rstrip("#")] = sha256(files[name]).hexdigest()
        chain = ""
        for part, content in whole.items():
            files[part] = json.dumps({**content, "previous": chain}).encode()
            chain = sha256(files[part]).hexdigest()
    packed = (pack_members({name.rstrip("#"): one}) for name, one in files.items())
    journal.write_bytes(b"".join(packed))


@dataclass
class Copy:
    """A copy of a run directory, and how whoever tampers makes checksums anew."""

    path: Path
    draw: random.Random
    anew: str  # own or all

    def journal(self, *kinds: str) -> tuple[Path, dict[str, bytes], str]:
        """Draw a file of a kind; its journal, the files of that, its name."""
        found = [
            (path, name)
            for path in list_journals(self.path)
            for name in read_files(path)
            if name.partition("-")[0] in kinds and not name.endswith("#")
        ]
        path, name = self.draw.choice(found)
        return path, read_files(path), name

    def runs(self) -> list[tuple[str, int, str]]:
        return list(RunDirectory(self.path).finished_runs())

    def replace(self, journal: Path, files: dict[str, bytes], name: str, content: bytes) -> None:
        files[name] = content
        write_files(journal, files, self.anew)


def _table(journal: Path, name: str) -> pa.Table:
    return read_part(next(one for one in read_journal(journal).files if one.name == name))


def _with_values(table: pa.Table, values: np.ndarray) -> pa.Table:
    place = table.schema.get_field_index("value")
    return table.set_column(place, table.schema.field(place), pa.array(values))


# Each changes a copy and returns what it did.


def forge_values(copy: Copy, metrics: tuple[str, ...] = ("accuracy",)) -> str:
    """Better accuracies, with the checksum of the file made again."""
    journal, files, name = copy.journal("results")
    table = _table(journal, name)
    mask = pc.is_in(table["metric"].cast(pa.string()), pa.array(metrics)).to_numpy()
    mask &= table["step"].to_numpy() == -1
    values = table["value"].to_numpy().copy()
    chosen = np.flatnonzero(mask)
    if copy.draw.random() < 0.5:
        chosen = np.array([copy.draw.choice(chosen.tolist())])
    before = values[chosen].copy()
    better = np.where(before > 0.85, before - 0.1, before + 0.1)
    values[chosen] = better
    content = pack_record(name.rpartition(".")[0], _with_values(table, values))[1]
    copy.replace(journal, files, name, content)
    return f"{', '.join(metrics)}: {len(chosen)} numbers of {name} by .1"


def forge_class_values(copy: Copy) -> str:
    """Accuracies of tasks and classes together."""
    return forge_values(copy, ("accuracy", "class_accuracy"))


def forge_shares(copy: Copy) -> str:
    return forge_values(copy, ("predicted",))


def exchange_labels(copy: Copy) -> str:
    """The results of one method under the name of another."""
    journal, files, _ = copy.journal("results")
    for other in files:
        if other.startswith("results"):
            table = _table(journal, other)
            place = table.schema.get_field_index("label")
            words = pa.array(["Ours"] * len(table)).dictionary_encode()
            table = table.set_column(place, table.schema.field(place), words)
            files[other] = pack_record(other.rpartition(".")[0], table)[1]
    write_files(journal, files, copy.anew)
    return f"labels of {journal.name}"


def edit_recipe(copy: Copy) -> str:
    """A setting in a recipe; whoever knows how also makes the hash of the options anew."""
    path = copy.draw.choice(sorted(copy.path.glob("recipes/*.yaml")))
    content = yaml.safe_load(path.read_text())
    edits: list[tuple[str, str, Any]] = [
        ("training", "epochs", 1), ("training", "lr", 0.5), ("training", "optimizer", "sgd"),
        ("training", "batch_size", 10), ("stream", "valid", 0.3), ("stream", "classes_per_task", 5),
        ("training", "augment", ["flip"]), ("stream", "head", "other"),
    ]  # fmt: skip
    section, key, value = copy.draw.choice(edits)
    if key == "head":
        value = "multi" if content["stream"]["head"] == "single" else "single"
    content[section][key] = value
    if copy.anew == "all":
        content["identity"]["asked"] = options_hash(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return f"{path.name}: {section}.{key}={value}"


def edit_method(copy: Copy) -> str:
    """Another method in a recipe."""
    path = copy.draw.choice(sorted(copy.path.glob("recipes/*.yaml")))
    content = yaml.safe_load(path.read_text())
    name = "LUCIR" if content["method"]["name"] != "LUCIR" else "ER"
    content["method"]["name"] = name
    if copy.anew == "all":
        content["identity"]["method"] = short_hash(name)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return f"{path.name}: method {name}"


def forge_predictions(copy: Copy) -> str:
    """Other labels than were predicted, with the checksums of the file made again."""
    journal, files, name = copy.journal("predictions")
    (record,) = (one for one in read_journal(journal).files if one.name == name)
    stored = Predictions([record])
    every = [stored.get(*key) for key in stored]
    place = copy.draw.randrange(len(every))
    one = every[place]
    assert one is not None
    every[place] = _relabel(one, copy.draw)
    copy.replace(journal, files, name, pack_predictions([p for p in every if p is not None]))
    return f"labels of {one.key}"


def _relabel(one: Prediction, draw: random.Random) -> Prediction:
    assert one.single is not None
    labels = one.single.copy()
    some = draw.sample(range(len(labels)), max(1, len(labels) // 20))
    most = 1 + int(labels.max())
    labels[some] = (labels[some] + 1) % max(most, 2)
    changed = {"single": labels}
    if draw.random() < 0.5 and one.multi is not None:
        changed["multi"] = labels
    return replace(one, **changed)


def forge_scores(copy: Copy) -> str:
    """Scores after the last task, with the order of each row kept, so that no label changes."""
    journal, files, _ = copy.journal("predictions")
    last = [one for one in files if one.startswith("predictions")][-1]
    (record,) = (one for one in read_journal(journal).files if one.name == last)
    stored = Predictions([record])
    every = [stored.get(*key) for key in stored]
    one = every[-1]
    assert one is not None
    if one.scores is None:
        return forge_predictions(copy)
    every[-1] = replace(one, scores=(one.scores * np.float16(1.5)).astype(np.float16))
    copy.replace(journal, files, last, pack_predictions([p for p in every if p is not None]))
    return f"scores of {one.key}"


def edit_ledger(copy: Copy) -> str:
    """Fewer rows read, without the checksum of the part made again."""
    journal, files, name = copy.journal("ledger")
    content = json.loads(files[name])
    one = copy.draw.choice(content["runs"])
    stage = copy.draw.choice(sorted(one["stages"]))
    kind = copy.draw.choice(sorted(one["stages"][stage]))
    one["stages"][stage][kind] //= 2
    files[name] = json.dumps(content).encode()
    write_files(journal, files, "own")
    return f"{name}: {kind} of stage {stage} halved"


def break_budget(copy: Copy) -> str:
    """Reads that the method may not have, with every checksum made again."""
    journal, files, name = copy.journal("ledger")
    content = json.loads(files[name])
    one = copy.draw.choice(content["runs"])
    kind = copy.draw.choice(["past", "memory", "reads", "test"])
    if kind == "reads":
        one["reads"] = "own" if one["reads"] == "past" else "past"
    elif kind == "memory":
        one["stages"]["0"]["memory"] = 12
    elif kind == "past" and one["reads"] != "past":
        one["stages"]["1"]["past"] = 50
    else:
        one["stages"]["1"]["test"] = 1
    files[name] = json.dumps(content).encode()
    write_files(journal, files, "all")
    return f"{name}: {kind}"


def drop_ledger(copy: Copy) -> str:
    """A ledger taken out of a part, or the whole part."""
    journal, files, name = copy.journal("ledger", "predictions", "results")
    del files[name]
    write_files(journal, files, "own")
    return f"{name} removed"


def drop_stage(copy: Copy) -> str:
    """A stage in the middle of a run, with everything that belongs to it."""
    journal, files, _ = copy.journal("results")
    parts = [one for one in files if one.startswith("results")]
    name = copy.draw.choice(parts[:-1])
    part = name.rpartition(".")[0].removeprefix("results-")
    write_files(journal, {k: v for k, v in files.items() if part not in k}, "own")
    return f"part {part} removed"


def drop_journal(copy: Copy) -> str:
    path = copy.draw.choice(list_journals(copy.path))
    path.unlink()
    return f"{path.name} removed"


def edit_environment(copy: Copy) -> str:
    journal, files, name = copy.journal("environment")
    content = json.loads(files[name])
    content["packages"]["torch"] = "9.9.9"
    files[name] = json.dumps(content).encode()
    write_files(journal, files, "own")
    return name


def _exchange(first: Path, second: Path) -> None:
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def exchange_models(copy: Copy) -> str:
    """The models of two runs, or one of another directory in place of a run's own."""
    models = sorted(copy.path.glob("checkpoint/*/model.engram"))
    if len(models) < 2:
        return exchange_bytes(copy)
    first, second = copy.draw.sample(models, 2)
    _exchange(first, second)
    return f"{first.parent.name} and {second.parent.name}"


def adopt_model(copy: Copy) -> str:
    """The model of one run under the names of another, inside the file too."""
    from engram.experiments.model_file import load_model, save_model

    models = sorted(copy.path.glob("checkpoint/*/model.engram"))
    if len(models) < 2:
        return exchange_bytes(copy)
    first, second = copy.draw.sample(models, 2)
    found, made = load_model(first)
    own, its = load_model(second)
    if set(own.tensors) != set(found.tensors):
        return exchange_models(copy)  # of another method, whose state would not fit
    state = found._replace(facts={**found.facts, "seed": own.facts["seed"]})
    save_model(second, state, {**made, "run": its["run"]})
    return f"{first.parent.name} as {second.parent.name}"


def exchange_recipes(copy: Copy) -> str:
    recipes = sorted(copy.path.glob("recipes/*.yaml"))
    if len(recipes) < 2:
        return edit_recipe(copy)
    first, second = copy.draw.sample(recipes, 2)
    _exchange(first, second)
    return f"{first.name} and {second.name}"


def exchange_items(copy: Copy) -> str:
    items = sorted(copy.path.glob("items-*.safetensors"))
    if len(items) < 2:
        items[0].unlink()
        return f"{items[0].name} removed"
    first, second = copy.draw.sample(items, 2)
    _exchange(first, second)
    return f"{first.name} and {second.name}"


def exchange_parts(copy: Copy) -> str:
    """Predictions, results or ledgers of two parts of a journal."""
    journal, files, name = copy.journal("predictions", "results", "ledger")
    kind = name.partition("-")[0]
    others = [
        one for one in files if one.startswith(kind) and one != name and files[one] != files[name]
    ]
    if not others:
        return drop_ledger(copy)
    other = copy.draw.choice(others)
    files[name], files[other] = files[other], files[name]
    write_files(journal, files, "own")
    return f"{name} and {other}"


def exchange_bytes(copy: Copy) -> str:
    """A flipped byte anywhere in a record."""
    journal, files, name = copy.journal("predictions", "results", "ledger")
    content = bytearray(files[name])
    place = copy.draw.randrange(len(content))
    content[place] ^= 1 << copy.draw.randrange(8)
    files[name] = bytes(content)
    write_files(journal, files, "own")
    return f"{name}: byte {place}"


TAMPERINGS: dict[str, list[Callable[[Copy], str]]] = {
    "values": [forge_values, forge_class_values, forge_shares, exchange_labels, drop_stage],
    "recipes": [edit_recipe, edit_method],
    "predictions": [forge_predictions, forge_scores, exchange_bytes],
    "ledgers": [edit_ledger, break_budget, drop_ledger, edit_environment],
    "exchanged": [exchange_models, adopt_model, exchange_recipes, exchange_items, exchange_parts,
                  drop_journal],
}  # fmt: skip


def tamper(folders: dict[str, Path], count: int, seed: int, work: Path) -> Iterator[dict[str, Any]]:
    """Tamper with copies, in turn by kind, and verify each."""
    draw = random.Random(seed)
    kinds = list(TAMPERINGS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        ways = TAMPERINGS[kind]
        way = ways[(number // len(kinds)) % len(ways)]
        name = draw.choice(sorted(folders))
        path = work / f"{number}"
        shutil.copytree(folders[name], path)
        copy = Copy(path, draw, draw.choice(["own", "all"]))
        did = way(copy)
        found = engram.verify(path)
        yield {
            "kind": kind, "way": way.__name__, "directory": name, "checksums": copy.anew,
            "did": did, "found": not found.ok,
            "checks": " ".join(sorted({f.check for f in found.findings})),
            "first": str(found.findings[0]) if found.findings else "",
        }  # fmt: skip
        shutil.rmtree(path)


def leave(folders: dict[str, Path], count: int, seed: int, work: Path) -> Iterator[dict[str, Any]]:
    """Verify copies with which nothing is wrong."""
    draw, names = random.Random(seed), sorted(folders)
    for number in range(count):
        name = names[number % len(names)]
        path = work / f"clean-{number}"
        shutil.copytree(folders[name], path)
        did = draw.choice(["copied", "merged", "read", "torn", "no index"])
        if did == "merged":
            RunDirectory(path).compact()
        elif did == "read":
            engram.read(path).summary()
        elif did == "torn":  # a writer that was killed in the middle of a part
            with list_journals(path)[-1].open("ab") as file:
                file.write(pack_members({"predictions-9-0-0-a.safetensors": bytes(999)})[:700])
        elif did == "no index":
            (path / ".index").unlink(missing_ok=True)
        found = engram.verify(path)
        yield {
            "kind": "clean", "way": did, "directory": name, "did": did, "found": not found.ok,
            "checks": " ".join(sorted({f.check for f in found.findings})),
            "first": str(found.findings[0]) if found.findings else "",
        }  # fmt: skip
        shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tamperings", type=int, default=200)
    parser.add_argument("--clean", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=None, help="a CSV file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folders = train(folder / "trained")
        clean = folders | train_clean(folder / "clean") if asked.clean else {}
        rows = list(tamper(folders, asked.tamperings, asked.seed, folder / "copies"))
        rows += leave(clean, asked.clean, asked.seed, folder / "copies")
    table = pd.DataFrame(rows)
    wrong = table[table["found"] == (table["kind"] == "clean")]
    print(table.groupby("kind", sort=False)["found"].agg(["sum", "count"]).to_string())
    for one in wrong.itertuples():
        print(f"{one.kind}, {one.way}, {one.directory}: {one.did}: {one.first or 'nothing found'}")
    if asked.save:
        table.to_csv(asked.save, index=False)
    raise SystemExit(1 if len(wrong) else 0)


if __name__ == "__main__":
    main()
