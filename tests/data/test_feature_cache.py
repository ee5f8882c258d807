"""Features of frozen networks on disk: what is read again, what is not, and how much is kept."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

import engram
from engram.data.feature_cache import CachePlace, FeatureCache, compute_or_read
from engram.models import published_weights
from engram.models.classifier import Encoder
from engram.models.mobile_networks import mobilenet_v2
from engram.models.published_weights import PUBLISHED


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Weights of MobileNetV2 drawn at random, as a package would hold them."""
    folder = tmp_path / "random_weights"
    folder.mkdir()
    torch.save(mobilenet_v2((3, 8, 8)).state_dict(), folder / "net.pt")
    found = replace(PUBLISHED["mobilenet_v2"], file="net.pt",
                    sha256=published_weights.file_sha256(str(folder / "net.pt")))  # fmt: skip
    monkeypatch.setitem(PUBLISHED, "mobilenet_v2", found)
    monkeypatch.setattr(published_weights, "find_published", lambda name: folder / "net.pt")


@pytest.fixture
def passes(monkeypatch):
    """How many rows were encoded."""
    found = []
    encode = Encoder._encode

    def counting(self, x):
        found.append(len(x))
        return encode(self, x)

    monkeypatch.setattr(Encoder, "_encode", counting)
    return found


def data(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (60, 3, 9, 9), dtype=torch.uint8, generator=generator)
    return engram.Data.from_arrays(x, torch.arange(60) % 4, name="noise")


def study(folder, *, given=None, method="SLDA", dtype="float32", **more):
    model = {"name": "mobilenet_v2", "pretrained": True, "size": 16,
             "freeze": {"cache": str(folder), "dtype": dtype}}  # fmt: skip
    stream = engram.class_incremental(
        data() if given is None else given, classes_per_task=2, **more
    )
    return engram.run(stream, model=model, method=method, epochs=1, device="cpu")


def test_other_orders_methods_and_seeds_read_the_same_features(weights, passes, tmp_path):
    first = study(tmp_path / "kept")
    assert passes
    passes.clear()
    again = study(tmp_path / "kept")
    study(tmp_path / "kept", order=[3, 2, 1, 0])
    study(tmp_path / "kept", method="ER")
    assert not passes, "no row was encoded again"
    assert np.array_equal(first.matrix, again.matrix, equal_nan=True)
    assert set(first.recipes) == set(again.recipes)
    plain = study(tmp_path / "elsewhere")
    assert passes
    assert set(plain.recipes) == set(first.recipes), "the place is no part of the id"


def test_other_data_sizes_and_types_have_features_of_their_own(weights, passes, tmp_path):
    study(tmp_path)
    cache = FeatureCache(tmp_path)
    assert len(cache.entries()) == 1
    study(tmp_path, given=data(1))
    half = study(tmp_path, dtype="float16")
    kinds = sorted(one.facts["dtype"] for one in cache.entries())
    assert kinds == ["float16", "float32", "float32"]
    assert set(half.recipes) != set(study(tmp_path).recipes), "the type is part of the id"


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "facts"])
def test_damaged_features_are_computed_again(weights, passes, tmp_path, damage):
    first = study(tmp_path)
    (file,), (facts,) = (list((tmp_path / "features").glob(f"*.{end}")) for end in ("npy", "json"))
    raw = bytearray(file.read_bytes())
    if damage == "flip":
        raw[-5] ^= 1
        file.write_bytes(raw)
    elif damage == "cut":
        file.write_bytes(raw[:-8])
    elif damage == "gone":
        file.unlink()
    else:
        facts.write_text("{")
    passes.clear()
    with pytest.warns(UserWarning, match="damaged; they are computed again"):
        again = study(tmp_path)
    assert passes
    assert np.array_equal(first.matrix, again.matrix, equal_nan=True)
    passes.clear()
    study(tmp_path)
    assert not passes, "and kept again"


