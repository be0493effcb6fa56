"""The catalogue: its figures are the published ones, its edits fit the source that ships, and they leave that source alone."""

import inspect
import math

import pytest

from specdec_fn.speculate import recover, verifiers
from specdec_proofs.enumerate import completed, joint, total_variation
from specdec_proofs.integrate import measure
from specdec_proofs.mutants import Edit, Mutant, catalogue, decide, equivalents, modules
from specdec_proofs.power import needed
from specdec_proofs.sample import cells
from specdec_proofs.worlds import pair_reference

# Total variation and draws to detect (level 1e-6, power .999) of the reference table, by number.
PUBLISHED = {
    1: (0.14144, 897),
    2: (0.18979, 192),
    3: (0.10695, 1370),
    4: (0.13600, 1040),
    5: (0.27200, 260),
    6: (0.11715, 600),
    7: (0.34778, 149),
    10: (0.27200, 281),
    11: (0.27200, 260),
    12: (0.44048, 105),
    16: (0.11936, 654),
    25: (0.07937, 1970),
}
CHAINS = [0.01574, 0.09608, 0.17187, 0.17876, 0.26472, 0.09301]  # in the order of the catalogue


def test_figures_of_single_position_mutants() -> None:
    singles = {mutant.number: mutant for mutant in catalogue() if mutant.number is not None}
    assert singles.keys() == PUBLISHED.keys()
    for number, (tv, draws) in PUBLISHED.items():
        mutant, world = singles[number], singles[number].world()
        law = completed(mutant.law(world), world)
        assert float(total_variation(law, joint(world))) == pytest.approx(tv, abs=6e-6), mutant.name
        assert needed(cells(world, joint(world), 1), cells(world, law, 1)) == pytest.approx(draws, rel=0.01), mutant.name


def test_figures_of_chain_mutants() -> None:
    chains = [mutant for mutant in catalogue() if mutant.number is None]
    for mutant, tv in zip(chains, CHAINS, strict=True):
        world = mutant.world()
        assert float(total_variation(completed(mutant.law(world), world), joint(world))) == pytest.approx(tv, abs=6e-6), mutant.name


@pytest.mark.parametrize("mutant", [*catalogue(), *equivalents()], ids=lambda mutant: mutant.name)
def test_the_edited_code_emits_the_law_on_paper(mutant: Mutant) -> None:
    """In float32 too, where ``claims`` only runs float64; the emitted law itself for chains, the completed one for single positions."""
    import torch

    world = mutant.world()
    measured = measure(mutant.decide(), world, torch.float32, draft_rows=mutant.draft_rows)
    wanted = completed(mutant.law(world), world)
    assert measured.violations == ()
    assert total_variation(completed(measured.emitted, world), wanted) < 1e-6
    if world.k > 1:
        assert total_variation(measured.emitted, mutant.law(world)) < 1e-6


def test_every_edit_changes_the_text_and_nothing_that_ships() -> None:
    before = inspect.getsource(verifiers.token), inspect.getsource(recover), verifiers.token.decide, recover.residual
    for mutant in (*catalogue(), *equivalents()):
        edited = modules(mutant.edits)
        assert edited["token"].decide is not verifiers.token.decide
        assert all(edit.new != edit.old for edit in mutant.edits)
        if any(edit.room == "recover" for edit in mutant.edits):
            assert edited["token"].residual is edited["recover"].residual is not recover.residual
    assert before == (inspect.getsource(verifiers.token), inspect.getsource(recover), verifiers.token.decide, recover.residual)
    assert verifiers["token"].decide is verifiers.token.decide


def test_unedited_source_is_the_shipped_rule() -> None:
    world = pair_reference()
    assert measure(decide([]), world).emitted == measure(verifiers.token.decide, world).emitted


@pytest.mark.parametrize(("old", "times"), [("no such text", 0), ("accepted", None)])
def test_an_edit_that_does_not_fit_once_is_refused(old: str, times: int | None) -> None:
    times = inspect.getsource(verifiers.token).count(old) if times is None else times
    with pytest.raises(ValueError, match=f"occurs {times} times"):
        decide([Edit("token", old, "")])


def test_an_unknown_room_is_refused() -> None:
    with pytest.raises(KeyError):
        decide([Edit("nowhere", "a", "b")])


def test_detection_is_within_reach_of_the_quick_run() -> None:
    for mutant in catalogue():
        world = mutant.world()
        p, wrong = cells(world, joint(world), mutant.length), cells(world, completed(mutant.law(world), world), mutant.length)
        assert math.ceil(needed(p, wrong)) < 100_000
