"""The toy transformer of the checks row by row and head by head, with what methods insert."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.checks.toy_runs import ToyTransformer
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.run_definition import Run
from engram.methods.method import Method
from tests.methods import small

HEADS, DEPTH, WIDTH = 2, 3, 48
ON = small.stream()  # three tasks of two classes
WHOLE = replace(small.EXACT, batch_size=0, epochs=2, lr=0.05, momentum=0.0)
OWN = {name: value.double() for name, value in ToyTransformer((5,)).state_dict().items()}


def layer(h: Tensor, name: str) -> Tensor:
    return F.linear(h, OWN[f"{name}.weight"], OWN[f"{name}.bias"])


def norm(h: Tensor, name: str) -> Tensor:
    return F.layer_norm(h, (WIDTH,), OWN[f"{name}.weight"], OWN[f"{name}.bias"], 1e-6)


def last_norm(h: Tensor) -> Tensor:
    return F.layer_norm(h, (WIDTH,), OWN["last_norm.weight"], OWN["last_norm.bias"])


def one_row(
    x: Tensor, tokens: Tensor | None, prefixes: dict[int, tuple[Tensor, Tensor]],
    changes: dict[tuple[int, str], Tensor], adapters: dict[int, Callable[[Tensor], Tensor]],
    watch: Callable[[int, Tensor], None] | None = None,
) -> Tensor:  # fmt: skip
    """The tokens [L, W] of one row behind the last block."""
    h = torch.sin(x[:, None] * OWN["scale.weight"] / 2 + 3 * OWN["places.weight"])
    if tokens is not None:
        h = torch.cat([tokens, h])
    for number in range(DEPTH):
        start = f"blocks.{number}."
        given = norm(h, f"{start}attention_norm")
        if watch is not None:
            watch(number, given)
        q, k, v = (
            layer(given, f"{start}attention.{name}") + given @ changes[number, name].T
            if (number, name) in changes
            else layer(given, f"{start}attention.{name}")
            for name in ("query", "key", "value")
        )
        if number in prefixes:
            k, v = (torch.cat(pair) for pair in zip(prefixes[number], (k, v), strict=True))
        size, parts = WIDTH // HEADS, []
        for head in range(HEADS):
            own = slice(head * size, head * size + size)
            parts.append(torch.softmax(q[:, own] @ k[:, own].T / math.sqrt(size), 1) @ v[:, own])
        h = h + layer(torch.cat(parts, 1), f"{start}attention.output")
        inside = F.gelu(layer(norm(h, f"{start}feed_forward_norm"), f"{start}widen"))
        more = adapters[number](h) if number in adapters else 0.0
        h = h + layer(inside, f"{start}narrow") + more
    return h


def features(x: Tensor, insert: Callable[[int], dict[str, Any]], prompts: int = 0) -> Tensor:
    """Features [B, W]; `insert` says what is inserted for a row. From prompts, if there are any."""
    found = []
    for row, one in enumerate(x):
        given = {"tokens": None, "prefixes": {}, "changes": {}, "adapters": {}, **insert(row)}
        h = last_norm(one_row(one, **given))
        found.append(h[:prompts].mean(0) if prompts else h.mean(0))
    return torch.stack(found)


def query(x: Tensor) -> Tensor:
    return features(x, lambda row: {})


def cosines(a: Tensor, b: Tensor) -> Tensor:
    return (a / a.norm(dim=1, keepdim=True)) @ (b / b.norm(dim=1, keepdim=True)).T


def task_cost(logits: Tensor, y: Tensor, stage: int) -> Tensor:
    """Cross-entropy among the two classes of a task."""
    return F.cross_entropy(logits[:, 2 * stage : 2 * stage + 2], y - 2 * stage)


Weights = dict[str, Tensor]


def follow(
    method: Method,
    moving: Callable[[int], tuple[str, ...]],
    cost: Callable[[Weights, Tensor, Tensor, int], Tensor],
    scores: Callable[[Weights, Tensor, int], Tensor],
    begin: Callable[[Weights, Tensor, Tensor, int], None] = lambda *_: None,
    end: Callable[[Weights, Tensor, Tensor, int], None] = lambda *_: None,
) -> None:
    """Train by plain gradient steps on all rows; weights and answers must be those of the run.

    `moving` are the prefixes of what a task trains, besides the rows of its classes in the head.
    """
    run = Run(stream=ON, method=method, model=ToyTransformer, training=WHOLE)
    learner = Engine([run], device="cpu").learner(run)
    weights = {name: value.clone() for name, value in learner.params.items()}
    y_of = ON.position[ON.data.y[:, 0]]
    for found in Engine([run], device="cpu", together=False).stages():
        stage, task = found.stage, ON.tasks[found.stage]
        x, y = learner.feed(task.train).double(), y_of[task.train]
        begin(weights, x, y, stage)
        for _ in range(WHOLE.epochs):
            names = [n for n in weights if n.startswith((*moving(stage), "net.head."))]
            leaves = {name: weights[name].clone().requires_grad_() for name in names}
            total = cost({**weights, **leaves}, x, y, stage)
            slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
            for name, slope in zip(names, slopes, strict=True):
                if slope is not None:
                    weights[name] = weights[name] - WHOLE.lr * slope
        end(weights, x, y, stage)
        for name, value in found.learner.params.items():
            assert torch.allclose(value, weights[name], rtol=0, atol=1e-9), (stage, name)
        rows, _ = items_of(ON, slice(0, stage + 1))
        x = learner.feed(rows[::3]).double()
        with torch.no_grad():
            wanted, own = scores(weights, x, stage), found.learner
            got = method.answer(own.net(), x, own.state, torch.tensor(-1)).logits
        open_ = slice(0, 2 * stage + 2)
        assert torch.allclose(got[:, open_], wanted[:, open_], rtol=0, atol=1e-9), stage


def head(weights: Weights, h: Tensor) -> Tensor:
    return F.linear(h, weights["net.head.weight"], weights["net.head.bias"])
