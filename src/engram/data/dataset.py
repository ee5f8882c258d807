"""`Data`: inputs, labels and the official split of one data set, its constructors, and how
notebooks show it.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.data.attributes import draw_within, join_train_and_test, number_attributes
from engram.data.conversion import (
    Inputs,
    check_crop,
    refuse_repeated_labels,
    to_class_ids,
    to_inputs,
)
from engram.data.fingerprint import data_fingerprint
from engram.data.image_copies import CopyTables, ImageCopies, check_copies
from engram.data.label_checks import check_one_type, notes_on_names, refuse_unlabelled
from engram.data.texts.tokenization import Tokenizer, check_texts, make_tokenizer
from engram.errors import bad, check_float, check_int, plural, unknown
from engram.html_repr import escape, html_table, join_blocks

if TYPE_CHECKING:
    from engram.data.tables.table_schema import TableSchema

_NO_ROWS = torch.empty(0, dtype=torch.long)


class DataSource(NamedTuple):
    """Where a data set can be had again: what `engram.load` was given."""

    name: str  # a name, or an absolute path
    options: Mapping[str, Any]
    root: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Data:
    """Inputs, labels and the official split of one data set.

    Parameters
    ----------
    x
        [N, ...] inputs. uint8 images stay uint8 (channels first) and are scaled by 1/255 on the
        device. A ``numpy.memmap`` and `LazyRows` (files decoded as needed) are fetched row by row,
        so they may exceed memory.
    y
        [N, L] class ids from 0, -1 pads rows with fewer labels than the widest one.
    train, test
        Row numbers of the official split. ``valid`` where the source has one.
    classes
        Name of each class id.
    attributes
        Additional facts about each row ([N] integers): subject, view, domain, coarse label.
    attribute_names
        Name of each value of an attribute, where the source has them (domains, superclasses).
    mean, std
        Per-channel normalisation applied after scaling, empty for none.
    notes
        What readers of results should know: rows missing or repaired, parts left out.
    copies
        Rows behind those of `x`: other rows' images, changed as they are read. They are in no part
        of the split; tasks have them, see `engram.balance`.
    crop
        (height, width) of the central crop that networks see of every image; random crops in
        training (`augment`) are taken from the whole image. None: networks see all of it.
    standardize, fill
        Streams subtract the mean and divide by the standard deviation of each feature, or replace
        nan by the mean. Both are computed on the training rows of the first task, since later
        tasks are not known yet.
    columns, schema
        Name of each feature, and how the columns of a table became features, where the source has
        them.
    tokenizer, texts
        Of texts (`from_text`): what made the token ids in `x` (int32, 0 for padding), and the text
        of each row, to be shown.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.random.rand(6, 4), np.array([0, 0, 1, 1, 2, 2])
    >>> data = Data.from_arrays(x, y, test=(x, y))
    >>> len(data), data.n_classes, len(data.train), data.sample_shape
    (12, 3, 6, (4,))
    """

    x: Inputs
    y: Tensor
    train: Tensor
    test: Tensor
    valid: Tensor = field(default_factory=lambda: _NO_ROWS)
    classes: tuple[str, ...] = ()
    name: str = "data"
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    attribute_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    copies: ImageCopies | None = None
    crop: tuple[int, int] | None = None
    standardize: bool = False
    fill: bool = False
    columns: tuple[str, ...] = ()
    schema: TableSchema | None = None
    tokenizer: Tokenizer | None = None
    texts: Sequence[str] = ()
    # Set by `engram.load`; no argument, so that a changed copy (`replace`) does not claim it.
    source: DataSource | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.x) == 0:
            raise bad("x", "at least one row", "none")
        if self.copies is not None:
            check_copies(self.copies, len(self.x), self.stored_shape)
        if self.crop is not None:
            check_crop(self.crop, self.stored_shape)
        if self.y.ndim != 2 or len(self.y) != len(self):
            raise bad("y", f"labels of shape [{len(self)}, L]", tuple(self.y.shape))
        if self.y.shape[1] == 0:
            raise bad("y", "at least one label for each row", "none")
        refuse_repeated_labels(self.y)
        highest = int(self.y.max())
        if highest >= len(self.classes):
            raise bad("classes", f"at least {highest + 1} names", len(self.classes))
        for part in ("train", "test", "valid"):
            rows = getattr(self, part)
            if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self.x):
                raise bad(part, f"row numbers from 0 to {len(self.x) - 1}", rows.tolist()[:5])
        refuse_unlabelled(self.y, {"train": self.train, "test": self.test, "valid": self.valid})
        for key, values in self.attributes.items():
            if not isinstance(values, Tensor) or values.is_floating_point():
                wanted = "a tensor of whole numbers (Data.from_arrays takes lists and names)"
                raise bad(f"attributes[{key!r}]", wanted, getattr(values, "dtype", type(values)))
            if tuple(values.shape) != (len(self),):
                raise bad(f"attributes[{key!r}]", f"shape ({len(self)},)", tuple(values.shape))
        if len(self.mean) != len(self.std):
            raise bad("std", f"{len(self.mean)} numbers, as many as in mean", self.std)
        for name in ("standardize", "fill"):
            if not isinstance(getattr(self, name), bool):
                raise bad(name, "True or False", getattr(self, name))
        if self.schema is not None and self.schema.columns != self.columns:
            raise bad("schema", f"one of the columns {self.columns}", self.schema.columns)
        if self.tokenizer is not None:
            self._check_tokens()

    def _check_tokens(self) -> None:
        """Refuse what makes no sense of token ids."""
        if not isinstance(self.x, Tensor) or self.x.dtype != torch.int32 or self.x.ndim != 2:
            raise bad("x", "token ids [N, L] of int32 beside a tokenizer", type(self.x).__name__)
        if self.texts and len(self.texts) != len(self.x):
            raise bad("texts", f"{len(self.x)} texts, one per row", len(self.texts))
        for name in ("mean", "standardize", "fill", "crop", "copies"):
            if getattr(self, name):
                raise bad(name, "nothing of the kind: rows are token ids", getattr(self, name))

    def __len__(self) -> int:
        return len(self.x) + (0 if self.copies is None else len(self.copies))

    def __repr__(self) -> str:
        return (
            f"Data({self.name!r}: {len(self.train)} train, {len(self.test)} test rows of "
            f"{self.sample_shape}, {plural(self.n_classes, 'class')})"
        )

    def _repr_html_(self) -> str:
        return data_html(self)

    @property
    def n_classes(self) -> int:
        """Number of classes, whether or not each has rows."""
        return len(self.classes)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one input, as networks see it."""
        shape = self.stored_shape
        return shape if self.crop is None else (shape[0], *self.crop)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one row of `x`."""
        return tuple(self.x.shape[1:])

    @property
    def channel_axis(self) -> int:
        """The axis of a sample that `mean` and `std` have a number for: the last one of series."""
        return 1 if self.standardize and len(self.stored_shape) == 2 else 0

    @property
    def sample_bytes(self) -> int:
        """Bytes of one stored sample, the unit of memory budgets."""
        return math.prod(self.stored_shape) * int(self.x.dtype.itemsize)

    @cached_property
    def is_multilabel(self) -> bool:
        """Whether some row has more than one label."""
        return self.y.shape[1] > 1 and bool(((self.y >= 0).sum(1) > 1).any())

    @property
    def labels(self) -> Tensor:
        """[N] the first label of each row."""
        return self.y[:, 0]

    def gather(self, rows: Tensor) -> Tensor:
        """Raw inputs of some rows as they are stored; copies are made."""
        if self.copies is None:
            return self.stored(rows)
        rows = rows.cpu()
        return self._copy_tables.apply(self.stored(self._copy_tables.source[rows]).cpu(), rows)

    @cached_property
    def _copy_tables(self) -> CopyTables:
        assert self.copies is not None
        return CopyTables(self.copies, len(self.x), "cpu")

    def stored(self, rows: Tensor) -> Tensor:
        """Raw inputs of some rows of `x`."""
        if isinstance(self.x, Tensor):
            return self.x[rows.to(self.x.device)]
        return torch.from_numpy(np.ascontiguousarray(self.x[rows.cpu().numpy()]))

    def sources(self, rows: Tensor) -> Tensor:
        """The row of `x` behind each row: its source for a copy, else the row itself."""
        if self.copies is None:
            return rows
        behind = self.copies.source.to(rows.device)[(rows - len(self.x)).clamp(min=0)]
        return torch.where(rows < len(self.x), rows, behind)

    def fingerprint(self) -> str:
        """Hash of everything a run reads: inputs, labels, split, classes, attributes, scaling.

        Two equal fingerprints mean the same data; name, path and notes do not matter. Worked out
        once, and again after a tensor was changed in place. What a stream fits to its first task
        is not in it. Inputs that are larger than memory are not read for it, where a file says
        what they are: see `LazyRows` and `SummedMap`.
        """
        if (raw := self.__dict__.get("_unfitted")) is not None:
            found: str = raw.fingerprint()
            return found
        parts = self.parts()
        state = tuple(one._version for one in parts if isinstance(one, Tensor))
        known: tuple[Any, str] | None = self.__dict__.get("_fingerprint")
        if known is None or known[0] != state:
            known = state, data_fingerprint(self.facts(), parts)
            object.__setattr__(self, "_fingerprint", known)
        return known[1]

    def parts(self) -> list[Inputs]:
        attributes = [self.attributes[key] for key in sorted(self.attributes)]
        made = [] if self.copies is None else [self.copies.source, self.copies.key]
        return [self.x, self.y, self.train, self.test, self.valid, *attributes, *made]

    def facts(self) -> tuple[Any, ...]:
        scaling: tuple[Any, ...] = (self.mean, self.std)
        if self.standardize or self.fill:  # what is fitted to a first task follows from the stream
            scaling = ("fitted", self.standardize, self.fill, () if self.standardize else scaling)
        facts: tuple[Any, ...] = (self.classes, sorted(self.attributes), *scaling)
        facts += () if self.copies is None else (self.copies.options,)
        facts += () if self.tokenizer is None else (self.tokenizer.facts(),)
        return facts if self.crop is None else (*facts, {"crop": self.crop})

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        *,
        test: tuple[Any, Any] | None = None,
        valid: tuple[Any, Any] | None = None,
        test_by: str | None = None,
        classes: Sequence[str] | None = None,
        name: str = "data",
        **options: Any,
    ) -> Data:
        """Data from arrays in memory; without `test`, every fifth row of each class is held out.

        With `test_by`, an attribute such as ``subject``, it is a fifth of its values with all their
        rows: nobody is in both parts.

        `y` holds one label per row (ids or names), a list of them per row (of any
        length; or ids [N, L], -1 pads), or an indicator matrix [N, classes]: booleans, or 0 and 1
        in three columns or more. 0 and 1 in two columns may be ids as well, and are refused.

        Further options are fields of Data: attributes (names or whole numbers of all rows, in the
        order x, valid, test), mean, std, notes, `standardize`.

        Examples
        --------
        >>> data = Data.from_arrays([[0.0], [1.0], [2.0], [3.0], [4.0]], ["a"] * 5)
        >>> data.classes, data.test.tolist()
        (('a',), [4])
        """
        known = [one.name for one in fields(cls) if one.init]
        for option in options:
            if option not in known:
                raise unknown("Data.from_arrays", option, known)
        fill = bool(options.get("fill", False))
        pairs = {"x": (x, y), "valid": valid, "test": test}
        parts = {key: pair for key, pair in pairs.items() if pair is not None}
        xs = {key: to_inputs(key, pair[0], gaps=fill) for key, pair in parts.items()}
        for key, one in xs.items():
            if len(one) != len(parts[key][1]):
                raise bad(f"y of {key}", f"{len(one)} labels, one per row", len(parts[key][1]))
            if one.shape[1:] != xs["x"].shape[1:] or one.dtype != xs["x"].dtype:
                wanted = f"rows of shape {tuple(xs['x'].shape[1:])} and {xs['x'].dtype}"
                raise bad(key, wanted, (tuple(one.shape[1:]), one.dtype))
        ids, names = to_class_ids([pair[1] for pair in parts.values()], classes)
        rows, start = {}, 0
        for key, one in xs.items():
            rows[key] = torch.arange(start, start + len(one))
            start += len(one)
        notes = (*options.pop("notes", ()), *notes_on_names(names))
        options = number_attributes(options, start)
        told = options.get("attributes")
        train, held = join_train_and_test(ids, rows["x"], rows.get("test"), told, test_by)
        joined = xs["x"] if len(xs) == 1 else torch.cat([torch.as_tensor(o) for o in xs.values()])
        return cls(
            x=joined, y=ids, train=train, test=held, valid=rows.get("valid", _NO_ROWS),
            classes=names, name=name, notes=notes, **options,
        )  # fmt: skip

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
            cls, Path(path), resize=resize, repair=repair, name=name,
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
        >>> pairs = torch.utils.data.TensorDataset(torch.rand(10, 3), torch.arange(10) % 2)
        >>> Data.from_torch(pairs)
        Data('TensorDataset': 8 train, 2 test rows of (3,), 2 classes)
        """
        extra: dict[str, Any] = {
            key: read_pairs(key, part) for key, part in (("test", test), ("valid", valid))
            if part is not None
        }  # fmt: skip
        x, y = read_pairs("dataset", dataset)
        return cls.from_arrays(
            x, y, classes=classes or class_names(dataset), name=name or type(dataset).__name__,
            **extra, **options,
        )  # fmt: skip

    def limit(self, rows: int) -> Data:
        """Return the data with at most so many rows of each part, for quick trials.

        Training, validation and test rows are drawn in turn from each class, always the same ones.

        Examples
        --------
        >>> data = Data.from_arrays([[float(i)] for i in range(400)], [0, 0, 0, 1] * 100)
        >>> small = data.limit(40)
        >>> small, small.labels[small.train].flatten().bincount().tolist()
        (Data('data': 40 train, 40 test rows of (1,), 2 classes), [20, 20])
        """
        check_int("limit", rows, 1)
        train, valid, test = (
            draw_evenly(self, one, rows) for one in (self.train, self.valid, self.test)
        )
        return replace(self, train=train, valid=valid, test=test)

    def split_within(
        self, by: str, *, share: float = 0.3, together: str | None = None, seed: int = 0
    ) -> Data:
        """Return the data with rows of each subject (camera, ...) in both parts.

        Training and test rows are divided anew: of each class of each value of `by`, that share is
        tested, one row at least, and where there is only one, it is trained. For models that are
        adapted to somebody, who is then tested.

        Parameters
        ----------
        by
            Name of an attribute.
        share
            Share of the rows to be tested.
        together
            An attribute whose values are not divided, such as ``clip``: its frames are almost
            alike.
        seed
            Seed of the draw.

        Examples
        --------
        >>> who = {"subject": ["Ada", "Bo"] * 20}
        >>> data = Data.from_arrays(
        ...     [[float(i)] for i in range(40)], [0] * 20 + [1] * 20, attributes=who
        ... )
        >>> made = data.split_within("subject", share=0.2)
        >>> made, made.attributes["subject"][made.test].bincount().tolist()
        (Data('data': 32 train, 8 test rows of (1,), 2 classes), [4, 4])
        """
        check_float("share", share, 0.0, 1.0, open_low=True)
        key = keys.fold(check_int("seed", seed), "split within")
        rows = torch.cat([self.train, self.test]).cpu().sort().values
        owner = self._attribute("by", by)[rows]
        unit = rows if together is None else self._attribute("together", together)[rows]
        held = draw_within(owner, self.labels[rows], unit, share, key)
        if not held.any() or held.all():
            expected = f"one that leaves rows of a value of {by!r} on both sides"
            raise bad("share", expected, share)
        return replace(self, train=rows[~held], test=rows[held])

    def _attribute(self, argument: str, name: str) -> Tensor:
        if name not in self.attributes:
            raise unknown(argument, name, self.attributes)
        return self.attributes[name].cpu()

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
        dates: str | Sequence[str] | Mapping[str, str] = (),
        attributes: str | Sequence[str] | Mapping[str, Any] = (),
        missing: str | float = "error",
        drop: str | Sequence[str] = (),
        separator: str | None = None,
        series: str | None = None,
        time: str | None = None,
        pad: str = "back",
        text: str | None = None,
        tokenizer: Any = "words",
        length: int | None = None,
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
        dates
            Columns of points in time, which become the days since the first one; or {name: unit},
            of seconds, minutes, hours, days and weeks.
        attributes
            Columns of names or whole numbers that are attributes of the rows, no features, such as
            the week for ``domain_incremental(data, by="week")``; or {name: values of all rows}.
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
        text, tokenizer, length
            Name of a column of texts, which is then the only feature; it becomes token ids, as in
            `from_text`. A column of names with more than 100 different values is taken so anyway
            where there is no other feature.
        options
            Further fields of Data, such as ``standardize=True``.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame(
        ...     {"size": [1.0, 2.0] * 5, "hue": ["red", "blue"] * 5, "kind": ["cat", "dog"] * 5}
        ... )
        >>> data = Data.from_frame(frame, label="kind")
        >>> data.columns, data.classes, data.x[0].tolist()
        (('size', 'hue=blue', 'hue=red'), ('cat', 'dog'), [1.0, 0.0, 1.0])
        """
        from engram.data.tables.data_frame import TableOptions, read_frame

        chosen = TableOptions(
            label=label, split=split, categories=categories, dates=dates, missing=missing,
            drop=drop, separator=separator, series=series, time=time, pad=pad, text=text,
            tokenizer=tokenizer, length=length,
            attributes=() if isinstance(attributes, Mapping) else attributes,
        )  # fmt: skip
        if isinstance(attributes, Mapping):
            options["attributes"] = attributes
        parts = {"train": frame, "valid": valid, "test": test}
        given = {part: one for part, one in parts.items() if one is not None}
        return read_frame(cls, given, chosen, name=name, options=options)

    @classmethod
    def from_text(
        cls,
        texts: Sequence[str],
        y: Any,
        *,
        test: tuple[Sequence[str], Any] | None = None,
        valid: tuple[Sequence[str], Any] | None = None,
        tokenizer: Any = "words",
        length: int | None = None,
        name: str = "texts",
        **options: Any,
    ) -> Data:
        """Data from texts, as rows of token ids; without `test`, every fifth row of each class.

        Parameters
        ----------
        tokenizer
            "words" (hashed; no package is needed), "minilm" for the model of that name, the path of
            a ``tokenizer.json``, a mapping with further options, or a `Tokenizer`.
        length
            Tokens of a row: longer texts are cut. By default those of the longest text, at most
            256.
        options
            Further options of `from_arrays`: classes, attributes, notes.

        Examples
        --------
        >>> data = Data.from_text(["the cat sat", "a dog ran off"] * 5, ["cat", "dog"] * 5)
        >>> data, data.x.dtype, data.texts[1]
        (Data('texts': 8 train, 2 test rows of (4,), 2 classes), torch.int32, 'a dog ran off')
        """
        reader = make_tokenizer(tokenizer)
        parts = {"texts": (texts, y), "valid": valid, "test": test}
        given = {part: pair for part, pair in parts.items() if pair is not None}
        told = {part: check_texts(part, pair[0]) for part, pair in given.items()}
        for part, one in told.items():
            if len(one) != len(given[part][1]):
                raise bad(f"y of {part}", f"{len(one)} labels, one per text", len(given[part][1]))
        joined = [text for one in told.values() for text in one]
        if not joined:
            raise bad("texts", "at least one text", "none")
        ids, start = reader.encode(joined, length), 0
        pairs: dict[str, Any] = {}
        for part, one in told.items():  # numbers below 2**24, exact in float32
            pairs[part] = ids[start : start + len(one)].float(), given[part][1]
            start += len(one)
        first, labels = pairs.pop("texts")
        made = cls.from_arrays(first, labels, name=name, **pairs, **options)
        empty = int((ids == 0).all(1).sum())
        notes = (f"{plural(empty, 'text')} without a token",) if empty else ()
        return replace(
            made, x=ids, tokenizer=reader, texts=tuple(joined), notes=(*made.notes, *notes)
        )

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
        >>> data = Data.from_series([[1.0], [2.0, 3.0]] * 5, ["a", "b"] * 5)
        >>> data.x[0].tolist(), data.attributes["length"][:2].tolist()
        ([[1.0], [0.0]], [1, 2])
        """
        from engram.data.tables.time_series import read_series

        parts = {"train": (series, y), "valid": valid, "test": test}
        given = {part: one for part, one in parts.items() if one is not None}
        return read_series(cls, given, pad=pad, length=length, name=name, options=options)


