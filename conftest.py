"""Doctests are collected from all modules; those of kernels, the service, river need extras."""

from __future__ import annotations

import importlib.util
import os
import uuid

# Ray looks at these once, when some test first imports it: a cluster of the tests asks for a token.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", uuid.uuid4().hex)

collect_ignore: list[str] = []
if importlib.util.find_spec("triton") is None:
    collect_ignore += [
        f"src/engram/{name}.py"
        for name in ("models/kernels/graph_kernels", "models/kernels/norm_pool_kernels")
    ]
    collect_ignore.append("src/engram/key_kernels.py")
if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
    service = (
        "src/engram/serve/app.py",
        "src/engram/serve/request_limits.py",
        "tests/serve/client.py",
    )
    collect_ignore += service
if importlib.util.find_spec("river") is None:
    collect_ignore.append("src/engram/deploy/river_learner.py")
