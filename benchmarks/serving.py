"""A service under load while it learns: no prediction may fail; how long do they take?

    python -m benchmarks.serving --out benchmarks/serving.json

10,000 requests of 32 clients on loopback while tasks are learnt, then 1,000 malformed requests
drawn from the service's own OpenAPI description. Server and clients are processes of this machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

CLASSES, ROWS, FEATURES = 20, 200, 64


def world():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, FEATURES))
    y = np.repeat(np.arange(CLASSES), ROWS)
    return np.float32(centres[y] + rng.normal(size=(len(y), FEATURES))), y


def client(port, count, x, found):
    """Ask `count` times over one connection; (seconds, status, tasks) of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    seen = []
    for number in range(count):
        body = json.dumps({"x": x[number % len(x) : number % len(x) + 1]})
        began = time.perf_counter()
        try:
            connection.request("POST", "/predict", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            said = json.loads(answer.read())
            seen.append((time.perf_counter() - began, answer.status, said.get("tasks", -1)))
        except OSError as problem:
            seen.append((time.perf_counter() - began, type(problem).__name__, -1))
            connection.close()
    connection.close()
    found.put(seen)


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    kind = answer.getheader("content-type", "")
    return answer.status, json.loads(text) if kind.startswith("application/json") else text


def start(model, port):
    command = [sys.executable, "-m", "engram", "serve", str(model), "--port", str(port),
               "--device", "cpu"]  # fmt: skip
    process = subprocess.Popen(command)
    for _ in range(600):
        try:
            if ask(port, "GET", "/health")[0] == 200:
                return process
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service did not start")


def load(port, x, clients, requests):
    """All clients at once; what each of their requests met."""
    found = multiprocessing.Queue()
    rows = x[:100].tolist()
    each = -(-requests // clients)
    began = time.perf_counter()
    every = [multiprocessing.Process(target=client, args=(port, each, rows, found))
             for _ in range(clients)]  # fmt: skip
    for one in every:
        one.start()
    seen = [entry for _ in every for entry in found.get()]
    for one in every:
        one.join()
    return seen, time.perf_counter() - began


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


def measure(clients, requests, wrong, port):
    from engram import Learner

    x, y = world()
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner("ER", "mlp", epochs=5, device="cpu")
        first = y < 2
        model = learner.learn(x[first], y[first]).save(Path(folder) / "model.engram")
        process = start(model, port)
        try:
            for low in range(2, CLASSES, 2):  # nine tasks in the queue
                which = (y >= low) & (y < low + 2)
                body = json.dumps({"x": x[which].tolist(), "y": y[which].tolist()})
                assert ask(port, "POST", "/learn", body)[0] == 202
            seen, seconds = load(port, x, clients, requests)
            after = ask(port, "GET", "/health")[1]
            bad = malformed(port, x, wrong)
            while ask(port, "GET", "/health")[1]["queued"]:
                time.sleep(0.1)
            last = ask(port, "GET", "/health")[1]["tasks"]
        finally:
            process.terminate()
            process.wait()
        process = start(model, port)
        kept = ask(port, "GET", "/health")[1]["tasks"]
        process.terminate()
        process.wait()
    times = np.array([one[0] for one in seen]) * 1000
    shares = {f"p{q}": round(float(np.percentile(times, q)), 2) for q in (50, 90, 99, 99.9)}
    return {
        "clients": clients, "requests": len(seen), "failed": sum(one[1] != 200 for one in seen),
        "milliseconds": {**shares, "max": round(float(times.max()), 2)},
        "requests_per_second": round(len(seen) / seconds, 1),
        "tasks_while_asked": sorted({one[2] for one in seen}), "waiting_after": after["queued"],
        "tasks_at_the_end": last, "tasks_after_a_restart": kept, "malformed": bad,
        "machine": {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
                    "python": platform.python_version()},
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--malformed", type=int, default=1_000)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = measure(given.clients, given.requests, given.malformed, given.port)
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
