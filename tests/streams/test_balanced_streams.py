"""Generated copies: which rows they are, what they look like, and who never meets them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import engram
from engram.data.duplicates import count_duplicates, find_repeats
from engram.data.image_copies import ImageCopies
from engram.engine.pretraining import split_off_rows
from engram.learner.feed import Feed
from engram.streams import balance, blurry, class_incremental, new_instances, task_incremental
from engram.streams.stream_warnings import count_repeated_test_rows

COUNTS = (40, 10, 25, 5)


def make(shape=(3, 12, 12), *, attributes=True, float_=False):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), COUNTS)
    x = rng.integers(0, 256, (len(y), *shape), np.uint8)
    x = torch.from_numpy(x / 255.0).float() if float_ else torch.from_numpy(x)
    facts = {"subject": torch.arange(len(y)) // 4} if attributes else {}
    return engram.Data.from_arrays(x, y, attributes=facts, name="few")


def counts(stream):
    rows = torch.cat([task.train for task in stream])
    return stream.data.labels[rows].bincount().tolist()


def test_every_class_has_as_many_as_the_largest():
    stream = class_incremental(make())
    assert counts(stream) == [32, 8, 20, 4]
    assert counts(balance(stream)) == [32] * 4
    assert counts(balance(stream, per_class=25)) == [32, 25, 25, 25]
    made = balance(stream)
    assert [len(task.train) for task in made] == [64, 64]
    assert made.describe()["copies"] == [24, 40]
    assert "64 generated copies of training images" in made.data.notes
    assert str(made.describe()) != str(stream.describe())


def test_copies_have_the_facts_of_their_source_and_stay_in_its_task():
    made = balance(class_incremental(make()))
    data = made.data
    for task in made:
        copies = task.train[task.train >= len(data.x)]
        source = data.sources(copies)
        assert torch.equal(data.y[copies], data.y[source])
        assert torch.equal(data.attributes["subject"][copies], data.attributes["subject"][source])
        assert torch.isin(source, task.train).all()
    # every row of a class equally often, or once more
    often = data.copies.source.bincount(minlength=len(data.x))
    for label in range(4):
        mine = often[data.train[data.labels[data.train] == label]]
        assert int(mine.max() - mine.min()) <= 1


def test_no_copy_is_or_comes_from_a_held_out_row():
    made = balance(class_incremental(make(), valid=0.25))
    held = torch.cat([torch.cat([task.valid, task.test]) for task in made])
    used = torch.cat([task.train for task in made])
    assert int(held.max()) < len(made.data.x)
    assert not torch.isin(made.data.sources(used), held).any()
    assert torch.equal(made.data.train, make().train)  # the split of the data has none
    first = made.tasks[0]
    copy = first.train[first.train >= len(made.data.x)][:1]
    with pytest.raises(ValueError, match="no generated copy among the test rows"):
        replace(made, tasks=(replace(first, test=copy), made.tasks[1]))
    source = made.data.sources(copy)
    rest = first.train[first.train != source]
    with pytest.raises(ValueError, match="no training copies of test rows"):
        replace(made, tasks=(replace(first, train=rest, test=source), made.tasks[1]))


def test_the_same_copies_whatever_the_order_of_classes():
    data = make()
    made = [balance(class_incremental(data, order=order)) for order in ([0, 1, 2, 3], [3, 1, 0, 2])]
    assert made[0].data is made[1].data
    again = balance(class_incremental(make()))
    assert again.fingerprint() == made[0].fingerprint()
    other = balance(class_incremental(data), seed=1)
    assert other.data.fingerprint() != made[0].data.fingerprint()
    assert made[0].data.fingerprint() != data.fingerprint()


def test_what_a_copy_looks_like():
    data = make((3, 21, 21))
    made = balance(class_incremental(data), flip=0.5, rotate=0.5).data
    copies, rows = made.copies, torch.arange(len(data), len(made))
    assert 0.25 < copies.flipped.double().mean() < 0.75
    turned = copies.angle != 0
    assert 0.25 < turned.double().mean() < 0.75
    assert copies.angle.abs().max() <= 30
    assert (copies.angle > 5).any()
    assert (copies.angle < -5).any()
    x, source = made.gather(rows), data.x[copies.source]
    assert x.dtype == torch.uint8
    still = ~turned
    assert torch.equal(x[still & ~copies.flipped], source[still & ~copies.flipped])
    assert torch.equal(x[still & copies.flipped], source[still & copies.flipped].flip(-1))
    for i in (turned & ~copies.flipped).nonzero()[:4, 0].tolist():
        image = Image.fromarray(source[i].permute(1, 2, 0).numpy())
        reference = image.rotate(float(copies.angle[i]), Image.Resampling.BILINEAR)
        found = x[i].permute(1, 2, 0).numpy()
        middle = slice(5, 16)  # borders differ: Pillow cuts, this fades
        difference = np.abs(np.asarray(reference, int) - found)[middle, middle]
        assert difference.max() <= 2
    assert torch.equal(made.gather(torch.arange(len(data))), data.x)


def test_the_feed_and_gather_agree_and_keep_rows_apart():
    made = balance(class_incremental(make())).data
    rows = torch.tensor([0, 79, 100, 143, 3, 100])
    feed = Feed(made, device=torch.device("cpu"))
    x = feed(rows)
    assert torch.equal(x, made.gather(rows).float().mul(1 / 255))
    assert torch.equal(x[2], feed(rows[2:3])[0])
    assert torch.equal(feed(rows.reshape(2, 3)), x.reshape(2, 3, *x.shape[1:]))
    mapped = Feed(made, device=torch.device("cpu"), axes=(1, 2, 0))
    assert torch.equal(mapped(rows), x)


def test_a_memory_map_is_not_read_twice(tmp_path):
    data = make()
    file = engram.data.pack(data, tmp_path / "few.npz")
    x = np.memmap(tmp_path / "x", np.uint8, "w+", shape=tuple(data.x.shape))
    x[:] = data.x.numpy()
    mapped = replace(data, x=x)
    made, plain = balance(class_incremental(mapped)), balance(class_incremental(data))
    assert made.data.x is x
    assert made.fingerprint() == plain.fingerprint()
    rows = torch.arange(70, 140)
    assert torch.equal(made.data.gather(rows), plain.data.gather(rows))
    assert engram.load(file).fingerprint() == data.fingerprint()
    with pytest.raises(ValueError, match="without generated copies"):
        engram.data.pack(made.data, tmp_path / "no.npz")


def test_real_valued_images_are_copied_too():
    made = balance(class_incremental(make(float_=True)), flip=1.0, rotate=0.0).data
    rows = torch.arange(len(made.x), len(made))
    assert torch.equal(made.gather(rows), made.x[made.copies.source].flip(-1))


@pytest.mark.parametrize("make_stream", [
    lambda data: blurry(data, tasks=2, mix=0.3), lambda data: new_instances(data, tasks=2),
    task_incremental, engram.joint, lambda data: engram.rotated(data, angles=(0, 45)),
])  # fmt: skip
def test_any_scenario(make_stream):
    stream = make_stream(make())
    made = balance(stream)
    rows = torch.cat([task.train for task in made]).unique()
    assert made.data.labels[rows].bincount().tolist() == [32] * 4
    for before, after in zip(stream, made, strict=True):
        assert torch.equal(after.train[: len(before.train)], before.train)
        assert torch.equal(after.test, before.test)


def test_runs_alone_and_together_are_equal():
    made = balance(class_incremental(make()))
    options = {"method": ["Finetune", "ER"], "epochs": 2, "seeds": 2, "batch_size": 16}
    alone = engram.run(made, together=False, **options)
    together = engram.run(made, together=True, **options)
    assert np.allclose(alone.matrix, together.matrix, equal_nan=True)
    # copies are read as the training rows that they are
    stages = {"0": {"train": 64, "test": 10}, "1": {"train": 64, "test": 16}}
    assert alone.ledger[0]["stages"] == stages


def test_recipes_name_it_and_know_it_again(tmp_path):
    engram.data.pack(make(), tmp_path / "few.npz")
    section = {"data": str(tmp_path / "few.npz"), "balance": {"degrees": 10}}
    recipe = engram.Recipe.of({"stream": section, "method": "Finetune"})
    stream = recipe.build_stream()
    assert stream.data.copies.degrees == 10
    by_hand = balance(class_incremental(engram.load(tmp_path / "few.npz")), degrees=10)
    assert stream.fingerprint() == by_hand.fingerprint()
    result = engram.run(by_hand, method="Finetune", epochs=1)
    again = engram.Recipe.of({"stream": {**section, "balance": True}, "method": "Finetune"})
    assert again.id != recipe.id
    (content,) = result.recipes.values()
    stored = {k: v for k, v in content["stream"].items() if k != "head"}
    assert engram.Recipe.of({"stream": stored, "method": "Finetune"}).id == recipe.id
    with pytest.raises(ValueError, match=r"stream.balance: unknown name 'degree', did you mean"):
        engram.Recipe.of({"stream": {**section, "balance": {"degree": 10}}, "method": "ER"})
    with pytest.raises(ValueError, match=r"stream\.balance: expected true, false or a mapping"):
        engram.Recipe.of({"stream": {**section, "balance": 3}, "method": "ER"})
    off = engram.Recipe.of({"stream": {**section, "balance": False}, "method": "ER"})
    assert off.build_stream().data.copies is None


def test_what_cannot_be_copied_is_refused():
    flat = engram.Data.from_arrays(torch.rand(20, 5), [0, 1] * 10)
    with pytest.raises(ValueError, match=r"stream\.data: expected images"):
        balance(class_incremental(flat))
    made = balance(class_incremental(make()))
    with pytest.raises(ValueError, match="one without copies"):
        balance(made)
    with pytest.raises(ValueError, match="stream: expected a Stream"):
        balance(make())
    for wrong in ({"flip": 2.0}, {"rotate": -1.0}, {"degrees": 200.0}, {"per_class": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            balance(class_incremental(make()), **wrong)
    copies = ImageCopies(source=torch.tensor([99]), key=torch.tensor([1]))
    data = make(attributes=False)
    with pytest.raises(ValueError, match="stored rows"):
        replace(data, copies=copies, y=torch.cat([data.y, data.y[:1]]))


def test_repeated_samples_are_counted_without_the_copies():
    data = make()
    made = balance(class_incremental(data), flip=0.0, rotate=0.0)  # copies are their sources again
    rows = torch.cat([task.train for task in made])
    assert count_duplicates(made.data, rows) == 0
    assert count_repeated_test_rows(made) == 0
    assert len(find_repeats(made.data, rows, rows[:3])) == 3


def test_rows_set_aside_take_their_copies_along():
    made = balance(class_incremental(make()))
    rest, aside = split_off_rows(made, 1 / 6, seed=0)
    behind = [made.data.sources(torch.cat([task.train for task in part])) for part in (rest, aside)]
    assert not torch.isin(*behind).any()
    assert sum(map(len, behind)) == sum(len(task.train) for task in made)
    assert (torch.cat([task.train for task in aside]) >= len(made.data.x)).any()