def draw_evenly(data: Data, rows: Tensor, count: int) -> Tensor:
    """Draw rows in turn from each class, by the first of their labels; always the same ones.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 0, 0, 1] * 10)
    >>> data.y[draw_evenly(data, data.train, 6)].flatten().bincount().tolist()
    [3, 3]
    """
    if len(rows) <= count:
        return rows
    drawn = rows[keys.permutation(keys.fold(0, "limit"), len(rows), len(rows)).to(rows.device)]
    labels = data.y[drawn.cpu()][:, 0]
    turn = torch.zeros(len(drawn), dtype=torch.long)
    for one in labels.unique().tolist():
        mine = labels == one
        turn[mine] = torch.arange(int(mine.sum()))
    return drawn[torch.argsort(turn, stable=True)[:count].to(drawn.device)].sort().values


# ------------------------------------------------------------------------------------------------
# Torch datasets, read once into arrays

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


# ------------------------------------------------------------------------------------------------
# Data as notebooks show it

MAX_CLASSES_SHOWN = 20  # lines of the table
MAX_PICTURES_SHOWN = 10


def data_html(data: Data) -> str:
    """What `Data` is, in HTML."""
    kinds = [kind for kind in ("train", "valid", "test") if len(getattr(data, kind))]
    counts = {kind: class_counts(data, getattr(data, kind)) for kind in kinds}
    shown = range(min(data.n_classes, MAX_CLASSES_SHOWN))
    rows = [[data.classes[c], *(int(counts[kind][c]) for kind in kinds)] for c in shown]
    more = data.n_classes - len(shown)
    if more:
        rest = [int(counts[kind][MAX_CLASSES_SHOWN:].sum()) for kind in kinds]
        rows.append([f"{more} more", *rest])
    notes = "".join(f"<p>{escape(note)}</p>" for note in data.notes)
    if data.texts:
        return join_blocks(f"<p>{escape(repr(data))}</p>", notes, example_texts(data),
                           html_table(["class", *kinds], rows))  # fmt: skip
    return join_blocks(f"<p>{escape(repr(data))}</p>", notes, example_pictures(data),
                 html_table(["class", *kinds], rows))  # fmt: skip


