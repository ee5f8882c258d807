"""A `ModelStore` whose writer is killed at random moments: what is left, and what goes on.

``python -m benchmarks.deploy.store_kills`` writes ``store_kills.csv`` beside this file. A child
process learns good and bad weeks, rolls back and forgets, one after the other, and tells what it
has finished; it is killed (SIGKILL) at a random moment, fifty times on the same store, in two
campaigns. After each death the store is opened as any process would open it, and looked into.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import engram
from engram.deploy.model_store import ModelStore
from engram.experiments.model_file import load_model

KILLS, CLASSES, ROWS, LIMIT = 50, 4, 80, 300.0
STEPS = ("learn", "refuse", "learn", "roll back", "learn", "forget")  # over and over
MOST_PHASES, LONGEST = 60, 0.1  # a child dies after so many phases, and seconds, at most
# What a child is doing, by the methods that it is in
PHASES = {
    "check_rows": "gate", "check_candidate": "gate", "learn_task": "train", "_keep": "write",
    "_serve": "publish", "_prune": "prune", "_publish_forgotten": "write",
    "_forget_elsewhere": "purge", "_recover": "recover",
}  # fmt: skip


def make_week(seed: int) -> tuple[Any, Any]:
    """Rows of clouds, one for each class."""
    rng = np.random.default_rng(seed)
    y = np.arange(CLASSES).repeat(ROWS)
    return np.float32(4 * np.eye(8)[y] + rng.normal(size=(len(y), 8))), y


def make_store(folder: Path) -> ModelStore:
    """A store with its first version."""
    learner = engram.Learner(
        "ER", {"name": "mlp", "hidden": [16]}, memory=500, calibration=40, epochs=8,
        batch_size=32, lr=0.02, device="cpu",
    )  # fmt: skip
    return ModelStore.create(folder, learner.learn(*make_week(0)), keep=4)


def take_step(store: ModelStore, step: str, turn: int) -> None:
    """Do one thing to a store."""
    if step == "roll back":
        older = store.versions()
        store.rollback(int(older[older.state == "kept"].number.iloc[-1]))
    elif step == "forget":
        store.forget(rows=store.learner._portable.tensors["rows/x"][:3])
    else:
        x, y = make_week(1000 + turn)
        store.learn(x, y[::-1] if step == "refuse" else y)


def describe(store: ModelStore) -> dict[str, Any]:
    """What a store serves: the version, and its file's bits."""
    number = store.current.number
    file = store.folder / "versions" / f"{number:06d}.engram"
    return {
        "served": number, "bits": hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest(),
        "versions": {
            str(row.number): row.fingerprint for row in store.versions().itertuples()
            if row.state != "refused"
        },
    }  # fmt: skip


def work(folder: str, log: str, turn: int) -> None:
    """What a child does until it is killed; each line of its log is synced before it goes on."""
    import torch

    torch.set_num_threads(1)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(**line: Any) -> None:
        os.write(handle, (json.dumps(line) + "\n").encode())

    for kind in (engram.Gate, engram.Learner, ModelStore):
        for name in PHASES.keys() & vars(kind).keys():
            setattr(kind, name, _telling(getattr(kind, name), PHASES[name], tell))
    store = ModelStore(folder, device="cpu")
    while True:
        step = STEPS[turn % len(STEPS)]
        tell(begun=step, turn=turn)
        take_step(store, step, turn)
        tell(done=step, turn=turn, **describe(store))
        turn += 1


def _telling(function: Callable[..., Any], phase: str, tell: Callable[..., None]) -> Any:
    def told(*args: Any, **options: Any) -> Any:
        tell(phase=phase)
        found = function(*args, **options)
        tell(phase=f"after {phase}")
        return found

    return told


def read_log(log: Path) -> list[dict[str, Any]]:
    """The lines of a child, but for one that it was writing."""
    text = log.read_text("utf-8") if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def look_into(folder: Path, known: dict[str, Any], step: str) -> tuple[dict[str, Any], list[str]]:
    """Open a store after a death; return what it serves, and what is wrong with it.

    `known` is what it served after the last thing that was finished, `step` what was begun.
    """
    store, faults = ModelStore(folder, device="cpu"), []
    found = describe(store)
    for path in folder.glob("versions/*.engram"):
        load_model(path)  # raises for one that is not whole
        if not path.with_suffix(".json").exists():
            faults.append(f"{path.name} without its record")
    if left := [p.name for p in folder.rglob(".*") if p.name != ".claims"]:
        faults.append(f"left over: {left}")
    lost = [n for n, data in known["versions"].items() if found["versions"].get(n) != data]
    if lost:
        faults.append(f"lost: versions {lost}")
    if found["served"] == known["served"]:
        if found["bits"] != known["bits"] and step != "forget":
            faults.append("what is served has changed")
    elif step in ("", "open", "refuse"):
        faults.append(f"{found['served']} is served in place of {known['served']}")
    if store._state["forgetting"] is not None:
        faults.append("forgetting is not complete")
    store.learner.predict(make_week(0)[0][:8])
    return found, faults


def run_kills(folder: Path, kills: int, seed: int, child: Callable[..., Any]) -> pd.DataFrame:
    """Kill a child `kills` times; `child(folder, log, turn)` begins one and returns its process."""
    chance, lines, turn = random.Random(seed), [], 0
    make_store(folder / "store")
    known = describe(ModelStore(folder / "store", device="cpu"))
    for number in range(kills):
        log = folder / f"log-{number}"
        process = child(str(folder / "store"), str(log), turn)
        end = time.monotonic() + LIMIT
        lived = chance.randint(1, MOST_PHASES)
        while sum("phase" in line for line in read_log(log)) < lived:
            if time.monotonic() > end or process.exitcode is not None:
                raise RuntimeError("a child ended by itself")
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, LONGEST))
        os.kill(process.pid, signal.SIGKILL)
        process.join(LIMIT)
        told = read_log(log)
        done = [line for line in told if "done" in line]
        if done:
            known = {name: done[-1][name] for name in ("served", "bits", "versions")}
        begun = [{"begun": "open", "turn": turn}, *(line for line in told if "begun" in line)][-1]
        step = "" if done and done[-1]["turn"] == begun["turn"] else begun["begun"]
        phases = [line["phase"] for line in told if "phase" in line]
        found, faults = look_into(folder / "store", known, step)
        lines.append({
            "kill": number + 1, "step": step or "between", "phase": phases[-1] if phases else "",
            "finished": len(done), "served_before": known["served"], "served": found["served"],
            "versions": len(found["versions"]), "faults": "; ".join(faults),
        })  # fmt: skip
        turn, known = (begun["turn"] + (not step)), found
    return pd.DataFrame(lines)


def main() -> None:
    from tests.forks import FORKS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seeds", type=int, default=2, help="Campaigns, each on a new store.")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    asked = parser.parse_args()

    def child(*args: Any) -> Any:
        process = FORKS.Process(target=work, args=args)
        process.start()
        return process

    parts = []
    for seed in range(asked.seeds):
        with tempfile.TemporaryDirectory() as folder:
            lines = run_kills(Path(folder), asked.kills, seed, child)
        parts.append(lines.assign(seed=seed))
    found = pd.concat(parts, ignore_index=True)
    found.to_csv(asked.out, index=False)
    print(found.groupby(["step", "phase"]).size().to_string())
    faults = found[found.faults != ""]
    print(f"{len(found)} kills, {found.finished.sum()} steps finished, {len(faults)} with faults")
    if len(faults):
        print(faults.to_string())


if __name__ == "__main__":
    main()
