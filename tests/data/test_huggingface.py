from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from engram.data import Data, load

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 2


def test_npy_files(tmp_path):
    np.save(tmp_path / "my_x.npy", X)
    np.save(tmp_path / "my_y.npy", Y)
    np.save(tmp_path / "names.npy", np.array(["a", "b"])[Y])
    data = load(tmp_path / "my_x.npy")
    assert data.fingerprint() == Data.from_arrays(X, Y).fingerprint()
    assert data.name == "my"
    assert load(tmp_path / "my_x.npy", label="names.npy").classes == ("a", "b")
    both = load(tmp_path / "my_x.npy", test="my_x.npy")
    assert (len(both.train), len(both.test)) == (20, 20)
    np.save(tmp_path / "alone.npy", X)
    with pytest.raises(ValueError, match=r"file of labels for alone\.npy .*--label y\.npy"):
        load(tmp_path / "alone.npy")
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"broken\.npy: expected an array"):
        load(tmp_path / "broken.npy", label="my_y.npy")


def test_npy_folder(tmp_path):
    for part, rows in (("train", slice(12)), ("val", slice(12, 16)), ("test", slice(16, 20))):
        np.save(tmp_path / f"{part}_x.npy", X[rows])
        np.save(tmp_path / f"{part}_y.npy", Y[rows])
    data = load(tmp_path)
    assert [len(data.train), len(data.valid), len(data.test)] == [12, 4, 4]
    assert data.name == tmp_path.name


def saved(folder, columns, features):
    """What ``datasets.Dataset.save_to_disk`` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    about = json.dumps({"info": {"features": features}}).encode()
    whole = pa.table(columns).replace_schema_metadata({b"huggingface": about})
    half = len(whole) // 2
    files = []
    for i, part in enumerate((whole[:half], whole[half:])):
        files.append({"filename": f"data-{i:05d}-of-00002.arrow"})
        with pa.ipc.new_stream(str(folder / files[-1]["filename"]), whole.schema) as writer:
            writer.write_table(part)
    state = {"_data_files": files, "_indices_files": [], "_split": folder.name}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def encoded(value):
    stream = io.BytesIO()
    Image.new("RGB", (6, 4), (value, 0, 0)).save(stream, "png")
    return {"bytes": stream.getvalue(), "path": None}


LABEL = {"names": ["cat", "dog"], "_type": "ClassLabel"}


def test_hugging_face_images_in_parts(tmp_path):
    for part, rows in (("train", 6), ("validation", 2)):
        columns = {"image": [encoded(i) for i in range(rows)], "label": [0, 1] * (rows // 2)}
        saved(tmp_path / part, columns, {"image": {"_type": "Image"}, "label": LABEL})
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    data = load(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.sample_shape == (3, 4, 6)
    assert data.x[data.train, 0, 0, 0].tolist() == list(range(6))
    assert (len(data.train), len(data.valid), len(data.test)) == (6, 0, 2)
    assert load(tmp_path, resize=2).sample_shape == (3, 2, 2)


def test_hugging_face_vectors_series_and_tables(tmp_path):
    saved(tmp_path / "vectors", {"v": X.tolist(), "kind": Y}, {"kind": LABEL})
    data = load(tmp_path / "vectors")
    assert np.array_equal(data.x.numpy(), X)
    assert data.classes == ("cat", "dog")
    lists = [[[1.0, 2.0]] * (1 + i % 3) for i in range(20)]
    saved(tmp_path / "series", {"s": lists, "label": Y}, {})
    assert load(tmp_path / "series").sample_shape == (3, 2)
    saved(tmp_path / "table", {"a": X[:, 0], "hue": ["red", "blue"] * 10, "label": Y}, {})
    assert load(tmp_path / "table").columns == ("a", "hue=blue", "hue=red")
    tags = {"v": X.tolist(), "tags": [[0], [0, 1]] * 10}
    saved(tmp_path / "sets", tags, {"tags": {"feature": LABEL, "_type": "Sequence"}})
    assert load(tmp_path / "sets").y[:2].tolist() == [[0, -1], [0, 1]]


def test_hugging_face_shards_of_the_hub(tmp_path):
    (tmp_path / "data").mkdir()
    about = {b"huggingface": json.dumps({"info": {"features": {"label": LABEL}}}).encode()}
    for file, rows in (("train-00000-of-00002", slice(8)), ("train-00001-of-00002", slice(8, 14)),
                       ("validation-00000-of-00001", slice(14, 20))):  # fmt: skip
        table = pa.table({"v": X[rows].tolist(), "label": Y[rows]}).replace_schema_metadata(about)
        pq.write_table(table, tmp_path / "data" / f"{file}.parquet")
    data = load(tmp_path)
    assert (len(data.train), len(data.test), data.classes) == (14, 6, ("cat", "dog"))
    assert np.array_equal(data.x.numpy(), X)


def test_torch_datasets_of_mappings():
    rows = [{"image": X[i], "label": int(Y[i])} for i in range(20)]
    assert Data.from_torch(rows).fingerprint() == Data.from_arrays(X, Y).fingerprint()
    with pytest.raises(ValueError, match=r"a mapping with a label and one other value.*'label'"):
        Data.from_torch([{**row, "id": 3} for row in rows])


def test_hugging_face_complaints(tmp_path):
    saved(tmp_path, {"v": X.tolist(), "w": X.tolist(), "kind": Y}, {})
    with pytest.raises(ValueError, match=r"label: expected the column .*--label NAME.* v, w, kind"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"column: expected .*may be v, w"):
        load(tmp_path, label="kind")
    assert load(tmp_path, label="kind", column="w").sample_shape == (3,)
    (tmp_path / "data-00001-of-00002.arrow").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="expected an Arrow file"):
        load(tmp_path, label="kind", column="w")
