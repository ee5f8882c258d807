"""Training process of the service, one task per line on its input: ``python -m
engram.serve.training_worker``.

It is a separate process because training may crash without an exception, which must not stop
the service, and so that predictions need not wait for it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer every line, a JSON mapping, by one: ``{"error": ""}`` when the task is learnt."""
    if hasattr(os, "nice"):
        os.nice(5)  # predictions first
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not be taken for an answer
    for line in sys.stdin:
        answers.write(json.dumps({"error": learn_task(**json.loads(line))}) + "\n")
        answers.flush()


def learn_task(model: str, task: str, out: str, number: int, **options: Any) -> str:
    """Load a model, let it learn a task, save what came out; why not, in words."""
    from engram.deploy.deployed_learner import Learner
    from engram.errors import EngramError
    from engram.serve.job_queue import read_task

    try:
        learner = Learner.load(model, **options)
        learner.learn(*read_task(Path(task)))
        learner.notes["job"] = number
        learner.save(out)
    except (EngramError, OSError) as problem:
        return " ".join(str(problem).split()) or type(problem).__name__
    return ""


if __name__ == "__main__":
    main()
