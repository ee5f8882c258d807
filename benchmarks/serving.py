"""A service under load while it learns: no prediction may fail; how long do they take, and does
its memory stay flat?

    python -m benchmarks.serving --out benchmarks/serving.json
    python -m benchmarks.serving --replay 15 --out benchmarks/serving.json
    python -m benchmarks.serving --replay 5 --record --out benchmarks/serving.json

10,000 requests of 32 clients on loopback, drawn from a mix of predictions, novelty, states, tasks
to learn and malformed requests, about two models: arrays of 64 numbers, and records of a table. The
queues are full of tasks at the start. Then 1,000 malformed requests drawn from the service's own
OpenAPI description. `--replay` has a store of versions learn generated weeks for so many minutes,
with predictions, a bad week among ten and roll-backs, and samples the memory of both processes.
Server and clients are processes of this machine; everything ends by itself.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from engram import Client, Learner, ModelStore

CLASSES, ROWS, FEATURES = 20, 200, 64
HUES = ("red", "green", "blue", "grey")
# kind of request and its share; records are about the second model
MIX = {"predict": 34, "predict records": 26, "novelty": 10, "novelty records": 9, "health": 10,
       "malformed": 10, "learn": 0.6, "learn records": 0.4}  # fmt: skip
WRONG = (b"{", b"[]", b'{"x": [["a"]]}', b'{"x": []}', b'{"y": [1]}', b'{"x": [[1, 2]]}',
         b'{"x": [{"nothing": 1}]}', b"\xff\xfe", b'{"x": 1e999}')  # fmt: skip
SAMPLE_SECONDS = 0.5


def world():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, FEATURES))
    y = np.repeat(np.arange(CLASSES), ROWS)
    return np.float32(centres[y] + rng.normal(size=(len(y), FEATURES))), y


def table(classes, rows, seed=0):
    """A table with numbers, a category, gaps, and the kind of each row."""
    rng = np.random.default_rng(seed)
    y = np.repeat(list(classes), rows)
    found = pd.DataFrame({
        "size": 2.0 * y + rng.normal(size=len(y)), "age": rng.integers(0, 9, len(y)) + y,
        "hue": [HUES[(k + draw) % 4] for k, draw in zip(y, rng.integers(0, 2, len(y)))],
        "kind": [f"kind {k}" for k in y],
    })  # fmt: skip
    found.loc[rng.random(len(y)) < 0.1, "size"] = np.nan
    return found


def records(frame):
    return json.loads(frame.to_json(orient="records"))


# -- the server, seen from outside -----------------------------------------------------------------
def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    kind = answer.getheader("content-type", "")
    return answer.status, json.loads(text) if kind.startswith("application/json") else text


def start(models, port, *options):
    command = [sys.executable, "-m", "engram", "serve", *map(str, models), "--port", str(port),
               "--device", "cpu", *options]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(1200):
        try:
            if ask(port, "GET", "/ready")[0] == 200:
                return process
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service did not start")


def resident(pid):
    """Resident megabytes of a process; None once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")]
    return found[0] if found else None


def children(pid):
    """Processes that a process has started, by whichever thread."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass  # it, or the thread, is gone
    return found


class Memory(threading.Thread):
    """Samples the resident memory of the service and of the processes that learn."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.over, self.samples = pid, threading.Event(), []

    def run(self):
        began = time.perf_counter()
        while not self.over.wait(SAMPLE_SECONDS):
            parts = [resident(one) for one in children(self.pid)]
            learns = sum(one for one in parts if one is not None)
            own = resident(self.pid)
            if own is not None:
                self.samples.append((time.perf_counter() - began, own, learns))

    def end(self):
        """Medians of each quarter of the run, in megabytes."""
        self.over.set()
        self.join()
        quarters = np.array_split(np.array(self.samples), 4)
        return {
            name: {
                "quarters": [round(float(np.median(part[:, column])), 1) for part in quarters],
                "most": round(float(max(part[:, column].max() for part in quarters)), 1),
            }
            for column, name in ((1, "service"), (2, "training"))
        }


# -- a mix of requests -----------------------------------------------------------------------------
STATES = ("/live", "/ready", "/health", "/models", "/metrics", "/models/records/health")
POSTS = ("/predict", "/novelty", "/learn", "/models/records/predict", "/models/x/predict")


