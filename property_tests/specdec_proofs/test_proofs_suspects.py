"""Suspects: names and callables become rounds, what is no sampler is refused by name, and torch's random functions can be injected."""

import importlib.util
import random
import types
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specdec_fn.speculate import Draft, Tape, verifiers
from specdec_proofs import audit_exact, audit_rounds
from specdec_proofs.chi2 import pearson
from specdec_proofs.enumerate import Emitted, completed, joint, residual, total_variation
from specdec_proofs.interception import Injected, MoreNumbersError, UnreachableError, global_states, seeded
from specdec_proofs.sample import cells
from specdec_proofs.suspects import (
    Suspect,
    SuspectError,
    emitted,
    find,
    flashinfer_chain,
    gpt_fast,
    named,
    sglang_chain,
    transformers_chain,
    vllm_chain,
)
from specdec_proofs.suspects.find import installed
from specdec_proofs.worlds import Law, Prefix, World, chain_reference, drafts, mixed_tables, toy

ONE, ZERO = Fraction(1), Fraction(0)
P, Q, TOKENS = torch.tensor([[0.5, 0.5, 0.0]] * 3), torch.tensor([[0.25, 0.25, 0.5]] * 2), torch.tensor([0, 2])


# Injection


def test_uniforms_are_the_grid_of_torch() -> None:
    """k 2**-24 in float32 and k 2**-53 in float64, bounds included, in the order of the calls."""
    with Injected([0, (1 << 53) - 1, 1 << 52, 1 << 51], 53) as tape:
        first, second = torch.rand(2), torch.rand_like(torch.empty(1, dtype=torch.float64))
        third = torch.empty(1).uniform_(2, 4)
    assert (first.tolist(), second.tolist(), third.tolist()) == ([0.0, 1 - 2**-24], [0.5], [2.5])
    assert (tape.asked, tape.bits) == (4, 53)


def test_multinomial_is_the_inverse_cdf() -> None:
    row = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0])
    for k, token in ((0, 1), ((1 << 22) - 1, 1), (1 << 22, 3), ((1 << 24) - 1, 3)):
        with Injected([k], 24):
            assert torch.multinomial(row, 1).tolist() == [token]
    with Injected([0, 0], 24), pytest.raises(RuntimeError, match="sum of probabilities"):
        torch.multinomial(torch.zeros(3), 1)
    with Injected([0, 0], 24):
        assert torch.multinomial(row, 2).tolist() == [1, 3]  # without replacement
        with pytest.raises(MoreNumbersError):
            torch.rand(1)


def test_other_laws_are_quantiles() -> None:
    with Injected([1 << 23] * 5, 24):
        assert torch.empty(1).exponential_(2.0).item() == pytest.approx(np.log(2) / 2, rel=1e-6)
        assert torch.randn(1).item() == pytest.approx(0, abs=1e-6)
        assert torch.randint(3, 7, (1,)).tolist() == [5]
        assert torch.bernoulli(torch.tensor([0.6])).tolist() == [1.0]
        assert torch.bernoulli(torch.tensor([0.5])).tolist() == [0.0]
    with Injected([0] * 5, 24), pytest.raises(UnreachableError, match="3 exponential numbers at once"):
        torch.empty(3).exponential_()
    with Injected([0] * 5, 24), pytest.raises(UnreachableError, match="randperm"):
        torch.randperm(3)


def test_an_injection_draws_nothing_and_ends() -> None:
    before = global_states()
    with Injected([5] * 8, 24):
        torch.rand(3), torch.multinomial(torch.ones(3), 1)
    assert before == global_states()
    torch.rand(1)
    assert before != global_states()
    with seeded(3):
        inside = torch.rand(1), random.random()
    with seeded(3):
        assert inside == (torch.rand(1), random.random())


# transformers: the law of its function and of its seven faults, against the mathematics


def law(world: World, accept: Callable[..., Fraction], repair: Callable[[Law, Law], Law], bonus: Callable[[World, Prefix], Law]) -> Emitted:
    """The chain rule with parts of one's own, in fractions."""
    found: Counter[Prefix] = Counter()
    for tokens, weight in drafts(world):
        for i, token in enumerate(tokens):
            p, q = world.target(tokens[:i]), world.draft(tokens[:i])
            passes = accept(p[token], q[token])
            for other, share in enumerate(repair(p, q)):
                found[(*tokens[:i], other)] += weight * (1 - passes) * share  # type: ignore[assignment]
            weight *= passes
        for other, share in enumerate(bonus(world, tokens)):
            found[(*tokens, other)] += weight * share  # type: ignore[assignment]
    return {x: Fraction(mass) for x, mass in found.items() if mass}


