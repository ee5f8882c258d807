"""Write the numbers anew, or hold two versions of the code against each other to the last bit.

``--write numbers`` after a change of numbers that is meant, ``--write ids`` after one of ids
(then ``--write directories`` as well, because a directory goes on under its id), ``--write names``
after one of public names, signatures, commands or formats.
``--exact FILE`` before a change and ``--compare FILE`` after it, on the same machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.frozen.cases import NAMES, STEADY, numbers_of, write_directories
from tests.frozen.digests import differences, exact, robust
from tests.frozen.ids import ids
from tests.frozen.public_names import list_public_names

HERE = Path(__file__).parent
NUMBERS, IDS = HERE / "numbers.json", HERE / "ids.json"
PUBLIC = HERE / "public_names.txt"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """One line for each name."""
    lines = []
    for name, value in content.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def compare(kept: dict[str, dict[str, str]], found: dict[str, dict[str, str]]) -> int:
    """Print what differs; how many cases do."""
    wrong = 0
    for name in sorted({*kept, *found}):
        differ = differences(found.get(name, {}), kept.get(name, {}))
        wrong += bool(differ)
        if differ:
            print(f"{name}: {len(differ)} differ: {', '.join(differ[:6])}")
    print(f"{len(found)} cases, {wrong} differ")
    return wrong


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.frozen", description=__doc__)
    what = ("numbers", "ids", "directories", "names")
    parser.add_argument("--write", nargs="*", choices=what, help="all four if none is named")
    parser.add_argument("--exact", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if asked.write is not None:
        chosen = asked.write or what
        if "directories" in chosen:
            write_directories()
        if "names" in chosen:
            PUBLIC.write_text(list_public_names(), encoding="utf-8")
        if "ids" in chosen:
            write_json(IDS, ids())
        if "numbers" in chosen:
            write_json(NUMBERS, {name: robust(numbers_of(name)) for name in STEADY})
    if asked.exact or asked.compare:
        names = [name for name in NAMES if asked.only in name]
        found = {name: exact(numbers_of(name)) for name in names}
        if asked.exact:
            write_json(asked.exact, found)
        if asked.compare:
            kept = json.loads(asked.compare.read_text("utf-8"))
            sys.exit(compare({k: v for k, v in kept.items() if asked.only in k}, found) > 0)


if __name__ == "__main__":
    main()
