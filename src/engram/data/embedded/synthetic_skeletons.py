"""Ten parametric actions of a jointed figure: skeleton data that needs no files."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.data.skeletons.skeleton_data import UCLA_BONES, Sequences, build_skeleton_data
from engram.errors import check_float, check_int

JOINTS, SUBJECTS = 20, 10
VIEWS = (-0.7, 0.0, 0.7)  # radians around the vertical
_HIP, _SPINE = 0, 1
_L_ARM, _L_ELBOW, _R_ARM, _R_ELBOW = 4, 5, 8, 9
_L_LEG, _L_KNEE, _R_LEG, _R_KNEE = 12, 13, 16, 17
_BONES = {  # metres from the parent; x to the figure's left, y up, z ahead
    1: (0, 0.1, 0), 2: (0, 0.4, 0), 3: (0, 0.2, 0),
    4: (0.18, -0.03, 0), 5: (0, -0.28, 0), 6: (0, -0.25, 0), 7: (0, -0.08, 0),
    12: (0.1, -0.05, 0), 13: (0, -0.42, 0), 14: (0, -0.4, 0), 15: (0, -0.05, 0.12),
}  # fmt: skip
_MIRROR = {8: 4, 9: 5, 10: 6, 11: 7, 16: 12, 17: 13, 18: 14, 19: 15}


class Pose:
    """Angles and place of a batch of figures over time, to be filled by an action."""

    def __init__(self, amplitude: Tensor, time: Tensor, beat: Tensor) -> None:
        shape = np.broadcast_shapes(
            amplitude.shape, time.shape
        )  # [N, T]; torch imports sympy for it
        self.amplitude, self.time, self.beat = amplitude, time, beat
        self.angles = torch.zeros(*shape, JOINTS, 3, dtype=torch.float64)
        self.place = torch.zeros(*shape, 3, dtype=torch.float64)

    def turn(self, joint: int, axis: int, angle: Tensor | float) -> None:
        """Bend what hangs below `joint` around an axis (0 x, 1 y, 2 z)."""
        self.angles[..., joint, axis] += self.amplitude * angle

    @property
    def swing(self) -> Tensor:
        """A wave with the figure's own beat."""
        return torch.sin(self.beat * self.time)

    @property
    def bump(self) -> Tensor:
        """0, up to 1 in the middle, and back."""
        return torch.sin(math.pi * self.time)


def _wave(pose: Pose) -> None:
    pose.turn(_R_ARM, 2, -2.2)
    pose.turn(_R_ELBOW, 2, 0.6 * pose.swing)


def _wave_both(pose: Pose) -> None:
    _wave(pose)
    pose.turn(_L_ARM, 2, 2.2)
    pose.turn(_L_ELBOW, 2, -0.6 * pose.swing)


def _walk(pose: Pose) -> None:
    for joint, sign in ((_R_LEG, 1), (_L_LEG, -1), (_L_ARM, 1), (_R_ARM, -1)):
        pose.turn(joint, 0, 0.6 * sign * pose.swing)
    pose.place[..., 2] += pose.amplitude * 1.2 * pose.time


def _squat(pose: Pose) -> None:
    for hip, knee in ((_L_LEG, _L_KNEE), (_R_LEG, _R_KNEE)):
        pose.turn(hip, 0, -1.4 * pose.bump)
        pose.turn(knee, 0, 1.8 * pose.bump)
    pose.place[..., 1] -= pose.amplitude * 0.4 * pose.bump


def _bow(pose: Pose) -> None:
    pose.turn(_SPINE, 0, 1.3 * pose.bump)


def _jump(pose: Pose) -> None:
    pose.place[..., 1] += pose.amplitude * 0.5 * pose.bump
    pose.turn(_R_ARM, 2, -2.8 * pose.bump)
    pose.turn(_L_ARM, 2, 2.8 * pose.bump)


def _kick(pose: Pose) -> None:
    pose.turn(_R_LEG, 0, -1.4 * pose.bump)
    pose.turn(_L_ARM, 0, -0.4 * pose.bump)


def _throw(pose: Pose) -> None:
    pose.turn(_R_ARM, 0, 0.8 - 3.0 * pose.time)
    pose.turn(_SPINE, 1, 0.6 - 1.2 * pose.time)


def _clap(pose: Pose) -> None:
    for arm, sign in ((_R_ARM, 1), (_L_ARM, -1)):
        pose.turn(arm, 0, -1.4)
        pose.turn(arm, 1, 0.3 * sign * (1 + pose.swing))


def _turn_around(pose: Pose) -> None:
    pose.turn(_HIP, 1, math.pi * pose.time)


ACTIONS: dict[str, Callable[[Pose], None]] = {
    "wave": _wave, "wave both": _wave_both, "walk": _walk, "squat": _squat, "bow": _bow,
    "jump": _jump, "kick": _kick, "throw": _throw, "clap": _clap, "turn around": _turn_around,
}  # fmt: skip


