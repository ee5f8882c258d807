"""Is something slower than it was? Ratios of processor time, against those that are recorded.

    python -m benchmarks.speed [--entries NAME ...] [--record] [--avalanche PYTHON] [--out FILE]

Each entry (`benchmarks/speed/entries.py`) is a piece of Engram's work and the same work without
Engram, done in turn in one process on one thread. The ratio is that of the least processor times:
other processes can only add to a time, and what slows the whole machine slows both. A ratio beyond
its recorded one by more than its noise band is measured once more, and if it stays, it is named and
the exit code is 1. The band is twice the spread of several rounds when the ratio was recorded, and
5 % at least. `--record` renews ratios and bands, and adds a line for each entry to `history.csv`.

Work: MNIST in five tasks of two digits, MLP of two hidden layers of 256, Adam 1e-3, batch size 64,
one epoch per task, evaluation of the tasks learnt so far after every task. MNIST is found in
ENGRAM_DATA; without it the embedded digits are used, ten epochs, whose ratios are recorded
separately: the work is so short that the start of a run counts.

Avalanche beside it (it takes no part in what is recorded), in an environment of its own:

    python -m venv avalanche && avalanche/bin/pip install avalanche-lib
    python -m benchmarks.speed --avalanche avalanche/bin/python
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import csv
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import engram
from benchmarks.speed.beside_avalanche import Avalanche
from benchmarks.speed.entries import ENTRIES, Entry, Work, epochs, images, split_stream
from engram.errors import check_choice

RECORDED = Path(__file__).with_name("recorded.json")
HISTORY = "history.csv"  # beside what is recorded
COLUMNS = ("date", "version", "data", "entry", "ratio", "low", "high", "torch", "machine")
LEAST_BAND = 0.05  # of the ratio: what two versions with the same speed may differ by
ROUNDS = 3  # when a ratio is recorded
NOISY = 0.10  # a band in which real changes hide
REPEATS = 4

Clock = Callable[[Work], float]


def measure_cpu(work: Work) -> float:
    """Processor seconds of one repetition."""
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(
    sides: Mapping[str, Work], repeats: int, clock: Clock = measure_cpu
) -> dict[str, float]:
    """Least seconds of each side, done in turn; a first repetition warms up and does not count.

    Examples
    --------
    >>> seconds = iter([9.0, 9.0, 2.0, 1.0, 1.5, 1.2])
    >>> compare({"engram": list, "bare": list}, 2, lambda work: next(seconds))
    {'engram': 1.5, 'bare': 1.0}
    """
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, work in sides.items():
            seconds = clock(work)
            if repeat:
                spent[name].append(seconds)
    return {name: min(several) for name, several in spent.items()}


def find_band(ratios: Sequence[float]) -> float:
    """The noise band around a recorded ratio, as a share of it.

    Examples
    --------
    >>> find_band([1.0, 1.02, 1.01]), round(find_band([1.0, 1.1, 1.0]), 3)
    (0.05, 0.2)
    """
    spread = (max(ratios) - min(ratios)) / statistics.median(ratios)
    return max(LEAST_BAND, 2 * spread)


def judge(ratio: float, recorded: Mapping[str, float] | None) -> str:
    """Compare a ratio with the recorded one: new, slower, faster or as recorded.

    Examples
    --------
    >>> known = {"ratio": 1.0, "band": 0.05}
    >>> [judge(one, known) for one in (1.06, 1.04, 0.9)], judge(1.0, None)
    (['slower', 'as recorded', 'faster'], 'new')
    """
    if recorded is None:
        return "new"
    change = ratio / recorded["ratio"] - 1
    if abs(change) <= recorded["band"]:
        return "as recorded"
    return "slower" if change > 0 else "faster"


def measure(
    name: str, entry: Entry, repeats: int, recorded: Mapping[str, float] | None,
    avalanche: Avalanche | None, rounds: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Measure an entry: its ratio, the seconds, and the verdict."""
    ours, theirs = entry.pair()
    sides = {"engram": ours, "bare": theirs}
    if avalanche is not None and entry.avalanche:
        sides["avalanche"] = avalanche.prepare(entry.avalanche)

    def clock(work: Work) -> float:  # Avalanche tells its own processor time
        return float(work()) if work is sides.get("avalanche") else measure_cpu(work)  # type: ignore[arg-type]

    found = [compare(sides, repeats, clock) for _ in range(rounds)]
    ratios = [one["engram"] / one["bare"] for one in found]
    if rounds == 1 and judge(ratios[0], recorded) == "slower":  # once more, to be sure
        found.append(compare(sides, repeats, clock))
        ratios = [min(found[0]["engram"], found[1]["engram"])
                  / min(found[0]["bare"], found[1]["bare"])]  # fmt: skip
    ratio = statistics.median(ratios)
    row = {
        "entry": name, "ratio": round(ratio, 3), "verdict": judge(ratio, recorded),
        **{f"{side}_s": round(min(one[side] for one in found), 3) for side in sides},
    }  # fmt: skip
    if rounds > 1:
        row |= {"band": round(find_band(ratios), 3), "rounds": [round(one, 3) for one in ratios]}
    if "avalanche" in sides:
        row["avalanche_to_engram"] = round(row["avalanche_s"] / row["engram_s"], 2)
    return row


