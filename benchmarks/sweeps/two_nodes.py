"""A Ray cluster of two nodes on loopback addresses, for the length of a conversation.

Prints its address; ``kill`` on its standard input kills the second node as a power cut would, the
end of the input ends the cluster, and so does an hour.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

HEAD, SECOND = "127.0.0.2", "127.0.0.3"
LIMIT = 3600


def main() -> None:
    signal.alarm(LIMIT)
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(head_node_args={**options, "node_ip_address": HEAD}, initialize_head=True)
    second = cluster.add_node(**options, node_ip_address=SECOND)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(second, allow_graceful=False)
            print("killed", flush=True)
    cluster.shutdown()


class TwoNodes:
    """The cluster as the one who talks to it sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.address = self._line()

    def kill_one(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        assert self._line() == "killed"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """A cluster that asks for a token, which this process has from now on."""
    # before Ray is imported anywhere, which looks once
    os.environ.setdefault("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    os.environ["RAY_AUTH_MODE"] = "token"
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "benchmarks.sweeps.two_nodes"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            text=True,
        )  # fmt: skip
        try:
            yield TwoNodes(process)
        finally:
            del os.environ["RAY_AUTH_TOKEN"], os.environ["RAY_AUTH_MODE"]
            process.communicate(timeout=60)


if __name__ == "__main__":
    main()
