"""What a process costs before it trains, as ratios to importing torch.

    python -m benchmarks.speed.starts [--repeats 5] [--out FILE.json]

CPU time of fresh processes, interleaved: importing torch, `engram --help`, `engram list`, and one
tiny run of EWC and a group in lockstep, each less the same run of Finetune. `modules` counts what a
first run imports on top of a Finetune run.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

RUN = """
import sys, engram
blobs = engram.load("blobs")
engram.run(blobs, method="Finetune", device="cpu")
before = len(sys.modules)
{more}
print(len(sys.modules) - before)
"""
COMMAND = """
import sys
from engram.cli import main
sys.argv = ["engram", "{word}"]
main()
"""
CASES = {
    "import torch": "import torch; print(0)",
    "engram --help": COMMAND.format(word="--help"),
    "engram list": COMMAND.format(word="list"),
    "Finetune": RUN.format(more=""),
    "EWC": RUN.format(more="engram.run(blobs, method='EWC', device='cpu')"),
    "lockstep": RUN.format(
        more="engram.run(blobs, method='Finetune', seeds=4, together=True, device='cpu')"
    ),
}


def cpu_seconds(code: str) -> tuple[float, str]:
    """CPU time of a fresh process, and its last line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    modules: dict[str, int] = {}
    for repeat in range(given.repeats + 1):
        for name, code in CASES.items():
            spent, last = cpu_seconds(code)
            if repeat:  # the first round fills the cache of files
                seconds[name].append(spent)
            if name in ("EWC", "lockstep"):
                modules[name] = int(last)
    rows = []
    for name, found in seconds.items():
        less = seconds["Finetune"] if name in modules else [0.0] * len(found)
        pairs = zip(found, less, seconds["import torch"], strict=True)
        ratio = statistics.median((a - b) / unit for a, b, unit in pairs)
        rows.append({"what": name, "ratio": round(ratio, 3), "seconds": round(min(found), 3),
                     **({"modules": modules[name]} if name in modules else {})})  # fmt: skip
        print(f"{name:14s} {min(found):6.2f} s  x{ratio:.2f}  {modules.get(name, '')}", flush=True)
    if given.out:
        given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
