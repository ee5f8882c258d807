"""`Feed`: from row numbers to inputs on the device (scaling, views, augmentation), prefetching of
rows that stay on disk, and features of a frozen backbone as inputs.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.data.feature_cache import CachePlace, compute_or_read
from engram.data.image_copies import CopyTables
from engram.data.skeletons.augmentation import (
    SKELETON_AUGMENTATIONS,
    augment_skeletons,
    check_skeletons,
)
from engram.distributed import Ranks
from engram.errors import bad, unknown
from engram.models.classifier import Encoder
from engram.streams.input_views import View, moves_pixels

AUGMENTATIONS = ("flip", "crop", "resized_crop", *SKELETON_AUGMENTATIONS)
CROP_PADDING = 4
VIEWED_BYTES = 1 << 30  # of evaluated inputs under a view that a feed keeps
# of a resized crop: share of the image, ratio of width to height
CROP_AREA, CROP_RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)


class Feed:
    """Inputs of rows, given in any leading shape, on one device.

    Row numbers of data that stays on disk may be on the host. All operations work row by row, so
    the input of a row does not depend on other rows. `axes` is the memory order of a sample's axes
    that the network prefers: it changes no value, but saves a network that permutes its input from
    copying every batch.
    """

    def __init__(
        self,
        data: Data,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        view: View | None = None,
        augment: tuple[str, ...] = (),
        axes: tuple[int, ...] | None = None,
    ) -> None:
        for name in augment:
            if name not in AUGMENTATIONS:
                raise unknown("augment", name, AUGMENTATIONS)
        of_skeletons = [name for name in augment if name in SKELETON_AUGMENTATIONS]
        self._skeletons = bool(of_skeletons)
        if self._skeletons and len(of_skeletons) < len(augment):
            expected = f"changes of images or of skeletons ({', '.join(SKELETON_AUGMENTATIONS)})"
            raise bad("augment", expected, list(augment))
        if self._skeletons:
            check_skeletons(data.sample_shape, str(data.x.dtype) not in ("torch.uint8", "uint8"))
        elif augment and len(data.sample_shape) != 3:
            raise bad("augment", "images of shape (channels, height, width)", data.sample_shape)
        self.data, self.view, self.augment = data, view, augment
        self.device, self.dtype = device, dtype
        if data.crop is not None and {"crop", "resized_crop"} <= set(augment):
            expected = f"crop or resized_crop, not both, for images cut to {data.crop}"
            raise bad("augment", expected, list(augment))
        axes = tuple(range(len(data.sample_shape))) if axes is None else axes
        self._stored = tuple(data.stored_shape[axis] for axis in axes)
        self._back = (0, *(1 + axes.index(axis) for axis in range(len(axes))))
        # rows as flat vectors: whatever the memory format of the images, a batch is dense
        self._x = self._flat(data.x, axes).to(device) if isinstance(data.x, Tensor) else None
        self._prefetch = None if isinstance(data.x, Tensor) else Prefetch(data, device)
        copies = data.copies
        self._copies = None if copies is None else CopyTables(copies, len(data.x), device)
        axes_of_sample = range(len(data.sample_shape))
        shape = tuple(-1 if axis == data.channel_axis else 1 for axis in axes_of_sample)
        self._mean = torch.tensor(data.mean, device=device, dtype=dtype).reshape(shape)
        self._scale = 1 / torch.tensor(data.std, device=device, dtype=dtype).reshape(shape)
        # by task, first row and number: the rows, and their inputs under the view
        self._viewed: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        self._viewed_bytes = 0

    @property
    def on_device(self) -> bool:
        """Whether all rows are on the device; otherwise the host fetches them from disk."""
        return self._x is not None

    def announce(
        self, rows: Iterable[Tensor], *, anew: bool = False, ranks: Ranks | None = None
    ) -> None:
        """Announce rows [...] of batches to come, which the host fetches while the device computes.

        Does nothing if all rows are on the device. `anew` cancels earlier announcements. With
        `ranks`, each fetches its share.
        """
        if self._prefetch is None:
            return
        if anew:
            self._prefetch.clear()
        sources = (self.data.sources(one.cpu()).reshape(-1) for one in rows)
        if ranks is not None:
            sources = (one[ranks.row_slice(len(one))] for one in sources)
        self._prefetch.announce(sources)

    def chunks(
        self, rows: Tensor, stages: Tensor, parts: Sequence[Any]
    ) -> Iterator[tuple[Any, Tensor]]:
        """Iterate over the inputs of rows, part by part; those on disk are fetched ahead.

        `parts` index rows and stages of any shape.
        """
        if self._prefetch is None:
            for part in parts:
                read = self if self.view is None else self._read_viewed
                yield part, read(rows[part], stages[part])
            return
        rows = rows.cpu()
        for number, part in enumerate(parts):
            new = (
                parts[: PREFETCH_BATCHES + 1]
                if number == 0
                else parts[number + PREFETCH_BATCHES : number + PREFETCH_BATCHES + 1]
            )
            self.announce([rows[one] for one in new])
            yield part, self(rows[part], stages[part].to(self.device))

    @staticmethod
    def _flat(x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return x.permute(0, *(1 + axis for axis in axes)).flatten(1)

    def __call__(
        self, rows: Tensor, stages: Tensor | None = None, ranks: Ranks | None = None
    ) -> Tensor:
        """Return inputs [..., *sample] of rows [...]; `stages` are needed if the stream has a view.

        If all `ranks` ask for the same rows, each fetches a share of those that stay on disk.
        """
        rows = rows if self._x is None else rows.to(self.device)
        x = self._read_images(rows.reshape(-1), ranks)
        if self.data.crop is not None:
            x = center_crop(x, self.data.crop)
        x = self._apply_view(x, stages)
        return x.reshape(*rows.shape, *x.shape[1:])

    def _read_viewed(self, rows: Tensor, stages: Tensor) -> Tensor:
        """Return inputs of evaluated rows under the view, which are made once per task.

        They are kept as long as `VIEWED_BYTES` hold them all, as bytes where images are stored so
        and the view only moves pixels.
        """
        if rows.ndim != 1 or not len(rows) or not bool((stages == stages[0]).all()):
            return self(rows, stages)
        place = int(stages[0]), int(rows[0]), len(rows)
        known = self._viewed.get(place)
        if known is not None and torch.equal(known[0], rows):
            return self._scale_images(known[1]) if self._moves_pixels else known[1]
        made = self._view_images(rows, stages) if self._moves_pixels else self(rows, stages)
        size = made.numel() * made.element_size()
        if known is None and self._viewed_bytes + size <= VIEWED_BYTES:
            self._viewed[place] = rows.clone(), made
            self._viewed_bytes += size
        return self._scale_images(made) if self._moves_pixels else made

    def _view_images(self, rows: Tensor, stages: Tensor) -> Tensor:
        """Return stored images under a view that only moves pixels, before they are normalised."""
        raw = self._stored_images(rows.to(self.device))
        if self.data.crop is not None:
            raw = center_crop(raw, self.data.crop)
        return self._apply_view(raw, stages)

    def fetch_augmented(
        self, rows: Tensor, stages: Tensor | None, key: Tensor, ranks: Ranks | None = None
    ) -> Tensor:
        """Like a call, with the random changes of a training step; `key` [...] per run."""
        if not self.augment:
            return self(rows, stages, ranks)
        size = rows.shape[-1]
        if self._skeletons:
            x = self._read_images(rows.reshape(-1), ranks)
            x = self._apply_view(augment_skeletons(x, key, size, self.augment), stages)
            return x.reshape(*rows.shape, *x.shape[1:])
        if self.data.crop is None:
            x = self(rows, stages, ranks)
            flat = self._crop_to_same_size(
                x.reshape(-1, *x.shape[rows.ndim :]), key, size
            )  # [R * B, C, H, W]
        else:
            flat = self._crop_to_size(
                self._read_images(rows.reshape(-1), ranks), self.data.crop, key, size
            )
            flat = self._apply_view(flat, stages)
        if "flip" in self.augment:
            turn = keys.dropout_mask(keys.fold(key, "flip"), 0.5, size).reshape(-1, 1, 1, 1)
            flat = torch.where(turn, flat.flip(-1), flat)
        return flat.reshape(*rows.shape, *flat.shape[1:])

    def _read_images(self, flat: Tensor, ranks: Ranks | None = None) -> Tensor:
        """Return normalised inputs of rows [n] in their stored size."""
        if self._x is not None:
            raw = self._stored_images(flat)
        else:
            assert self._prefetch is not None
            source = self.data.sources(flat.cpu())
            where = slice(None) if ranks is None else ranks.row_slice(len(source))
            raw = self._prefetch(source[where])
            raw = raw if ranks is None else ranks.gather_rows(raw, where, len(source))
        if self._copies is not None:
            raw = self._copies.apply(raw, flat.to(self.device))
        return self._scale_images(raw)

    def _stored_images(self, flat: Tensor) -> Tensor:
        """Return the images of rows [n] as they are stored, before copies are changed."""
        assert self._x is not None
        source = flat if self._copies is None else self._copies.source[flat]
        raw = self._x.index_select(0, source).reshape(len(flat), *self._stored)
        return raw.permute(self._back)

    def _scale_images(self, raw: Tensor) -> Tensor:
        """Convert stored images to the precision of the feed, and normalise them."""
        if raw.dtype != torch.uint8:
            x = raw.to(self.dtype)
        elif raw.is_cuda and self.dtype == torch.float32:
            x = raw * (1 / 255)  # one kernel instead of two; slower on the CPU
        else:
            x = raw.to(self.dtype).mul_(1 / 255)
        return (x - self._mean) * self._scale if self.data.mean else x

    def _apply_view(self, x: Tensor, stages: Tensor | None) -> Tensor:
        if self.view is None:
            return x
        if stages is None:
            raise bad("stages", "the task of each row, because the stream has a view", None)
        return self.view(x, stages.reshape(-1).to(x.device))

    @cached_property
    def _moves_pixels(self) -> bool:
        """Whether the view only moves pixels, so that it may act before images are normalised."""
        data = self.data
        alike = not data.mean or (len(data.sample_shape) == 3 and data.channel_axis == 0)
        return alike and data.copies is None and moves_pixels(self.view)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_viewed": {}, "_viewed_bytes": 0}

    def _crop_to_same_size(self, flat: Tensor, key: Tensor, size: int) -> Tensor:
        """Apply random crops of the size of the images: padded and shifted, or stretched."""
        if "crop" in self.augment:
            draw = keys.randint(keys.fold(key, "crop"), 2 * CROP_PADDING + 1, size, 2)
            black = -self._mean * self._scale if self.data.mean else None
            flat = _shift_images(flat, draw.reshape(-1, 2) - CROP_PADDING, black)
        if "resized_crop" in self.augment:
            draw = keys.uniform(keys.fold(key, "resized crop"), size, 4)
            flat = resized_crop(flat, draw.reshape(-1, 4).to(flat.dtype))
        return flat

    def _crop_to_size(self, flat: Tensor, crop: tuple[int, int], key: Tensor, size: int) -> Tensor:
        """Apply random crops of the size stated by the data."""
        if "resized_crop" in self.augment:
            draw = keys.uniform(keys.fold(key, "resized crop"), size, 4)
            return resized_crop(flat, draw.reshape(-1, 4).to(flat.dtype), crop)
        if "crop" not in self.augment:
            return center_crop(flat, crop)
        spare = (flat.shape[-2] - crop[0], flat.shape[-1] - crop[1])
        top, left = (
            keys.randint(keys.fold(key, "crop", axis), spare[axis] + 1, size).reshape(-1, 1)
            for axis in range(2)
        )
        return _cut_windows(flat, top, left, crop)


def center_crop(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut out the centre of images [B, C, H, W], rounded towards the top left.

    Examples
    --------
    >>> center_crop(torch.arange(5.0).expand(1, 1, 3, 5), (1, 2))[0, 0].tolist()
    [[1.0, 2.0]]
    """
    top, left = ((whole - part) // 2 for whole, part in zip(x.shape[-2:], size, strict=True))
    return x[..., top : top + size[0], left : left + size[1]]


def _shift_images(x: Tensor, by: Tensor, black: Tensor | None = None) -> Tensor:
    """Shift each image [B, C, H, W] by its (rows, columns), filling with `black`, 0 by default."""
    pad = CROP_PADDING
    height, width = x.shape[-2:]
    if black is None:
        wide = F.pad(x, (pad, pad, pad, pad))
    else:
        shape = (*x.shape[:2], height + 2 * pad, width + 2 * pad)
        wide = black.to(x.dtype).expand(shape).clone()
        wide[..., pad:-pad, pad:-pad] = x
    return _cut_windows(wide, pad + by[:, :1], pad + by[:, 1:], (height, width))


def _cut_windows(x: Tensor, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a window of the given size out of each image [B, C, H, W], at its own position [B, 1]."""
    ys = torch.arange(size[0], device=x.device) + top  # [B, h]
    xs = torch.arange(size[1], device=x.device) + left  # [B, w]
    item = torch.arange(len(x), device=x.device)[:, None, None]
    found = x.movedim(1, -1)[item, ys[:, :, None], xs[:, None, :]]  # [B, h, w, C]
    return found.movedim(-1, 1)


def resized_crop(
    x: Tensor, draw: Tensor, size: tuple[int, int] | None = None, least: float = CROP_AREA[0]
) -> Tensor:
    """Cut random parts out of images [B, C, H, W] and resize them; `draw` [B, 4] is in [0, 1).

    The area is `least` to 1 times that of the image, the aspect ratio 3:4 to 4:3 (uniform on a log
    scale), clipped to the image. The default `size` is that of the images.
    """
    area = least + (CROP_AREA[1] - least) * draw[:, 0]
    low, high = math.log(CROP_RATIOS[0]), math.log(CROP_RATIOS[1])
    ratio = (low + (high - low) * draw[:, 1]).exp() * (x.shape[-2] / x.shape[-1])
    wide, tall = ((area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1))
    across, down = ((2 * draw[:, 2] - 1) * (1 - wide), (2 * draw[:, 3] - 1) * (1 - tall))
    height, width = size or x.shape[2:]
    # not by F.affine_grid, which has no rule for mapping; to the same bits
    xs = wide[:, None] * _pixel_centres(width, x) + across[:, None]
    ys = tall[:, None] * _pixel_centres(height, x) + down[:, None]
    shape = len(x), height, width
    grid = torch.stack([xs[:, None, :].expand(shape), ys[:, :, None].expand(shape)], -1)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


IMAGE_CHANGES = ("resized_crop", "flip")


def change_images(
    x: Tensor, key: keys.Key, changes: Sequence[str], least: float = CROP_AREA[0]
) -> Tensor:
    """Change images [B, C, H, W] at random, each for itself; a crop keeps a share of the area.

    The share is at least `least`.

    Examples
    --------
    >>> x = torch.arange(8.0).reshape(4, 1, 1, 2)
    >>> change_images(x, 3, ("flip",)).flatten(1).tolist()
    [[1.0, 0.0], [3.0, 2.0], [5.0, 4.0], [7.0, 6.0]]
    """
    if "resized_crop" in changes:
        draw = keys.uniform(keys.fold(key, "resized crop"), len(x), 4)
        x = resized_crop(x, draw.to(x.dtype), least=least)
    if "flip" in changes:
        turn = keys.dropout_mask(keys.fold(key, "flip"), 0.5, len(x)).reshape(-1, 1, 1, 1)
        x = torch.where(turn, x.flip(-1), x)
    return x


def _pixel_centres(count: int, like: Tensor) -> Tensor:
    """Return the positions of pixels between the edges -1 and 1 of an image."""
    return torch.linspace(-1, 1, count, dtype=like.dtype, device=like.device) * (count - 1) / count


# -- prefetching of rows that stay on disk ---------------------------------------------------------

PREFETCH_BATCHES = 2  # batches fetched ahead of the one being computed


class Prefetch:
    """Stored inputs of rows of a data set; a thread fetches announced rows ahead.

    Announcing changes no value: other rows are fetched when they are requested.

    Examples
    --------
    >>> data = Data.from_arrays(torch.arange(10.0).reshape(5, 2), [0, 1, 0, 1, 0])
    >>> prefetch = Prefetch(data, torch.device("cpu"))
    >>> prefetch.announce([torch.tensor([1]), torch.tensor([4, 0])])
    >>> prefetch(torch.tensor([4, 0])).tolist(), len(prefetch)
    ([[8.0, 9.0], [0.0, 1.0]], 1)
    """

    def __init__(self, data: Data, device: torch.device) -> None:
        self.data, self.device = data, device
        self._waiting: deque[tuple[np.ndarray, Future[Tensor]]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._waiting)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return inputs [n, ...] of rows [n], on the device."""
        wanted = rows.cpu().numpy()
        for place, (known, found) in enumerate(self._waiting):
            if np.array_equal(known, wanted):
                del self._waiting[place]
                return found.result().to(self.device, non_blocking=True)
        return self._fetch(wanted).to(self.device, non_blocking=True)

    def announce(self, rows: Iterable[Tensor]) -> None:
        """Announce rows that will be requested, batch by batch."""
        if self._thread is None or self._process != os.getpid():  # no thread survives a fork
            self._thread, self._process = ThreadPoolExecutor(1, "engram-prefetch"), os.getpid()
            self._waiting.clear()
        for some in rows:
            wanted = some.reshape(-1).cpu().numpy()
            self._waiting.append((wanted, self._thread.submit(self._fetch, wanted)))

    def clear(self) -> None:
        """Cancel all announcements."""
        while self._waiting:
            self._waiting.popleft()[1].cancel()

    def _fetch(self, rows: np.ndarray) -> Tensor:
        found = self.data.stored(torch.from_numpy(rows))
        return found.pin_memory() if self.device.type == "cuda" else found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_waiting": deque(), "_thread": None, "_process": -1}


# -- features of a frozen backbone as inputs -------------------------------------------------------

TEXTS_AT_ONCE = 64  # texts encoded per pass, of similar length


class FeatureFeed(Feed):
    """A feed of features instead of inputs: training, evaluation and memories read one table.

    `given` is the original data; `data` has the same rows, labels and split, with features as
    inputs. `precision` is the name of the precision in which they are computed.
    """

    def __init__(self, raw: Feed, encoder: Encoder, precision: str = "float32") -> None:
        if raw.view is not None:
            expected = "false where inputs differ from task to task (rotated, permuted, ...)"
            raise bad("model.freeze", expected, True)
        if raw.augment:
            expected = "no augmentation of images, whose features are computed once"
            raise bad("augment", expected, list(raw.augment))
        self.given, self.encoder, self.precision = raw.data, encoder, precision
        features = encode_data(raw, encoder, precision)
        super().__init__(features, device=raw.device, dtype=raw.dtype)

    def like(self, raw: Feed) -> FeatureFeed:
        """Return the feed of the features of other data."""
        return FeatureFeed(raw, self.encoder, self.precision)


def order_by_length(data: Data) -> Tensor:
    """Row numbers; those of texts by their length, so that a pass has little padding."""
    if data.tokenizer is None:
        return torch.arange(len(data))
    return (torch.as_tensor(data.x) != 0).sum(1).argsort(stable=True)


def encode_data(raw: Feed, encoder: Encoder, precision: str = "float32") -> Data:
    """Return the data of a feed with features as inputs, from the cache where they are in it."""
    data = raw.data
    place = CachePlace.find(encoder.cache) if encoder.known else None
    if place is None:
        features = encode_rows(raw, encoder)
    else:
        key = repr((data.fingerprint(), encoder.known, encoder.digest, precision))
        about = {"data": data.name, "network": encoder.known, "precision": precision}
        features = compute_or_read(place, key, lambda: encode_rows(raw, encoder), about)
    return replace(
        data, x=features, mean=(), std=(), crop=None, copies=None, standardize=False, fill=False,
        columns=(), tokenizer=None, texts=(),
    )  # fmt: skip


def encode_rows(raw: Feed, encoder: Encoder) -> Tensor:
    """Compute the features [N, F] of all rows of a feed, on the host."""
    rows = order_by_length(raw.data)
    stages = torch.zeros_like(rows)
    found = torch.empty(len(rows), encoder.width, dtype=encoder.kept_as)
    if not len(rows):
        return found
    size = encoder.rows_at_once(raw(rows[:1].to(raw.device), stages[:1].to(raw.device)))
    size = size if raw.data.tokenizer is None else min(size, TEXTS_AT_ONCE)
    parts = [slice(start, start + size) for start in range(0, len(rows), size)]
    for part, x in raw.chunks(rows, stages, parts):
        found[rows[part]] = encoder(x).to(encoder.kept_as).cpu()
    return found