def add_history(path: Path, row: Mapping[str, Any], data: str) -> None:
    """Add a line for a recorded ratio, with the lowest and highest of its rounds."""
    facts = {
        "date": datetime.now(UTC).date().isoformat(), "version": engram.__version__, "data": data,
        "low": min(row["rounds"]), "high": max(row["rounds"]), "torch": torch.__version__,
        "machine": platform.machine(),
    }  # fmt: skip
    fresh = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow({**row, **facts})


def print_row(row: Mapping[str, Any], entry: Entry, recorded: Mapping[str, float] | None) -> None:
    words = [f"{row['entry']:12s} {row['ratio']:.3f}"]
    if recorded is not None:
        words.append(f"recorded {recorded['ratio']:.3f} ± {recorded['band']:.0%}")
    words.append(row["verdict"])
    if entry.most is not None:
        words.append(f"aim {entry.most:.2f}" + (" missed" if row["ratio"] > entry.most else ""))
    words.append(f"(engram {row['engram_s']:.2f} s, without {row['bare_s']:.2f} s)")
    if "avalanche_s" in row:
        words.append(f"avalanche {row['avalanche_s']:.2f} s, {row['avalanche_to_engram']:.2f} ours")
    print("  ".join(words), flush=True)


def main(words: Sequence[str] | None = None, entries: Mapping[str, Entry] = ENTRIES) -> int:
    """Measure, print and judge; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--entries", nargs="+", metavar="NAME", help=", ".join(entries))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--record", action="store_true", help="renew what is recorded")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="file of recorded ratios")
    parser.add_argument("--avalanche", metavar="PYTHON", help="interpreter that has Avalanche")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    names = given.entries or [name for name, entry in entries.items() if entry.usual]
    for name in names:
        check_choice("--entries", name, entries)
    whole = json.loads(given.recorded.read_text()) if given.recorded.exists() else {}
    known = whole.setdefault(images().name, {})
    rows = []
    with ExitStack() as stack:
        avalanche = None
        if given.avalanche:
            avalanche = stack.enter_context(Avalanche(given.avalanche, split_stream(), epochs()))
        for name in names:
            rounds = ROUNDS if given.record else 1
            before = known.get(name)
            row = measure(name, entries[name], given.repeats, before, avalanche, rounds)
            print_row(row, entries[name], before)
            rows.append(row)
            if given.record:
                known[name] = {"ratio": row["ratio"], "band": row["band"], "rounds": row["rounds"]}
                known["torch"], known["machine"] = torch.__version__, platform.machine()
                given.recorded.write_text(json.dumps(whole, indent=1) + "\n")
                add_history(given.recorded.with_name(HISTORY), row, images().name)
                if row["band"] > NOISY:
                    print(f"{name}: rounds differ too much; record again on a quieter machine")
    if given.out:
        facts = {"data": images().name, "torch": torch.__version__, "machine": platform.machine()}
        given.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    slower = [row["entry"] for row in rows if row["verdict"] == "slower"]
    if slower and not given.record:
        print(f"slower than recorded: {', '.join(slower)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