def test_what_was_used_least_recently_goes_first(tmp_path):
    rows = torch.zeros(10, 25)  # 1000 bytes and a header
    cache = FeatureCache(tmp_path, 3500)
    for number, key in enumerate("abc"):
        cache.put(key, rows, {})
        os.utime(cache._files(cache.entries()[0].name)[0], (number, number))
    assert cache.get("a") is not None, "used now"
    cache.put("d", rows, {})
    assert [cache.get(key) is not None for key in "abcd"] == [True, False, True, True]
    cache.put("e", torch.zeros(100, 25), {})
    assert cache.get("e") is None, "more than the whole cache"
    assert cache.clear() == 3
    assert not list((tmp_path / "features").iterdir())


def test_features_are_mapped_and_their_file_is_never_written(tmp_path):
    cache = FeatureCache(tmp_path)
    cache.put("a", torch.ones(4, 3), {})
    found = cache.get("a")
    found += 1
    assert cache.get("a").unique().tolist() == [1.0]


def test_places(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path))
    assert CachePlace.find() == CachePlace(tmp_path, named=True)
    assert CachePlace.find(str(tmp_path / "own")).folder == tmp_path / "own"
    assert CachePlace.find(False) is None
    monkeypatch.setenv("ENGRAM_CACHE", "off")
    assert CachePlace.find() is None
    monkeypatch.delenv("ENGRAM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    usual = CachePlace.find()
    assert usual == CachePlace(tmp_path / "engram", named=False)
    compute_or_read(usual, "fast", lambda: torch.zeros(2, 2), {})
    assert not FeatureCache(usual.folder).entries(), "not worth keeping"


def test_bad_options_are_refused(tmp_path):
    refused = {
        "model.freeze": [3, {"dytpe": "float16"}],
        "model.freeze.dtype": [{"dtype": "int8"}],
        "model.freeze.cache": [{"cache": 3}, {"cache": str(tmp_path)}],
    }
    for argument, values in refused.items():
        for value in values:
            with pytest.raises(engram.errors.BadArgument) as caught:
                engram.run(data(), model={"name": "mlp", "freeze": value})
            assert caught.value.argument == argument


def test_the_command_lists_and_clears(tmp_path):
    from typer.testing import CliRunner

    from engram.cli import app

    FeatureCache(tmp_path).put("a", torch.ones(4, 3), {"data": "digits", "network": "net; more"})
    listed = CliRunner().invoke(app, ["data", "cache", "--cache", str(tmp_path)])
    assert listed.exit_code == 0, listed.output
    assert "4 x 3 float32" in listed.output
    assert "1 table" in listed.output
    CliRunner().invoke(app, ["data", "cache", "--cache", str(tmp_path), "--clear"])
    assert not FeatureCache(tmp_path).entries()


def test_rows_of_a_pass_follow_from_activations():
    layers = torch.nn.Upsample(scale_factor=32), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    encoder = Encoder(torch.nn.Sequential(*layers), 3)
    x = torch.zeros(3, 3, 8, 8)
    per_row = x[:1].nbytes * (1 + 32**2)
    assert encoder.rows_at_once(x) == (1 << 28) // (2 * per_row)
    small = Encoder(torch.nn.Flatten(), 192)
    assert small.rows_at_once(x) == (1 << 24) // x[:1].nbytes


def test_features_do_not_depend_on_the_split_into_passes_and_allow_gradients():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    encoder, x = Encoder(net, 4), torch.rand(9, 3, 6, 6)
    whole = encoder(x)
    encoder._rows = {next(iter(encoder._rows)): 2}
    torch.testing.assert_close(encoder(x), whole)
    torch.testing.assert_close(net(x), whole)
    weight = torch.ones(whole.shape[1], requires_grad=True)
    (whole * weight).sum().backward()
    torch.testing.assert_close(weight.grad, whole.sum(0))
