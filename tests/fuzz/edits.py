"""Files near to a good one, and structured nonsense."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from engram.io import CHECKSUMS_KEY, TensorFile, save_tensors
from engram.records.table_parts import _compute_checksum, _find_checksum

EVIL = [b"\x00", b"\xff" * 4, b"\x80", b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x00" * 16, b"-1",
        b"1e999", b"NaN", b"9" * 25, b"\n", b",", b'"', b"'", b"{", b"[", b"]}", b"../../x",
        b"\x1b[31m", "\u0130\ud7ff".encode(), b"None", b"O"]  # fmt: skip
NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 2**31, 2**63, 10**30, 0.5, 1e308, float("nan"), float("inf")])
    | st.sampled_from(["", "x", "../..", "os:system", "\x00", "é", "-1", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)  # fmt: skip


@st.composite
def edited(draw: Any, seed: bytes) -> bytes:
    """A few bytes flipped, cut, put in, doubled or swapped."""
    found = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        kind = draw(
            st.sampled_from(["flip", "set", "insert", "over", "cut", "end", "swap", "double"])
        )
        length = draw(st.integers(1, 16))
        if kind == "flip" and found:
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and found:
            found[at] = draw(st.integers(0, 255))
        elif kind in ("insert", "over"):
            piece = draw(st.sampled_from(EVIL) | st.binary(min_size=1, max_size=8))
            found[at : at + (len(piece) if kind == "over" else 0)] = piece
        elif kind == "cut":
            del found[at : at + length]
        elif kind == "end":
            del found[at:]
        elif kind == "swap":
            to = draw(st.integers(0, max(len(found) - 1, 0)))
            found[at : at + length], found[to : to + length] = (
                found[to : to + length],
                found[at : at + length],
            )
        else:
            found[at:at] = found[at : at + length]
    return bytes(found)


@st.composite
def zipped(draw: Any, seed: bytes) -> bytes:
    """An archive whose sums are right and one of whose members is edited, renamed or gone."""
    with zipfile.ZipFile(io.BytesIO(seed)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names = sorted(members)
    one = draw(st.sampled_from(names))
    kind = draw(st.sampled_from(["edit", "edit", "edit", "header", "drop", "rename", "exchange"]))
    if kind == "edit":
        members[one] = draw(edited(members[one]))
    elif kind == "header":
        members[one] = _header(draw, members[one])
    elif kind == "drop":
        del members[one]
    elif kind == "rename":
        new = draw(st.sampled_from(["mapped.npy", "jpeg.npy", "joints.npy", "offsets.npy",
                                    "crop.npy", "mean.npy", "classes.npy", "train_rows.npy",
                                    "usage.npy", "split.npy", "../x.npy", "x"]))  # fmt: skip
        members[new] = members.pop(one)
    else:
        members[one] = members[draw(st.sampled_from(names))]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def _header(draw: Any, content: bytes) -> bytes:
    """An array with another type or shape in its header."""
    if content[:6] != b"\x93NUMPY":
        return content
    descr = draw(st.sampled_from(["'<f8'", "'|O'", "'<U3'", "'|S2'", "'<c8'", "'<M8[s]'", "'<i2'",
                                  "'|b1'", "'|V4'", "[('a', '<i4')]", "'>f4'", "3"]))  # fmt: skip
    shape = draw(st.sampled_from(["()", "(1,)", "(0,)", "(-1,)", "(2, 0)", "(6, 2)", "(2, 3, 1)",
                                  "(9999999999,)", "(3, 4294967296)", "None"]))  # fmt: skip
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.unpack("<H", content[8:10])[0]
    return content[:8] + struct.pack("<H", len(text)) + text + content[10 + length :]


npy_headers = st.composite(_header)


@st.composite
def misplaced(draw: Any, plain: Any) -> Any:
    """A nested plain value with nonsense, or nothing, in one or two places."""
    found = json.loads(json.dumps(plain))
    for _ in range(draw(st.integers(1, 2))):
        at = found
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(at[key], (dict, list)) and at[key] and draw(st.integers(0, 3)):
                at = at[key]
                continue
            if draw(st.integers(0, 3)):
                at[key] = draw(NONSENSE)
            else:
                del at[key]
            break
    return found


@st.composite
def resealed(draw: Any, seed: bytes) -> bytes:
    """A file of tensors whose checksums are right and whose facts, or tensors, are not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "it"
        path.write_bytes(seed)
        file = TensorFile(path, framework="pt")
        tensors = {name: file.get(name) for name in file.keys()}  # noqa: SIM118
        facts = {k: v for k, v in file.facts.items() if k not in (CHECKSUMS_KEY, "checksum")}
        if draw(st.integers(0, 3)):
            fact = draw(st.sampled_from(sorted(facts)))
            try:
                facts[fact] = json.dumps(draw(misplaced([json.loads(facts[fact])])), allow_nan=True)
                facts[fact] = facts[fact][1:-1] if draw(st.integers(0, 9)) else facts[fact]
            except ValueError:  # a word
                facts[fact] = draw(st.text(max_size=5))
        elif tensors:
            one, other = (draw(st.sampled_from(sorted(tensors))) for _ in range(2))
            kind = draw(st.sampled_from(["drop", "exchange", "flat", "short", "type", "huge"]))
            found = tensors.pop(one)
            if kind != "drop":
                tensors[one] = {
                    "exchange": lambda: tensors.get(other, found).clone(),
                    "flat": lambda: found.reshape(-1).clone(),
                    "short": lambda: found[:-1].clone() if found.ndim else found[None].clone(),
                    "type": lambda: found.float().clone() if not found.is_floating_point()
                    else found.long().clone(),
                    "huge": lambda: (found.float() * 0 + 2**40).to(found.dtype),
                }[kind]()  # fmt: skip
        save_tensors(path, tensors, facts)
        return path.read_bytes()


def with_sum(content: bytes) -> bytes:
    """The checksum of a results file set right, where there is still a place for it."""
    found = memoryview(bytearray(content))
    place = _find_checksum(found) if len(found) > 8 else None
    if place is None or place + 8 > len(found):
        return content
    found[place : place + 8] = _compute_checksum(found, place)
    return bytes(found)