def counting(world: World) -> Emitted:
    """Keeps as many tokens as were accepted anywhere, and repairs at the row after them."""
    found: Counter[Prefix] = Counter()
    for tokens, weight in drafts(world):
        rows = [(world.target(tokens[:i]), world.draft(tokens[:i])) for i in range(3)]
        ratios = [min(ONE, p[t] / q[t]) for (p, q), t in zip(rows, tokens, strict=False)]
        for first in (True, False):
            for second in (True, False):
                mass = weight * (ratios[0] if first else 1 - ratios[0]) * (ratios[1] if second else 1 - ratios[1])
                n = first + second
                row = residual(*rows[n]) if n < 2 else rows[2][0]
                for other, share in enumerate(row):
                    found[(*tokens[:n], other)] += mass * share  # type: ignore[assignment]
    return {x: Fraction(mass) for x, mass in found.items() if mass}


def ratio(p: Fraction, q: Fraction) -> Fraction:
    return min(ONE, p / q)


def right(world: World, tokens: Prefix) -> Law:
    return world.target(tokens)


def apart(p: Law, q: Law) -> Law:
    total = sum((abs(a - b) for a, b in zip(p, q, strict=True)), ZERO)
    return tuple(abs(a - b) / total for a, b in zip(p, q, strict=True))


FAULTS: dict[str, Callable[[World], Emitted]] = {
    "ratio upside down": lambda world: law(world, lambda p, q: min(ONE, q / p), residual, right),
    "accept with probability p": lambda world: law(world, lambda p, q: p, residual, right),
    "always accept": lambda world: law(world, lambda p, q: ONE, residual, right),
    "goes on after a rejection": counting,
    "residual abs(p - q), not clamped": lambda world: law(world, ratio, apart, right),
    "recovered token drawn from p": lambda world: law(world, ratio, lambda p, q: p, right),
    "bonus from the row before": lambda world: law(world, ratio, residual, lambda world, tokens: world.target(tokens[:-1])),
}


def test_transformers_is_exact_but_for_a_token_of_probability_0() -> None:
    """r <= p / q lets a token of p = 0 pass at r = 0: the mass is that of one grid point, worked out here and found in the code."""
    world, lost = mixed_tables(22, 3, 2), ZERO
    for tokens, weight in drafts(world):
        reach = weight
        for i, token in enumerate(tokens):
            p, q = world.target(tokens[:i])[token], world.draft(tokens[:i])[token]
            if p == 0:
                lost += reach * Fraction(1, 1 << 24)
                break
            reach *= min(ONE, p / q)
    measured = audit_exact.measure(find("transformers"), world)
    assert measured.violations == ()
    assert measured.tv < 1e-6
    assert lost > 0
    assert float(measured.impossible) == pytest.approx(float(lost), rel=1e-5)
    clean = audit_exact.measure(find("transformers"), chain_reference())
    assert clean.impossible == 0
    assert clean.tv < 1e-6
    wanted = law(chain_reference(), ratio, residual, right)
    assert total_variation(clean.emitted, wanted) < 1e-6


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_transformers_has_its_own_law(name: str) -> None:
    world = chain_reference()
    suspect = find("transformers")
    assert suspect.mutants is not None
    mutant = {one.name: one for one in suspect.mutants()}[name]
    measured, wanted = audit_exact.measure(mutant, world, probes=2), FAULTS[name](world)
    assert measured.violations == ()
    assert total_variation(measured.emitted, wanted) < 1e-6
    assert float(measured.tv) == pytest.approx(float(total_variation(completed(wanted, world), joint(world))), abs=1e-6)
    assert measured.tv > 0.1
    counts = audit_rounds.of_round(mutant, world, 2000, 0)
    assert pearson(counts, cells(world, joint(world), 3)).p_value <= 1e-6


def test_faults_leave_what_is_installed_alone() -> None:
    from transformers.generation import utils

    before = utils._speculative_sampling
    suspect = find("transformers")
    assert suspect.mutants is not None
    made = suspect.mutants()
    assert [one.name for one in made] == list(FAULTS)
    assert len(made) == 7
    assert utils._speculative_sampling is before
    with pytest.raises(SuspectError, match="occurs 0 times"):
        transformers_chain.mutant_sources("def _speculative_sampling(): ...")


