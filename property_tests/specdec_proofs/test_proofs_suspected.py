"""The claims about transformers' rule, at fewer rounds than ``specdec prove`` gives them: it passes, each fault in its text is seen."""

import pytest

from specdec_proofs import suspected

TASKS = {name: measurement for name, _, measurement in suspected.claims(rounds=4000)}
SAMPLED = [name for name in TASKS if "statistics" in name]  # the exact laws are in the tests of the suspects


@pytest.mark.parametrize("name", SAMPLED)
def test_claim(name: str) -> None:
    """D1, D23: at 4,000 rounds the seven faults are far beyond the level, and the rule as it ships is well within it."""
    figure = TASKS[name]()
    assert figure.passed, f"{name}: {figure.value:g}; {figure.detail}"


def test_all_are_listed() -> None:
    assert sum("mutant" in name for name in TASKS) == 7
    assert sum("exact TV" in name for name in TASKS) == 4
