"""Acceptance at one position against exact rational laws, on random rows with zeros, and its gradients."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor

from specdec_fn.speculate.overlaps import (
    coupled_overlap,
    k_seq,
    multi_draft,
    multi_draft_without_replacement,
    of_siblings,
    overlap,
    same_winner,
    transport,
)
from specdec_proofs import coupling, siblings, strategies
from specdec_proofs.worlds import Law, normalised

PAIRS = st.integers(2, 4).flatmap(lambda vocab: st.tuples(strategies.laws(vocab), strategies.laws(vocab), st.integers(1, 3)))


def row(law: Law) -> Tensor:
    return torch.tensor([float(x) for x in law], dtype=torch.float64)


@given(PAIRS)
def test_every_figure_is_the_exact_one(pair: tuple) -> None:
    p, q, n = pair
    exact = {
        "overlap": sum(min(a, b) for a, b in zip(p, q, strict=True)),
        "coupled_overlap": sum(coupling.same_winner(p, q)),
        "multi_draft": siblings.one_position(p, q, n, siblings.with_replacement, replacement=True).accepted,
        "without": siblings.one_position(p, q, n, siblings.without_replacement, replacement=False).accepted,
        "transport": siblings.transport(p, q, n, replacement=True),
    }
    a, b = row(p), row(q)
    found = (overlap(a, b), coupled_overlap(a, b), multi_draft(a, b, n), multi_draft_without_replacement(a, b, n), transport(a, b, n))
    for (name, wanted), value in zip(exact.items(), found, strict=True):
        assert float(value) == pytest.approx(float(wanted), abs=1e-12), name
    # the rational rho is rounded up to a grid of 2**-20, which costs acceptance of that size
    at_grid = siblings.one_position(p, q, n, siblings.k_seq, replacement=True).accepted
    assert float(at_grid) - 1e-12 <= float(k_seq(a, b, n)) <= float(at_grid) + 4e-6
    assert same_winner(a, b).tolist() == pytest.approx([float(x) for x in coupling.same_winner(p, q)], abs=1e-12)


@given(PAIRS)
def test_order_among_them(pair: tuple) -> None:
    """No rule exceeds the transport bound, and k-SEQ reaches 1 - 1/e of it."""
    p, q, n = row(pair[0]), row(pair[1]), pair[2]
    most = float(transport(p, q, n)) + 1e-12
    assert float(multi_draft(p, q, n)) <= most
    assert (1 - 1 / math.e) * most - 1e-9 <= float(k_seq(p, q, n)) <= most
    assert float(coupled_overlap(p, q)) <= float(overlap(p, q)) + 1e-12


def test_the_example_of_four_tokens() -> None:
    """.688 .730 .747 .744 .774: one draft, two with and without replacement, k-SEQ, the transport bound."""
    p, q = row(normalised([2, 8, 8, 4])), row(normalised([1, 7, 1, 5]))
    found = (overlap(p, q), multi_draft(p, q, 2), multi_draft_without_replacement(p, q, 2), k_seq(p, q, 2), transport(p, q, 2))
    assert " ".join(f"{float(x):.3f}" for x in found) == "0.688 0.730 0.747 0.744 0.774"


@given(PAIRS)
def test_given_siblings_it_is_the_mean_over_the_verifier(pair: tuple) -> None:
    """Each list on its own, and averaged over the lists; -1 stands where the draft's law is exhausted."""
    p, q, n = pair
    for replacement, rule in ((True, siblings.with_replacement), (False, siblings.without_replacement)):
        drawn = siblings.draws(q, n, replacement=replacement)
        padded = torch.tensor([[*tokens, *[-1] * (n - len(tokens))] for tokens in drawn])
        laws = [row(law).expand(len(drawn), -1) for law in (p, q)]
        found = of_siblings(*laws, padded, replacement=replacement)
        for values, tokens in zip(found.tolist(), drawn, strict=True):
            for count in range(1, n + 1):
                wanted = sum(mass for (which, _), mass in rule(p, q, tokens[:count]).items() if which >= 0)
                assert values[count - 1] == pytest.approx(float(wanted), abs=1e-12)
        mean = sum(float(mass) * values[-1] for mass, values in zip(drawn.values(), found.tolist(), strict=True))
        assert mean == pytest.approx(float(siblings.one_position(p, q, n, rule, replacement=replacement).accepted), abs=1e-12)
        listed = of_siblings(laws[0], None, padded)
        for values, tokens in zip(listed.tolist(), drawn, strict=True):
            assert values == pytest.approx([float(sum(p[t] for t in set(tokens[:count]))) for count in range(1, n + 1)], abs=1e-12)


