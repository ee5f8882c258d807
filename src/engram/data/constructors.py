"""Constructors of `Data` from image folders, torch datasets, tables and time series."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from engram.data.label_checks import check_one_type
from engram.errors import bad

if TYPE_CHECKING:
    from engram.data.dataset import Data


class DataConstructors:
    """What `Data` can be made from besides arrays; each reader has a file of its own."""

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        resize: int | Sequence[int] | None = None,
        repair: str = "error",
        name: str | None = None,
        lazy: bool = False,
        cache: int | str | None = None,
        threads: int | None = None,
        index: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Data:
        """Data from folders of images, one sub-folder per class.

        `path` holds either the class folders themselves (every fifth image is then held out) or
        ``train/`` and ``test/`` with class folders in each, and ``valid/`` or ``val/`` if wanted.
        Images must have one size unless `resize` gives one, as a number for squares or
        ``(height, width)``; they become one channel where all of them are grey, three otherwise.
        All files that cannot be read are named at once; ``repair="drop"`` leaves them out.

        `options` are those of `from_arrays`. `attributes` may be a function of a file's path:
        ``attributes=lambda file: {"subject": file.stem[:4]}, test_by="subject"``.

        With `lazy` images stay on disk: each is decoded when it is needed, by `threads`, and
        `cache` bytes of them are kept (1 GB by default, or text such as "8GB"). `index` names a
        file for headers and sums, so that they are looked up once; see `LazyOptions`.
        """
        from engram.data.image_files import lazy_options
        from engram.data.image_folder import read_folder

        return read_folder(
            cast("type[Data]", cls), Path(path), resize=resize, repair=repair, name=name,
            options=options, lazy=lazy_options(lazy, cache, threads, index),
        )  # fmt: skip

    @classmethod
    def from_torch(
        cls,
        dataset: Any,
        test: Any = None,
        *,
        valid: Any = None,
        classes: Sequence[str] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Data:
        """Data from map-style torch datasets that give ``(x, y)``, read once into memory.

        Examples
        --------
        >>> import torch
        >>> from engram.data import Data
        >>> pairs = torch.utils.data.TensorDataset(torch.rand(10, 3), torch.arange(10) % 2)
        >>> Data.from_torch(pairs)
        Data('TensorDataset': 8 train, 2 test rows of (3,), 2 classes)
        """
        pass  # import of a sibling

        extra: dict[str, Any] = {
            key: read_pairs(key, part) for key, part in (("test", test), ("valid", valid))
            if part is not None
        }  # fmt: skip
        x, y = read_pairs("dataset", dataset)
        return cast("type[Data]", cls).from_arrays(
            x, y, classes=classes or class_names(dataset), name=name or type(dataset).__name__,
            **extra, **options,
        )  # fmt: skip

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        label: str | Sequence[str] | None = None,
        test: Any = None,
        valid: Any = None,
        split: str | None = None,
        categories: Sequence[str] = (),
        missing: str | float = "error",
        drop: str | Sequence[str] = (),
        separator: str | None = None,
        series: str | None = None,
        time: str | None = None,
        pad: str = "back",
        name: str = "table",
        **options: Any,
    ) -> Data:
        """Data from a table (pandas.DataFrame): a column of classes, all others are features.

        Parameters
        ----------
        label
            Name of the column with the classes; several names mean one column of yes and no for
            each class, so that a row may have more than one.
        test, valid
            Further tables with the same columns. Without `test`, every fifth row of each class.
        split
            Name of a column that says ``train``, ``test`` or ``valid``, in place of `test`.
        categories
            Columns of numbers that are names in truth. Text is taken so anyway: one column of 0 and
            1 for each value.
        missing
            What happens to values that are not there: ``"error"`` counts them by column,
            ``"drop"`` leaves their rows out, ``"flag"`` writes 0 and adds a column of 0 and 1 that
            says so, ``"mean"`` has streams write the mean of their first task, a number is
            written as it is.
        drop
            Columns to leave out.
        separator
            What stands between several labels in one cell, such as ``";"``.
        series, time
            Name of a column by which rows belong together: all rows of one value are one sample
            [T, F], in the order of the column `time` or of the table. See `from_series`.
        options
            Further fields of Data, such as ``standardize=True``.

        Examples
        --------
        >>> import pandas as pd
        >>> from engram.data import Data
        >>> frame = pd.DataFrame(
        ...     {"size": [1.0, 2.0] * 5, "hue": ["red", "blue"] * 5, "kind": ["cat", "dog"] * 5}
        ... )
        >>> data = Data.from_frame(frame, label="kind")
        >>> data.columns, data.classes, data.x[0].tolist()
        (('size', 'hue=blue', 'hue=red'), ('cat', 'dog'), [1.0, 0.0, 1.0])
        """
        from engram.data.tables.data_frame import TableOptions, read_frame

        chosen = TableOptions(
            label=label, split=split, categories=categories, missing=missing, drop=drop,
            separator=separator, series=series, time=time, pad=pad,
        )  # fmt: skip
        parts = {"train": frame, "valid": valid, "test": test}
        given = {part: one for part, one in parts.items() if one is not None}
        return read_frame(cast("type[Data]", cls), given, chosen, name=name, options=options)

    @classmethod
    def from_series(
        cls,
        series: Sequence[Any],
        y: Any,
        *,
        test: tuple[Sequence[Any], Any] | None = None,
        valid: tuple[Sequence[Any], Any] | None = None,
        pad: str = "back",
        length: int | None = None,
        name: str = "series",
        **options: Any,
    ) -> Data:
        """Data from time series [T, F] (or [T]) of different lengths, padded with 0 to one length.

        `pad` says where: ``"back"``, or ``"front"``, so that the last step of each is a real one,
        as a recurrent network that answers from its last step wants it. The attribute ``length``
        has the steps of each before that. `length` cuts longer ones (at the other end).

        Examples
        --------
        >>> from engram.data import Data
        >>> data = Data.from_series([[1.0], [2.0, 3.0]] * 5, ["a", "b"] * 5)
        >>> data.x[0].tolist(), data.attributes["length"][:2].tolist()
        ([[1.0], [0.0]], [1, 2])
        """
        from engram.data.tables.time_series import read_series

        parts = {"train": (series, y), "valid": valid, "test": test}
        given = {part: one for part, one in parts.items() if one is not None}
        kind = cast("type[Data]", cls)
        return read_series(kind, given, pad=pad, length=length, name=name, options=options)


# ------------------------------------------------------------------------------------------------
# Any map-style torch dataset, read once into arrays.


LABELS = ("label", "labels", "class", "target", "y")  # what rows that are mappings may call it


def read_pairs(argument: str, dataset: Any) -> tuple[Tensor, Any]:
    """All inputs and labels of a dataset that gives ``(x, y)``.

    Examples
    --------
    >>> x, y = read_pairs("dataset", [([0.0, 1.0], 2)])
    >>> x.shape, y
    (torch.Size([1, 2]), array([2]))
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        expected = "a map-style dataset with len() and [i] (for an iterable dataset, list(dataset))"
        raise bad(argument, expected, type(dataset).__name__)
    if len(dataset) == 0:
        raise bad(argument, "at least one row", "none")
    xs: list[Tensor] = []
    ys: list[np.ndarray[Any, Any]] = []
    for row in range(len(dataset)):
        item = _pair(dataset[row])
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            got = sorted(item) if isinstance(item, Mapping) else type(item).__name__
            expected = "a pair (x, y), or a mapping with a label and one other value"
            raise bad(f"{argument}[{row}]", expected, got)
        x = _to_input(item[0])
        if xs and (x.shape != xs[0].shape or x.dtype != xs[0].dtype):
            wanted = f"shape {tuple(xs[0].shape)} of {xs[0].dtype}, as row 0"
            raise bad(f"{argument}[{row}]", wanted, (tuple(x.shape), x.dtype))
        xs.append(x)
        y = np.asarray(item[1])
        if ys and y.shape != ys[0].shape:
            wanted = f"a label of shape {ys[0].shape}, as row 0"
            raise bad(f"{argument}[{row}]", wanted, y.shape)
        ys.append(y)
    return torch.stack(xs), check_one_type(
        [y.item() for y in ys] if ys[0].ndim == 0 else np.stack(ys)
    )


def _pair(item: Any) -> Any:
    """Input and label of a mapping, as Hugging Face's data sets give them."""
    if not isinstance(item, Mapping) or len(item) != 2:
        return item
    label = next((name for name in LABELS if name in item), None)
    if label is None:
        return item
    (other,) = (value for name, value in item.items() if name != label)
    return other, item[label]


def _to_input(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().cpu()
    array = np.asarray(x)
    if hasattr(x, "getbands"):  # a Pillow image: rows, columns, channels
        array = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
    return torch.from_numpy(np.ascontiguousarray(array))


def class_names(dataset: Any) -> tuple[str, ...] | None:
    """The names that torchvision's sets carry, if this one does."""
    found = getattr(dataset, "classes", None)
    return tuple(map(str, found)) if isinstance(found, (list, tuple)) and found else None
