"""A cluster of Ray: connecting to it, and what it has room for."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engram.errors import BadArgument, EngramError, bad

KNOCK = 5.0  # seconds for an address to answer
INSTALL = "pip install 'engram[ray]'"


@dataclass(frozen=True)
class Room:
    """What the nodes of a cluster have in all."""

    cpus: int
    gpus: float
    nodes: tuple[Mapping[str, float], ...]

    @property
    def memory_per_cpu(self) -> float:
        """Bytes of memory for every core, where there are fewest."""
        known = [one for one in self.nodes if one.get("CPU") and one.get("memory")]
        return min((one["memory"] / one["CPU"] for one in known), default=float("inf"))

    @property
    def largest_memory(self) -> float:
        """Bytes of memory of the largest node."""
        return max((one.get("memory", 0.0) for one in self.nodes), default=0.0)

    @property
    def cores_of_a_node(self) -> int:
        """Cores of the smallest node that has some: what a task may ask for anywhere."""
        return int(min((one["CPU"] for one in self.nodes if one.get("CPU", 0) >= 1), default=1))


def need_ray() -> Any:
    """The package, or where to get it."""
    # tasks without a GPU are told to train on the CPU: no need to hide devices, and to warn of it
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as problem:
        raise EngramError(f"pool ray: the package ray is not installed; {INSTALL}") from problem
    return ray


@contextmanager
def connected(address: str | None = None, cores: int = 0) -> Iterator[Room]:
    """A connection to the cluster at an address, or to one on this machine while this lasts.

    Without an address, that of the environment (RAY_ADDRESS); without that, a cluster is started
    here, with so many `cores` (0: all), and ended. A connection that was there before is used and
    left. Authentication is Ray's own: a cluster that is started here makes a token and asks for it;
    for one that is there, RAY_AUTH_MODE says whether a token is sent, and RAY_AUTH_TOKEN,
    RAY_AUTH_TOKEN_PATH or ``~/.ray/auth_token`` which.
    """
    ray = need_ray()
    named = address or os.environ.get("RAY_ADDRESS") or "local"
    if ray.is_initialized():
        _check_same(ray, address)
        yield _room(ray)
        return
    before = _handlers()
    _knock(named)
    _begin(ray, named, cores)
    _restore(before)  # Ray ends the process at SIGTERM; who called has reasons of its own
    try:
        yield _room(ray)
    finally:
        ray.shutdown()
        _restore(before)


def _begin(ray: Any, address: str, cores: int) -> None:
    here: dict[str, Any] = {}
    if address == "local":
        here = {"num_cpus": cores or None, "include_dashboard": False}
    else:  # it answers, so that it need not be waited for
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{KNOCK:.0f}")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **here)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as problem:
        chain = [problem, problem.__cause__, problem.__context__]
        if any("AuthToken" in str(one) or "authentication token" in str(one) for one in chain):
            raise EngramError(
                f"address: the cluster at {address} asks for a token, and none is sent from here, "
                "or another one; set RAY_AUTH_MODE=token, and give the token in RAY_AUTH_TOKEN, in "
                "the file that RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token"
            ) from problem
        words = str(problem).strip().splitlines()
        said = words[0] if words else type(problem).__name__
        raise EngramError(f"address: no connection to {address}: {said}") from problem


def _knock(address: str) -> None:
    """Complain of an address that is none, or that nobody answers; Ray would try for minutes."""
    if address in ("local", "auto"):
        return
    if "://" in address:
        expected = "HOST:PORT of a cluster, auto or local; from outside, ray job submit -- engram"
        raise bad("address", expected, address)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise bad("address", "HOST:PORT of a cluster, auto or local", address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()
    except (OSError, OverflowError) as problem:
        raise EngramError(f"address: no answer from {address} ({problem})") from problem


def _check_same(ray: Any, address: str | None) -> None:
    """Complain if Ray is connected to another cluster already."""
    there = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", there):
        expected = f"{there}, to which this process is connected already"
        raise bad("address", expected, address)


def _room(ray: Any) -> Room:
    nodes = tuple(one["Resources"] for one in ray.nodes() if one["Alive"])
    whole = ray.cluster_resources()
    if not whole.get("CPU"):
        raise BadArgument("address: expected a cluster with at least one core for tasks")
    return Room(int(whole["CPU"]), float(whole.get("GPU", 0.0)), nodes)


def look(before: Room) -> Room:
    """What the cluster has now; as before, where it has nothing at the moment."""
    import ray

    try:
        return _room(ray)
    except BadArgument:
        return before


def _handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def _restore(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)
