"""Methods of many families against hand-written PyTorch loops of the same variant, on split MNIST.

    python -m benchmarks.families HAT PackNet --root DIR [--save]

15,000 training rows, five tasks of two digits, the same MLP and settings on both sides, three seeds
each; no random number is shared. The data are in memory before the clock starts, on both sides, and
ours has looked at them once (checks and checksums, which belong to the data). Printed are
accuracies after the last task and forgetting, the interval of the difference of the means, and CPU
seconds on one thread, one run at a time, the two sides in turn: their ratio. ``--save`` writes the
lines into families.csv beside this file.
"""

from __future__ import annotations

import argparse
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import ttest_ind
from torch import nn

import engram
from engram.memory import Memory
from engram.methods import (
    CBRS,
    CLSER,
    ER,
    FOSTER,
    GPM,
    GSS,
    HAT,
    MER,
    MIR,
    OWM,
    PCR,
    PNN,
    SCR,
    WA,
    XDER,
    AdamNSCL,
    DERpp,
    DynamicER,
    Finetune,
    LaMAML,
    PackNet,
    PODNet,
    SupSup,
)
from engram.methods.method import Method
from tests.plain import growing, loop, masks, projections, rehearsal, reservoirs
from tests.plain.images import Images

FILE = Path(__file__).with_suffix(".csv")
ROWS, SEEDS, WIDTH = 15_000, 3, 256
SETTINGS = loop.Settings(epochs=2, batch_size=32, lr=1e-3)


class Pair(NamedTuple):
    """A method and its hand-written twin; `multi`: the task of a row is given."""

    ours: Method
    plain: type[loop.Finetune]
    options: dict[str, Any]
    multi: bool = False
    model: Any = None  # ours, where it is to be made otherwise than by `make_trunk`


RESERVOIR, ADMITTED = (Memory(total=500, policy=policy) for policy in ("reservoir", "admit"))
PAIRS = {
    "Finetune": Pair(Finetune(), loop.Finetune, {}),
    "ER": Pair(ER(memory=Memory(total=500)), rehearsal.ER, {"total": 500}),
    "GPM": Pair(GPM(), projections.GPM, {}, multi=True),
    "AdamNSCL": Pair(AdamNSCL(), projections.AdamNSCL, {}, multi=True),
    "OWM": Pair(OWM(), projections.OWM, {}),
    "HAT": Pair(HAT(), masks.HAT, {}, multi=True),
    "SupSup": Pair(SupSup(), masks.SupSup, {}, multi=True),
    "PackNet": Pair(PackNet(), masks.PackNet, {}, multi=True),
    # the hidden layers of a column are connected where ours knows them: in its own MLP
    "PNN": Pair(PNN(), growing.PNN, {}, True, {"name": "mlp", "hidden": (WIDTH, WIDTH)}),
    "LaMAML": Pair(LaMAML(memory=RESERVOIR), reservoirs.LaMAML, {"total": 500}, multi=True),
    "MER": Pair(MER(memory=RESERVOIR), reservoirs.MER, {"total": 500}),
    "GSS": Pair(GSS(memory=ADMITTED), reservoirs.GSS, {"total": 500}),
    "CBRS": Pair(CBRS(memory=ADMITTED), reservoirs.CBRS, {"total": 500}),
    "MIR": Pair(MIR(memory=RESERVOIR), reservoirs.MIR, {"total": 500}),
    "CLSER": Pair(
        CLSER(
            strength=2.0,
            plastic_rate=1.0,
            stable_rate=0.9,
            plastic_decay=0.99,
            stable_decay=0.99,
            memory=RESERVOIR,
        ),
        reservoirs.CLSER,
        {"total": 500},
    ),
    "PCR": Pair(PCR(memory=RESERVOIR), reservoirs.PCR, {"total": 500}),
    "DynamicER": Pair(DynamicER(), growing.DynamicER, {"total": 500}),
    "FOSTER": Pair(FOSTER(), growing.FOSTER, {"total": 500}),
    "PODNet": Pair(
        PODNet(memory=Memory(total=500, policy="herding")), growing.PODNet, {"total": 500}
    ),
    "WA": Pair(WA(), growing.WA, {"total": 500}),
    "SCR": Pair(SCR(views=("resized_crop",), memory=RESERVOIR), reservoirs.SCR, {"total": 500}),
    "DERpp": Pair(DERpp(memory=RESERVOIR), reservoirs.DERpp, {"total": 500}),
    "XDER": Pair(XDER(), rehearsal.XDER, {"total": 500}),
}


