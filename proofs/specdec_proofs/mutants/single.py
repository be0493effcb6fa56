"""Single-position mutants: one drafted token, judged on the first token that is emitted, on the reference pair of laws over 16 tokens.

They are numbered as in the catalogue of reference laws. Where the fault is the proposer's, the rule is the one that ships and the world lies
to it: it draws from one law and tells another.
"""

from collections.abc import Callable
from fractions import Fraction

from specdec_proofs.enumerate import Emitted, residual
from specdec_proofs.mutants.edit import Edit
from specdec_proofs.mutants.laws import (
    accepting,
    bf16,
    dropping,
    likeliest,
    only,
    powered,
    raced_with_draft,
    repaired,
    shared_with_draft,
    shared_with_final,
    top,
    typical,
    without_rejected,
)
from specdec_proofs.mutants.mutant import BOTH, EXACT, SAMPLED, Mutant
from specdec_proofs.mutants.snippets import ACCEPT, ARGMAX, DRAFTED, EXCESS, FINAL, LENGTH, OWN_Q, REPAIR, TAPE_FINAL
from specdec_proofs.worlds import Law, World, normalised, pair_reference

__all__ = ["raced", "singles"]

ONE = Fraction(1)
Lawful = Callable[[World], Emitted]
Text = tuple[str, str, str]


def singles() -> tuple[Mutant, ...]:
    """The numbered mutants of token verification, in order.

    >>> [mutant.number for mutant in singles()] == list(range(1, 29))
    True
    """
    return tuple(sorted((*_repairs(), *_acceptances(), *_both_sides(), *_noise(), *_proposers()), key=lambda mutant: mutant.number or 0))


def raced() -> Mutant:
    """Number 27 where drafts and recovered tokens are drawn by an exponential race: the same noise vector is used for both.

    The shipped proposers draw by cumulative sums, so the rule with this edit needs a driver that races: ``tape.final`` is the noise, [V].

    >>> raced().number
    27
    """
    return _mutant(
        27, "recovery reuses the noise of the draft's race", raced_with_draft(), (("token", FINAL, "(tape.final / law).argmin()"),), (SAMPLED,)
    )


def _mutant(
    number: int, name: str, law: Lawful, edits: tuple[Text, ...], killers: tuple[str, ...] = BOTH, world: Callable[[], World] = pair_reference
) -> Mutant:
    return Mutant(name, number, tuple(Edit(*edit) for edit in edits), world, law, 1, killers=killers)


