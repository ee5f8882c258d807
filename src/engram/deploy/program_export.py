"""Export of a learner's network by torch.export or to ONNX."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.deploy.new_task import DTYPES as STORED
from engram.deploy.new_task import channel_shape
from engram.deploy.snapshot import FixedNet, LearnerSnapshot
from engram.engine.checkpoints import rebuild_tree, tree_structure
from engram.errors import EngramError, bad, check_choice
from engram.io import atomic_write, make_folders
from engram.learner.feed import center_crop
from engram.learner.tensor_tree import flatten

FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
FACTS_FILE = "engram.json"  # stored with the program: classes and a description of the inputs


class Program(nn.Module):
    """Module that maps raw inputs [B, ...] to probabilities [B, classes].

    It includes what the learner does before and after its network: scaling of bytes,
    normalisation, centre crops, the method's own scores. Columns are in the order
    of ``learner.classes_``.
    """

    def __init__(self, snapshot: LearnerSnapshot) -> None:
        super().__init__()
        about, self.method = snapshot.facts["inputs"], snapshot.method
        self.bytes, self.crop = about["dtype"] == "uint8", about["crop"]
        self.sets = snapshot.facts["labels"] == "set"
        shape = channel_shape(about)
        self.net = snapshot.bundle.get_submodule("net")
        self.networks = snapshot.networks
        # a method that answers by itself may ask any of its networks
        self.bundle = snapshot.bundle if self.method.implements("answer") else None
        self.frozen = None if snapshot.frozen is None else copy.deepcopy(snapshot.frozen.module)
        self.dtype = snapshot.dtype
        self.register_buffer("mean", torch.tensor(about["mean"], dtype=self.dtype).reshape(shape))
        std = torch.tensor(about["std"], dtype=self.dtype)
        self.register_buffer("scale", (1 / std).reshape(shape))
        self.normalises, self.fills = bool(about["mean"]), bool(about["fill"])
        self.register_buffer("fill", torch.tensor(about["fill"], dtype=self.dtype).reshape(shape))
        self.register_buffer("untold", torch.tensor(-1))  # no task is given
        self.register_buffer("columns", torch.tensor(snapshot.columns))
        self._structure, self._names = tree_structure(snapshot.state), list[str]()
        for number, (name, leaf) in enumerate(flatten(snapshot.state).items()):
            self._names.append(name)
            self.register_buffer(f"state_{number}", leaf.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if self.bytes:
            x = x * (1 / 255)
        if self.fills:
            x = torch.where(x.isnan(), self.get_buffer("fill"), x)
        if self.normalises:
            x = (x - self.get_buffer("mean")) * self.get_buffer("scale")
        if self.crop is not None:
            x = center_crop(x, (self.crop[0], self.crop[1]))
        if self.frozen is not None:
            x = self.frozen(x)
        leaves = {name: self.get_buffer(f"state_{i}") for i, name in enumerate(self._names)}
        state = rebuild_tree(self._structure, leaves)
        if self.bundle is None:
            scores: Tensor = self.net(x).logits
        else:
            net = FixedNet(self.networks, self.bundle)
            scores = self.method.answer(net, x, state, self.get_buffer("untold")).logits
        scores = scores.index_select(1, self.get_buffer("columns"))
        return scores.sigmoid() if self.sets else scores.softmax(1)


def export_program(
    snapshot: LearnerSnapshot, path: str | os.PathLike[str], form: str | None
) -> Path:
    """Write the program; the default of `form` is given by the suffix."""
    target = Path(path)
    if form is None:
        form = next((name for name, end in FORMATS.items() if target.suffix == end), None)
        if form is None:
            ends = " or ".join(f"{end} ({name})" for name, end in FORMATS.items())
            raise bad("path", f"a name that ends in {ends}, or a format", str(path))
    check_choice("format", form, FORMATS)
    if snapshot.facts["head"] == "multi":
        raise bad("learner", "one head for all classes, to be exported", "a head for each task")
    make_folders(target.parent)
    program = Program(snapshot).cpu().eval()
    about = snapshot.facts["inputs"]
    example = torch.zeros(2, *about["shape"], dtype=STORED[about["dtype"]])
    facts = {"classes": snapshot.classes.tolist(), "inputs": about}
    if form == "onnx":
        return _export_onnx(program, example, target, facts)
    try:
        batch = torch.export.Dim("batch", min=1)
        made = torch.export.export(program, (example,), dynamic_shapes=({0: batch},))
    except Exception as problem:  # torch raises many kinds for code that it cannot trace
        raise EngramError(
            f"export: torch.export cannot trace this network ({problem})"
        ) from problem
    content = io.BytesIO()  # torch requires the suffix .pt2, which temporary files lack
    torch.export.save(made, content, extra_files={FACTS_FILE: json.dumps(facts)})
    with atomic_write(target) as temporary:
        temporary.write_bytes(content.getvalue())
    return target


def _export_onnx(program: Program, example: Tensor, target: Path, facts: dict[str, Any]) -> Path:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        expected = "'torch', or the extra onnx installed (pip install 'engram-cl[onnx]')"
        raise bad("format", expected, f"'onnx' without the package {' and '.join(missing)}")
    import onnx

    batch = torch.export.Dim("batch", min=1)
    made = torch.onnx.export(
        program, (example,), dynamo=True, dynamic_shapes=({0: batch},), input_names=["x"],
        output_names=["probabilities"], verbose=False,
    )  # fmt: skip
    assert made is not None
    content: Any = made.model_proto
    content.metadata_props.append(
        onnx.StringStringEntryProto(key=FACTS_FILE, value=json.dumps(facts))
    )
    with atomic_write(target) as temporary:
        onnx.save(content, str(temporary))
    return target
