"""Audit of a generator end to end: under fixed contexts, are the next tokens with speculation those without it?

Nothing is known of the target here; the generator without speculation is the reference. For each context many seeds are run with speculation
and as many others without, and three tables are compared by a chi-squared test of homogeneity: the next token, the next two, and the second and
third (where the bonus and the second pass show). Whole outputs are compared from a fixed place on; nothing is ever conditioned on how many tokens
were accepted, since that law is not the target's in any rule.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_proofs.audit import Audit
from specdec_proofs.chi2 import holm, homogeneity
from specdec_proofs.claim import Claim
from specdec_proofs.power import ALPHA, noncentrality, pool
from specdec_proofs.suspects import SuspectError

__all__ = ["CONTEXTS", "Generate", "run"]

Generate = Callable[[list[int], int, int, bool], Any]  # (context, n_tokens, seed, speculate) -> ids
Context = tuple[int, ...]
CONTEXTS: tuple[Context, ...] = ((0,), (1,), (0, 1))
TOKENS = 3  # that are generated after each context
VIEWS = (("next token", slice(0, 1)), ("next two tokens", slice(0, 2)), ("second and third token", slice(1, 3)))
LEAST = 100


def run(
    generate: Generate,
    name: str,
    rounds: int = 2000,
    seed: int = 0,
    *,
    contexts: Sequence[Context] = CONTEXTS,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Audit]:
    """Audits a generator and yields what is known after each context.

    Args:
        generate: ``generate(context, n_tokens, seed, speculate)`` gives the ids that follow; fewer only where it came to an end.
        name: of the generator, for the report.
        rounds: outputs of each kind for each context.
        seed: the first of the seeds, 2 * rounds of them for each context.

    Raises:
        SuspectError: it fails, gives no ids, none or too many, or differs between two calls with one seed.
        ValueError: fewer than 100 rounds, or no context.

    >>> import random
    >>> fair = lambda context, n, seed, speculate: [random.Random(seed * 2 + speculate).randrange(4) for _ in range(n)]
    >>> *_, whole = run(fair, "fair", 200, contexts=[(0,)])
    >>> whole.passed, [claim.name for claim in whole.claims][0]
    (True, 'next token after [0]')
    """
    if rounds < LEAST or not contexts:
        raise ValueError(f"received {rounds} rounds and {len(contexts)} contexts; expected at least {LEAST} and one")
    state, tests = Audit(name, "generator, speculation on against off", seed, rounds), len(VIEWS) * len(contexts)
    for context in contexts:
        for speculate in (False, True):
            if (first := _ids(generate, name, context, seed, speculate)) != (second := _ids(generate, name, context, seed, speculate)):
                raise SuspectError(f"{name} gave {list(first)} and then {list(second)} for seed {seed}; expected a function of its arguments")
    claims: list[Claim] = []
    for number, context in enumerate(contexts):
        started, base = time.perf_counter(), seed + 2 * rounds * number
        drawn: list[list[Context]] = [[], []]
        for i in range(2 * rounds):
            if progress and i % 100 == 0:
                progress(f"{i:,} of {2 * rounds:,} outputs after {list(context)}")
            speculate = bool(i % 2)
            drawn[speculate].append(_ids(generate, name, context, base + i, speculate))
        for view, places in VIEWS:
            claim = _compare(f"{view} after {list(context)}", [[ids[places] for ids in side] for side in drawn], tests)
            claims.append(claim._replace(seconds=time.perf_counter() - started))
        yield state._replace(claims=tuple(claims))
    wrong = holm([claim.figure for claim in claims], ALPHA)
    yield state._replace(claims=tuple(claim._replace(passed=not rejected) for claim, rejected in zip(claims, wrong, strict=True)))


def _compare(name: str, drawn: list[list[Context]], tests: int) -> Claim:
    """Homogeneity of two columns of outputs; cells are pooled by their sum over both, which says nothing of how they differ."""
    counts = [Counter(side) for side in drawn]
    cells = sorted(set().union(*counts))
    table: NDArray[np.int64] = np.array([[side[cell] for cell in cells] for side in counts])
    n, law = len(drawn[0]), table.sum(0) / table.sum()
    gate, df = f"p > {ALPHA:g} (Holm)", pool(law, n).df
    if df < 1:
        return Claim(name, 1.0, gate, True, f"N {n:,} each; {len(cells)} different outputs, too few to compare", 0.0)
    result = homogeneity(table, law)
    apart = 0.5 * float(np.abs(table[0] - table[1]).sum()) / n
    seen = math.sqrt(noncentrality(df, ALPHA / tests) / (2 * n))
    detail = f"N {n:,} each, chi2 {result.statistic:.1f} on {result.df}; sampled TV {apart:.4f}; sees any TV >= {seen:.4f} with power .999"
    return Claim(name, result.p_value, gate, result.p_value > ALPHA / tests, detail, 0.0)


def _ids(generate: Generate, name: str, context: Context, seed: int, speculate: bool) -> Context:
    try:
        given = generate(list(context), TOKENS, seed, speculate)
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise SuspectError(f"{name} raised {type(error).__name__}: {said:.160} (context {list(context)}, seed {seed})") from error
    listed = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(listed, (list, tuple)):
        listed = [one.item() if hasattr(one, "item") else one for one in listed]
    if not isinstance(listed, (list, tuple)) or any(isinstance(one, bool) or not isinstance(one, int) for one in listed):
        raise SuspectError(f"{name} returned {given!r:.80}; expected a list of ids")
    if not 1 <= len(listed) <= TOKENS:
        raise SuspectError(f"{name} returned {len(listed)} tokens, {list(listed)}; expected {TOKENS}, as asked, or fewer at an end")
    if min(listed) < 0:
        raise SuspectError(f"{name} returned the id {min(listed)}; expected ids of 0 or more")
    return (*listed, *[-1] * (TOKENS - len(listed)))  # -1 stands for an end
