"""The examples run, and the code in the README does what it says."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_are_short(path, capsys):
    assert len(path.read_text().splitlines()) <= 60
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_example_of_validation_tells_right_from_wrong(capsys):
    runpy.run_path(str(ROOT / "examples" / "validate.py"), run_name="__main__")
    shipped, wrong = capsys.readouterr().out.splitlines()
    assert shipped.endswith("  lossless")
    assert wrong.endswith("NOT lossless")


def test_the_loop_in_the_readme_speculates():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    loop = next(block for block in blocks if "def speculate" in block)
    body = loop[loop.index("def speculate") :].strip().splitlines()
    assert len(body) <= 14
    names: dict = {}
    exec(loop, names)
    import torch

    from specdec_fn.models import toy

    circle = toy.bigram(torch.eye(4, dtype=torch.float64).roll(1, dims=1))
    tokens = names["speculate"](circle, [0, 1, 2, 3, 0, 1], passes=2)
    assert tokens[:12] == [i % 4 for i in range(12)]
    assert len(tokens) == 6 + 2 * 5  # two passes, each with a whole draft of four and a bonus


def test_the_readme_is_one_page_and_names_real_files():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / path).exists(), path


def test_the_page_on_kernels_attends_and_names_what_to_copy():
    import torch

    page = ROOT / "kernels" / "README.md"
    text = page.read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict = {}
    exec(block, names)
    query, key, value = (names[name].double() for name in ("query", "key", "value"))
    k, v = (rows.repeat_interleave(3, 1).transpose(0, 1) for rows in (key, value))
    scores = (query.transpose(0, 1) @ k.mT / 8).masked_fill(torch.arange(20) > torch.arange(16, 20)[:, None], -torch.inf)
    torch.testing.assert_close(names["out"].double(), (scores.softmax(-1) @ v).transpose(0, 1), rtol=1e-4, atol=1e-5)

    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / path).exists(), path
    before: set[str] = set()
    for lifted, files in re.findall(r"^- `(\w+)`: (.*(?:\n  .*)*)", text, re.M):
        before = set(re.findall(r"`(\w+)\.py`", files)) | (before if files.startswith("the same, and") else set())
        assert before == _imported({lifted}), lifted


def _imported(rooms: set[str]) -> set[str]:
    """All that some rooms of the kernels import, and the kernels beside them."""
    folder = ROOT / "kernels" / "specdec_kernels"
    source = "\n".join((folder / f"{room}.py").read_text("utf-8") for room in rooms)
    found = set(re.findall(r"^ *from specdec_kernels\.(\w+) import", source, re.M))
    for line in re.findall(r"^ *from specdec_kernels import (.*)", source, re.M):
        found |= set(line.split(", "))
    return rooms if found <= rooms else _imported(rooms | found)


def test_the_claims_that_the_page_on_exactness_quotes_are_claims_of_that_level():
    from specdec_proofs import claims

    names = {}
    for level in claims.LEVELS:
        held = [room for room in claims.ROOMS if claims.LEVELS.index(room.level) <= claims.LEVELS.index(level)]
        names[level] = [name for room in held for name, _, _ in room.claims()]
    text = re.sub(r"\s+", " ", (ROOT / "docs/exactness.md").read_text("utf-8"))
    level, quoted = claims.QUICK, 0
    for before, name in re.findall(r'\*(prove default |prove )?"([^"]+)"', text):
        level = (claims.DEFAULT if "default" in before else claims.QUICK) if before else level
        if name == "name" or "..." in name:
            continue
        quoted += 1
        assert any(name in known for known in names[level]), f"{name!r} is no claim of the level {level}"
    assert quoted > 30
    assert f"({len(names[claims.QUICK])} claims at this level" in text
