"""What data larger than memory costs: index, decoding, memory; with a forecast for ImageNet.

    python -m benchmarks.speed.large_data [--files 200000] [--folder DIR] [--out FILE.json]

A tree of small files is generated (and kept, where a folder is named), indexed in the ways there
are, and trained on through a cache that is much smaller than the pictures. Pictures of the size of
ImageNet's are decoded as its loader does it. Seconds are CPU seconds of one core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.memory import MIB, now, peak

IMAGENET = 1_281_167 + 50_000
CLASSES, SIDE, PARTS = 200, 32, 50  # of the small files; pictures in them
CACHE = 32 * MIB


def small_files(folder: Path, count: int) -> None:
    """Class folders of small JPEG files; a number behind each picture makes every file its own."""
    from PIL import Image

    rng = np.random.default_rng(0)
    made = []
    for _ in range(PARTS):
        with tempfile.TemporaryFile() as stream:
            picture = rng.integers(0, 256, (4, 4, 3), np.uint8)
            Image.fromarray(picture).resize((SIDE, SIDE)).save(stream, "JPEG", quality=90)
            stream.seek(0)
            made.append(stream.read())
    for k in range(CLASSES):
        inside = folder / f"c{k:03}"
        inside.mkdir(parents=True)
        for i in range(count // CLASSES):
            own = (k * count + i).to_bytes(8, "little")
            (inside / f"{i:05}.JPEG").write_bytes(made[(k + i) % PARTS] + own)


def timed(work: Any) -> tuple[float, Any]:
    """CPU seconds of all threads: what one core would need that has nothing else to do."""
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def index(folder: Path, kept: Path) -> dict[str, float]:
    """Seconds to index a folder in each way, and what the index takes."""
    from engram.data import Data
    from engram.data.image_folder import IMAGE_SUFFIXES, Listing, list_class_folders

    listing = Listing(folder)
    listed, _ = timed(
        lambda: listing.add("train", folder, list_class_folders(folder), IMAGE_SUFFIXES)
    )
    headers, data = timed(lambda: Data.from_folder(folder, lazy=True, cache=0))
    sums, _ = timed(lambda: Data.from_folder(folder, lazy=True, cache=0, index=kept))
    again, known = timed(lambda: Data.from_folder(folder, lazy=True, cache=0, index=kept))
    identity, _ = timed(known.fingerprint)
    return {
        "listing": listed, "headers": headers, "headers_and_sums": sums, "from_index": again,
        "fingerprint": identity, "index_bytes": known.x.index.nbytes / len(data),
        "index_file_bytes": kept.stat().st_size / len(data),
    }  # fmt: skip


def train(folder: Path, kept: Path) -> dict[str, float]:
    """One epoch of four tasks over all files, evaluated after each."""
    import torch

    import engram
    from engram.data import Data

    torch.set_num_threads(1)
    before = now()
    data = Data.from_folder(folder, lazy=True, cache=CACHE, index=kept)
    stream = engram.class_incremental(data, classes_per_task=CLASSES // 4)
    model = {"name": "mlp", "hidden": [32]}
    seconds, _ = timed(
        lambda: engram.run(
            stream, method="Finetune", model=model, epochs=1, batch_size=256, device="cpu"
        )
    )
    return {
        "seconds": seconds, "rows": data.x.cache.reads, "rows_per_second":
        data.x.cache.reads / seconds, "hits": data.x.cache.hits / data.x.cache.reads,
        "cache_mib": CACHE / MIB, "pictures_mib": data.sample_bytes * len(data) / MIB,
        "before_mib": before, "peak_mib": peak(),
    }  # fmt: skip


def decode(folder: Path, count: int = 200) -> dict[str, float]:
    """Pictures per second of ImageNet's usual size, from files and from one mapped file."""
    from PIL import Image

    import engram

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, 24, 32, 3), np.uint8)
    for part, wnid in (("train", "n01440764"), ("val", "n01440764")):
        (folder / "imagenet" / part / wnid).mkdir(parents=True)
    for i in range(count):
        picture = Image.fromarray(coarse[i]).resize((500, 375), Image.Resampling.BICUBIC)
        grain = np.asarray(picture).astype(int) + rng.integers(-24, 25, (375, 500, 3))
        part = "val" if i == 0 else "train"
        file = folder / "imagenet" / part / "n01440764" / f"{i}.JPEG"
        Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(file, quality=85)
    size = np.mean([one.stat().st_size for one in (folder / "imagenet").rglob("*.JPEG")])
    found: dict[str, float] = {"file_bytes": float(size)}
    data = engram.load("imagenet", root=folder, lazy=True, cache="100MB")
    for name in ("per_second", "per_second_cached"):
        seconds, _ = timed(lambda: data.x[:])
        found[name] = count / seconds
    packed = engram.load("imagenet", root=folder, packed=folder / "all.npz")
    seconds, _ = timed(lambda: np.array(packed.x))
    found["per_second_mapped"] = count / seconds
    found["row_bytes"] = float(packed.sample_bytes)
    return found


def forecast(found: dict[str, Any]) -> dict[str, float]:
    """The same for the pictures of ImageNet, on one core where not said otherwise."""
    share = IMAGENET / found["files"]
    decode, kinds = found["decode"], found["index"]
    return {
        "pictures": IMAGENET, "listing_seconds": kinds["listing"] * share,
        "from_index_seconds": kinds["from_index"] * share,
        "index_mib": kinds["index_bytes"] * IMAGENET / MIB,
        "epoch_minutes_per_core": IMAGENET / decode["per_second"] / 60,
        "mapped_file_gb": decode["row_bytes"] * IMAGENET / 1e9,
        "cores_for_1000_per_second": 1000 / decode["per_second"],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        folder = given.folder or place / "small"
        found: dict[str, Any] = {"files": given.files, "processors": os.cpu_count()}
        if not folder.exists():
            found["generate"], _ = timed(lambda: small_files(folder, given.files))
        found["decode"] = decode(place)
        found["index"] = index(folder, place / "index.npz")
        with multiprocessing.get_context("spawn").Pool(1) as alone:  # for its peak of memory
            found["train"] = alone.apply(train, (folder, place / "index.npz"))
        found["imagenet"] = forecast(found)
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return found


if __name__ == "__main__":
    main()
