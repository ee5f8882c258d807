"""Groups of runs spread over the nodes of a Ray cluster."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engram.ending import end, on_ending
from engram.errors import bad, choose
from engram.pools.base import Key, Work, contents_by_run, recipes_of
from engram.pools.cluster import Room, connected
from engram.pools.dispatch import FILLED, Dispatcher
from engram.pools.mailbox import Mailbox
from engram.pools.memory import Need
from engram.pools.planner import Group, groups_of, shared_out, unfinished
from engram.pools.remote import Job, Order, marker, measure_runs
from engram.recipes.changes import distinct
from engram.recipes.duration import seconds
from engram.recipes.model_file import KeptModel, load_model
from engram.recipes.recorder import Recorder
from engram.records import Result
from engram.records.arrange import RunKey
from engram.records.models import Kept
from engram.records.reading import loaded

MEASURED = 120.0  # seconds for all measurements; what is unknown by then stays so


def train(work: Work) -> Result:
    """See `engram.pools.base.Pool`; a cluster at ``work.address``, or on this machine."""
    seconds(work.checkpoint_every, "checkpoint_every")  # complains here, not in every worker
    choose("device", str(work.device).split(":")[0], ("auto", "cpu", "cuda"))
    if work.out is not None:
        return _train(work, Path(work.out).absolute())
    with tempfile.TemporaryDirectory(prefix="engram-") as folder:
        result = _train(work, Path(folder))
        return loaded(result, _models(result, work))


def _models(result: Result, work: Work) -> dict[RunKey, Kept]:
    """What runs have learnt, out of the files that they left."""
    found: dict[RunKey, Kept] = {}
    for plan in work.plans:
        key = RunKey(*plan.key)
        path = result.kept_model(key)
        if isinstance(path, Path):
            learnt, made = load_model(path)
            found[key] = KeptModel(found=learnt, run=plan.run, made=made)
    return found


def _train(work: Work, folder: Path) -> Result:
    """Into a directory, which is given back as a Result."""
    recorder = Recorder(
        distinct(work.plans), folder, device="cpu", callback=work.callback, again=work.again
    )
    late = work.deadline is not None and time.monotonic() >= work.deadline
    if recorder.open and not late and recorder.folder is not None:
        recorder.prepare()
        try:
            with connected(work.address, work.workers) as room, on_ending(end):
                _spread(work, recorder, room)
            recorder.close()
        finally:
            recorder.let_go()
        recorder.say_left()
    return recorder.result()


def _spread(work: Work, recorder: Recorder, room: Room) -> None:
    """Plan, measure, hand out; complains when all has been tried."""
    import ray

    assert recorder.folder is not None
    device = _device(str(work.device), room)
    contents = contents_by_run(work, recorder)
    with _marked(recorder.folder.path) as token:
        job = Job(
            token=token, out=None if work.out is None else str(recorder.folder.path), device=device,
            data=work.data, compile=work.compile, deterministic=work.deterministic,
            checkpoint_every=work.checkpoint_every, folder=os.getcwd(),
            path=tuple(os.path.abspath(one) for one in sys.path),
            environ={k: v for k, v in os.environ.items() if k.startswith("ENGRAM_")},
        )  # fmt: skip
        places = work.workers or (max(1, int(room.gpus)) if device == "cuda" else room.cpus)
        large = groups_of(recorder.plans, device=device, compile=work.compile)
        needs = Needs(job, contents, room)
        there = unfinished(large, recorder.open)
        needs.measure([one for one in there if one.lockstep or device == "cuda"])
        groups = unfinished(shared_out(large, places, needs.most), recorder.open)
        left = None if work.deadline is None else work.deadline - time.monotonic()
        mailbox = ray.remote(Mailbox).options(num_cpus=0, **_here()).remote(left)
        team = Dispatcher(
            groups, job, recorder, room, contents, needs.of, workers=work.workers,
            shared=work.out is not None, deadline=work.deadline,
        )  # fmt: skip
        team.work(mailbox)
        ray.kill(mailbox)
    team.retries.complain()


def _device(asked: str, room: Room) -> str:
    """Where groups train: the nodes decide, the driver's own may have no GPU."""
    if asked.startswith("cuda") and not room.gpus:
        raise bad("device", "cpu or auto, because no node of the cluster has a GPU", asked)
    if asked == "auto":
        return "cuda" if room.gpus else "cpu"
    return asked.split(":")[0]


def _here() -> dict[str, Any]:
    """On the driver's node: a mailbox that dies with another one would take all news with it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


@contextmanager
def _marked(folder: Path) -> Iterator[str]:
    """A token, and a file by which workers see whether a directory is the one that is meant."""
    token = secrets.token_hex(8)
    path = folder / marker(token)
    path.touch()
    try:
        yield token
    finally:
        path.unlink(missing_ok=True)


class Needs:
    """Measured memory of groups; those of one method, model and batch are measured once."""

    def __init__(self, job: Job, contents: dict[Key, dict[str, Any]], room: Room) -> None:
        self.job, self.contents, self.room = job, contents, room
        self._found: dict[Any, Need] = {}

    def measure(self, groups: Sequence[Group]) -> None:
        """Train a few steps of each kind on some node."""
        import ray

        gpus = {"num_gpus": 1} if self.job.device == "cuda" else {}
        task, asked = ray.remote(measure_runs), {}
        for group in groups:
            if _alike(group) not in asked:
                keys = tuple(plan.key for plan in group.plans[:2])
                order = Order(
                    attempt=0, tries=1, threads=1, shared=False, keys=keys,
                    contents=recipes_of(keys, self.contents),
                )  # fmt: skip
                asked[_alike(group)] = task.options(**gpus).remote(self.job, order)
        ray.wait([*asked.values()], num_returns=len(asked), timeout=MEASURED) if asked else None
        for kind, found in asked.items():
            try:
                self._found[kind] = ray.get(found, timeout=0)
            except ray.exceptions.RayError:  # whoever trains it says what is wrong with it
                ray.cancel(found)

    def of(self, group: Group) -> Need | None:
        """What a group needs, if that is known."""
        return self._found.get(_alike(group))

    def most(self, group: Group) -> int:
        """Runs that a worker has room for."""
        need = self.of(group)
        if need is None:
            return len(group)
        cuda = self.job.device == "cuda"
        return need.most(FILLED * need.room if cuda else self.room.memory_per_cpu)


def _alike(group: Group) -> Any:
    run = group.plans[0].run
    model = repr(run.model) if isinstance(run.model, (str, dict)) else id(run.model)
    return type(run.method), model, run.training.batch_size, id(run.stream.data), group.lockstep
