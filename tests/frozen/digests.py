"""What a run leaves in its directory, as tensors by name, and two ways of remembering them."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

import engram
from tests.loose_files import unpack

Tensors = dict[str, Tensor]
HEADS = {"single": 0, "multi": 1}
PLACE = ["seed", "stage", "step", "task", "cls"]
SMALLEST = 1e-12  # a tensor of this norm is rounding only: its direction means nothing
RTOL = 1e-7
HALF = 1e-5  # of stored scores: another CPU rounds one in a thousand to the other half number
GRAPHS = 1e-5  # of graph networks, whose inputs are made in single precision on each CPU


def tensors_in(path: Path) -> Tensors:
    """The tensors of a safetensors file, by name."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def checkpoints_in(out: Path) -> Tensors:
    """The tensors of all checkpoints and models, under names that do not contain the recipe's id.

    A file of many runs is named by a hash of their ids, of which the stage remains.
    """
    found: Tensors = {}
    ids = recipes_in(out)
    files = [*out.glob("checkpoint/**/*.safetensors"), *out.glob("checkpoint/**/*.engram")]
    for path in sorted(files):
        parts = path.relative_to(out / "checkpoint").with_suffix("").parts
        shared = parts[0] in ("groups", "steps")
        place = f"{parts[0]}/{parts[-1].partition('-')[2]}" if shared else "/".join(parts)
        for name, tensor in tensors_in(path).items():
            found[_without(ids, f"{place}/{name}")] = tensor
    return found


def recipes_in(out: Path) -> dict[str, str]:
    """The recipes of a directory, by id: their place in the order in which they were asked for."""
    listed = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("listed-*.json"))]
    stems = sorted(path.stem for path in (out / "recipes").glob("*.yaml"))
    found = dict.fromkeys([*(one for part in listed for one in part), *stems])
    return {one: f"r{place}" for place, one in enumerate(found)}


def _without(ids: Mapping[str, str], text: str) -> str:
    for one, short in ids.items():
        text = text.replace(one, short)
    return text


def predictions_in(out: Path) -> Tensors:
    """Stored predictions and scores, by recipe, seed, order and stage."""
    found, ids = Tensors(), recipes_in(out)
    for path in out.glob("predictions-*.safetensors"):
        with safe_open(path, "pt") as file:
            moments = json.loads(file.metadata()["moments"])
        for name, tensor in tensors_in(path).items():
            number, _, what = name.partition("/")
            recipe, seed, order, stage = moments[int(number)]
            found[f"{what}/{ids[recipe]}/{seed}/{order}/{stage}"] = tensor
    return found


def frame_tensors(result: engram.Result, ids: Mapping[str, str]) -> Tensors:
    """The long table but for times: a tensor of values for each metric, and of what they are of."""
    frame = result.frame()
    frame = frame[~frame["metric"].astype(str).str.contains("second")].copy()
    for name in ("recipe", "order", "metric"):
        frame[name] = frame[name].astype(str)
    frame["recipe"] = frame["recipe"].map(dict(ids))
    frame["view"] = frame["head"].astype(str).map(HEADS).fillna(-1).astype(int)
    frame = frame.sort_values(["recipe", "order", *PLACE, "view"], kind="stable")
    found: Tensors = {}
    for metric, rows in frame.groupby("metric"):
        found[f"results/{metric}"] = torch.tensor(rows["value"].to_numpy(np.float64))
        found[f"places/{metric}"] = torch.tensor(rows[[*PLACE, "view"]].to_numpy(np.int64))
    return found


def left_by(result: engram.Result, out: Path) -> Tensors:
    """Everything a finished call left: its table, and what is in files."""
    with tempfile.TemporaryDirectory() as name:
        copy = unpack(Path(shutil.copytree(out, name, dirs_exist_ok=True)))
        return _left_by(result, copy)


