"""Examples of requests in the OpenAPI description, made from what the models know."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

from engram.data.tables.table_schema import TableSchema
from engram.serve.served_model import ServedModel

MOST_VALUES = 256  # rows of more values would bury the rest of the description
VALUES = {"uint8": 128, "int32": 1, "float32": 0.5}


def add_examples(api: dict[str, Any], models: Iterable[ServedModel]) -> dict[str, Any]:
    """Return an OpenAPI description with an example by each model for each request.

    They can be sent as they are. Paths without a name have that of the first model.
    """
    found = copy.deepcopy(api)
    for place, model in enumerate(models):
        for path, body in make_examples(model).items():
            for full in (path, "/models/{name}" + path)[place > 0 :]:
                content = found["paths"][full]["post"]["requestBody"]["content"]
                examples = content["application/json"].setdefault("examples", {})
                examples[model.name] = {"value": body}
    return found


def make_examples(model: ServedModel) -> dict[str, dict[str, Any]]:
    """Make a body for each path; none for models whose rows are too large to show."""
    now = model.learner.snapshot
    row, labels = make_row(now.facts["inputs"]), now.labels.tolist()
    if row is None:
        return {}
    task = {"task": 0} if now.facts["head"] == "multi" else {}
    label = labels[:1] if now.facts["labels"] == "set" else labels[0]
    return {
        "/predict": {"x": [row], "probabilities": True, **task},
        "/novelty": {"x": [row], **task},
        "/learn": {"x": [row], "y": [label]},
    }


def make_row(about: dict[str, Any]) -> Any:
    """Make a row as a model takes it, from the description of its inputs.

    Examples
    --------
    >>> make_row({"shape": [2, 2], "dtype": "uint8"})
    [[128, 128], [128, 128]]
    >>> make_row({"shape": [64], "dtype": "int32", "tokenizer": {}})
    'some words'
    """
    if "tokenizer" in about:
        return "some words"
    if "schema" in about:
        record = TableSchema.from_facts(about["schema"]).example
        return record if len(record) <= MOST_VALUES else None
    if math.prod(about["shape"]) > MOST_VALUES:
        return None
    row: Any = VALUES[about["dtype"]]
    for size in reversed(about["shape"]):
        row = [row] * size
    return row
