"""Block verification in fractions: lossless, keeps a prefix with probability w, and as good as its closed form says; wrong variants are not."""

from fractions import Fraction

import pytest
from hypothesis import given

from specdec_proofs import strategies
from specdec_proofs.block_rule import block, block_acceptance, block_reach, prefix_weights
from specdec_proofs.bounds import efficiencies, full_information
from specdec_proofs.enumerate import completed, expected_emitted, is_lossless, joint, token, token_acceptance, total_variation
from specdec_proofs.worlds import (
    World,
    chain_reference,
    cold,
    declared_one_hot,
    drafts,
    greedy_draft,
    independent,
    mixed_tables,
    normalised,
    prefixes,
    stopping,
)

F = Fraction
TOY = independent([1, 2], [2, 1], 2)
WORLDS = (
    *(mixed_tables(seed, 3, 3) for seed in range(6)),
    *(mixed_tables(seed, 4, 2) for seed in range(6, 10)),
    chain_reference(),
    stopping(mixed_tables(3, 3, 3), 1),
    stopping(chain_reference(), 2),
    declared_one_hot(mixed_tables(4, 3, 3)),
    declared_one_hot(stopping(chain_reference(), 1)),
    greedy_draft(mixed_tables(5, 3, 3)),
    cold(mixed_tables(6, 3, 2)),
)
each_world = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


def table_world(vocab: int, k: int, target: str, draft: str) -> World:
    """A world from rows of digits, one row a prefix, prefixes by length and then in order."""
    places = [x for length in range(k + 1) for x in prefixes(independent([1] * vocab, [1] * vocab), length)]
    laws = [{x: normalised(map(int, row)) for x, row in zip(places, rows.split(), strict=False)} for rows in (target, draft)]
    return World(f"V={vocab} K={k}", vocab, k, laws[0].__getitem__, laws[1].__getitem__)


# Four pairs of tables, and the figures that an independent script of the algorithm (fractions too, other code) gives on them: mean accepted
# tokens of token and block verification, the full-information bound, and joint total variations: uncapped last step, h = w, token residual,
# first failure.
FIGURES = (
    (
        table_world(
            3,
            3,
            "288 417 996 999 154 819 736 519 133 356 976 489 342 219 779 894 256 974 891 937 "
            "157 319 941 647 616 952 152 325 274 597 173 754 525 731 447 878 716 999 139 656",
            "498 948 657 768 484 866 725 278 216 372 931 268 283",
        ),
        (2.3694535496022757, 2.4358162955214278, 2.5195327931835036),
        (0.05800177999054345, 0.09889995964441993, 0.000510493312971447, 0.19502148415396464),
    ),
    (
        table_world(
            3,
            3,
            "103 006 500 688 039 740 002 051 079 069 986 099 234 734 020 376 050 135 914 206 "
            "093 022 008 944 711 990 006 790 076 680 848 358 928 925 700 264 205 110 607 420",
            "033 719 084 899 937 903 849 647 332 595 700 996 703",
        ),
        (1.2344348586196412, 1.2344348586196412, 1.300741740143914),
        (0.04830861655172646, 0.006063600431189364, 0.0, 0.009283454820519874),
    ),
    (
        table_world(
            4,
            2,
            "0682 8008 8320 6245 0165 9300 7201 7990 1577 9047 5757 9413 9606 0080 0308 7102 6511 5560 0570 1204 5363",
            "8428 2301 0350 7040 0095",
        ),
        (0.6282761356290768, 0.635716611819553, 0.7290938228438228),
        (0.09337721102426985, 0.0751953125, 0.004340277777777778, 0.10979087452471482),
    ),
    (
        table_world(
            2,
            4,
            "28 29 66 19 15 42 57 35 66 97 58 44 65 31 41 15 45 94 29 74 18 34 48 31 25 37 24 86 24 33 94",
            "44 11 56 22 37 69 39 61 56 85 12 28 93 93 42",
        ),
        (2.2113421742399013, 2.5110192837465566, 2.745909090909091),
        (0.07284331334619619, 0.21198909240195982, 0.0, 0.30153896813956954),
    ),
)


@each_world
def test_block_verification_is_lossless(world: World) -> None:
    law = block(world)
    assert sum(law.values()) == 1
    assert is_lossless(law, world)


