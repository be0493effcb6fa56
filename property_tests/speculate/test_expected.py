"""Offline estimators of chains against exact rational laws: given the draft, averaged over all drafts, and over tables; gradients and doors."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from jaxtyping import TypeCheckError
from torch import Tensor

from specdec_fn.speculate import expected
from specdec_fn.speculate.expected import of_draft, of_tables
from specdec_proofs import strategies
from specdec_proofs.block_rule import block, block_acceptance, prefix_weights
from specdec_proofs.bounds import efficiencies, full_information
from specdec_proofs.coupling import coupled_acceptance, same_winner
from specdec_proofs.enumerate import expected_emitted, token, token_acceptance
from specdec_proofs.lossy import lenient, typical
from specdec_proofs.worlds import (
    Law,
    Prefix,
    World,
    chain_reference,
    declared_one_hot,
    drafts,
    independent,
    mixed_tables,
    prefixes,
    softmax,
    stopping,
)

WORLDS = (*(mixed_tables(seed, 3, 3) for seed in range(6)), chain_reference(), softmax(1, 3, 3), independent([1, 2], [2, 1], 4))
each_world = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
RULES = ("token", "block", "coupled", "bound")
SUMS = (token_acceptance, block_acceptance, coupled_acceptance, full_information)


def row(law: Law) -> Tensor:
    return torch.tensor([float(x) for x in law], dtype=torch.float64)


def rows(world: World, tokens: Prefix) -> tuple[Tensor, Tensor, Tensor]:
    """What an engine would log of a pass with this draft: p [K + 1, V], q [K, V], tokens [K]."""
    p = torch.stack([row(world.target(tokens[:i])) for i in range(len(tokens) + 1)])
    q = torch.stack([row(world.draft(tokens[:i])) for i in range(len(tokens))])
    return p, q, torch.tensor(tokens)


def logged(world: World) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Every draft of a world that never stops, as one batch of passes, and the probability of each."""
    made = list(drafts(world))
    batch = [torch.stack(column) for column in zip(*(rows(world, tokens) for tokens, _ in made), strict=True)]
    return (batch[0], batch[1], batch[2]), torch.tensor([float(weight) for _, weight in made], dtype=torch.float64)


def tables(world: World) -> tuple[list[Tensor], list[Tensor]]:
    p, q = (
        [torch.stack([row(law(x)) for x in prefixes(world, i)]).reshape([world.vocab] * (i + 1)) for i in range(world.k + more)]
        for law, more in ((world.target, 1), (world.draft, 0))
    )
    return p, q


def only(world: World, tokens: Prefix) -> World:
    """The world in which this draft is made for certain, while the verifier is told the law it might have been drawn from."""
    fixed = lambda x: tuple(Fraction(int(t == tokens[len(x)])) for t in range(world.vocab))  # noqa: E731
    return world._replace(k=len(tokens), draft=fixed, told=world.draft)


def close(a: Tensor | float, b: Tensor | float) -> None:
    torch.testing.assert_close(torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64), rtol=0, atol=1e-12)


@each_world
def test_given_the_draft_it_is_the_exact_conditional_mean(world: World) -> None:
    """The law of a pass with this very draft, in fractions, for each of its prefixes."""
    for tokens, _ in list(drafts(world))[::3]:
        found = of_draft(*rows(world, tokens))
        for k in range(1, len(tokens) + 1):
            given = only(world, tokens[:k])
            for name, rule in (("token", token), ("block", block), ("lenient", lenient), ("typical", typical)):
                close(getattr(found, name)[k - 1], float(expected_emitted(rule(given)) - 1))
            assert float(found.weights[k - 1]) == pytest.approx(float(prefix_weights(world, tokens)[k]), abs=1e-12)
        meets, ratio, accepted, bound = Fraction(1), Fraction(1), Fraction(0), Fraction(0)
        for i, t in enumerate(tokens):
            p, q = world.target(tokens[:i]), world.draft(tokens[:i])
            meets, ratio = meets * same_winner(p, q)[t] / q[t], ratio * p[t] / q[t]
            accepted, bound = accepted + meets, bound + min(Fraction(1), ratio)
            close(found.coupled[i], float(accepted))
            close(found.bound[i], float(bound))


