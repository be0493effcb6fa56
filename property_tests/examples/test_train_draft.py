"""The example that trains a draft head makes progress, and stays below what no verifier can exceed."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_draft.py"


def test_acceptance_rises_with_the_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    means = [[float(x) for x in re.findall(r"\d\.\d{3}", line)] for line in lines]
    assert len(means) >= 3
    for token, block, bound in means:
        assert token <= block <= bound <= 3
    assert means[-1][1] > means[0][1] + 1
