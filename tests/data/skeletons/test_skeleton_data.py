from __future__ import annotations

import json
import pickle
from itertools import combinations

import numpy as np
import pytest
import torch

from engram.data import Data, load, pack
from engram.data.skeletons.ntu import read_skeleton
from engram.data.skeletons.skeleton_data import (
    NTU_BONES,
    UCLA_BONES,
    Sequences,
    adjacency,
    bones,
    build_skeleton_data,
    count_bones_between,
    normalise,
    repair_sequences,
    resample,
    split_as_stored,
    split_within_classes,
)
from engram.errors import BadArgument
from engram.models.stgcn import STGCN
from tests.refusals import refuses

RNG = np.random.default_rng(0)


def test_golden_distance_hand_to_foot():  # [T-Y1]
    assert count_bones_between(UCLA_BONES, 7, 15) == 10
    assert count_bones_between(NTU_BONES, 7, 15) == 10


@pytest.mark.parametrize("edges, joints", [(UCLA_BONES, 20), (NTU_BONES, 25)])
def test_bones_make_a_tree(edges, joints):
    assert bones(joints) == edges
    assert len(edges) == joints - 1
    assert all(count_bones_between(edges, 0, joint) >= 0 for joint in range(joints))
    matrix = adjacency(edges, joints)
    assert torch.equal(matrix, matrix.T)
    assert matrix.sum() == 2 * (joints - 1)
    with refuses("joints"):
        bones(17)


def test_normalise_stretches_every_axis_and_ignores_place_and_scale():
    sequence = RNG.normal(size=(7, 20, 3))
    out = normalise(sequence)
    assert np.allclose(out.min((0, 1)), -1)
    assert np.allclose(out.max((0, 1)), 1)
    assert np.allclose(normalise(sequence * [2.0, 3.0, 4.0] + 5.0), out)
    sequence[..., 2] = 4.0
    assert (normalise(sequence)[..., 2] == 0).all()


def test_resample_takes_even_steps_rounded_down():
    frames = np.arange(10)[:, None, None]
    assert resample(frames, 4).ravel().tolist() == [0, 3, 6, 9]
    assert resample(frames[:2], 5).ravel().tolist() == [0, 0, 0, 0, 1]
    assert resample(frames[:1], 3).ravel().tolist() == [0, 0, 0]


def test_split_has_floors_and_leaves_the_rest_unused():
    label = torch.tensor([0] * 150 + [1] * 173 + [2] * 19)
    parts = split_within_classes(label)
    sizes = {part: label[rows].bincount(minlength=3).tolist() for part, rows in parts.items()}
    assert sizes == {"train": [120, 138, 15], "valid": [15, 17, 1], "test": [15, 17, 1]}
    rows = torch.cat(list(parts.values()))
    assert len(rows.unique()) == len(rows)
    again, other = split_within_classes(label), split_within_classes(label, seed=1)
    assert torch.equal(parts["test"], again["test"])
    assert not torch.equal(parts["test"], other["test"])
    few = split_within_classes(torch.zeros(20, dtype=torch.long))  # pinned: results rest on it
    assert (few["test"].tolist(), few["valid"].tolist()) == ([3, 7], [10, 12])


def test_stored_split_cuts_each_class_with_the_last_rows_behind():
    label = torch.tensor([0] * 150 + [1] * 173 + [2] * 5)
    last = torch.arange(len(label)) % 3 == 0
    parts = split_as_stored(label, last)
    sizes = {part: label[rows].bincount(minlength=3).tolist() for part, rows in parts.items()}
    assert sizes == {"train": [120, 139, 3], "valid": [15, 17, 1], "test": [15, 17, 1]}
    assert torch.cat(list(parts.values())).sort().values.tolist() == list(range(len(label)))
    assert last[parts["test"]].all()
    assert last[parts["valid"]].all()
    assert (~last[parts["train"]]).sum() == (~last).sum()  # none of the first rows is held out
    again, other = split_as_stored(label, last), split_as_stored(label, last, seed=1)
    assert torch.equal(parts["test"], again["test"])
    assert not torch.equal(parts["test"], other["test"])


