"""Acceptance at one position, from p and q alone: summed over the verifier's randomness and, but for ``of_siblings``, over the draft as well.

Everything is a function of tensors that ``torch.func.grad`` and ``vmap`` transform; batches may also stand in front.
"""

import torch

from specdec_fn.speculate.rows import check_floats, check_ids, check_laws, divide, normalised
from specdec_fn.typing import Float, Int, Tensor

__all__ = [
    "coupled_overlap",
    "k_seq",
    "multi_draft",
    "multi_draft_without_replacement",
    "of_siblings",
    "overlap",
    "same_winner",
    "transport",
]

LARGEST_SUM = 2**24  # terms of a sum over siblings without replacement
HALVINGS = 60


def overlap(p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Probability that one draft is accepted by ``token`` or ``block``: sum of min(p, q). Exact over the draft.

    Raises:
        TypeError, ValueError: laws that are no floats; shapes that differ; rows that are negative, NaN or do not sum to 1 within 1e-6.

    >>> overlap(torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75]))
    tensor(0.7500)
    """
    _check_pair(p, q)
    return torch.minimum(p, q).sum(-1)


def same_winner(p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    """For each token, the probability that it wins the race for p and the race for q on the same noise; O(V log V).

    p_i q_i / (q_i A_i + p_i B_i), with A_i the sum of p over the tokens whose p/q is at least that of i, B_i the sum of q over the others: the
    same as 1 / sum over j of max(p_j/p_i, q_j/q_i). Values are not checked. Source: arXiv 2408.07978.

    >>> same_winner(torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3]))
    tensor([0.3333, 0.3333])
    """
    order = _by_ratio(p, q)
    p, q = p.gather(-1, order), q.gather(-1, order)
    at_least, below = p.flip(-1).cumsum(-1).flip(-1), torch.nn.functional.pad(q.cumsum(-1)[..., :-1], (1, 0))
    winners = divide(p * q, q * at_least + p * below)
    return torch.zeros_like(winners).scatter(-1, order, winners)


def coupled_overlap(p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Probability that two races on the same noise have one winner: sum over i of 1 / sum over j of max(p_j/p_i, q_j/q_i); O(V log V).

    Exact over the draft, for ``coupled`` with a drafter that runs the race. Source: arXiv 2408.07978.

    Raises:
        TypeError, ValueError: as ``overlap``.

    >>> coupled_overlap(torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3]))
    tensor(0.6667)
    """
    _check_pair(p, q)
    return same_winner(p, q).sum(-1)