def test_an_older_signature_of_transformers_is_served() -> None:
    def older(candidate_input_ids: Any, candidate_logits: Any, candidate_length: int, new_logits: Any, is_done_candidate: bool) -> Any:
        return candidate_input_ids[:, : int(not is_done_candidate)], 0

    assert transformers_chain.adapt(older)(P, Q, TOKENS).tolist() == [[0]]


# Other engines: the adapters against stand-ins of their form; what is missing is said


def test_gpt_fast_is_loaded_from_a_checkout(tmp_path: Path) -> None:
    """A stand-in with the three functions of that module; the real one draws races, so its law has no boxes.

    Two of them run a model there. The adapter answers in their place, so that here they fail if they are ever reached.
    """
    (tmp_path / "generate.py").write_text(
        "import torch\n"
        "def decode_n_tokens(model, token, pos, n, **settings): raise AssertionError('reached')\n"
        "def model_forward(model, x, pos): raise AssertionError('reached')\n"
        "def speculative_decode(model, draft, token, pos, k, **settings):\n"
        "    tokens, laws = decode_n_tokens(draft, token.view(1, -1), torch.tensor([pos]), k)\n"
        "    rows = model_forward(model, torch.cat([token.view(1), torch.cat(tokens)]), None)[0].softmax(-1)\n"
        "    assert len(laws) == k and rows.shape[0] == k + 1\n"
        "    return torch.cat([torch.cat(tokens), rows[-1].argmax()[None]])\n",
        "utf-8",
    )
    suspect = find("gpt-fast", str(tmp_path))
    assert emitted(suspect, torch.eye(3), Q, TOKENS) == (0, 2, 2)
    (tmp_path / "generate.py").write_text("import nothing_of_the_kind", "utf-8")
    with pytest.raises(SuspectError, match="nothing_of_the_kind"):
        find("gpt-fast", str(tmp_path))
    (tmp_path / "generate.py").write_text("", "utf-8")
    with pytest.raises(SuspectError, match="has no speculative_decode"):
        find("gpt-fast", str(tmp_path))
    with pytest.raises(SuspectError, match=r"generate\.py"):
        find("gpt-fast", str(tmp_path / "elsewhere"))
    with pytest.raises(SuspectError, match="--checkout"):
        gpt_fast.load(None)


def test_adapters_hand_over_what_the_others_take() -> None:
    def vllm(target_with_bonus_probs: Any, bonus_token_ids: Any, draft_probs: Any, draft_token_ids: Any) -> Any:
        assert (target_with_bonus_probs.shape, draft_probs.shape, bonus_token_ids.shape) == ((1, 3, 3), (1, 2, 3), (1, 1))
        return torch.cat([draft_token_ids, torch.full((1, 1), -1)], 1)

    assert vllm_chain.adapt(vllm)(P, Q, TOKENS).tolist() == [0, 2]

    def sglang(
        predicts: Any, index: Any, count: Any, candidates: Any, nodes: Any, links: Any, siblings: Any, coins: Any, final: Any, *rest: Any
    ) -> None:
        assert (candidates.tolist(), coins.shape, final.shape, rest[0].shape, rest[1].shape) == ([[0, 0, 2]], (1, 3), (1,), (1, 3, 3), (1, 2, 3))
        predicts[0], predicts[1], index[0, :2], count[0] = 0, 1, torch.tensor([0, 1]), 1

    assert sglang_chain.adapt(sglang)(P, Q, TOKENS).tolist() == [0, 1]

    def flashinfer(draft_probs: Any, draft_token_ids: Any, target_probs: Any) -> Any:
        assert (draft_probs.shape, draft_token_ids.dtype, target_probs.shape) == ((1, 2, 3), torch.int32, (1, 3, 3))
        return torch.tensor([[0, 1, -1]]), None, None

    assert flashinfer_chain.adapt(flashinfer)(P, Q, TOKENS).tolist() == [0, 1]


