"""The container's steps as plain commands, without an engine; and the unit of systemd."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.serve.client import ask, until
from tests.serve.test_serve import pytestmark, saved  # noqa: F401 - a fixture, and when to skip
from tests.test_docs import misused

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "packaging" / "Dockerfile"
UNIT = ROOT / "packaging" / "engram-serve.service"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def is_sent(path: str) -> bool:
    """Whether a path reaches the build: the last pattern that matches it decides."""
    sent = True
    for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines():
        if fnmatch.fnmatch(path, line.removeprefix("!").replace("**/", "")):
            sent = line.startswith("!")
    return sent


def build(image: Path) -> dict[str, str]:
    """Do in a folder what the file does in an image; returns its environment."""
    image.mkdir()
    environment = {name: one for name, one in os.environ.items() if name != "PYTHONPATH"}
    inside = re.compile(r"(?<![\w.])/(?=opt|models)")
    for word, rest in instructions():
        if word == "ENV":
            environment |= dict(one.split("=", 1) for one in shlex.split(rest))
        elif word == "COPY":
            *sources, target = rest.split()
            assert all(map(is_sent, sources)), rest
            goal = image / target.strip("/")
            goal.mkdir(parents=True, exist_ok=True)
            for source in sources:
                if (ROOT / source).is_dir():
                    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
                    shutil.copytree(ROOT / source, goal, dirs_exist_ok=True, ignore=leave)
                else:
                    shutil.copy(ROOT / source, goal)
        elif word == "RUN":
            for found, instead in (
                (r"^python -m venv", f"{sys.executable} -m venv --without-pip"),
                (r"(\S+)/bin/pip install", r"\1/bin/python -m pip install --quiet --no-index "
                                           "--no-deps --no-build-isolation --no-compile"),
                (r"^useradd [^&]*&&", ""), (r" -o engram", ""),  # these need root
            ):  # fmt: skip
                rest = re.sub(found, instead, rest)
            step = inside.sub(f"{image}/", rest)
            done = subprocess.run(
                ["sh", "-c", step], env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, (step, done.stderr)
            for made in image.glob("opt/engram/venv/lib/python*/site-packages"):
                # requirements, pip among them, are those of this environment: there is no network
                (made / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    place = tmp_path_factory.mktemp("built") / "image"
    return place, build(place)


def test_the_container(image, saved, tmp_path):  # noqa: F811
    place, environment = image
    shutil.copy(saved, place / "models" / "model.engram")
    told = dict(instructions())
    command = [*json.loads(told["ENTRYPOINT"]), *json.loads(told["CMD"])]
    command = [f"{place}{one}" if one.startswith(("/opt", "/models")) else one for one in command]
    assert told["EXPOSE"] == command[command.index("--port") + 1] == "8000"
    command[command.index("--port") + 1] = "0"  # any free one
    command[command.index("0.0.0.0")] = "127.0.0.1"  # nobody else's business
    assert told["USER"] == "engram"
    errors = (tmp_path / "errors").open("w+")
    environment = {**environment, "ENGRAM_TOKEN": "secret"}
    process = subprocess.Popen(command, stderr=errors, env=environment, cwd=tmp_path)

    def text():
        assert process.poll() is None, (tmp_path / "errors").read_text()
        return (tmp_path / "errors").read_text()

    try:
        until(lambda: "http://" in text(), 120)
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", text())[1])
        health = json.loads(re.search(r"CMD (\[.*\])", told["HEALTHCHECK"])[1])
        asked = [f"{place}{health[0]}", *health[1:2], health[2].replace("8000", str(port))]
        until(lambda: subprocess.run(asked, capture_output=True).returncode == 0)
        assert ask(port, "/predict", {"x": [[0.0] * 8]}, token="secret")[0] == 200
        assert ask(port, "/predict", {"x": [[0.0] * 8]})[0] == 401
        where = f"{place}/opt/engram/venv/bin/python", "-c", "import engram; print(engram.__file__)"
        found = subprocess.run(where, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert Path(found.stdout.strip()).is_relative_to(place)
    finally:
        process.send_signal(signal.SIGTERM)  # as `docker stop` does
        code = process.wait(timeout=60)
        errors.close()
    lines = [one for one in (tmp_path / "errors").read_text().splitlines() if one.startswith("{")]
    facts = [json.loads(one) for one in lines]
    statuses = [(one["route"], one["status"]) for one in facts if one["event"] == "request"]
    assert sorted(statuses) == [("/predict", 200), ("/predict", 401)]
    assert code == 143  # ended by SIGTERM, as the unit of systemd expects
    assert read_unit()["Service"]["SuccessExitStatus"] == str(code)
    assert subprocess.run(asked, capture_output=True).returncode == 1  # nobody answers: unhealthy


def read_unit() -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = sections.setdefault(found[1], {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section[name] = value
    return sections


def test_the_unit_starts_a_command_that_exists(tmp_path):
    service = read_unit()["Service"]
    command = shlex.split(service["ExecStart"])
    entry = json.loads(dict(instructions())["ENTRYPOINT"])
    assert command[0] == entry[0]
    assert misused(shlex.join(["engram", *command[1:]])) == ""
    assert misused(shlex.join(["engram", *entry[1:]])) == ""
    assert command[2].startswith(f"/var/lib/{service['StateDirectory']}/")
    if shutil.which("systemd-analyze") is None:
        return
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace(command[0], sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