FUNCTIONS = (overlap, coupled_overlap, *(lambda p, q, f=f: f(p, q, 3) for f in (multi_draft, multi_draft_without_replacement, k_seq, transport)))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_are_slopes_and_batches_are_vmap(function) -> None:
    noise = torch.Generator().manual_seed(3)
    a, b = torch.randn(2, 5, 6, generator=noise, dtype=torch.float64)
    p = a.softmax(-1)
    assert torch.func.vmap(function)(p, b.softmax(-1)).equal(function(p, b.softmax(-1)))
    for law, logits in zip(p, b, strict=True):
        mean = lambda x, law=law: function(law, x.softmax(-1))  # noqa: E731
        steps = 1e-6 * torch.eye(6, dtype=torch.float64)
        slope = torch.stack([(mean(logits + step) - mean(logits - step)) / 2e-6 for step in steps])
        torch.testing.assert_close(torch.func.grad(mean)(logits), slope, rtol=0, atol=1e-7)
        other = lambda x, logits=logits: function(x.softmax(-1), logits.softmax(-1))  # noqa: E731
        slope = torch.stack([(other(law.log() + step) - other(law.log() - step)) / 2e-6 for step in steps])
        torch.testing.assert_close(torch.func.grad(other)(law.log()), slope, rtol=0, atol=1e-7)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_are_numbers_on_zeros_ties_and_equal_rows(function) -> None:
    third = [1 / 3] * 3
    for p, q in itertools.product(([1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 1.0], third), repeat=2):
        laws = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (p, q)]
        value = function(*laws)
        value.backward()
        assert 0 <= value.item() <= 1 + 1e-12
        assert all(law.grad is None or law.grad.isfinite().all() for law in laws), (p, q)
        if p == q:
            assert value.item() == pytest.approx(1, abs=1e-12)


def test_what_is_refused() -> None:
    half = torch.tensor([0.5, 0.5])
    for function in (multi_draft, multi_draft_without_replacement, k_seq, transport):
        with pytest.raises(ValueError, match="n is 0; expected a whole number of siblings, at least one"):
            function(half, half, 0)
    for laws, message in (
        ((half, torch.tensor([0.5, 0.6])), r"q sums to 1\.1"),
        ((torch.stack([half, half * 0.5]), torch.stack([half, half])), r"p\[1\] sums to 0\.5"),
        ((half, torch.tensor([1.5, -0.5])), r"q sums to 1.0 with least entry -0.5"),
        ((half, torch.full((3,), 1 / 3)), r"received p \[2\] and q \[3\]"),
    ):
        with pytest.raises((ValueError, TypeCheckError), match=f"{message}|Type-check error"):  # with the hook, shapes are refused before
            overlap(*laws)
    with pytest.raises((TypeError, TypeCheckError), match=r"q has dtype torch.int64|Type-check error"):
        overlap(half, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="expected V\\*\\*n of at most 16777216"):
        multi_draft_without_replacement(torch.full((5000,), 1 / 5000.0).double(), torch.full((5000,), 1 / 5000.0).double(), 2)
    with pytest.raises(ValueError, match=r"siblings\[1\] is 2; expected an id in \[-1, 2\)"):
        of_siblings(half, half, torch.tensor([0, 2]))
    with pytest.raises((ValueError, TypeCheckError), match=r"received p \[2\], q None and siblings \[1, 2\]|Type-check error"):
        of_siblings(half, None, torch.tensor([[0, 1]]))