def test_stored_split_takes_validation_rows_from_both_sides_where_few_are_last():
    parts = split_as_stored(torch.zeros(40, dtype=torch.long), torch.arange(40) >= 35)
    assert bool((parts["test"] >= 35).all())
    assert (parts["valid"] >= 35).tolist() == [False, False, False, True]
    for rows, late in ((40, 3), (2, 2)):
        with pytest.raises(ValueError, match=f"held: .*a class of {rows} with {late}"):
            split_as_stored(torch.zeros(rows, dtype=torch.long), torch.arange(rows) >= rows - late)


def damaged():
    good = RNG.normal(size=(4, 20, 3))
    gap = good.copy()
    gap[1:3, 5] = np.nan
    lost = good.copy()
    lost[:, 5] = np.nan
    joints = [good, gap, lost, good[:1], np.zeros((3, 20, 3)), np.zeros((0, 20, 3))]
    names = ["good", "gap", "lost", "short", "zero", "empty"]
    return Sequences(joints, np.arange(6), names, tuple("abcdef"), {"view": np.arange(6)})


def test_damage_is_repaired_and_told():
    mended, told = repair_sequences(damaged())
    assert list(mended.names) == ["good", "gap", "short"]
    assert mended.label.tolist() == mended.attributes["view"].tolist() == [0, 1, 3]
    gap = mended.joints[1]
    assert np.allclose(gap[1, 5], (2 * gap[0, 5] + gap[3, 5]) / 3)
    assert len(mended.joints[2]) == 3
    assert told == (
        "2 sequences with no body left out: zero, empty",
        "1 sequence with nan or inf joints filled over time: gap",
        "1 sequence with nan or inf joints left out: lost",
        "1 sequence with fewer than 3 frames kept by repeating frames: short",
    )


def test_damage_can_be_dropped_or_refused():
    kept, told = repair_sequences(damaged(), "drop")
    assert list(kept.names) == ["good"]
    assert len(told) == 3
    with pytest.raises(ValueError, match="none with no body"):
        repair_sequences(damaged(), "error")
    with refuses("repair", near="interpolate"):
        repair_sequences(damaged(), "interpolat")
    with pytest.raises(ValueError, match="at least one that can be used"):
        repair_sequences(damaged().take([4, 5]))


def write_ucla(folder, per_class=10):
    folder.mkdir(parents=True)
    for action in (1, 2, 3, 4, 5, 6, 8, 9, 11, 12):
        for i in range(per_class):
            frames = RNG.normal(size=(4 + i, 20, 3)).round(4).tolist()
            name = f"a{action:02d}_s{i % 3 + 1:02d}_e{i:02d}_v{i % 3 + 1:02d}.json"
            (folder / name).write_text(json.dumps({"file_name": name, "skeletons": frames}))


