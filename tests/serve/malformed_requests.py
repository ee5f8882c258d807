"""Wrong requests, drawn from a service's own description of what is right."""

from __future__ import annotations

import json
import random

WRONG = [
    None, True, -1, 0, 1.5, 10**30, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "é" * 300,
    [], [[]], [[[]]], {}, {"x": 1}, [None], ["a"], [{}], [[1, "a"]], [[1], [1, 2]],
    [[float("nan")]], [[1e400]], [[10**400]], [[True, None]],
]  # fmt: skip


def requests(api, good, count, seed=0):
    """(method, path, headers, body) of `count` requests, all wrong in some way.

    `good` are bodies that are right, by path.
    """
    draw = random.Random(seed)
    posts = [path for path in api["paths"] if path in good]
    gets = [path for path, verbs in api["paths"].items() if "get" in verbs and "{number}" in path]
    made = []
    while len(made) < count:
        path = draw.choice(posts)
        schema = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        about = api["components"]["schemas"][schema["$ref"].split("/")[-1]]
        body, kind = json.loads(json.dumps(good[path])), draw.randrange(8)
        headers = {"content-type": "application/json"}
        if kind == 0:
            del body[draw.choice(about["required"])]
        elif kind == 1:
            body[draw.choice(list(about["properties"]))] = _wrong_for(draw, about)
        elif kind == 2:
            body[draw.choice(["y0", "", "X", "__class__", "\ud800"])] = draw.choice(WRONG)
        elif kind == 3:
            body = draw.choice([one for one in WRONG if not isinstance(one, dict)])
        elif kind == 4:
            text = json.dumps(body)
            raw = text[: draw.randrange(1, len(text) - 1)].encode()
            made.append(("POST", path, headers, raw))
            continue
        elif kind == 5:
            raw = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 60)))
            made.append(("POST", path, headers, b"\xff" + raw))
            continue
        elif kind == 6:
            wrong = draw.choice(["0", "-1", "x", "1.5", "9" * 40, "%00", "é".encode().hex()])
            made.append(
                (
                    "GET",
                    draw.choice(gets).replace("{number}", wrong).replace("{name}", "x"),
                    headers,
                    None,
                )
            )
            continue
        else:
            method = draw.choice(["PUT", "DELETE", "PATCH", "GET"])
            made.append((method, path, headers, None if method == "GET" else b"{}"))
            continue
        made.append(("POST", path, headers, json.dumps(body).encode()))
    return made


def _wrong_for(draw, about):
    """A value that no property of a question takes."""
    return draw.choice([{"a": 1}, [[[["deep"]]]], [{}], -7.5, [[float("inf")]], "\ud800" * 300])