@pytest.mark.parametrize("name", ["vllm", "sglang", "flashinfer"])
def test_what_is_not_installed_is_said(name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(SuspectError, match=f"{name} is not installed .*expected the package"):
        find(name)
    assert [installed(one) for one in named() if one.name == name] == ["not installed"]


# Callables


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("f = 3", "expected a callable"),
        ("def f(a, b): ...", r"takes \(a, b\); expected \(tape, target_probs, draft\), or"),
        ("def f(a, b, c, d): ...", "takes"),
        ("def f(a, b, c, *, d): ...", "takes"),
        ("g = 3", "has no 'f'"),
        ("import nothing_at_all", "cannot be imported: ModuleNotFoundError"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_is_no_sampler_is_refused(source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"suspect_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source, "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SuspectError, match=words):
        find(f"{module}:f")


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda p, q, tokens: [], r"emitted 0 tokens, \[\]; expected 1 to 3"),
        (lambda p, q, tokens: [0, 0, 0, 0], "emitted 4 tokens"),
        (lambda p, q, tokens: [3], r"emitted id 3; expected ids in \[0, 3\)"),
        (lambda p, q, tokens: torch.tensor([-1]), "emitted id -1"),
        (lambda p, q, tokens: None, "returned None; expected the emitted ids"),
        (lambda p, q, tokens: [0.5], "expected the emitted ids"),
        (lambda p, q, tokens: "01", "expected the emitted ids"),
        (lambda p, q, tokens: p @ q, "raised RuntimeError"),
        (lambda p, q: [0], "raised TypeError"),
    ],
)
def test_what_a_round_may_not_give_is_said_by_name(give: Callable[..., Any], words: str) -> None:
    with pytest.raises(SuspectError, match=f"^mine .*{words}"):
        emitted(Suspect("mine", "", give), P, Q, TOKENS)


def test_a_tensor_a_list_and_numbers_of_numpy_will_do() -> None:
    for given in ([0, 1], (0, 1), torch.tensor([[0, 1]]), np.array([0, 1]), [torch.tensor(0), torch.tensor(1)]):
        assert emitted(Suspect("mine", "", lambda p, q, tokens, given=given: given), P, Q, TOKENS) == (0, 1)


def test_a_verifier_is_told_by_its_first_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "suspect_own.py").write_text(
        "from specdec_fn.speculate import verifiers\n"
        "def rule(tape, target_probs, draft):\n    return verifiers['token'].decide(tape, target_probs, draft)\n"
        "def rounds(p, q, tokens):\n    return tokens\n"
        "whole = verifiers['token']\n",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert find("suspect_own:rule").decide is not None
    assert find("suspect_own:rounds").decide is None
    assert find("suspect_own:whole").decide is verifiers["token"].decide
    assert find("token").decide is verifiers["token"].decide


@pytest.mark.parametrize(
    ("decide", "words"),
    [
        (lambda tape, p, draft: draft.tokens, "expected a Verdict"),
        (lambda tape, p, draft: types.SimpleNamespace(tokens=draft.tokens, accepted=0, emitted=1), r"tokens of shape \[2\]; expected \[3\]"),
        (lambda tape, p, draft: types.SimpleNamespace(tokens=torch.tensor([0, -1, -1]), accepted=1, emitted=1), "1 accepted and 1 emitted"),
        (lambda tape, p, draft: types.SimpleNamespace(tokens=torch.tensor([0, 1, 1]), accepted=0, emitted=1), "expected -1 after them"),
    ],
)
def test_a_verdict_of_another_form_is_refused(decide: Callable[..., Any], words: str) -> None:
    from specdec_proofs.suspects.suspect import as_round

    with pytest.raises(SuspectError, match=words):
        emitted(Suspect("mine", "", as_round(decide)), P, Q, TOKENS)


def test_a_verifier_as_a_round_reads_the_tape_it_is_given() -> None:
    """The same numbers by injection and by hand."""
    suspect, world = find("token"), toy()
    p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
    q = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.2, 0.3]])
    draw = random.Random(4)
    for _ in range(50):
        numbers = [draw.randrange(1 << 24) for _ in range(3)]
        u = torch.tensor([k * 2.0**-24 for k in numbers])
        verdict = verifiers["token"].decide(Tape(u[:2], u[2]), p, Draft(torch.tensor([1, 0]), q, torch.tensor(2)))
        with Injected(numbers, 24):
            ids = emitted(suspect, p, q, torch.tensor([1, 0]))
        assert list(ids) == verdict.tokens[: int(verdict.emitted)].tolist()
    assert world.k == 2