def draw_request(draw, x, y, rows):
    """Kind, method, path and body of one request."""
    kind = draw.choices(list(MIX), MIX.values())[0]
    if kind == "health":
        return kind, "GET", draw.choice(STATES), None
    if kind == "malformed":
        return kind, "POST", draw.choice(POSTS), draw.choice(WRONG)
    verb, _, of = kind.partition(" ")
    model = "/models/records" if of else draw.choice(["", "/models/arrays"])
    some, count = rows if of else x, 40 if verb == "learn" else draw.randint(1, 8)
    at = draw.randrange(len(some) - count)
    chosen = some[at : at + count]
    if of and verb != "learn":
        chosen = [{name: one for name, one in row.items() if name != "kind"} for row in chosen]
    body = {"x": chosen, "y": y[at : at + count]} if kind == "learn" else {"x": chosen}
    return kind, "POST", f"{model}/{verb}", json.dumps(body)


def client(port, number, count, given, found):
    """Ask `count` times over one connection; (kind, seconds, status, tasks) of each."""
    draw, seen = random.Random(number), []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(count):
        kind, method, path, body = draw_request(draw, *given)
        began = time.perf_counter()
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            text, status = answer.read(), answer.status
            tasks = json.loads(text).get("tasks", -1) if kind == "predict" and status == 200 else -1
        except OSError as problem:
            status, tasks = type(problem).__name__, -1
            connection.close()
        seen.append((kind, time.perf_counter() - began, status, tasks))
    connection.close()
    found.put(seen)