def skeletons(
    *,
    per_class: int = 60,
    frames: int = 52,
    noise: float = 0.01,
    split: str = "cil",
    normalised: bool = True,
    augment: str = "none",
    seed: int = 0,
) -> Data:
    """Ten actions by ten figures of 20 joints seen from three sides, [N, 3, frames, 20].

    Prepared and split as NW-UCLA is (``split="tuning"`` tests on its validation rows; `normalised`,
    `augment`); `noise` is the sensor's error in metres.

    Examples
    --------
    >>> skeletons(per_class=10)
    Data('skeletons': 80 train, 10 test rows of (3, 52, 20), 10 classes)
    """
    check_int("per_class", per_class, low=10)  # one row each for validation and test
    check_int("frames", frames, low=3)
    check_float("noise", noise)
    key = keys.fold(check_int("seed", seed), "skeletons")
    place = torch.arange(per_class)
    subject, view = place % SUBJECTS, (place // SUBJECTS) % len(VIEWS)
    joints = torch.cat([
        _perform(keys.fold(key, name), act, subject, view, frames, noise)
        for name, act in ACTIONS.items()
    ])  # [N, T, V, 3]  # fmt: skip
    count = len(ACTIONS)
    sequences = Sequences(
        joints=list(joints.numpy()),
        label=np.repeat(np.arange(count), per_class),
        names=[f"sequence {i}" for i in range(count * per_class)],
        classes=tuple(ACTIONS),
        attributes={"subject": subject.repeat(count).numpy(), "view": view.repeat(count).numpy()},
    )
    return build_skeleton_data(
        sequences, name="skeletons", frames=frames, normalised=normalised, split=split,
        augment=augment, seed=seed,
    )  # fmt: skip


def _perform(
    key: keys.Key, act: Callable[[Pose], None], subject: Tensor, view: Tensor, frames: int,
    noise: float,
) -> Tensor:  # fmt: skip
    def between(low: float, high: float, what: str) -> Tensor:
        return low + (high - low) * keys.uniform(keys.fold(key, what), len(subject))[:, None]

    time = torch.linspace(0, 1, frames, dtype=torch.float64) ** between(0.8, 1.25, "pace")
    beat = 2 * math.pi * between(2.0, 3.0, "beat")
    pose = Pose(between(0.8, 1.2, "amplitude"), time, beat)
    act(pose)
    pose.angles += 0.05 * keys.normal(keys.fold(key, "stance"), len(subject), 1, JOINTS, 3)
    size = 0.85 + 0.3 * subject[:, None, None, None] / (SUBJECTS - 1)
    body = _place_joints(pose.angles, size)
    side = torch.tensor(VIEWS, dtype=torch.float64)[view][:, None] + between(-0.15, 0.15, "side")
    seen = (body + pose.place[:, :, None]) @ _rotation(side, 1).mT  # [N, T, V, 3]
    return seen + noise * keys.normal(keys.fold(key, "noise"), *seen.shape)


def _rotation(angle: Tensor, axis: int) -> Tensor:
    """[..., 3, 3] rotation around a coordinate axis."""
    sin, cos = angle.sin(), angle.cos()
    out = torch.zeros(*angle.shape, 3, 3, dtype=angle.dtype)
    first, second = (axis + 1) % 3, (axis + 2) % 3
    out[..., axis, axis] = 1.0
    out[..., first, first] = out[..., second, second] = cos
    out[..., second, first], out[..., first, second] = sin, -sin
    return out


def _place_joints(angles: Tensor, size: Tensor) -> Tensor:
    """[N, T, V, 3] positions: every joint turns what hangs below it."""
    about = [_rotation(angles[..., axis], axis) for axis in range(3)]
    turns = about[0] @ about[1] @ about[2]  # [N, T, V, 3, 3]
    facing = {_HIP: turns[..., _HIP, :, :]}
    place = {_HIP: torch.zeros_like(angles[..., 0, :])}
    for joint, parent in _joint_parents():
        x, y, z = _BONES[_MIRROR.get(joint, joint)]
        bone = torch.tensor([-x if joint in _MIRROR else x, y, z], dtype=angles.dtype)
        place[joint] = place[parent] + (facing[parent] @ bone) * size[..., 0]
        facing[joint] = facing[parent] @ turns[..., joint, :, :]
    return torch.stack([place[joint] for joint in range(JOINTS)], dim=-2)


def _joint_parents() -> list[tuple[int, int]]:
    """(joint, the joint it hangs from) of the UCLA skeleton, outwards from the hip."""
    out: list[tuple[int, int]] = []
    reached = {_HIP}
    while len(reached) < JOINTS:
        for a, b in (*UCLA_BONES, *((b, a) for a, b in UCLA_BONES)):
            if b in reached and a not in reached:
                out.append((a, b))
                reached.add(a)
    return out