def test_nw_ucla_from_json_and_packed(tmp_path):
    write_ucla(tmp_path / "NW-UCLA" / "all_sqe")
    data = load("nw_ucla", root=tmp_path)
    assert data.x.shape == (100, 3, 52, 20)
    assert data.x.dtype == torch.float32
    assert [len(part) for part in (data.train, data.valid, data.test)] == [80, 10, 10]
    assert data.labels.tolist() == [label for label in range(10) for _ in range(10)]
    assert data.classes[6] == "donning"
    assert data.attributes["view"][:10].tolist() == [1, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert data.notes == ("100 of 1484 sequences",)
    file = json.loads((tmp_path / "NW-UCLA" / "all_sqe" / "a03_s01_e00_v01.json").read_text())
    wanted = resample(normalise(np.array(file["skeletons"], np.float32)), 52)
    assert np.allclose(data.x[20], wanted.transpose(2, 0, 1), atol=1e-6)
    official = load("nw_ucla", root=tmp_path, split="official", frames=10)
    assert official.attributes["view"][official.test].unique().tolist() == [3]
    assert official.sample_shape == (3, 10, 20)
    (tmp_path / "kept").mkdir()
    pack(tmp_path / "NW-UCLA" / "all_sqe", tmp_path / "kept" / "nw_ucla.npz")
    again = load("nw_ucla", root=tmp_path / "kept")
    assert again.fingerprint() == data.fingerprint()
    assert again.classes == data.classes
    assert load("nw_ucla", root=tmp_path / "kept", frames=5).sample_shape == (3, 5, 20)


def test_nw_ucla_can_hold_out_one_view(tmp_path):
    folder = tmp_path / "NW-UCLA" / "all_sqe"
    write_ucla(folder, per_class=21)
    drawn, stored = (load("nw_ucla", root=tmp_path, frames=4, held=h) for h in ("drawn", "stored"))
    assert drawn.fingerprint() == load("nw_ucla", root=tmp_path, frames=4).fingerprint()
    assert torch.equal(drawn.x, stored.x)
    assert [len(part) for part in (drawn.train, drawn.valid, drawn.test)] == [160, 20, 20]
    assert [len(part) for part in (stored.train, stored.valid, stored.test)] == [170, 20, 20]
    view = stored.attributes["view"]
    assert view[stored.test].unique().tolist() == [3]
    assert len(view[drawn.test].unique()) > 1
    tuning = load("nw_ucla", root=tmp_path, frames=4, held="stored", split="tuning")
    assert torch.equal(tuning.test, stored.valid)
    assert torch.equal(tuning.train, stored.train)
    with refuses("held", near="stored"):
        load("nw_ucla", root=tmp_path, held="store")
    with pytest.raises(ValueError, match="held: expected 'drawn', the official split"):
        load("nw_ucla", root=tmp_path, held="stored", split="official")
    with np.load(pack(folder, tmp_path / "nw_ucla.npz")) as file:
        arrays = dict(file)
    assert torch.equal(load(tmp_path / "nw_ucla.npz", held="stored").test, stored.test)
    np.savez(tmp_path / "nw_ucla.npz", **{k: v for k, v in arrays.items() if k != "view"})
    with pytest.raises(ValueError, match=r"held: expected 'drawn'.*no view"):
        load(tmp_path / "nw_ucla.npz", held="stored")


def test_nw_ucla_damage_is_named(tmp_path):
    folder = tmp_path / "set"
    write_ucla(folder)
    file = folder / "a01_s01_e00_v01.json"
    file.write_text(json.dumps({"skeletons": np.zeros((4, 19, 3)).tolist()}))
    with pytest.raises(ValueError, match="a01_s01_e00_v01: expected 20 joints"):
        load(folder)
    file.write_text("{}")
    with pytest.raises(ValueError, match=r"a01_s01_e00_v01\.json: expected JSON with 'skeletons'"):
        load(folder)
    file.write_text(json.dumps({"skeletons": np.ones((1, 20, 3)).tolist()}))
    assert "kept by repeating frames: a01_s01_e00_v01" in load(folder).notes[-1]
    assert len(load(folder)) == 100
    assert len(load(folder, repair="drop")) == 99
    with pytest.raises(ValueError, match="fewer than 3 frames"):
        load(folder, repair="error")
    file.rename(folder / "a07_s01_e00_v01.json")
    with pytest.raises(ValueError, match="actions"):
        load(folder)


def skeleton_text(bodies):
    """bodies: name -> [T, 25, 3], nan where the body is not in the frame."""
    frames = len(next(iter(bodies.values()))) if bodies else 2
    lines = [str(frames)]
    for frame in range(frames):
        here = {k: v[frame] for k, v in bodies.items() if np.isfinite(v[frame]).all()}
        lines.append(str(len(here)))
        for name, joints in here.items():
            lines += [f"{name} 0 1 1 1 1 0 0.02 0.3 2", "25"]
            lines += [" ".join(map(str, [*joint, *[0.5] * 8, 2])) for joint in joints.tolist()]
    return "\n".join(lines) + "\n"


def test_raw_ntu_keeps_the_two_bodies_that_move_most(tmp_path):
    still = np.ones((4, 25, 3))
    walker, runner = RNG.normal(size=(4, 25, 3)), 5 * RNG.normal(size=(4, 25, 3))
    runner[0] = np.nan
    file = tmp_path / "S001C001P001R001A001.skeleton"
    file.write_text(skeleton_text({"1": still, "2": walker, "3": runner}))
    out = read_skeleton(file)
    assert out.shape == (4, 25, 6)
    assert np.allclose(out[1:4, :, :3], runner[1:], atol=1e-5)
    assert (out[0, :, :3] == 0).all()
    assert np.allclose(out[:4, :, 3:], walker, atol=1e-5)
    file.write_text(skeleton_text({"1": still})[:200])
    with pytest.raises(ValueError, match="early end"):
        read_skeleton(file)
    file.write_text("1\n1\n" + "0 " * 10 + "\n24\n")
    with pytest.raises(ValueError, match="25 joints in frame 0"):
        read_skeleton(file)
    file.write_text("one")
    with pytest.raises(ValueError, match="numbers of"):
        read_skeleton(file)
    file.write_text("-4\n")
    with pytest.raises(ValueError, match=r"A001\.skeleton: expected a number of frames.* got -4"):
        read_skeleton(file)
    file.write_text("1\n-1\n")
    with pytest.raises(ValueError, match="a number of bodies in frame 0"):
        read_skeleton(file)
    file.write_text(f"{10**15}\n0\n0\n")  # no room is asked for before the end is found
    with pytest.raises(ValueError, match="early end"):
        read_skeleton(file)


def test_raw_ntu_by_name(tmp_path):
    folder = tmp_path / "nturgb+d_skeletons"
    folder.mkdir()
    for action in (1, 2, 11):
        for i in range(10):
            body = RNG.normal(size=(5, 25, 3))
            name = f"S001C{i % 3 + 1:03d}P001R{i + 1:03d}A{action:03d}.skeleton"
            (folder / name).write_text(skeleton_text({"7": body}))
    (folder / "S001C001P003R001A001.skeleton").write_text(skeleton_text({"7": body}))
    (folder / "S001C001P002R002A001.skeleton").write_text(skeleton_text({}))
    data = load("ntu60", root=tmp_path, classes=2)
    assert data.x.shape == (20, 6, 300, 25)
    assert (data.x[:, :, 5:] == 0).all()
    assert [len(part) for part in (data.train, data.valid, data.test)] == [16, 2, 2]
    assert data.classes == ("drink water", "eat meal")
    assert data.attributes["view"][:3].tolist() == [1, 1, 1]
    assert data.notes == ("1 sequence with no body left out: S001C001P002R002A001",)
    both = load("ntu60", root=tmp_path, split="official", classes=["reading", 0, 1],
                persons="first", frames=5)  # fmt: skip
    assert both.x.shape == (31, 3, 5, 25)
    assert both.classes == ("reading", "drink water", "eat meal")
    assert both.attributes["subject"][both.test].tolist() == [3]
    assert both.labels.bincount().tolist() == [10, 11, 10]
    assert (both.attributes["action"] == torch.tensor([11, 1, 2])[both.labels]).all()
    with refuses("sequences"):
        load("ntu60", root=tmp_path, classes=2, repair="error")


def test_ntu_without_a_class_is_refused(tmp_path):
    for action in (1, 2):
        for i in range(10):
            name = f"S001C001P001R{i + 1:03d}A{action:03d}.skeleton"
            body = RNG.normal(size=(4, 25, 3))
            (tmp_path / name).write_text(skeleton_text({"7": body}))
    assert len(load(tmp_path, classes=2)) == 20
    for asked in (3, ["eat meal", "brush teeth"]):
        with pytest.raises(ValueError, match=r"training sequences .*none of \['brush teeth'\]"):
            load(tmp_path, classes=asked)
    for asked in ("eat meal", [], [0, 0], [60], [-1], [0.5], ["eat"], 0, True):
        with refuses("classes"):
            load(tmp_path, classes=asked)
    (tmp_path / "S001C001P001R001A000.skeleton").write_text(skeleton_text({}))
    with pytest.raises(ValueError, match="A001"):
        load(tmp_path, classes=2)


def test_raw_ntu_of_odd_lengths(tmp_path):
    def write(name, frames, missing=()):
        body = RNG.normal(size=(frames, 25, 3))
        body[list(missing)] = np.nan
        (tmp_path / f"S001C001P001R{name}A001.skeleton").write_text(skeleton_text({"7": body}))

    for number in range(10, 20):
        write(f"{number:03d}", 4)
    write("001", 1)
    write("002", 2)
    write("003", 304)
    write("004", 6, missing=(2, 3))
    write("005", 5, missing=(2, 3, 4))  # a body in two frames only
    data = load(tmp_path, classes=1)
    stem = "S001C001P001R{}A001".format
    assert data.notes == (
        f"1 sequence with more than 300 frames cut: {stem('003')}",
        f"1 sequence with frames without a body kept as they are: {stem('004')}",
        "3 sequences with fewer than 3 frames kept by repeating frames: "
        + ", ".join(map(stem, ("001", "002", "005"))),
    )
    filled = (data.x != 0).any(-1).any(1).sum(-1)  # [N] frames with a body
    assert filled[:5].tolist() == [3, 3, 300, 4, 3]
    assert torch.equal(data.x[0, :, 0], data.x[0, :, 2])
    dropped = load(tmp_path, classes=1, repair="drop")
    assert len(dropped) == 10
    assert len(dropped.notes) == 3
    files = [
        tmp_path / f"{stem(number)}.skeleton" for number in ("003", "004", "001", "002", "005")
    ]
    for file, wanted in zip(
        files, ("more than 300", "without a body", "fewer than 3"), strict=False
    ):
        with pytest.raises(ValueError, match=f"none with .*{wanted}.*{file.stem}"):
            load(tmp_path, classes=1, repair="error")
        file.unlink()


def ntu_rows(count):
    rows = np.zeros((count, 3, 300, 25, 2), np.float32)
    rows[:, :, :20] = RNG.normal(size=(count, 3, 20, 25, 2))
    return rows, np.arange(count) % 12


def test_prepared_forms_of_ntu_agree(tmp_path):
    rows, label = ntu_rows(24)
    paddle = tmp_path / "xsub"
    paddle.mkdir()
    names = [f"S001C001P{i + 1:03d}R001A{label[i] + 1:03d}.skeleton" for i in range(24)]
    for part in ("train", "val"):
        np.save(paddle / f"{part}_data.npy", rows)
        content = (names, label.tolist())
        (paddle / f"{part}_label.pkl").write_bytes(pickle.dumps(content))
    flat = rows.transpose(0, 2, 4, 3, 1).reshape(24, 300, 150)
    hot = np.eye(60)[label]
    npz = tmp_path / "NTU60_CS.npz"
    np.savez(npz, x_train=flat, y_train=hot, x_test=flat, y_test=hot)
    from_npz, from_paddle = load(npz), load(paddle)
    assert from_npz.notes == ("20 sequences, the published count is 6667",)
    assert from_npz.x.shape == (20, 6, 300, 25)
    assert torch.equal(from_npz.x, from_paddle.x)
    assert torch.equal(from_npz.y, from_paddle.y)
    kept = np.flatnonzero(label < 10)
    assert torch.equal(from_npz.x[:, 3:], torch.from_numpy(rows[kept][..., 1].copy()))
    assert from_paddle.attributes["subject"][:2].tolist() == [1, 2]
    both = load(paddle, split="official")
    assert (len(both.train), len(both.test)) == (20, 20)
    assert torch.equal(load("ntu60", root=tmp_path).y, from_npz.y)
    first = load(npz, frames=20, persons="first", classes=12)
    assert torch.equal(first.x, torch.from_numpy(rows[:, :, :20, :, 0].copy()))
    apart = load(npz, persons="apart")
    assert torch.equal(apart.x, torch.from_numpy(rows[kept]))
    assert torch.equal(apart.train, from_npz.train)


def test_persons_apart_are_averaged_by_st_gcn(tmp_path):
    rows, label = ntu_rows(24)
    npz = tmp_path / "NTU60_CS.npz"
    np.savez(npz, x_train=rows.transpose(0, 2, 4, 3, 1).reshape(24, 300, 150), y_train=label)
    data = load(npz, persons="apart", frames=8)
    assert data.sample_shape == (3, 8, 25, 2)
    net = STGCN(data.sample_shape, width=4).eval()
    assert net.blocks[0].spatial.in_channels == 3
    assert torch.allclose(net(data.x[:2]), net(data.x[:2].flip(-1)), atol=1e-6)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ((["a"], [0, 1, 2]), "names: expected a list of 3 names, one per row, got 1"),
        ((3, [0, 1, 2]), "names: expected a list of 3 names, one per row, got 'int'"),
        ((["a", "b", "c"], 7), "labels: expected a list of 3 labels, got 'int'"),
        ((["a", "b", "c"], {0: 1, 1: 2, 2: 3}), "labels: expected a list of 3 labels, got 'dict'"),
        ((["a", "b", "c"], "012"), "labels: expected a list of 3 labels, got 'str'"),
        ((["a", "b", "c"], [0, 1]), "labels: expected 3 labels, one per row, got 2"),
        ((["a", "b", "c"], [0, 1, 60]), r"whole numbers from 0 to 59, got \[60\]"),
        ((["a", "b", "c"], [0, -1, 2]), r"whole numbers from 0 to 59, got \[-1\]"),
        ((["a", "b", "c"], [0, 0.5, 2]), r"whole numbers from 0 to 59, got \[0.5\]"),
        ((["a", "b", "c"], ["x", "y", "z"]), "whole numbers from 0 to 59"),
        ((["a", "b", "c"], [None, 0, 1]), "whole numbers from 0 to 59"),
        ((["a", "b", "c"], [[0], [1], [2]]), "one whole number per row"),
        ((["a", "b", "c"], [[0], [1, 2], [2]]), "one whole number per row"),
        (["a"], r"\(names, labels\) of 3 rows"),
        ({"names": 1}, r"\(names, labels\) of 3 rows"),
    ],
)
def test_paddle_labels_are_checked(tmp_path, content, complaint):
    rows = np.ones((3, 3, 300, 25, 2), np.float32)
    np.save(tmp_path / "train_data.npy", rows)
    (tmp_path / "train_label.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(BadArgument, match=rf"train_label\.pkl: .*{complaint}"):
        load(tmp_path, classes=3)


def test_paddle_rows_of_one_and_two_frames_are_told(tmp_path):
    rows, _ = ntu_rows(12)
    rows[3, :, 1:], rows[4, :, 2:], rows[5, :, 4] = 0, 0, 0
    names = [f"row {i}" for i in range(12)]
    np.save(tmp_path / "train_data.npy", rows)
    (tmp_path / "train_label.pkl").write_bytes(pickle.dumps((names, [0] * 12)))
    assert load(tmp_path, classes=1).notes == (
        "1 sequence with frames without a body kept as they are: row 5",
        "2 sequences with fewer than 3 frames kept by repeating frames: row 3, row 4",
    )
    with pytest.raises(ValueError, match="frames without a body"):
        load(tmp_path, classes=1, repair="error")


def test_prepared_forms_are_checked(tmp_path):
    np.save(tmp_path / "train_data.npy", np.zeros((2, 3, 300, 20, 2), np.float32))
    (tmp_path / "train_label.pkl").write_bytes(pickle.dumps((["a", "b"], [0, 1])))
    with pytest.raises(ValueError, match=r"train_data\.npy: expected \[N, 3, 300, 25, 2\]"):
        load(tmp_path)
    np.save(tmp_path / "train_data.npy", np.zeros((3, 3, 300, 25, 2), np.float32))
    with pytest.raises(ValueError, match="classes: expected at most 60"):
        load(tmp_path, classes=61)
    with refuses("persons"):
        load(tmp_path, persons="both")


def test_synthetic_skeletons_are_learnable_and_fixed():
    data = load("skeletons", per_class=30)
    assert data.x.shape == (300, 3, 52, 20)
    assert set(data.attributes) == {"subject", "view"}
    assert data.attributes["view"].unique().tolist() == [0, 1, 2]
    assert data.fingerprint() == load("skeletons", per_class=30).fingerprint()
    assert data.fingerprint() != load("skeletons", per_class=30, seed=1).fingerprint()
    x, y = data.x.flatten(1), data.labels
    near = torch.cdist(x[data.test], x[data.train]).argmin(1)
    assert (y[data.train][near] == y[data.test]).float().mean() > 0.9
    means = torch.stack([x[data.train][y[data.train] == c].mean(0) for c in range(10)])
    assert len(means.unique(dim=0)) == 10


def test_figures_differ_by_subject_and_view():
    data = load("skeletons", per_class=30, noise=0.0)
    rows = data.labels == 0
    for key in ("subject", "view"):
        values = data.attributes[key][rows]
        assert not torch.allclose(
            data.x[rows][values == 0].mean(0), data.x[rows][values == 2].mean(0)
        )


def test_packed_skeletons_of_any_kind(tmp_path):
    joints = RNG.normal(size=(50, 7, 2)).astype(np.float32)
    offsets = np.arange(0, 51, 5)
    label = np.zeros(10, int)
    np.savez(tmp_path / "hands.npz", joints=joints, offsets=offsets, label=label, who=np.arange(10))
    data = load("hands", root=tmp_path, frames=5, normalised=False)
    assert torch.equal(data.x[1], torch.from_numpy(joints[5:10].transpose(2, 0, 1).copy()))
    assert data.attributes["who"].tolist() == list(range(10))
    again = load(pack(tmp_path / "hands.npz", tmp_path / "copy.npz"), frames=5, normalised=False)
    assert again.fingerprint() == data.fingerprint()
    np.savez(tmp_path / "bad.npz", joints=joints, offsets=offsets[:-1], label=label)
    with pytest.raises(ValueError, match="11 rising numbers from 0 to 50"):
        load("bad", root=tmp_path)


def test_geometric_needs_its_extra(monkeypatch):
    from engram.data import to_geometric
    from engram.errors import EngramError

    monkeypatch.setitem(__import__("sys").modules, "torch_geometric", None)
    monkeypatch.setitem(__import__("sys").modules, "torch_geometric.data", None)
    with pytest.raises(EngramError, match=r"engram-cl\[graph\]"):
        to_geometric(load("skeletons", per_class=10), [0])
    with pytest.raises(ValueError, match="skeletons"):
        to_geometric(load("blobs"), [0])


def test_graphs_there_and_back(monkeypatch):
    import sys
    import types

    from engram.data import from_geometric, to_geometric

    module = types.ModuleType("torch_geometric.data")
    module.Data = types.SimpleNamespace  # the real one is a bag of attributes as well
    monkeypatch.setitem(sys.modules, "torch_geometric", types.ModuleType("torch_geometric"))
    monkeypatch.setitem(sys.modules, "torch_geometric.data", module)
    data = load("skeletons", per_class=10, frames=6)
    graphs = to_geometric(data, data.train)
    assert graphs[0].x.shape == (20, 18)
    assert graphs[0].edge_index.shape == (2, 38)
    assert graphs[3].row == int(data.train[3])
    again = from_geometric(graphs, test=to_geometric(data, data.test))
    assert isinstance(again, Data)
    assert torch.equal(again.x[again.train], data.x[data.train])
    assert torch.equal(again.labels[again.test], data.labels[data.test])
    graphs[1].x = graphs[1].x[:5]
    with pytest.raises(ValueError, match=r"graphs\[1\]: expected 20 nodes"):
        from_geometric(graphs)


def test_copies_stay_in_one_part():
    """Of 40 rows, 24 are pairs; with as many rows in each part as without copies."""
    label, copies = torch.arange(40) % 2, torch.arange(40)
    copies[20:32] = copies[:12]  # 20 is even: a copy has the class of its partner
    drawn, together = (split_within_classes(label, 3, c) for c in (None, copies))
    assert {k: len(v) for k, v in together.items()} == {k: len(v) for k, v in drawn.items()}
    parts = [{int(copies[i]) for i in rows} for rows in together.values()]
    assert not any(a & b for a, b in combinations(parts, 2))
    torn = [{int(copies[i]) for i in rows} for rows in drawn.values()]
    assert any(a & b for a, b in combinations(torn, 2))
    alone = split_within_classes(label, 3, torch.arange(40))
    assert all(torch.equal(alone[part], drawn[part]) for part in drawn)


def test_equal_sequences_are_found(tmp_path):
    rng = np.random.default_rng(0)
    joints = [rng.normal(size=(4, 20, 3)).astype(np.float32) for _ in range(20)]
    every = Sequences(
        joints=[*joints, *joints], label=np.zeros(40, np.int64), names=[str(i) for i in range(40)],
        classes=("one",),
    )  # fmt: skip
    data = build_skeleton_data(every, name="made", frames=None, held="together")
    parts = [{i % 20 for i in rows.tolist()} for rows in (data.train, data.valid, data.test)]
    assert [len(one) for one in parts] == [16, 2, 2]
    assert not any(a & b for a, b in combinations(parts, 2))
    with pytest.raises(ValueError, match="held: expected 'drawn', the official split"):
        build_skeleton_data(every, name="made", frames=None, held="together", split="official")
