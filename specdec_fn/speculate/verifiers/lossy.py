"""Two rules that accept more and pay with the law: for comparison, and for those who accept the bias, which is stated exactly.

``typical``:  accept  iff  p(t) > min(epsilon, delta exp(-H(p)));   rejected:  emit  y ~ p                      (no ratio, q is not read)
``lenient``:  accept  iff  u * lenience * q(t) < p(t);              rejected:  emit  y ~ max(p - q, 0) / sum    (the residual unchanged)

Law of the first token, t ~ q:  typical  q 1_S + (1 - q(S)) p  with S the accepted set;  lenient  q a + (1 - sum q a) residual with
a = min(1, p / (lenience q)). ``Verifier.bias`` is that minus p. Source: Cai et al. 2024 (Medusa, arXiv 2401.10774) for typical acceptance;
Leviathan et al. 2023 (arXiv 2211.17192, lenience).
"""

from collections.abc import Callable

import torch

from specdec_fn.sampling import draw
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.recover import residual
from specdec_fn.speculate.tape import Tape, tape
from specdec_fn.speculate.threshold import threshold, tried, where_judged
from specdec_fn.speculate.verdict import Verdict, of_chain
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.typing import Bool, Float, Tensor

__all__ = ["lenient", "typical"]


def typical(epsilon: float = 0.09, delta: float = 0.3) -> Verifier:
    """Builds typical acceptance: a drafted token passes where it is likely enough for a law of that entropy.

    Args:
        epsilon: a token above this probability always passes, in (0, 1].
        delta: share of exp(-entropy) that is enough, in (0, 1]; entropy in nats.

    Raises:
        ValueError: a threshold out of range.

    >>> p, q = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
    >>> typical().bias(p, q)
    tensor([ 0.5000, -0.5000])
    """
    if not (0 < epsilon <= 1 and 0 < delta <= 1):
        raise ValueError(f"received epsilon {epsilon} and delta {delta}; expected both in (0, 1]")

    def least(p: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows one"]:
        entropy = torch.special.entr(p).sum(-1, keepdim=True)
        return torch.clamp(delta * torch.exp(-entropy), max=epsilon)

    def passing(p: Float[Tensor, "*rows vocab"]) -> Bool[Tensor, "*rows vocab"]:
        return p > least(p)

    def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
        return _first_failure(tape, target_probs, draft, lambda p, q, token, u: passing(p).gather(1, token).squeeze(1), lambda p, q: p)

    def bounds(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict) -> Float[Tensor, "K"]:
        del tape
        return where_judged(tried(draft, verdict), least(target_probs[: draft.tokens.shape[0]]).squeeze(1))

    def bias(p: Float[Tensor, "vocab"], q: Float[Tensor, "vocab"]) -> Float[Tensor, "vocab"]:
        kept = torch.where(passing(p), q, 0)
        return kept - kept.sum() * p

    law = f"not p: drafted tokens stay where p > min({epsilon:g}, {delta:g} exp(-entropy)), whatever their law"
    return Verifier("typical", False, law, tape, decide, door(tape, decide), bias=bias, bounds=bounds)


def lenient(lenience: float = 0.8) -> Verifier:
    """Builds lenient verification: token verification that divides the draft's law out only in part.

    Args:
        lenience: in (0, 1]; 1 is token verification, and lower values accept more.

    Raises:
        ValueError: a lenience out of range.

    >>> p, q = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
    >>> lenient(0.5).bias(p, q)
    tensor([ 0.5000, -0.5000])
    """
    if not 0 < lenience <= 1:
        raise ValueError(f"received lenience {lenience}; expected a number in (0, 1]")

    def passes(p: Tensor, q: Tensor, token: Tensor, u: Tensor) -> Tensor:
        return u * lenience * q.gather(1, token).squeeze(1) < p.gather(1, token).squeeze(1)

    def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
        return _first_failure(tape, target_probs, draft, passes, residual)

    def bounds(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict) -> Float[Tensor, "K"]:
        del tape
        p, q, token = _read(target_probs, draft, tried(draft, verdict))
        return where_judged(tried(draft, verdict), threshold(lambda u: passes(p, q, token, u), p.new_empty(p.shape[0])))

    def bias(p: Float[Tensor, "vocab"], q: Float[Tensor, "vocab"]) -> Float[Tensor, "vocab"]:
        kept = torch.minimum(q, p / lenience)
        return kept + (1 - kept.sum()) * residual(p, q) - p

    law = f"not p: drafted tokens stay with probability min(1, p / ({lenience:g} q))"
    return Verifier("lenient", False, law, tape, decide, door(tape, decide), bias=bias, bounds=bounds)


def _first_failure(
    tape: Tape,
    target_probs: Tensor,
    draft: Draft,
    passes: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    repair: Callable[[Tensor, Tensor], Tensor],
) -> Verdict:
    """A chain judged token by token up to the first failure, by ``passes`` and repaired by ``repair``."""
    k, length = draft.tokens.shape[0], draft.length
    if k == 0:
        return of_chain(draft, length, draw(tape.final, target_probs[0]))
    drafted = torch.arange(k, device=draft.tokens.device) < length
    p, q, token = _read(target_probs, draft, drafted)
    accepted = (drafted & passes(p, q, token, tape.accept)).cumprod(0).sum()
    p_row, q_row = target_probs.index_select(0, accepted[None])[0], q.index_select(0, accepted.clamp(max=k - 1)[None])[0]
    return of_chain(draft, accepted, draw(tape.final, torch.where(accepted < length, repair(p_row, q_row), p_row)))


def _read(target_probs: Tensor, draft: Draft, drafted: Bool[Tensor, "K"]) -> tuple[Tensor, Tensor, Tensor]:
    """The laws that a chain's tokens are judged by, and the tokens [K, 1]."""
    token, p = torch.where(drafted, draft.tokens, 0), target_probs[: draft.tokens.shape[0]]
    q = torch.nn.functional.one_hot(token, p.shape[1]).to(p.dtype) if draft.probs is None else draft.probs
    return p, q, token[:, None]
