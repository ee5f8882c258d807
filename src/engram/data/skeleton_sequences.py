"""Raw skeleton sequences, and the packed file that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.data.labels import checked_labels
from engram.data.npz import read_npz
from engram.data.packed import NAME_KEYS, RESERVED
from engram.errors import bad


@dataclass(frozen=True)
class Sequences:
    """Raw sequences [frames, V, C] with their labels and where they came from."""

    joints: Sequence[Array]
    label: Array
    names: Sequence[str]
    classes: tuple[str, ...]
    attributes: Mapping[str, Array] = field(default_factory=dict)
    official_test: Array | None = None  # [N] bool, where the source has a test part

    def __len__(self) -> int:
        return len(self.joints)

    def take(self, rows: Sequence[int]) -> Sequences:
        """Some of the sequences, in that order."""
        index = np.asarray(rows, np.int64)
        return replace(
            self,
            joints=[self.joints[i] for i in index],
            names=[self.names[i] for i in index],
            label=self.label[index],
            attributes={key: value[index] for key, value in self.attributes.items()},
            official_test=None if self.official_test is None else self.official_test[index],
        )


def read_packed_sequences(file: Path, *, classes: tuple[str, ...] = ()) -> Sequences:
    """Sequences from a packed file with the keys joints, offsets, label."""
    arrays = read_npz(file)
    missing = sorted({"joints", "offsets", "label"} - arrays.keys())
    if missing:
        raise bad(str(file), "the keys joints, offsets and label", f"no {', '.join(missing)}")
    joints, offsets, label = (arrays[key] for key in ("joints", "offsets", "label"))
    fits = offsets[0] == 0 and offsets[-1] == len(joints) and len(offsets) == len(label) + 1
    if not fits or not bool((np.diff(offsets.astype(np.int64)) >= 0).all()):
        wanted = f"{len(label) + 1} rising numbers from 0 to {len(joints)}"
        raise bad(f"{file}: offsets", wanted, (len(offsets), offsets[-1]))
    titles = next((tuple(map(str, arrays[key])) for key in NAME_KEYS if key in arrays), ())
    known = len(titles or classes) or None
    label = checked_labels(f"{file}: label", label, len(offsets) - 1, known)
    count = int(label.max(initial=0)) + 1
    names = arrays.get("name", np.array([]))
    return Sequences(
        joints=[joints[a:b] for a, b in pairwise(offsets)],
        label=label,
        names=list(map(str, names)) if len(names.shape) and len(names) else
        [f"sequence {i}" for i in range(len(label))],
        classes=titles or classes or tuple(map(str, range(count))),
        attributes={key: value for key, value in arrays.items() if key not in RESERVED
                    and value.shape == label.shape and value.dtype.kind in "iu"},
    )  # fmt: skip


def packed_arrays(sequences: Sequences) -> dict[str, Any]:
    """The arrays of a packed file that holds these sequences unprepared."""
    lengths = [len(one) for one in sequences.joints]
    return {
        "joints": np.concatenate(list(sequences.joints)).astype(np.float32),
        "offsets": np.cumsum([0, *lengths]).astype(np.int64),
        "label": sequences.label.astype(np.int64),
        "name": np.array(sequences.names),
        "names": np.array(sequences.classes),
        **sequences.attributes,
    }
