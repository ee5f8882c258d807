"""Many more examples than the tests have: ``python -m tests.fuzz [--each 1000] [READER ...]``."""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.guard import Broke, outcome
from tests.fuzz.readers import READERS, Reader, make_scenes, slug


def fuzz(name: str, reader: Reader, scenes: Path, each: int, start: int) -> dict[str, bytes]:
    """The shortest content for each kind of misbehaviour, by its words."""
    found: dict[str, bytes] = {}
    tally: collections.Counter[str] = collections.Counter()
    scene = scenes / reader.scene
    place, good = reader.place(scene), reader.content(scene)
    assert outcome(reader.read, scene, place, good) == "read", name

    for near in reader.near:

        @seed(start)
        @settings(max_examples=each, deadline=None, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(near(good))
        def one(content: bytes) -> None:
            try:
                tally[outcome(reader.read, scene, place, content)] += 1
            except (Exception, Broke) as problem:
                tally["wrong"] += 1
                words = "".join(traceback.format_exception(problem)[-3:])
                key = f"{type(problem).__name__}: {_innermost(problem)}"
                if key not in found:
                    print(f"--- {name}: {key}\n{words}", flush=True)
                if key not in found or len(content) < len(found[key]):
                    found[key] = content

        one()
    print(f"{name}: {dict(tally)}", flush=True)
    return found


def _innermost(problem: BaseException) -> str:
    """The line of the package that it came through last."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [one for one in frames if "/src/engram/" in one.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


def main() -> None:
    """Try every reader, keep what went wrong, fail where anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", default=list(READERS))
    parser.add_argument("--each", type=int, default=1000, help="examples of every kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for what went wrong")
    chosen = parser.parse_args()
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        make_scenes(Path(folder))
        for name in chosen.readers:
            found = fuzz(name, READERS[name], Path(folder), chosen.each, chosen.seed)
            count += len(found)
            for number, content in enumerate(found.values() if chosen.keep else ()):
                chosen.keep.mkdir(parents=True, exist_ok=True)
                (chosen.keep / f"{slug(name)}-{number}").write_bytes(content)
    print(f"{count} kinds of misbehaviour")
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
