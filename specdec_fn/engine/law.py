"""From the logits of a pass to the laws its verifier works on: every control applied to every row at that row's own prefix."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from specdec_fn.sampling import SamplingParams, distribution, truncation
from specdec_fn.speculate import tree
from specdec_fn.typing import Bool, Float, Int, Tensor

__all__ = ["Controls", "Law", "law", "prefixes"]


class Controls(NamedTuple):
    """What makes the laws of one request from its logits, beside its tokens.

    Attributes:
        params: the request's controls.
        prompt: its prompt ids.
        ends: ids that end it, forbidden until ``min_tokens`` are there.
        mask: Bool [V], True where an id may be emitted at all; None allows all.
    """

    params: SamplingParams
    prompt: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    mask: Bool[Tensor, "vocab"] | None = None


class Law(Protocol):
    """``law(logits, generated, drafted, parents=None) -> laws``: what ``law`` below builds."""

    def __call__(
        self, logits: Float[Tensor, "rows vocab"], generated: Sequence[int], drafted: Sequence[int], parents: Int[Tensor, "drafted"] | None = None
    ) -> Float[Tensor, "rows vocab"]: ...


def law(params: SamplingParams, prompt: Sequence[int] = (), ends: Sequence[int] = (), mask: Bool[Tensor, "vocab"] | None = None) -> Law:
    """Builds the function from the logits of a pass to its target laws, for one request.

    Row i of a pass is the law after ``generated`` and the drafted tokens that lead to it, so penalties, bad words and ``min_tokens`` see exactly the
    prefix that plain decoding would have seen there. On a CPU the laws are float64.

    Args:
        params, prompt, ends, mask: as in ``Controls``.

    Returns:
        ``law(logits [R, V], generated ids, drafted ids, parents=None) -> float64 [R, V]``, where R is 1 + the number of drafted ids, and
        ``parents`` says how they hang together where they are no chain. A row of NaN, or with nothing allowed, becomes zeros.

    >>> two_rows = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> law(SamplingParams(presence_penalty=9.0, temperature=0))(two_rows, [], [0])  # row 1 knows that 0 was drafted
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    prompt_ids = torch.tensor(list(prompt) if params.history else [], dtype=torch.int64)

    def one(logits: Tensor, generated: Tensor) -> Tensor:
        return distribution(logits, params, prompt=prompt_ids, generated=generated, eos_ids=tuple(ends), mask=mask)

    rows_of: Callable[[Tensor, Tensor], Tensor] = torch.func.vmap(one)
    plain, likeliest = (params == SamplingParams(temperature=heat) and mask is None for heat in (1.0, 0.0))

    def laws(logits: Tensor, generated: Sequence[int], drafted: Sequence[int], parents: Tensor | None = None) -> Tensor:
        assert logits.shape[0] == len(drafted) + 1, "one row after the context and one after each drafted token"
        if plain:  # bit for bit what ``distribution`` gives, without the batching that its general form needs
            return logits.softmax(-1, dtype=torch.float64).nan_to_num_(0.0)
        if likeliest:
            return truncation.one_hot(logits.to(torch.float64))
        return rows_of(logits.to(torch.float64), prefixes(generated, drafted, parents) if params.history else _no_prefixes(logits.shape[0]))

    return laws


def prefixes(generated: Sequence[int], drafted: Sequence[int], parents: Int[Tensor, "drafted"] | None) -> Int[Tensor, "rows generated"]:
    """What each row of a pass has before it: row i + 1 the generated ids, and of the drafted ones node i and those above it; -1 for the others.

    >>> prefixes([7], [8, 9], None)
    tensor([[ 7, -1, -1],
            [ 7,  8, -1],
            [ 7,  8,  9]])
    """
    lines = tree.ancestors(torch.arange(len(drafted)) - 1 if parents is None else parents)
    above = torch.nn.functional.pad(lines, (0, 0, 1, 0))
    nodes = torch.where(above, torch.tensor(drafted, dtype=torch.int64), -1)
    return torch.cat([torch.tensor(generated, dtype=torch.int64).expand(len(drafted) + 1, -1), nodes], 1)


def _no_prefixes(rows: int) -> Tensor:
    return torch.empty(rows, 0, dtype=torch.int64)
