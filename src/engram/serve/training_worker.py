"""Training process of the service, one task per line on its input: ``python -m
engram.serve.training_worker``.

It is a separate process because training may crash without an exception, which must not stop
the service, and so that predictions need not wait for it. It ends with the service, even in the
midst of a task: that is learnt again after the next start.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.serve.training_process import LearningOutcome

if TYPE_CHECKING:
    from engram.deploy.model_store import ModelStore, Version

BUSY_SECONDS = 0.2  # between two attempts to write to a store that another process writes to


def main() -> None:
    """Answer every line, a JSON mapping, by one, a `LearningOutcome`."""
    if hasattr(os, "nice"):
        os.nice(5)  # predictions first
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not be taken for an answer
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    while True:
        answers.write(json.dumps(asdict(learn_task(**json.loads(orders.get())))) + "\n")
        answers.flush()


def _read_orders(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)  # the service has ended


def learn_task(task: str, number: int, **place: Any) -> LearningOutcome:
    """Let a model file or a store (`place`) learn a task, which has a number."""
    from engram.errors import EngramError

    learn = _learn_in_store if "store" in place else _learn_in_file
    try:
        return learn(Path(task), number, **place)
    except (EngramError, OSError) as problem:
        return LearningOutcome(" ".join(str(problem).split()) or type(problem).__name__)


def _learn_in_file(
    task: Path, number: int, model: str, out: str, **options: Any
) -> LearningOutcome:
    """Load a model, let it learn a task, save what came out."""
    from engram.deploy.deployed_learner import Learner
    from engram.serve.job_queue import read_task

    learner = Learner.load(model, **options)
    learner.learn(*read_task(task))
    learner.notes["job"] = number
    learner.save(out)
    return LearningOutcome()


def _learn_in_store(task: Path, number: int, store: str, **options: Any) -> LearningOutcome:
    """Let a store learn a task; one that it knows from before the service died only once."""
    from engram.deploy.model_store import ModelStore, StoreBusy
    from engram.serve.job_queue import read_task

    opened, rows = ModelStore(store, **options), read_task(task)
    while True:  # as long as the service has patience
        try:
            made = find_job(opened, number) or opened.learn(*rows, notes={"job": number})
        except StoreBusy:
            time.sleep(BUSY_SECONDS)
        else:
            return LearningOutcome(refused=made.reason if not made.accepted else "",
                                   version=made.number)  # fmt: skip


def find_job(store: ModelStore, number: int | None = None) -> Version | None:
    """Return the version that a job has made, accepted or not; by default that of the last job."""
    for made in map(store.version, reversed(store.numbers)):
        job = (made.notes or {}).get("job") if made.how != "created" else None
        if job is not None:
            return made if number in (None, job) else None
    return None


if __name__ == "__main__":
    main()