def _repairs() -> tuple[Mutant, ...]:
    """Right acceptance, wrong law of the recovered token."""
    rejected = "_row(tokens, accepted)"
    likely = "p_row * (p_row >= p_row.sort().values[p_row.shape[0] // 2])"
    return (
        _mutant(1, "recovered token drawn from p", repaired(lambda p, q: p), (("token", REPAIR, "p_row"),)),
        _mutant(
            2,
            "recovered token is the argmax of the residual",
            repaired(lambda p, q: only(len(p), likeliest(residual(p, q)))),
            (("token", REPAIR, ARGMAX.format(REPAIR)),),
        ),
        _mutant(3, "recovered token from p without the rejected one", without_rejected(), (("token", REPAIR, f"without(p_row, {rejected})"),)),
        _mutant(
            4,
            "residual abs(p - q)",
            repaired(lambda p, q: normalised([abs(a - b) for a, b in zip(p, q, strict=True)])),
            (("recover", EXCESS, "(p - q).abs()"),),
        ),
        _mutant(5, "residual max(q - p, 0)", repaired(lambda p, q: residual(q, p)), (("recover", EXCESS, "torch.clamp(q - p, min=0)"),)),
        _mutant(6, "uniform residual", repaired(lambda p, q: normalised([1] * len(p))), (("recover", EXCESS, "torch.ones_like(p)"),)),
        _mutant(
            19,
            "top-k in the residual alone",
            repaired(lambda p, q: residual(top(p, len(p) // 2), q)),
            (("token", REPAIR, f"residual((lambda kept: kept / kept.sum())({likely}), {OWN_Q})"),),
        ),
        _mutant(
            23,
            "1e-3 added to the residual",
            repaired(lambda p, q: normalised([max(a - b, Fraction(0)) + Fraction(1, 1000) for a, b in zip(p, q, strict=True)])),
            (("recover", EXCESS, f"{EXCESS} + 1e-3"),),
        ),
        _mutant(
            24,
            "temperature 2 in the residual alone",
            repaired(lambda p, q: residual(powered(p, 1 / 2), q)),
            (("token", REPAIR, f"residual(p_row.sqrt() / p_row.sqrt().sum(), {OWN_Q})"),),
        ),
        _mutant(
            25,
            "residual p where p > q",
            repaired(lambda p, q: normalised([a if a > b else 0 for a, b in zip(p, q, strict=True)])),
            (("recover", EXCESS, "p * (p > q)"),),
        ),
        _mutant(
            26,
            "rejected token kept 1 % of the time",
            _kept(Fraction(1, 100)),
            (("token", REPAIR, f"0.99 * {REPAIR} + 0.01 * _row(torch.eye(p_row.shape[0], dtype=p_row.dtype), {rejected})"),),
            (EXACT,),  # 2.6e6 draws
        ),
    )


def _acceptances() -> tuple[Mutant, ...]:
    """Wrong acceptance, right law of the recovered token."""
    return (
        _mutant(7, "accept with probability p", accepting(lambda p, q: p), (("token", ACCEPT, "tape.accept < p"),)),
        _mutant(10, "ratio upside down", accepting(lambda p, q: min(ONE, q / p)), (("token", ACCEPT, "tape.accept * p < q"),)),
        _mutant(11, "always accept", accepting(lambda p, q: ONE), (("token", DRAFTED, "drafted"),)),
        _mutant(12, "accept where p >= q", accepting(lambda p, q: Fraction(int(p >= q))), (("token", ACCEPT, "q <= p"),)),
        _mutant(14, "lenience .8", accepting(lambda p, q: min(ONE, p / (q * Fraction(4, 5)))), (("token", ACCEPT, "tape.accept * q * 0.8 < p"),)),
        _mutant(
            15,
            "8-bit uniforms, compared with <=",
            accepting(lambda p, q: min(ONE, Fraction(256 * p // q + 1, 256))),
            (("token", ACCEPT, "torch.floor(tape.accept * 256) / 256 * q <= p"),),
            (EXACT,),  # 3.5e6 draws
        ),
    )


def _both_sides() -> tuple[Mutant, ...]:
    """Another rule, or the right one on other numbers."""
    bonus_kept = f"torch.where(rejected, p_row.argmax(), {FINAL})"
    surprise = "(target_probs[:k] * target_probs[:k].log()).nan_to_num().sum(-1)"
    rounded = "{0}.bfloat16().to({0}.dtype)"
    return (
        _mutant(
            8,
            "accept where argmax, else draw from p",
            _chosen(lambda p: tuple(t == likeliest(p) for t in range(len(p)))),
            (("token", ACCEPT, "tokens == target_probs[:k].argmax(-1)"), ("token", REPAIR, "p_row")),
        ),
        _mutant(
            9,
            "greedy at temperature 1",
            repaired_greedily,
            (("token", ACCEPT, "tokens == target_probs[:k].argmax(-1)"), ("token", FINAL, bonus_kept)),
        ),
        _mutant(
            13,
            "typical acceptance, else draw from p",
            _chosen(typical),
            (("token", ACCEPT, f"p > (0.3 * {surprise}.exp()).clamp(max=0.09)"), ("token", REPAIR, "p_row")),
        ),
        _mutant(
            20,
            "ensemble of .9 p and .1 q",
            _mixed(Fraction(9, 10)),
            (("token", ACCEPT, "tape.accept * q < 0.9 * p + 0.1 * q"), ("token", REPAIR, f"residual(0.9 * p_row + 0.1 * {OWN_Q}, {OWN_Q})")),
        ),
        _mutant(
            22,
            "p and q rounded to bfloat16",
            accepting(lambda p, q: min(ONE, bf16(p) / bf16(q)), lambda p, q: residual(tuple(map(bf16, p)), tuple(map(bf16, q)))),
            (
                ("token", ACCEPT, f"tape.accept * {rounded.format('q')} < {rounded.format('p')}"),
                ("token", REPAIR, f"residual({rounded.format('p_row')}, {rounded.format(OWN_Q)})"),
            ),
            (EXACT,),  # 3.5e7 draws
        ),
    )


def _noise() -> tuple[Mutant, ...]:
    """One number read for two decisions."""
    return (
        _mutant(
            16,
            "one uniform for acceptance and recovery",
            shared_with_final(),
            (("token", FINAL, "draw(torch.where(rejected, _row(tape.accept, accepted), tape.final), law)"),),
        ),
        _mutant(
            27,
            "recovery reuses the uniform of the draft",
            shared_with_draft(),
            (("tape", TAPE_FINAL, "uniform(address(key, DRAFT, position), (), dtype)"),),
            (SAMPLED,),  # ``decide`` is right and its tape is uniform: only with the draft's noise beside it is anything wrong
        ),
    )


def _proposers() -> tuple[Mutant, ...]:
    """The rule that ships, told a law that is not the one the draft was drawn from, or only a part of the drafts."""
    ratio = lambda p, q: min(ONE, p / q)  # noqa: E731
    return (
        _mutant(17, "drafts at temperature .7, q at 1", accepting(ratio), (), world=_lying(lambda q: powered(q, 1 / 0.7))),
        _mutant(18, "greedy drafts, soft q", accepting(ratio), (), world=_lying(lambda q: only(len(q), likeliest(q)))),
        _mutant(21, "rows of another request's draft", accepting(ratio), (), world=_lying(lambda q: (q[-1], *q[:-1]))),
        _mutant(
            28,
            "drawn tokens with q < .05 dropped",
            dropping(lambda q: q >= Fraction(1, 20)),
            (("token", LENGTH, f"{LENGTH} * (draft.probs[0].gather(0, draft.tokens[:1].clamp(min=0)) >= 0.05).sum()"),),
        ),
    )


def repaired_greedily(world: World) -> Emitted:
    """The likeliest token and nothing else, then the target."""
    return accepting(lambda p, q: Fraction(0), lambda p, q: only(len(p), likeliest(p)))(world)


def _lying(drawn: Callable[[Law], Law]) -> Callable[[], World]:
    def world() -> World:
        honest = pair_reference()
        law = drawn(honest.draft(()))
        return honest._replace(draft=lambda prefix: law, told=honest.draft)

    return world


def _kept(share: Fraction) -> Lawful:
    """The rejected token comes out all the same with this share: m + (1 - share) beta res + share max(q - p, 0)."""

    def law(world: World) -> Emitted:
        right = repaired(residual)(world)
        always = accepting(lambda p, q: ONE)(world)
        return {x: (1 - share) * right.get(x, Fraction(0)) + share * always.get(x, Fraction(0)) for x in right.keys() | always.keys()}

    return law


def _mixed(weight: Fraction) -> Lawful:
    """Token verification against weight p + (1 - weight) q, which is then the law."""

    def law(world: World) -> Emitted:
        mix = lambda p, q: tuple(weight * a + (1 - weight) * b for a, b in zip(p, q, strict=True))  # noqa: E731
        return accepting(lambda p, q: min(ONE, (weight * p + (1 - weight) * q) / q), lambda p, q: residual(mix(p, q), q))(world)

    return law


def _chosen(choose: Callable[[Law], tuple[bool, ...]]) -> Lawful:
    """Accepts the tokens that ``choose`` takes from p, and draws from p otherwise: q 1[S] + (1 - q(S)) p."""

    def law(world: World) -> Emitted:
        kept = dict(zip(world.target(()), choose(world.target(())), strict=True))
        return accepting(lambda p, q: Fraction(int(kept[p])), lambda p, q: p)(world)

    return law