@given(strategies.worlds())
def test_block_verification_is_lossless_on_any_world_and_accepts_at_least_as_much(world: World) -> None:
    law = block(world)
    assert is_lossless(law, world)
    accepted = expected_emitted(law) - 1
    if world.soft:
        assert expected_emitted(token(world)) - 1 <= accepted == block_acceptance(world) <= full_information(world)
    else:
        assert expected_emitted(token(world)) - 1 == accepted == block_acceptance(world)


@each_world
def test_a_prefix_is_kept_with_probability_w_whatever_follows(world: World) -> None:
    """Pr[accepted >= i and x^i] = Q(x^i) w_i(x^i), summed over everything that was drafted behind."""
    drafted: dict[tuple[int, ...], Fraction] = {}
    for tokens, weight in drafts(world):
        for i in range(1, len(tokens) + 1):
            drafted[tokens[:i]] = drafted.get(tokens[:i], F(0)) + weight
    reach = block_reach(world)
    assert reach.keys() == drafted.keys()
    for x, mass in drafted.items():
        assert reach[x] == mass * prefix_weights(world, x)[-1], x
    assert sum(reach.values()) == block_acceptance(world) == expected_emitted(block(world)) - 1


def test_the_weight_is_the_ratio_over_its_own_running_maximum() -> None:
    """log w_i = log r_i - max(0, max over s <= i of log r_s), with r_i = P(x^i) / Q(x^i)."""
    world = chain_reference()
    for tokens, _ in drafts(world):
        ratio, most, weights = F(1), F(1), [F(1)]
        for i, t in enumerate(tokens):
            ratio *= world.target(tokens[:i])[t] / world.draft(tokens[:i])[t]
            most = max(most, ratio)
            weights.append(ratio / most)
        assert weights == prefix_weights(world, tokens)


def test_one_drafted_token_makes_it_token_verification() -> None:
    for seed in range(5):
        world = mixed_tables(seed, 4, 1)
        assert block(world) == token(world)


def test_the_toy_of_the_paper() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), K = 2: 10/9, 11/9 and 12/9 accepted tokens."""
    accepted = (token_acceptance(TOY), block_acceptance(TOY), full_information(TOY))
    assert accepted == (F(10, 9), F(11, 9), F(12, 9))
    assert expected_emitted(block(TOY)) == 1 + F(11, 9)


def test_the_table_of_block_efficiency() -> None:
    """K = 1..8 on that toy, to four decimals."""
    rows = [tuple(f"{float(x):.4f}" for x in row[1:]) for row in efficiencies()]
    columns = [" ".join(column) for column in zip(*rows, strict=True)]
    assert columns == [
        "1.6667 2.1111 2.4074 2.6049 2.7366 2.8244 2.8829 2.9220",
        "1.6667 2.2222 2.6667 3.0494 3.3704 3.6516 3.8930 4.1068",
        "1.6667 2.3333 2.8519 3.3704 3.7901 4.2099 4.5565 4.9031",
    ]


@pytest.mark.parametrize(("world", "accepted", "wrong"), FIGURES, ids=lambda value: getattr(value, "name", None))
def test_figures_of_four_tables(world: World, accepted: tuple[float, ...], wrong: tuple[float, ...]) -> None:
    assert is_lossless(block(world), world)
    assert [float(x) for x in (token_acceptance(world), block_acceptance(world), full_information(world))] == pytest.approx(accepted, abs=1e-12)
    variants = (block(world, uncapped=True), block(world, naive=True), block(world, token_residual=True), block(world, first_failure=True))
    for law, figure in zip(variants, wrong, strict=True):
        assert sum(law.values()) == 1
        assert float(total_variation(completed(law, world), joint(world))) == pytest.approx(figure, abs=1e-12)
        assert is_lossless(law, world) == (figure == 0)


def test_the_uncapped_last_step_on_the_toy() -> None:
    """It accepts 4/3 tokens, more than block verification, with a total variation of 1/9; its first token is right."""
    law = block(TOY, uncapped=True)
    assert expected_emitted(law) == 1 + F(4, 3)
    reached = completed(law, TOY)
    assert total_variation(reached, joint(TOY)) == F(1, 9)
    assert sum(mass for x, mass in reached.items() if x[0] == 0) == F(1, 3)
    assert sum(mass for x, mass in reached.items() if x[:2] == (1, 0)) == F(1, 3) != F(2, 9)


def test_what_no_rule_can_exceed() -> None:
    for world in WORLDS:
        if world.soft:
            assert block_acceptance(world) <= full_information(world)
    same = independent([1, 2, 4], [1, 2, 4], 3)
    assert full_information(same) == 3