def make_trunk(shape: tuple[int, ...] = (1, 28, 28)) -> nn.Module:
    """The hidden layers on both sides."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
    )


def load_images(root: str) -> Images:
    """The first rows of each digit, evenly."""
    data = engram.load("mnist", root=root)
    x, y = data.x.float() / 255, data.labels

    def choose(rows: torch.Tensor, count: int) -> torch.Tensor:
        return torch.cat([rows[y[rows] == digit][: count // 10] for digit in range(10)])

    train, test = choose(data.train, ROWS), choose(data.test, 5000)
    return Images(x[train], y[train], x[test], y[test])


@cache
def load_data(images: Images) -> engram.Data:
    """The same images, as ours reads them; a run over them has been made."""
    data = engram.Data.from_arrays(
        images.x.numpy(), images.y.numpy(), test=(images.test_x.numpy(), images.test_y.numpy())
    )
    stream = engram.class_incremental(data, classes_per_task=loop.CLASSES_PER_TASK)
    engram.run(stream, model=make_trunk, device="cpu", iterations=1)
    return data


def by_engram(images: Images, pair: Pair, seed: int) -> np.ndarray:
    """[T, T] accuracies of one run of ours."""
    data = load_data(images)
    make = engram.task_incremental if pair.multi else engram.class_incremental
    result = engram.run(
        make(data, classes_per_task=loop.CLASSES_PER_TASK), method=pair.ours,
        model=pair.model or make_trunk, seeds=[seed], device="cpu", optimizer="adam",
        **vars(SETTINGS),
    )  # fmt: skip
    return np.asarray(result.matrix[0])


def by_hand(images: Images, pair: Pair, seed: int) -> np.ndarray:
    """[T, T] accuracies of one run of the plain loop."""

    class Twin(pair.plain):  # type: ignore[name-defined,misc]
        make_net = staticmethod(lambda: loop.Net(make_trunk(), WIDTH))

    found: np.ndarray = Twin(images, pair.multi, 100 + seed, SETTINGS, **pair.options).matrix()
    return found


def compare(name: str, images: Images) -> dict[str, Any]:
    """Run both sides in turn."""
    pair, found, seconds = PAIRS[name], {}, {"ours": [], "plain": []}
    load_data(images)
    for seed in range(SEEDS):
        for side, train in (("ours", by_engram), ("plain", by_hand)):
            start = time.process_time()
            found[side, seed] = train(images, pair, seed)
            seconds[side].append(time.process_time() - start)
    line: dict[str, Any] = {"method": name, "view": "task given" if pair.multi else "single head"}
    last = {}
    for side in seconds:
        matrices = np.stack([found[side, seed] for seed in range(SEEDS)])
        last[side] = matrices[:, -1].mean(-1)
        line[side], line[f"{side} std"] = last[side].mean(), last[side].std(ddof=1)
        line[f"{side} forgetting"] = engram.metrics.forgetting(matrices).mean()
    interval = ttest_ind(last["ours"], last["plain"], equal_var=False).confidence_interval()
    line["low"], line["high"] = interval.low, interval.high
    line["CPU ratio"] = min(seconds["ours"]) / min(seconds["plain"])
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument(
        "methods", nargs="*", default=list(PAIRS), choices=list(PAIRS), metavar="METHOD"
    )
    parser.add_argument("--root", required=True, help="directory of mnist.npz or of its files")
    parser.add_argument("--save", action="store_true", help=f"write the lines into {FILE.name}")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    images = load_images(asked.root)
    for name in asked.methods:
        line = pd.DataFrame([compare(name, images)]).round(4)
        print(line.to_string(index=False), flush=True)
        if asked.save:
            known = pd.read_csv(FILE) if FILE.exists() else line[:0]
            every = pd.concat([known[known["method"] != name], line])
            every.sort_values("method").to_csv(FILE, index=False)


if __name__ == "__main__":
    main()