def _left_by(result: engram.Result, out: Path) -> Tensors:
    found = {"matrix/accuracy": torch.from_numpy(np.asarray(result.matrix, np.float64))}
    found |= frame_tensors(result, recipes_in(out)) | predictions_in(out)
    found |= {f"model/{name}": value for name, value in checkpoints_in(out).items()}
    for kind in ("items", "arrays"):
        files = [tensors_in(path) for path in out.glob(f"{kind}-*.safetensors")]
        for place, one in enumerate(sorted(files, key=lambda one: sorted(exact(one).items()))):
            found |= {f"{kind}/{place}/{name}": value for name, value in one.items()}
    ids, files = recipes_in(out), out.glob("ledger-*.json")
    ledgers = [_unlabelled(json.loads(path.read_text("utf-8"))) for path in files]
    lines = sorted(_without(ids, json.dumps(one, sort_keys=True)) for one in ledgers)
    found["ledger/text"] = torch.tensor(list("\n".join(lines).encode()), dtype=torch.uint8)
    return found


def _unlabelled(tree: Any) -> Any:
    """Plain values without labels, which are words."""
    if isinstance(tree, dict):
        return {name: _unlabelled(value) for name, value in tree.items() if name != "label"}
    return [_unlabelled(one) for one in tree] if isinstance(tree, list) else tree


def table_tensors(table: Any, what: str) -> Tensors:
    """The columns of numbers of a data frame."""
    numbers = table.select_dtypes("number")
    return {f"{what}/{name}": torch.tensor(numbers[name].to_numpy(np.float64)) for name in numbers}


# -- two ways of remembering -----------------------------------------------------------------------
def exact(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A hash of type, shape and bytes of every tensor."""
    return {name: _hash(tensors[name]) for name in sorted(tensors)}


def _hash(tensor: Tensor) -> str:
    whole = tensor.detach().contiguous()
    said = f"{whole.dtype} {list(whole.shape)} ".encode()
    content = whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""
    return hashlib.sha256(said + content).hexdigest()[:16]


def robust(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Five numbers for each group of tensors that another CPU finds, too.

    How many tensors and how many entries; then means over the tensors of the logarithm of the norm,
    of the sum and of the projection on a fixed direction, both in units of the norm. So a small
    tensor counts as much as a large one.
    """
    groups: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)
    for name in sorted(tensors):
        groups[_group(name)].append(_numbers(tensors[name]))
    return {
        name: [len(rows), sum(row[0] for row in rows)]
        + [float(f"{math.fsum(row[k] for row in rows) / len(rows):.10g}") for k in (1, 2, 3)]
        for name, rows in sorted(groups.items())
    }


def _group(name: str) -> str:
    """What a tensor belongs to: weights, method state, memory, losses and so on."""
    first, _, rest = name.partition("/")
    if first == "model" and "model/" in rest:  # of a finished run, after the name of the run
        return "state/" + rest.partition("model/")[2].partition("/")[0].partition(".")[0]
    if first == "results" and rest.startswith("loss/"):
        return "losses"
    return first


def _numbers(tensor: Tensor) -> tuple[int, float, float, float]:
    x = tensor.detach().reshape(-1).to(torch.float64).numpy()
    x = np.nan_to_num(x, nan=-7.0, posinf=1e9, neginf=-1e9)
    norm = float(np.linalg.norm(x))
    if norm < SMALLEST:
        return len(x), 0.0, 0.0, 0.0
    direction = (np.arange(1, len(x) + 1) * 2654435761 % 2**32) / 2**31 - 1
    width = math.sqrt(len(x)) * norm
    return len(x), math.log(norm), float(x.sum()) / width, float(x @ direction) / width


def differences(
    found: Mapping[str, Any], kept: Mapping[str, Any], rtol: float = RTOL
) -> list[str]:  # fmt: skip
    """Names under which two sets of numbers or of hashes differ."""
    return [
        name for name in sorted({*found, *kept})
        if name not in found or name not in kept
        or not _close(found[name], kept[name], max(rtol, HALF) if name == "scores" else rtol)
    ]  # fmt: skip


def _close(one: Any, other: Any, rtol: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return bool(np.allclose(one, other, rtol=rtol, atol=rtol))