def multi_draft(p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"], n: int) -> Float[Tensor, "*batch"]:
    """Probability that one of n siblings with replacement is accepted: 1 - prod over j of TV(r_j, q), r_1 = p, then the residuals.

    Exact over the siblings. Source: arXiv 2305.09781.

    Raises:
        TypeError, ValueError: as ``overlap``, and n below 1.

    >>> multi_draft(torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3]), 2)
    tensor(0.7778)
    """
    _check_pair(p, q, n)
    missed = torch.ones_like(p[..., 0])
    for _ in range(n):
        excess = torch.clamp(p - q, min=0)
        missed, p = missed * excess.sum(-1), normalised(excess, p)
    return 1 - missed


def multi_draft_without_replacement(p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"], n: int) -> Float[Tensor, "*batch"]:
    """Probability that one of n siblings without replacement is accepted, summed over all siblings: V**n terms.

    Exact over the siblings; for larger vocabularies average ``of_siblings``. Source: arXiv 2402.12374.

    Raises:
        TypeError, ValueError: as ``overlap``; n below 1; more than 2**24 terms.

    >>> multi_draft_without_replacement(torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3]), 2)
    tensor(1.)
    """
    _check_pair(p, q, n)
    if p.shape[-1] ** n > LARGEST_SUM:
        raise ValueError(f"received V = {p.shape[-1]} and n = {n}; expected V**n of at most {LARGEST_SUM}, or use of_siblings")
    return _tries(p, q, n)


def k_seq(p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"], n: int) -> Float[Tensor, "*batch"]:
    """Probability that k-SEQ accepts one of n siblings with replacement: 1 - (1 - b)**n, b = sum of min(p / rho, q), at the least valid rho.

    rho is the root of 1 - (1 - b)**n = rho b in [1, n]; it is found by bisection and its gradient by one Newton step, exact to first order.
    Exact over the siblings. Source: arXiv 2310.15141.

    Raises:
        TypeError, ValueError: as ``overlap``, and n below 1.

    >>> k_seq(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]), 2)
    tensor(0.7500)
    """
    _check_pair(p, q, n)
    low, high = torch.ones_like(p[..., 0].detach()), torch.full_like(p[..., 0].detach(), n)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        valid = _shortfall(p.detach(), q.detach(), n, middle) <= 0
        low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
    slope = _slope(p.detach(), q.detach(), n, high)
    rho = high - divide(_shortfall(p, q, n, high), slope)
    return 1 - (1 - torch.minimum(p / rho[..., None], q).sum(-1)) ** n


def transport(p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"], n: int) -> Float[Tensor, "*batch"]:
    """The most that any rule can accept with n siblings with replacement: min over H of p(H) + 1 - q(H)**n; O(V log V).

    A least H is a prefix of the tokens sorted by p/q. Exact over the siblings; 1 - TV for n = 1. Source: arXiv 2310.15141 (the transport problem).

    Raises:
        TypeError, ValueError: as ``overlap``, and n below 1.

    >>> transport(torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3]), 2)
    tensor(0.8889)
    """
    _check_pair(p, q, n)
    order = _by_ratio(p, q)
    target, draft = (law.gather(-1, order).cumsum(-1) for law in (p, q))
    return torch.clamp((target + 1 - draft**n).amin(-1), max=1)


def of_siblings(
    p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"] | None, siblings: Int[Tensor, "*batch n"], *, replacement: bool = False
) -> Float[Tensor, "*batch n"]:
    """Probability that recursive rejection accepts one of the first 1..n siblings, given them; exact over the verifier's randomness.

    Its mean over siblings drawn from q is unbiased for ``multi_draft`` or ``multi_draft_without_replacement``, at any vocabulary.

    Args:
        p: float [..., V], the target's law.
        q: float [..., V], the law the siblings were drawn from; None declares them one-hot: the result is then p of the list.
        siblings: int64 [..., n], in the order drawn; -1 where the draft's law was exhausted.
        replacement: how they were drawn.

    Raises:
        TypeError, ValueError: as ``overlap``; ids outside [-1, V).

    >>> of_siblings(torch.tensor([0.5, 0.25, 0.25]), None, torch.tensor([2, 0, 2]))
    tensor([0.2500, 0.7500, 0.7500])
    """
    check_floats(p=p, q=q)
    if siblings.shape[:-1] != p.shape[:-1] or (q is not None and q.shape != p.shape):
        shapes = f"p {list(p.shape)}, q {None if q is None else list(q.shape)} and siblings {list(siblings.shape)}"
        raise ValueError(f"received {shapes}; expected [..., V], [..., V] or None, and [..., n]")
    check_laws("p", p)
    check_laws("q", q)
    check_ids("siblings", siblings, p.shape[-1], -1)
    vocab, missed, found = torch.arange(p.shape[-1], device=p.device), torch.ones_like(p[..., 0]), []
    for token in siblings.unbind(-1):
        here = (token[..., None] == vocab).to(p.dtype)
        law = here if q is None else q
        px, qx = (p * here).sum(-1), (law * here).sum(-1)
        passes = torch.where(qx > 0, torch.clamp(divide(px, qx), max=1), 0)
        missed = missed * (1 - passes)
        found.append(1 - missed)
        p = normalised(torch.clamp(p - law, min=0), p)
        if q is not None and not replacement:
            q = normalised(q * (1 - here), torch.zeros_like(q))
    return torch.stack(found, -1) if found else p.new_zeros(siblings.shape)


def _tries(r: Tensor, q: Tensor, n: int) -> Tensor:
    kept = torch.minimum(r, q).sum(-1)
    if n == 1:
        return kept
    others = 1 - torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    left = normalised(q[..., None, :] * others, torch.zeros_like(q[..., None, :]))
    after = normalised(torch.clamp(r - q, min=0), r)[..., None, :].expand_as(left)
    return kept + (torch.clamp(q - r, min=0) * _tries(after, left, n - 1)).sum(-1)


def _shortfall(p: Tensor, q: Tensor, n: int, rho: Tensor) -> Tensor:
    """1 - (1 - b)**n - rho b: k-SEQ is lossless where this is at most 0."""
    overlap = torch.minimum(p / rho[..., None], q).sum(-1)
    return 1 - (1 - overlap) ** n - rho * overlap


def _slope(p: Tensor, q: Tensor, n: int, rho: Tensor) -> Tensor:
    """The derivative of ``_shortfall`` in rho."""
    scaled = p / rho[..., None]
    overlap, change = torch.minimum(scaled, q).sum(-1), -torch.where(scaled < q, scaled, 0).sum(-1) / rho
    return n * (1 - overlap) ** (n - 1) * change - overlap - rho * change


def _by_ratio(p: Tensor, q: Tensor) -> Tensor:
    """Places of the tokens in order of p/q; those with q = 0 come last."""
    p, q = p.detach(), q.detach()
    return torch.where(q > 0, divide(p, q), torch.inf).argsort(-1)


def _check_pair(p: Tensor, q: Tensor, n: int = 1) -> None:
    check_floats(p=p, q=q)
    if p.shape != q.shape or p.dim() == 0:
        raise ValueError(f"received p {list(p.shape)} and q {list(q.shape)}; expected two laws of one shape [..., V]")
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n is {n!r}; expected a whole number of siblings, at least one")
    check_laws("p", p)
    check_laws("q", q)