@each_world
def test_averaged_over_drafts_it_is_the_mean(world: World) -> None:
    """Unbiased: weighted with the probability of each draft, every estimate is the exact mean of its rule, for every k."""
    batch, weight = logged(world)
    found = of_draft(*batch)
    for k in range(1, world.k + 1):
        shorter = world._replace(k=k)
        for name, mean in zip(RULES, SUMS, strict=True):
            close((weight * getattr(found, name)[:, k - 1]).sum(), float(mean(shorter)))
        close((weight * found.weights.cumsum(-1)[:, k - 1]).sum(), float(block_acceptance(shorter)))
        for name, rule in (("lenient", lenient), ("typical", typical)):
            close((weight * getattr(found, name)[:, k - 1]).sum(), float(expected_emitted(rule(shorter)) - 1))


@each_world
def test_tables_give_the_mean(world: World) -> None:
    found = of_tables(*tables(world))
    assert of_tables(tables(world)[0][:-1], tables(world)[1]).block.equal(found.block)
    for k in range(1, world.k + 1):
        for name, mean in zip(RULES, SUMS, strict=True):
            close(getattr(found, name)[k - 1], float(mean(world._replace(k=k))))
    assert (found.token <= found.block + 1e-12).all()
    assert (found.block <= found.bound + 1e-12).all()


def test_the_table_of_block_efficiency() -> None:
    """The toy of two tokens, K = 1..8, to four decimals: token, block and the bound."""
    p = torch.tensor([1, 2], dtype=torch.float64) / 3
    q = p.flip(0)
    found = of_tables(*[[law.expand([2] * i) for i in range(1, 9)] for law in (p, q)])
    columns = [" ".join(f"{x + 1:.4f}" for x in column.tolist()) for column in (found.token, found.block, found.bound)]
    assert columns == [
        "1.6667 2.1111 2.4074 2.6049 2.7366 2.8244 2.8829 2.9220",
        "1.6667 2.2222 2.6667 3.0494 3.3704 3.6516 3.8930 4.1068",
        "1.6667 2.3333 2.8519 3.3704 3.7901 4.2099 4.5565 4.9031",
    ]
    for line in efficiencies():
        close(
            torch.stack([found.token, found.block, found.bound])[:, line.k - 1] + 1, torch.tensor([float(x) for x in line[1:]], dtype=torch.float64)
        )


@given(world=strategies.worlds(most_k=3))
def test_any_world(world: World) -> None:
    """Soft or declared one-hot, with drafts of varying length in one padded batch, whose padding is NaN and -1."""
    made, k, nan = list(drafts(world)), world.k, torch.nan
    p, q = torch.full((len(made), k + 1, world.vocab), nan, dtype=torch.float64), torch.full((len(made), k, world.vocab), nan, dtype=torch.float64)
    ids, length = torch.full((len(made), k), -1), torch.tensor([len(tokens) for tokens, _ in made])
    for n, (tokens, _) in enumerate(made):
        for i in range(len(tokens) + 1):
            p[n, i] = row(world.target(tokens[:i]))
        for i, t in enumerate(tokens):
            q[n, i], ids[n, i] = row(world.draft(tokens[:i])), t
    found = of_draft(p, q if world.soft else None, ids, length)
    weight = torch.tensor([float(mass) for _, mass in made], dtype=torch.float64)
    for name, rule in (("token", token), ("block", block), ("lenient", lenient), ("typical", typical)):
        close((weight * getattr(found, name)[:, -1]).sum(), float(expected_emitted(rule(world)) - 1))
    if world.soft:
        close((weight * found.bound[:, -1]).sum(), float(full_information(world)))
        close((weight * found.coupled[:, -1]).sum(), float(coupled_acceptance(world)))


def test_one_hot_rows_and_none_are_the_same() -> None:
    batch, _ = logged(declared_one_hot(chain_reference()))
    one_hot = torch.nn.functional.one_hot(batch[2], 3).double()
    for a, b in zip(of_draft(batch[0], None, batch[2]), of_draft(batch[0], one_hot, batch[2]), strict=True):
        close(a, b)


