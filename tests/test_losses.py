from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.losses import balanced_ce, bce_rows, ce_rows, distill_rows, masked_ce, mean, multi_hot

ALL = torch.tensor([True, True])


def test_mean_ignores_padding_and_survives_nothing() -> None:
    values = torch.tensor([1.0, 3.0, 100.0])
    assert mean(values, torch.tensor([1.0, 1.0, 0.0])) == 2.0
    assert mean(values, torch.zeros(3)) == 0.0


def test_closed_classes_get_no_probability_and_no_gradient() -> None:
    logits = torch.tensor([[0.3, -1.0, 50.0]], requires_grad=True)
    open_ = torch.tensor([[True, True, False]])
    loss = masked_ce(logits, torch.tensor([0]), open_, torch.ones(1))
    expected = torch.log(torch.exp(torch.tensor(0.3)) + torch.exp(torch.tensor(-1.0))) - 0.3
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 2] == 0.0


def test_one_open_class_costs_nothing() -> None:
    logits = torch.tensor([[7.0, 1.0]], requires_grad=True)
    loss = ce_rows(logits, torch.tensor([0]), torch.tensor([[True, False]])).sum()
    loss.backward()
    assert loss == 0.0
    assert torch.equal(logits.grad, torch.zeros(1, 2))  # type: ignore[arg-type]


def test_balanced_mean_of_class_means() -> None:
    """[T-P3] losses .2, .4 of class 0 and .9 of class 1 -> .6"""
    losses = torch.tensor([0.2, 0.4, 0.9], dtype=torch.float64)
    margin = -torch.log(torch.expm1(losses))
    target = torch.tensor([0, 0, 1])
    logits = torch.zeros(3, 2, dtype=torch.float64)
    logits[torch.arange(3), target] = margin
    open_ = torch.ones(3, 2, dtype=torch.bool)
    w = torch.ones(3, dtype=torch.float64)
    assert balanced_ce(logits, target, open_, w).item() == pytest.approx(0.6, abs=1e-5)
    assert masked_ce(logits, target, open_, w).item() == pytest.approx(0.5, abs=1e-5)


def test_balanced_counts_by_weight() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    target, open_ = torch.tensor([0, 0, 1, 0]), torch.ones(4, 3, dtype=torch.bool)
    w = torch.tensor([1.0, 1.0, 1.0, 0.0])
    padded = balanced_ce(logits, target, open_, w)
    plain = balanced_ce(logits[:3], target[:3], open_[:3], w[:3])
    torch.testing.assert_close(padded, plain)


def test_multi_hot_and_binary_reductions() -> None:
    targets = multi_hot(torch.tensor([[2, 0], [1, -1]]), 3, torch.float32)
    assert targets.tolist() == [[1, 0, 1], [0, 1, 0]]
    open_ = torch.tensor([[True, True, False]] * 2)
    logits = torch.zeros(2, 3)
    log2 = torch.log(torch.tensor(2.0)).item()
    assert bce_rows(logits, targets, open_).tolist() == pytest.approx([log2, log2])
    assert bce_rows(logits, targets, open_, "sum").tolist() == pytest.approx([2 * log2, 2 * log2])


GOLDEN = [
    # temperature, scale, form, value
    (1.0, False, "ce", 0.693147),
    (1.0, False, "kl", 0.327813),
    (2.0, False, "ce", 0.693147),
    (2.0, False, "kl", 0.110944),
    (2.0, True, "ce", 2.772589),
    (2.0, True, "kl", 0.443776),
]


@pytest.mark.parametrize("temperature, scale, form, value", GOLDEN)
def test_distillation(temperature: float, scale: bool, form: str, value: float) -> None:
    """[T-K1] old (2, 0), new (1, 1)"""
    new, old = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]])
    got = distill_rows(new, old, ALL, temperature=temperature, scale=scale, form=form)
    assert got.item() == pytest.approx(value, abs=1e-5)


def test_teacher_probabilities() -> None:
    """[T-K1] at T = 2 the teacher says (.731059, .268941), the root of p renormalised as well."""
    student = torch.zeros(1, 2, requires_grad=True)
    old = torch.tensor([[2.0, 0.0]])
    distill_rows(student, old, ALL, temperature=2.0).sum().backward()
    teacher = 0.5 - 2.0 * student.grad[0]  # type: ignore[index]  # gradient (p - q) / T
    assert teacher.tolist() == pytest.approx([0.731059, 0.268941], abs=1e-5)
    root = old.softmax(-1).sqrt()
    assert (root / root.sum())[0].tolist() == pytest.approx([0.731059, 0.268941], abs=1e-5)


def test_zero_pad() -> None:
    """[T-K2] student (1, 1, 2), teacher (2, 0), T = 2: 1.294377, times 4: 5.177507"""
    new, old = torch.tensor([[1.0, 1.0, 2.0]]), torch.tensor([[2.0, 0.0, 9.0]])
    known, fresh = torch.tensor([True, True, False]), torch.tensor([False, False, True])
    for scale, value in ((False, 1.294377), (True, 5.177507)):
        got = distill_rows(new, old, known, temperature=2.0, scale=scale, new_classes=fresh)
        assert got.item() == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_forms_have_equal_gradients(padded: bool) -> None:
    source = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(5, 4, generator=source, dtype=torch.float64) for _ in range(2))
    known = torch.tensor([True, True, True, False])
    grads: list[Tensor] = []
    for form in ("ce", "kl"):
        leaf = student.clone().requires_grad_(True)
        fresh = ~known if padded else None
        distill_rows(leaf, teacher, known, form=form, new_classes=fresh).sum().backward()
        grads.append(leaf.grad)  # type: ignore[arg-type]
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-15)
    assert grads[0].abs().max() > 0.01
    assert bool((grads[0][:, 3] != 0).all()) == padded  # a sliced softmax leaves new classes alone


def test_kl_of_equal_logits_is_zero() -> None:
    logits = torch.tensor([[0.2, -3.0]])
    assert distill_rows(logits, logits, ALL, form="kl").item() == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mapped_cross_entropy_has_the_bits_of_torch(dtype) -> None:
    logits = torch.linspace(-3.0, 9.0, 60, dtype=dtype).sin().reshape(3, 4, 5) * 20
    target = torch.arange(12).reshape(3, 4) % 5
    open_ = torch.ones(5, dtype=torch.bool)

    def own(logits: Tensor, target: Tensor) -> Tensor:
        return (ce_rows(logits, target, open_) ** 2).sum()

    def plain(logits: Tensor, target: Tensor) -> Tensor:
        return (torch.nn.functional.cross_entropy(logits, target, reduction="none") ** 2).sum()

    mapped = torch.func.vmap(torch.func.grad_and_value(own))(logits, target)
    for one in (0, 1, 2):
        slope, value = torch.func.grad_and_value(plain)(logits[one], target[one])
        assert torch.equal(mapped[0][one], slope)
        assert torch.equal(mapped[1][one], value)
