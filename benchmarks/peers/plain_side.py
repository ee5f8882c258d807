"""Loops of plain torch, to tell which choice of a library makes its numbers differ.

They hold the job's rows, weights and steps; only what their name says changes:

- `Finetune`, `ER`: cross-entropy over the classes seen so far; for ER, a memory shared by classes
  and as many memory rows in each step as rows of the task.
- `ER, all outputs`: cross-entropy over all outputs, also those of classes to come.
- `ER, by task`: the memory is shared by tasks.
- `ER, union`: each epoch goes once over the task and the whole memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.job import Job, Network, answer_all, job_folder

VARIANTS = ("ER, all outputs", "ER, by task", "ER, union")


def train(job: Job, method: str, seed: int) -> list[list[float]]:
    """Train and evaluate after every task."""
    ours, y, x = job.settings, job.labels(seed), job.x
    net = Network(job.layers(seed))
    optimizer = torch.optim.SGD(net.parameters(), lr=ours.lr)
    held: list[Tensor] = []
    matrix = []
    for task in range(job.tasks):
        rows, opened = job.rows(seed, task, "train"), (task + 1) * ours.classes_per_task
        columns = job.classes if method == "ER, all outputs" else opened
        memory = torch.cat(held) if held else rows[:0]
        for _ in range(ours.epochs):
            union = method == "ER, union"
            every = torch.cat([rows, memory]) if union else rows
            for batch in every[torch.randperm(len(every))].split(ours.batch_size):
                chosen = batch
                if len(memory) and not union:
                    drawn = torch.randint(len(memory), (ours.batch_size,))
                    chosen = torch.cat([batch, memory[drawn]])
                optimizer.zero_grad()
                F.cross_entropy(net(x[chosen])[:, :columns], y[chosen]).backward()
                optimizer.step()
        if method != "Finetune":
            mixed = rows[torch.randperm(len(rows))]
            labels = y[mixed]
            groups = [mixed[labels == c] for c in labels.unique()]
            held += [mixed] if method == "ER, by task" else groups
            held = [group[: ours.memory // len(held)] for group in held]
        with torch.no_grad():
            told = net(x)[:, :columns].argmax(1)
        tests = [job.rows(seed, j, "test") for j in range(task + 1)]
        matrix.append([float((told[one] == y[one]).float().mean()) for one in tests])
    return matrix


if __name__ == "__main__":
    answer_all("plain loop", train, job_folder())