def class_counts(data: Data, rows: Tensor) -> Tensor:
    """[classes] rows that have each class among their labels."""
    labels = data.y.cpu()[rows.cpu()]
    return torch.bincount(labels[labels >= 0].flatten(), minlength=data.n_classes)


def first_of_each_class(data: Data, most: int = MAX_PICTURES_SHOWN) -> list[int]:
    """The first training row of each class, at most so many."""
    train = data.train.cpu()
    first = {int(c): int(r) for r, c in zip(train.flip(0), data.labels.cpu()[train].flip(0))}
    return [first[c] for c in sorted(first)[:most] if c >= 0]


def example_texts(data: Data) -> str:
    """The first training text of each class, as a table."""
    rows = [[data.texts[row], data.classes[int(data.labels[row])]]
            for row in first_of_each_class(data)]  # fmt: skip
    return html_table(["text", "class"], rows)


def example_pictures(data: Data) -> str:
    """The first training image of each class, side by side; empty where rows are no images."""
    from PIL import Image  # needed by nobody else who imports this

    shape = data.stored_shape
    if len(shape) != 3 or shape[0] not in (1, 3) or data.x.dtype not in (torch.uint8, "uint8"):
        return ""
    chosen = first_of_each_class(data)
    parts = []
    for row, pixels in zip(chosen, data.stored(torch.tensor(chosen)).cpu(), strict=True):
        image = Image.fromarray(pixels[0].numpy() if shape[0] == 1 else
                                pixels.permute(1, 2, 0).contiguous().numpy())  # fmt: skip
        image.thumbnail((96, 96))
        out = io.BytesIO()
        image.save(out, format="png")
        code = base64.b64encode(out.getvalue()).decode()
        name = escape(data.classes[int(data.labels[row])])
        parts.append(
            f'<figure style="display:inline-block;margin:2px;text-align:center">'
            f'<img src="data:image/png;base64,{code}" alt="{name}" '
            f'style="width:48px;image-rendering:pixelated"><figcaption>{name}</figcaption></figure>'
        )
    return f"<div>{''.join(parts)}</div>"
