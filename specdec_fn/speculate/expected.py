"""Offline estimators: the mean number of accepted tokens from the rows p and q alone, with nothing sampled, differentiable in both.

Three kinds, by what is given and what is summed over:

``of_draft``     given logged passes (rows and drafted tokens): the verifier's randomness is integrated out exactly, the draft is as it was. The
                 mean over drafts drawn from q is an unbiased, Rao-Blackwellised estimate of E[accepted]. Its gradient in q holds the drafted
                 tokens fixed, so it is not the gradient of the mean: for that use the other two kinds, or weight by Q(x) / Q(x).detach().
``of_siblings``  the same for several drafts at one position.
``overlap`` ...  one position, summed over the draft as well: exact.
``of_tables``    several positions of a small vocabulary, summed over every draft: exact.

Everything is a function of tensors that ``torch.func.grad`` and ``vmap`` transform; values are checked where Python may look at them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

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
from specdec_fn.speculate.rows import check_floats, check_ids, check_laws, divide, traced
from specdec_fn.typing import Bool, Float, Int, Tensor

__all__ = [
    "OfDraft",
    "OfTables",
    "coupled_overlap",
    "k_seq",
    "multi_draft",
    "multi_draft_without_replacement",
    "of_draft",
    "of_siblings",
    "of_tables",
    "overlap",
    "same_winner",
    "transport",
]


class OfDraft(NamedTuple):
    """Mean numbers of accepted tokens given one draft, float [..., K]; entry k - 1 is for the draft cut to its first k tokens.

    Attributes:
        token: sum over i of prod over j <= i of min(1, p/q).
        block: sum over i of 1 - prod over j >= i of (1 - h_j), the last h being w.
        coupled: sum of products of Pr[the target's race is won by the drafted token | the drafter's was, on the same noise].
        lenient: as token, with min(1, p / (lenience q)). Lossy.
        typical: drafted tokens before the first at or below the threshold. Lossy; its gradient is 0.
        bound: sum over i of min(1, P/Q) of the first i tokens. Its mean over drafts bounds the mean of every lossless rule; one draft's need not.
        weights: w_i, the probability that block verification keeps i tokens, whatever follows them. ``weights.cumsum(-1)`` has the same mean
            over drafts as ``block``, and each of its terms at most the variance.
    """

    token: Float[Tensor, "*batch K"]
    block: Float[Tensor, "*batch K"]
    coupled: Float[Tensor, "*batch K"]
    lenient: Float[Tensor, "*batch K"]
    typical: Float[Tensor, "*batch K"]
    bound: Float[Tensor, "*batch K"]
    weights: Float[Tensor, "*batch K"]


class OfTables(NamedTuple):
    """Mean numbers of accepted tokens over all drafts, float [K]; entry k - 1 is for drafts of k tokens. ``bound``: no rule exceeds it."""

    token: Float[Tensor, "K"]
    block: Float[Tensor, "K"]
    coupled: Float[Tensor, "K"]
    bound: Float[Tensor, "K"]


def of_draft(
    p: Float[Tensor, "*batch rows vocab"],
    q: Float[Tensor, "*batch K vocab"] | None,
    tokens: Int[Tensor, "*batch K"],
    length: Int[Tensor, "*batch"] | None = None,
    *,
    lenience: float = 0.8,
    epsilon: float = 0.09,
    delta: float = 0.3,
) -> OfDraft:
    """Mean number of accepted tokens of every chain rule and prefix length, given the draft; exact over the verifier's randomness.

    Args:
        p: float [..., K + 1, V], target rows; row i after i drafted tokens.
        q: float [..., K, V], the laws the tokens were drawn from; None declares them one-hot (``coupled`` is then for a drafter that does not
            race on the target's noise, which is the same number).
        tokens: int64 [..., K].
        length: int64 [...], drafted tokens of each pass; what lies past it is not read, and its entries repeat. None: K.
        lenience, epsilon, delta: of the two lossy rules.

    Raises:
        TypeError: laws that are no floats, or ids that are no integers.
        ValueError: shapes that do not fit; rows that are negative, NaN or do not sum to 1 within 1e-6; ids that are outside the vocabulary or
            that q cannot have given; a length outside [0, K].

    Source: arXiv 2211.17192 (token), 2403.10444 (block), 2408.07978 (coupled), 2401.10774 (typical).

    >>> p, q = torch.tensor([[1 / 3, 2 / 3]]).expand(3, 2), torch.tensor([[2 / 3, 1 / 3]]).expand(2, 2)
    >>> found = of_draft(p, q, torch.tensor([0, 1]))
    >>> found.token, found.block
    (tensor([0.5000, 1.0000]), tensor([0.5000, 2.0000]))
    """
    drafted = _check_draft(p, q, tokens, length)
    for name, share in (("lenience", lenience), ("epsilon", epsilon), ("delta", delta)):
        if not 0 < share <= 1:
            raise ValueError(f"{name} is {share}; expected a number in (0, 1]")
    k, vocab = tokens.shape[-1], p.shape[-1]
    if k == 0:
        return OfDraft(*(p.new_zeros(tokens.shape) for _ in OfDraft._fields))
    ids = torch.where(drafted, tokens, 0)
    p = torch.where(drafted[..., None], p[..., :k, :], 1 / vocab)
    px = p.gather(-1, ids[..., None]).squeeze(-1)
    if q is None:
        qx, meets = torch.ones_like(px), px
    else:
        q = torch.where(drafted[..., None], q, 1 / vocab)
        qx = q.gather(-1, ids[..., None]).squeeze(-1)
        meets = divide(px, torch.maximum(qx[..., None] * p, px[..., None] * q).sum(-1))
    ratio = torch.where(qx > 0, divide(px, qx), (px > 0).to(px.dtype))
    threshold = torch.clamp(delta * torch.exp(-torch.special.entr(p.detach()).sum(-1)), max=epsilon)
    weights = _running(ratio, most=1.0)
    return OfDraft(
        token=_kept(torch.clamp(ratio, max=1), drafted),
        block=_block(p, q, px, weights, drafted),
        coupled=_kept(meets, drafted),
        lenient=_kept(torch.clamp(ratio / lenience, max=1), drafted),
        typical=_kept((px > threshold).to(px.dtype), drafted),
        bound=(torch.clamp(_running(ratio, most=torch.finfo(p.dtype).max ** 0.5), max=1) * drafted).cumsum(-1),
        weights=weights * drafted,
    )


def of_tables(p_tables: Sequence[Float[Tensor, "..."]], q_tables: Sequence[Float[Tensor, "..."]]) -> OfTables:
    """Mean number of accepted tokens over all drafts of a small world, for k = 1..K drafted tokens; exact, in V**K terms.

    E[accepted] is the sum over i and x of A_i(x), the probability that the first i tokens drafted are x and are kept. With A_0 = 1 and the row
    that belongs to x: token A_i = A_{i-1} min(p, q); block A_i = min(Q, A_{i-1} p), which is Q w; coupled A_i = A_{i-1} same_winner(p, q); and
    the full-information bound takes A_i = min(P, Q).

    Args:
        p_tables: entry i float of shape [V] * (i + 1): the target's law after each prefix of i tokens; K entries, or K + 1 (the last is not read).
        q_tables: the same of the draft, K entries.

    Raises:
        TypeError, ValueError: as ``overlap``; numbers of entries or shapes that do not fit.

    >>> p, q = torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3])
    >>> found = of_tables([p, p.expand(2, 2)], [q, q.expand(2, 2)])
    >>> found.token, found.block, found.bound  # 10/9, 11/9 and 12/9 for K = 2
    (tensor([0.6667, 1.1111]), tensor([0.6667, 1.2222]), tensor([0.6667, 1.3333]))
    """
    k = len(q_tables)
    if k == 0 or len(p_tables) not in (k, k + 1):
        raise ValueError(f"received {len(p_tables)} p_tables and {k} q_tables; expected K >= 1 of q and K or K + 1 of p")
    vocab = q_tables[0].shape[-1]
    for i in range(k):
        for name, table in (("p_tables", p_tables[i]), ("q_tables", q_tables[i])):
            check_floats(**{f"{name}[{i}]": table})
            if table.shape != (vocab,) * (i + 1):
                raise ValueError(f"{name}[{i}] has shape {list(table.shape)}; expected {[vocab] * (i + 1)}")
            check_laws(f"{name}[{i}]", table)
    one = torch.ones_like(q_tables[0][0])
    token = block = coupled = target = draft = one
    rows = []
    for p, q in zip(p_tables, q_tables, strict=False):
        target, draft = target[..., None] * p, draft[..., None] * q
        token = token[..., None] * torch.minimum(p, q)
        block = torch.minimum(draft, block[..., None] * p)
        coupled = coupled[..., None] * same_winner(p, q)
        rows.append(torch.stack([kept.sum() for kept in (token, block, coupled, torch.minimum(target, draft))]))
    return OfTables(*(row.clone() for row in torch.stack(rows, -1).cumsum(-1)))


def _running(ratio: Tensor, most: float) -> Tensor:
    """Running products that never exceed ``most``: r_i = min(most, r_{i-1} ratio_i)."""
    product, found = torch.ones_like(ratio[..., 0]), []
    for factor in ratio.unbind(-1):
        product = torch.clamp(product * factor, max=most)
        found.append(product)
    return torch.stack(found, -1)


def _kept(passes: Tensor, drafted: Tensor) -> Tensor:
    """Mean number of accepted tokens when each passes on its own and the first failure ends the pass."""
    return _running(passes * drafted, most=1.0).cumsum(-1)


def _block(p: Tensor, q: Tensor | None, px: Tensor, weights: Tensor, drafted: Tensor) -> Tensor:
    """k - (1 - w_k) D_k, with D_1 = 1 and D_{k+1} = 1 + (1 - h_k) D_k: the sum over i of prod over i <= j < k of (1 - h_j)."""
    inner = weights[..., :-1]
    excess = inner * (1 - px[..., 1:]) if q is None else torch.clamp(inner[..., None] * p[..., 1:, :] - q[..., 1:, :], min=0).sum(-1)
    room = excess + 1 - inner
    heads = torch.where(room > 0, divide(excess, room), 1)
    misses, mean, found = torch.ones_like(px[..., 0]), torch.zeros_like(px[..., 0]), []
    for i in range(px.shape[-1]):
        mean = torch.where(drafted[..., i], i + 1 - (1 - weights[..., i]) * misses, mean)
        found.append(mean)
        if i + 1 < px.shape[-1]:
            misses = 1 + (1 - heads[..., i]) * misses
    return torch.stack(found, -1)


def _check_draft(p: Tensor, q: Tensor | None, tokens: Tensor, length: Tensor | None) -> Bool[Tensor, "*batch K"]:
    """Refuses what fits no pass, and returns which tokens were drafted, bool [..., K]."""
    check_floats(p=p, q=q)
    if length is not None and (not isinstance(length, Tensor) or length.is_floating_point()):
        raise TypeError(f"length is {length!r:.60}; expected a tensor of integers, or None")
    if tokens.dtype is not torch.int64:
        raise TypeError(f"tokens has dtype {tokens.dtype}; expected integers, as int64")
    k, vocab = tokens.shape[-1] if tokens.dim() else -1, p.shape[-1] if p.dim() else -1
    batch = tokens.shape[:-1]
    fits = p.shape == (*batch, k + 1, vocab) and (q is None or q.shape == (*batch, k, vocab)) and (length is None or length.shape == batch)
    if k < 0 or not fits:
        shapes = [None if t is None else list(t.shape) for t in (p, q, tokens, length)]
        raise ValueError(f"received p, q, tokens, length of shapes {shapes}; expected [..., K + 1, V], [..., K, V], [..., K] and [...]")
    lanes = torch.arange(k + 1, device=tokens.device)
    ends = torch.full(batch, k, device=tokens.device) if length is None else length
    if not traced(ends) and ((ends < 0) | (ends > k)).any():
        raise ValueError(f"length holds {int(ends.min())} to {int(ends.max())}; expected 0 to {k}, the number of drafted tokens")
    drafted = lanes[:k] < ends[..., None]
    check_laws("p", p, lanes <= ends[..., None])
    check_laws("q", q, drafted)
    check_ids("tokens", torch.where(drafted, tokens, 0), vocab)
    if q is not None and not traced(p, q, tokens, ends):
        impossible = drafted & (q.detach().gather(-1, torch.where(drafted, tokens, 0)[..., None]).squeeze(-1) == 0)
        if impossible.any():
            place = tuple(impossible.nonzero()[0].tolist())
            raise ValueError(f"tokens{list(place)} has probability 0 in q; expected the law that it was drawn from")
    return drafted