def test_length_cuts_the_draft() -> None:
    p, q, tokens = rows(softmax(2, 4, 3), (1, 3, 0))
    whole = of_draft(p, q, tokens)
    for length in range(4):
        cut = of_draft(p, q, tokens, torch.tensor(length))
        for a, b in zip(cut[:-1], whole[:-1], strict=True):
            close(a, torch.cat([b[:length], b[length - 1 : length].expand(3 - length)]) if length else torch.zeros(3))
    assert of_draft(p[:1], q[:0], tokens[:0]).block.shape == (0,)


def test_vmap_is_the_batch() -> None:
    batch, _ = logged(chain_reference())
    for a, b in zip(torch.func.vmap(of_draft)(*batch), of_draft(*batch), strict=True):
        assert a.equal(b)
    p, q = tables(chain_reference())
    stacked = [[torch.stack([t, t]) for t in group] for group in (p[:2], q)]
    for a, b in zip(torch.func.vmap(of_tables)(*stacked), of_tables(p, q), strict=True):
        assert a[0].equal(b)
        assert a[1].equal(b)


def slopes(function, at: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences, one entry at a time."""
    found = torch.zeros_like(at)
    for i in range(at.numel()):
        shift = torch.zeros_like(at).view(-1)
        shift[i] = step
        shift = shift.view_as(at)
        found.view(-1)[i] = (function(at + shift) - function(at - shift)) / (2 * step)
    return found


@pytest.mark.parametrize("name", RULES)
def test_the_gradient_through_tables_is_the_slope(name: str) -> None:
    p, q = tables(softmax(3, 3, 2))

    def mean(logits: Tensor) -> Tensor:
        return getattr(of_tables(p, [q[0], logits.softmax(-1)]), name)[-1]

    logits = q[1].log()
    torch.testing.assert_close(torch.func.grad(mean)(logits), slopes(mean, logits), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["token", "block", "coupled", "lenient", "bound"])
def test_the_gradient_given_the_draft_is_the_slope(name: str) -> None:
    p, q, tokens = rows(softmax(4, 4, 3), (2, 0, 1))
    mean = lambda logits: getattr(of_draft(p, logits.softmax(-1), tokens), name)[-1]  # noqa: E731
    torch.testing.assert_close(torch.func.grad(mean)(q.log()), slopes(mean, q.log()), rtol=0, atol=1e-7)
    each = torch.func.vmap(torch.func.grad(mean))(torch.stack([q.log(), q.log() * 0.5]))
    torch.testing.assert_close(each[0], torch.func.grad(mean)(q.log()))


def test_weighting_the_drafts_gives_the_gradient_of_the_mean() -> None:
    """The estimate holds the drafted tokens fixed; times Q / Q.detach(), averaged over drafts, its gradient is that of the mean."""
    world = softmax(5, 3, 2)
    batch, weight = logged(world)
    p, q = tables(world)

    def exact(logits: Tensor) -> Tensor:
        return of_tables(p, [logits.softmax(-1), q[1]]).block[-1]

    def weighted(logits: Tensor) -> Tensor:
        first = logits.softmax(-1)
        laws = torch.stack([first.expand_as(batch[1][:, 0]), batch[1][:, 1]], 1)
        chance = first[batch[2][:, 0]]
        return (weight * chance / chance.detach() * of_draft(batch[0], laws, batch[2]).block[:, -1]).sum()

    at = q[0].log()
    torch.testing.assert_close(torch.func.grad(weighted)(at), torch.func.grad(exact)(at), rtol=0, atol=1e-10)


def test_gradients_are_numbers_where_rows_have_zeros() -> None:
    for seed in range(12):
        world = mixed_tables(seed, 3, 3)
        batch, _ = logged(world)
        leaves = [x.clone().requires_grad_() for x in batch[:2]]
        sum(x.sum() for x in of_draft(*leaves, batch[2])).backward()
        p, q = ([t.requires_grad_() for t in group] for group in tables(world))
        sum(x.sum() for x in of_tables(p, q)).backward()
        assert all(leaf.grad.isfinite().all() for leaf in (*leaves, *p[:-1], *q))


def test_single_precision_and_a_real_vocabulary() -> None:
    noise = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, 4, 151_936, generator=noise)
    p, q = logits[0].softmax(-1), logits[1, :3].softmax(-1)
    tokens = q.argmax(-1)
    narrow, wide = (
        of_draft(p, q, tokens),
        of_draft(p.double() / p.double().sum(-1, keepdim=True), q.double() / q.double().sum(-1, keepdim=True), tokens),
    )
    for a, b in zip(narrow, wide, strict=True):
        assert a.dtype is torch.float32
        torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-5)


def test_long_ratios_do_not_overflow() -> None:
    p = torch.tensor([[1 - 1e-30, 1e-30]]).expand(9, 2)
    q = torch.tensor([[1e-30, 1 - 1e-30]]).expand(8, 2)
    found = of_draft(p, q, torch.zeros(8, dtype=torch.int64))
    assert found.bound.tolist() == found.token.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(x.isfinite().all() for x in of_draft(p, q, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])))


def test_a_draft_that_is_the_target_is_all_accepted() -> None:
    p, _, tokens = rows(softmax(6, 5, 4), (1, 2, 3, 4))
    found = of_draft(p, p[:4], tokens)
    for value in (found.token, found.block, found.coupled, found.lenient, found.bound):
        close(value, torch.arange(1, 5))


P, Q, TOKENS = torch.full((3, 2), 0.5), torch.full((2, 2), 0.5), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((P * 1.1, Q, TOKENS), ValueError, r"p\[0\] sums to 1\.1"),
        ((torch.tensor([[0.5, 0.5], [1.5, -0.5], [0.5, 0.5]]), Q, TOKENS), ValueError, r"p\[1\] sums to 1.0 with least entry -0.5"),
        ((P, torch.tensor([[0.5, 0.5], [math.nan, 0.5]]), TOKENS), ValueError, r"q\[1\] sums to nan"),
        ((P.expand(2, 3, 2), torch.stack([Q, Q * (1 + 3e-6)]), torch.stack([TOKENS, TOKENS])), ValueError, r"q\[1, 0\] sums to 1\.00000"),
        ((P[:2], Q, TOKENS), ValueError, r"received p, q, tokens, length of shapes \[\[2, 2\], \[2, 2\], \[2\], None\]"),
        ((P, Q, TOKENS, torch.tensor(3)), ValueError, "length holds 3 to 3; expected 0 to 2"),
        ((P, Q, torch.tensor([0, 2])), ValueError, r"tokens\[1\] is 2; expected an id in \[0, 2\)"),
        ((P, Q, torch.tensor([-1, 0])), ValueError, r"tokens\[0\] is -1"),
        ((P, torch.tensor([[0.5, 0.5], [1.0, 0.0]]), TOKENS), ValueError, r"tokens\[1\] has probability 0 in q"),
        ((P, Q, TOKENS.double()), TypeError, "tokens has dtype torch.float64; expected integers"),
        ((P.long(), Q, TOKENS), TypeError, "p has dtype torch.int64; expected a floating-point dtype"),
    ],
)
def test_what_is_refused(given: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises((error, TypeCheckError), match=f"{message}|Type-check error"):  # with the hook, shapes are refused before
        of_draft(*given)


def test_tables_that_are_refused() -> None:
    half = torch.full((2,), 0.5)
    for p, q, message in (
        ([], [], "received 0 p_tables and 0 q_tables"),
        ([half] * 3, [half], "received 3 p_tables and 1 q_tables"),
        ([half, half], [half, half], r"p_tables\[1\] has shape \[2\]; expected \[2, 2\]"),
        ([half, torch.tensor([[0.5, 0.5], [0.5, 0.4]])], [half, half.expand(2, 2)], r"p_tables\[1\]\[1\] sums to 0.9"),
    ):
        with pytest.raises(ValueError, match=message):
            of_tables(p, q)


def test_within_the_tolerance_a_row_is_a_law() -> None:
    assert of_draft(P.double() * (1 + 9e-7), Q.double(), TOKENS).token.shape == (2,)


def test_early_stopped_drafts_are_a_mean_too() -> None:
    """``stopping`` worlds: the mean over drafts of varying length, through ``length``; the token rule's own law as the other side."""
    world = stopping(chain_reference(), 1)
    total = 0.0
    for tokens, mass in drafts(world):
        if tokens:
            total += float(mass) * float(of_draft(*rows(world, tokens)).token[-1])
    assert total == pytest.approx(float(expected_emitted(token(world)) - 1), abs=1e-12)


def test_every_name_is_there() -> None:
    assert all(hasattr(expected, name) for name in expected.__all__)