def load(port, given, clients, requests):
    """All clients at once; what each of their requests met."""
    found = multiprocessing.Queue()
    each = -(-requests // clients)
    began = time.perf_counter()
    every = [multiprocessing.Process(target=client, args=(port, number, each, given, found))
             for number in range(clients)]  # fmt: skip
    for one in every:
        one.start()
    seen = [entry for _ in every for entry in found.get()]
    for one in every:
        one.join()
    return seen, time.perf_counter() - began


def is_right(kind, status):
    if kind == "malformed":
        return isinstance(status, int) and 400 <= status < 500
    if kind.startswith("learn"):
        return status in (202, 429)  # queued, or asked to come back
    return status == 200


def describe(seconds):
    times = np.array(seconds) * 1000
    shares = {f"p{q}": round(float(np.percentile(times, q)), 1) for q in (50, 90, 99)}
    return {"requests": len(times), **shares, "max": round(float(times.max()), 1)}


def malformed(port, x, count):
    from tests.serve.malformed_requests import requests

    api = ask(port, "GET", "/openapi.json")[1]
    rows = x[:2].tolist()
    good = {"/predict": {"x": rows}, "/novelty": {"x": rows}, "/learn": {"x": rows, "y": [0, 1]}}
    statuses, unclean = Counter(), 0
    for method, path, _, body in requests(api, good, count):
        status, said = ask(port, method, path, body)
        statuses[status] += 1
        unclean += not (400 <= status < 500 and isinstance(said, dict) and list(said) == ["error"])
    return {"requests": count, "unclean": unclean, "statuses": dict(sorted(statuses.items()))}


def states(port):
    return ask(port, "GET", "/models")[1]["models"]


def measure(clients, requests, wrong, port):
    x, y = world()
    frame = table(range(6), 60)
    with tempfile.TemporaryDirectory() as folder:
        first = y < 2
        learner = Learner("ER", "mlp", epochs=5, device="cpu").learn(x[first], y[first])
        models = [learner.save(Path(folder) / "arrays.engram")]
        learner = Learner("ER", "mlp", epochs=5, device="cpu")
        learner.learn(frame[frame["kind"] < "kind 2"], label="kind", missing="flag")
        models.append(learner.save(Path(folder) / "records.engram"))
        process = start(models, port)
        memory = Memory(process.pid)
        memory.start()
        try:
            for low in range(2, CLASSES, 2):  # nine tasks in the queue
                which = (y >= low) & (y < low + 2)
                body = json.dumps({"x": x[which].tolist(), "y": y[which].tolist()})
                assert ask(port, "POST", "/learn", body)[0] == 202
            for kind in range(2, 6):
                body = json.dumps({"x": records(frame[frame["kind"] == f"kind {kind}"])})
                assert ask(port, "POST", "/models/records/learn", body)[0] == 202
            given = x.tolist(), y.tolist(), records(frame)
            seen, seconds = load(port, given, clients, requests)
            waiting = sum(one["queued"] for one in states(port).values())
            bad = malformed(port, x, wrong)
            while any(one["queued"] for one in states(port).values()):
                time.sleep(0.1)
            last = {name: one["tasks"] for name, one in states(port).items()}
        finally:
            used = memory.end()
            process.terminate()
            process.wait()
        process = start(models, port)
        kept = {name: one["tasks"] for name, one in states(port).items()}
        process.terminate()
        process.wait()
    kinds = {kind: [one[1] for one in seen if one[0] == kind] for kind in MIX}
    asked = [one for one in seen if one[0].startswith(("predict", "novelty"))]
    statuses = Counter(one[2] for one in seen if one[0].startswith("learn"))
    return {
        "clients": clients, "requests": len(seen), "predictions": len(asked),
        "failed_predictions": sum(one[2] != 200 for one in asked),
        "wrong_answers": sum(not is_right(one[0], one[2]) for one in seen),
        "milliseconds": {"predictions": describe([one[1] for one in asked]),
                         **{kind: describe(some) for kind, some in kinds.items() if some}},
        "requests_per_second": round(len(seen) / seconds, 1),
        "tasks_while_asked": sorted({one[3] for one in seen} - {-1}),
        "learn_statuses": dict(statuses), "waiting_after": waiting, "tasks_at_the_end": last,
        "tasks_after_a_restart": kept, "megabytes": used, "malformed": bad,
    }  # fmt: skip


# -- weeks, one after the other --------------------------------------------------------------------
def replay(minutes, port, record=False, classes=6, rows=40):
    """Let a store learn weeks for some minutes, one in ten with shuffled labels."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(classes, 16))

    def week():
        y = np.repeat(np.arange(classes), rows)
        return np.float32(centres[y] + rng.normal(size=(len(y), 16))), y

    states_seen, answers = Counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner("ER", "mlp", memory=200, calibration=50, epochs=3, device="cpu")
        start_x, start_y = (np.concatenate(parts) for parts in zip(*(week() for _ in range(5))))
        ModelStore.create(Path(folder) / "weeks", learner.learn(start_x, start_y))
        process = start([Path(folder) / "weeks"], port, *(["--record"] if record else []))
        memory = Memory(process.pid)
        memory.start()
        asked, accuracies = Client(f"http://127.0.0.1:{port}"), []
        ends = time.monotonic() + 60 * minutes
        try:
            while time.monotonic() < ends:
                x, y = week()
                said = []
                for at in range(0, len(x), 10):
                    if not record:
                        said.append(asked.predict(x[at : at + 10]))
                        continue
                    seen = asked.record(x[at : at + 10])
                    said.append([label for _, label in seen])
                    asked.label([name for name, _ in seen], y[at : at + 10])
                asked.alarm(x)
                answers += len(said) + 1
                accuracies.append(float(np.mean(np.concatenate(said) == y)))
                number = sum(states_seen.values())
                job = asked.learn(x, rng.permutation(y) if number % 10 == 9 else y)
                while not (now := asked.job(job.job)).over:
                    time.sleep(0.05)
                states_seen[now.state] += 1
                if number % 25 == 24:
                    asked.rollback(asked.versions(last=1)[0]["parent"])
            disk = sum(one.stat().st_size for one in Path(folder).rglob("*") if one.is_file())
        finally:
            used = memory.end()
            process.terminate()
            process.wait()
    return {
        "minutes": minutes, "weeks": sum(states_seen.values()), "jobs": dict(states_seen),
        "answers": answers, "accuracy": {
            "first": round(float(np.mean(accuracies[:10])), 4),
            "last": round(float(np.mean(accuracies[-10:])), 4),
            "least": round(min(accuracies), 4),
        }, "megabytes": used, "megabytes_on_disk": round(disk / 2**20, 1),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--malformed", type=int, default=1_000)
    parser.add_argument("--replay", type=float, metavar="MINUTES", help="weeks instead of the mix")
    parser.add_argument("--record", action="store_true", help="replay: with a monitor and labels")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.replay is None:
        part = {"mix": measure(given.clients, given.requests, given.malformed, given.port)}
    else:
        name = "replay recorded" if given.record else "replay"
        part = {name: replay(given.replay, given.port, given.record)}
    (found,) = part.values()
    found["machine"] = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
                        "python": platform.python_version()}  # fmt: skip
    if given.out and given.out.exists():
        part = {**json.loads(given.out.read_text()), **part}
    text = json.dumps(part, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
