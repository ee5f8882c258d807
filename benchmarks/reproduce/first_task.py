"""How far the first task of IIRC-CIFAR gets under a schedule: ER with a small network on a CPU.

    python -m benchmarks.reproduce.first_task --root DIR --order 2 --set schedule=short
    python -m benchmarks.reproduce.first_task --root DIR --order 2 --set schedule=short \\
        --set cifar.patience=40          # a quarter of it, 10, in place of 3
    python -m benchmarks.reproduce.first_task --root DIR --order 2          # the paper's schedule

The network is a ResNet-32 at half its width, on images of 16 x 16; all else is the preset's, and
`--set` changes it, as in `engram reproduce`. The whole network, on a GPU or for half an hour on a
CPU: `--set cifar.model=resnet32 --set cifar.options.resize=32 --set precision=bf16`. What it gave
is in ``iirc-first-task.csv``.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, replace

import engram
from engram.models.resnet import ResNet
from engram.reproduce.papers.iirc_paper import CIFAR, PAPER, SCORE, IIRCPreset, recipe
from engram.reproduce.papers.paper_base import assign_settings

WIDTHS, SIZE = (8, 16, 32), 16
HALF = "benchmarks.reproduce.first_task:half"


def half(sample_shape: tuple[int, ...]) -> ResNet:
    """ResNet-32 at half its width."""
    return ResNet(sample_shape, widths=WIDTHS, blocks=5, last_relu=False, he=True)


def small(preset: IIRCPreset) -> IIRCPreset:
    """The preset with the small network, on small images."""
    protocol = preset.protocol(CIFAR)
    options = {**protocol.options, "resize": SIZE}
    changed = replace(protocol, model=HALF, options=options)
    return replace(preset, cifar=changed, precision="float32")


def first_task(
    preset: IIRCPreset, order: int, root: str | None = None, device: str = "auto"
) -> tuple[float, int]:
    """(score of the test rows of the first task, epochs that it took)."""
    made = recipe(preset, CIFAR, "ER", configuration=order)
    stream = made.build_stream(root=root)[:1]
    result = engram.run(
        stream, method=made.method, model=made.model, seeds=list(made.seeds), device=device,
        **asdict(made.training),
    )  # fmt: skip
    steps = math.ceil(len(stream[0].train) / made.training.batch_size)
    return float(result.metric(SCORE)[0]), round(result.cost()["steps"].iloc[0] / steps)


def main(arguments: list[str] | None = None, preset: IIRCPreset | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--root", help="folder with the data sets; default: ENGRAM_DATA")
    parser.add_argument("--order", type=int, default=0, help="number of the class order")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args(arguments)
    chosen = assign_settings(small(PAPER) if preset is None else preset, asked.set)
    score, epochs = first_task(chosen, asked.order, asked.root, asked.device)
    print(f"order {asked.order}: {score:.3f} after {epochs} epochs")


if __name__ == "__main__":
    main()
