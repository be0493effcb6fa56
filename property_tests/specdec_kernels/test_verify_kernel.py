"""The verification kernels against ``decide``: the same tokens row by row, and the exact law they emit."""

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from specdec_fn.random import key, key_data, split
from specdec_fn.speculate import Draft, Race, Tape, Verdict, batched, verifiers
from specdec_fn.speculate.race import exponential, noise
from specdec_kernels import verify_choice_triton, verify_draw_triton, verify_triton
from specdec_kernels.verify_triton import verify
from specdec_proofs import cells
from specdec_proofs.enumerate import completed, joint, total_variation
from specdec_proofs.integrate import draw_law, tensors
from specdec_proofs.worlds import World, declared_one_hot, mixed_tables, softmax

Law = Callable[..., tuple[torch.Tensor, torch.Tensor]]
SIZE = 1 << 53
NEAR = 4  # grid points by which two roundings of one threshold may differ


def uniforms(words: torch.Tensor) -> torch.Tensor:
    return ((words >> 11) & (SIZE - 1)).to(torch.float64) * 2.0**-53


def random_words(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)


class Case:
    """A ragged batch: sharp and flat laws, one row of zeros in some sequences, -1 and NaN at and past every length."""

    def __init__(self, batch: int, k: int, vocab: int, dtype: torch.dtype, seed: int, *, soft: bool) -> None:
        generator = torch.Generator().manual_seed(seed)

        def laws(rows: int) -> torch.Tensor:
            scale = torch.rand(batch, rows, 1, dtype=torch.float64, generator=generator) * 4
            return scale * torch.randn(batch, rows, vocab, dtype=torch.float64, generator=generator)

        logits = laws(k + 1)
        sharp = torch.rand(batch, k + 1, 1, generator=generator) < 0.1
        p = torch.softmax(torch.where(sharp, logits * 1000, logits), -1)
        q = torch.softmax(logits[:, :k] + 0.3 * laws(k), -1)
        tokens = torch.multinomial(q.flatten(0, 1), 1, generator=generator).reshape(batch, k) if k else torch.zeros(batch, 0, dtype=torch.int64)
        likeliest = torch.rand(batch, k, generator=generator) < 0.3
        if not soft:
            tokens = torch.where(likeliest, p[:, :k].argmax(-1), tokens)
        length = torch.randint(0, k + 1, (batch,), generator=generator)
        length[: batch // 2] = k
        for b in range(batch):
            p[b, int(length[b]) + 1 :] = torch.nan
            q[b, int(length[b]) :] = torch.nan
            tokens[b, int(length[b]) :] = -1
            if b % 9 == 4:
                p[b, min(b % (k + 1), int(length[b]))] = 0
        self.target, self.draft = p.to(dtype), Draft(tokens, q.to(dtype) if soft else None, length)
        self.words = random_words(batch, k, generator=generator), random_words(batch, generator=generator)
        self.keys = split(key(seed), batch)
        self.position = torch.randint(0, 2**31, (batch,), generator=generator)
        lanes = torch.arange(k + 1)
        self.noise = torch.func.vmap(lambda one, at: noise(one, at + lanes, vocab))(self.keys, self.position)

    def wanted(self, rule: str) -> Verdict:
        wide = self.draft._replace(probs=None if self.draft.probs is None else self.draft.probs.double())
        drawn = Race(self.noise) if rule == "coupled" else Tape(*map(uniforms, self.words))
        return batched(verifiers[rule].decide)(drawn, self.target.double(), wide)

    def given(self, fenced: Callable[[torch.Tensor], torch.Tensor], rule: str, *, keyed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, probs, length, _ = self.draft
        first = (fenced(self.target), fenced(tokens), None if probs is None else fenced(probs), fenced(length))
        if rule == "coupled":
            named = {"keys": fenced(key_data(self.keys)), "position": fenced(self.position)} if keyed else {"noise": fenced(self.noise)}
        else:
            named = {} if rule == "greedy" else {"accept": fenced(self.words[0]), "final": fenced(self.words[1])}
        return verify(rule, *first, **named)


def agree(case: Case, fenced: Callable[[torch.Tensor], torch.Tensor], rule: str, *, keyed: bool = False) -> None:
    tokens, accepted = case.given(fenced, rule, keyed=keyed)
    verdict = case.wanted(rule)
    assert tokens.tolist() == verdict.tokens.tolist()
    assert accepted.tolist() == verdict.accepted.tolist()


@pytest.fixture(autouse=True)
def poisoned(fenced, monkeypatch) -> None:
    """What a kernel allocates is full of a pattern, and lies between guard words."""

    def empty(size, *, dtype, device):
        return fenced(torch.full(size, -7, dtype=dtype, device=device))

    monkeypatch.setattr(verify_triton, "allocated", empty)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_uniform_on_an_edge_draws_the_token_behind_it(rule) -> None:
    """2,048 equal tokens over two blocks, whose edges are uniforms: u = j / 2048 draws token j; with the first block empty, token 1024 at u = 0."""
    edges = [0, 1, 1023, 1024, 1025, 2047]
    words = torch.tensor([(edge << 53) - ((edge >= 1024) << 64) for edge in edges])
    laws = torch.full((len(edges), 1, 2048), 1 / 2048, dtype=torch.float64)
    nothing = torch.zeros(len(edges), 0, dtype=torch.int64)
    assert verify(rule, laws, nothing, None, torch.zeros_like(words), accept=nothing, final=words)[0][:, 0].tolist() == edges
    half = torch.zeros(1, 1, 2048, dtype=torch.float64)
    half[..., 1024:] = 1 / 1024
    one = torch.zeros(1, dtype=torch.int64)
    assert verify(rule, half, nothing[:1], None, one, accept=nothing[:1], final=one)[0].tolist() == [[1024]]


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_fifty_rows_have_decide_s_tokens(rule, soft, fenced) -> None:
    seed = 10 * soft + (rule == "block")
    agree(Case(20, 3, 5, torch.float64, seed, soft=soft), fenced, rule)
    agree(Case(5, 5, 300, torch.float32, seed, soft=soft), fenced, rule)


@pytest.mark.parametrize(("rule", "keyed", "batch"), [("coupled", False, 40), ("coupled", True, 6), ("greedy", False, 40)])
def test_fifty_rows_of_the_choosers_have_decide_s_tokens(rule, keyed, batch, fenced) -> None:
    agree(Case(batch, 3, 5, torch.float64, 3, soft=False), fenced, rule, keyed=keyed)
    agree(Case(batch // 4, 5, 300, torch.float32, 4, soft=True), fenced, rule, keyed=keyed)


@pytest.mark.parametrize("rule", ["token", "block", "coupled", "greedy"])
def test_a_vocabulary_of_several_blocks(rule, fenced) -> None:
    agree(Case(3, 1, 5000, torch.float32, 5, soft=True), fenced, rule)
    agree(Case(1, 1, 9000, torch.float64, 6, soft=True), fenced, rule)


@pytest.mark.parametrize("rule", ["token", "block", "coupled", "greedy"])
def test_no_draft_and_one_token(rule, fenced) -> None:
    agree(Case(3, 0, 5, torch.float64, 7, soft=True), fenced, rule)
    agree(Case(3, 2, 1, torch.float32, 8, soft=False), fenced, rule)
    nothing = torch.zeros(0, 3, 3), torch.zeros(0, 2, dtype=torch.int64), None, torch.zeros(0, dtype=torch.int64)
    named = {"accept": nothing[1], "final": nothing[3], "noise": nothing[0].double()}
    assert verify(rule, *nothing, **named)[0].shape == (0, 3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy says aloud what a device computes in silence
@pytest.mark.parametrize("rule", ["token", "block", "coupled", "greedy"])
def test_rows_that_are_no_laws(rule, fenced) -> None:
    """NaN or infinity where a law ought to be: what ``decide`` gives there."""
    case = Case(5, 2, 6, torch.float64, 11, soft=True)
    case.draft.length.fill_(2)
    case.draft.tokens.copy_(torch.tensor([1, 2]).expand(5, 2))
    case.target[:] = torch.tensor([0.1, 0.5, 0.2, 0.1, 0.1, 0.0])
    case.draft.probs[:] = torch.tensor([0.1, 0.4, 0.3, 0.1, 0.1, 0.0])
    case.target[0, 0, 4] = torch.nan
    case.target[1, 1, 3] = torch.nan
    case.draft.probs[2, 1, 0] = torch.nan
    case.target[3, 0, 2] = torch.inf
    case.draft.probs[4] = case.target[4, :2]  # nothing is left over
    agree(case, fenced, rule)


def test_the_noise_of_a_key_wins_as_the_reference_s() -> None:
    """Words near both ends of the range, where -log1p(-u) is hardest: the kernel's noise is within a few units of the last place."""
    case = Case(4, 1, 2000, torch.float64, 12, soft=False)
    case.draft.length.fill_(1)
    rare = torch.softmax(40 * torch.randn(4, 2, 2000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), -1)
    tokens = verify("coupled", rare, case.draft.tokens.clamp(0), None, case.draft.length, keys=key_data(case.keys), position=case.position)[0]
    drawn = batched(verifiers["coupled"].decide)(Race(case.noise), rare, case.draft._replace(tokens=case.draft.tokens.clamp(0)))
    assert tokens.equal(drawn.tokens)


@pytest.mark.parametrize("given", [0.25, 0.5])
def test_the_winner_of_a_race_on_a_grid(given, fenced) -> None:
    """Two tokens, V = 2: token 0 wins where E_0 / p_0 < E_1 / p_1, at ties too."""
    words = [0, 2**61, 2**62, -(2**62), -1]
    times = exponential(torch.tensor([[[a, b]] for a in words for b in words]))
    p = torch.tensor([given, 1 - given], dtype=torch.float64).expand(len(times), 1, 2)
    none = torch.zeros(len(times), 0, dtype=torch.int64)
    tokens = verify("coupled", p, none, None, torch.zeros(len(times), dtype=torch.int64), noise=fenced(times))[0]
    first = p[:, 0, 0] / times[:, 0, 0] >= p[:, 0, 1] / times[:, 0, 1]
    assert tokens[:, 0].tolist() == torch.where(first, 0, 1).tolist()


def emitted(law: Law, rule: str, world: World, *, corners: int = 2) -> tuple[Fraction, Fraction, int]:
    """Total variation from the target of what a kernel emits, impossible mass, and boxes that the kernel does not take for one.

    The boxes of the tape on which ``decide`` is constant are found on the torch path; the kernel says what is emitted in each, at its lowest and
    its highest corner (within a rounding of the threshold). A corner that disagrees splits the box in halves.
    """
    weights, said, _ = draw_law(world, torch.float64)
    assert not said
    tables = tensors(world, list(weights), torch.float64)
    places, lifted, k = torch.tensor([1, 5, 25]), batched(verifiers[rule].decide), world.k

    def at(job: np.ndarray) -> tuple[torch.Tensor, Draft]:
        index = torch.from_numpy(job)
        probs = None if tables.draft.probs is None else tables.draft.probs[index]
        return tables.target[index], Draft(tables.draft.tokens[index], probs, tables.draft.length[index])

    def outcome(job: np.ndarray, points: np.ndarray) -> np.ndarray:
        u = torch.from_numpy(points.copy()).to(torch.float64) * 2.0**-53
        return ((lifted(Tape(u[:, :k], u[:, k]), *at(job)).tokens + 1) * places).sum(1).numpy()

    found = cells.find(outcome, len(weights), k + 1, SIZE, probes=16)
    assert not found.violations
    job = np.repeat(np.arange(len(weights)), [len(boxes.low) for boxes in found.boxes])
    low, high = (np.concatenate([getattr(boxes, side) for boxes in found.boxes]) for side in ("low", "high"))
    room = np.minimum(NEAR, (high - low) // 2)
    lowest, highest = np.where(low == 0, 0, low + room), np.where(high == SIZE - 1, high, high - room)
    if corners == 1:
        lowest = np.where(np.arange(len(job))[:, None] % 2, highest, lowest)
    points = np.concatenate([lowest, highest][:corners])
    target, draft = at(np.concatenate([job, job][:corners]))
    words = torch.from_numpy(points) << 11  # as int64, the top bit in two's complement
    tokens = law(rule, target, draft.tokens, draft.probs, draft.length, accept=words[:, :k].contiguous(), final=words[:, k].contiguous())[0]
    masses: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    shares = list(weights.values())
    for row, sequence in enumerate(tokens.tolist()):
        box = row % len(job)
        volume = np.multiply.reduce((high[box] - low[box] + 1).astype(object))
        ids = tuple(sequence[: sequence.index(-1)] if -1 in sequence else sequence)
        masses[ids] += shares[job[box]] * Fraction(int(volume), corners * SIZE ** (k + 1))
    assert sum(masses.values()) == 1
    split_boxes = int((tokens[: len(job)] != tokens[-len(job) :]).any(1).sum())
    exact = {x: mass for x, mass in masses.items() if x}
    whole, wanted = completed(exact, world), joint(world)
    impossible = sum((mass for x, mass in whole.items() if x not in wanted), Fraction(0)) + masses.get((), Fraction(0))
    return total_variation(whole, wanted), impossible, split_boxes


WORLDS = [(softmax(0, 4, 2), 1), (mixed_tables(6, 4, 2), 2), (declared_one_hot(mixed_tables(4, 4, 2)), 2)]


@pytest.mark.parametrize(("world", "corners"), WORLDS, ids=[world.name for world, _ in WORLDS])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_that_the_kernel_emits_is_the_target_s(rule, world, corners) -> None:
    apart, impossible, split_boxes = emitted(verify, rule, world, corners=corners)
    assert apart <= 1e-14
    assert (impossible, split_boxes) == (0, 0)


def edited(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> Law:
    """``verify`` with an edit in the source of its kernel, which must fit once."""
    source = Path(str(verify_draw_triton.__file__)).read_text("utf-8")
    assert source.count(old) == 1
    path = folder / "edited_draw_triton.py"
    path.write_text(source.replace(old, new), "utf-8")
    spec = importlib.util.spec_from_file_location("edited_draw_triton", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "edited_draw_triton", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(verify_triton, "verify_draw_triton", module)
    return verify


MUTANTS = [
    ("token", "u * q_at < p_at", "u * q_at <= p_at"),  # a token of probability 0, at u = 0
    ("token", "tl.where(rest < 0, 0.0, rest)", "rest"),  # a residual that is not clamped
    ("block", "lanes == count, weights, inner", "lanes == count, inner, weights"),  # the last height in the place of the others
    ("token", "(sequence * rows + kept, sequence * k + kept)", "(sequence * rows, sequence * k + kept)"),  # the final token from row 0
]


@pytest.mark.parametrize(("rule", "old", "new"), MUTANTS)
def test_an_edited_kernel_is_rejected(rule, old, new, tmp_path, monkeypatch) -> None:
    apart, impossible, split_boxes = emitted(edited(tmp_path, monkeypatch, old, new), rule, mixed_tables(6, 4, 2))
    assert apart > 1e-14 or impossible > 0 or split_boxes > 0


def laws() -> dict[str, torch.Tensor]:
    return {
        "target_probs": torch.full((2, 3, 4), 0.25),
        "tokens": torch.zeros(2, 2, dtype=torch.int64),
        "probs": torch.full((2, 2, 4), 0.25),
        "length": torch.full((2,), 2),
        "accept": torch.zeros(2, 2, dtype=torch.int64),
        "final": torch.zeros(2, dtype=torch.int64),
    }


@pytest.mark.parametrize(
    ("rule", "change", "error", "words"),
    [
        ("typical", {}, ValueError, "rule is 'typical'; expected 'token', 'block', 'coupled' or 'greedy'"),
        ("token", {"final": None}, ValueError, "final is None; expected what token reads: accept and final"),
        ("coupled", {}, ValueError, "keys is None; expected what coupled reads: keys and position, or noise"),
        ("token", {"target_probs": torch.zeros(2, 3, 4).half()}, TypeError, "target_probs has dtype torch.float16; expected float32 or float64"),
        ("token", {"target_probs": torch.zeros(3, 4)}, ValueError, r"target_probs has shape \[3, 4\]; expected \[B, K \+ 1, V\]"),
        ("token", {"target_probs": torch.zeros(2, 33, 4)}, ValueError, r"K in \[0, 31\]"),
        ("token", {"probs": torch.zeros(2, 2, 4).double()}, TypeError, "probs has dtype torch.float64; expected torch.float32"),
        ("token", {"tokens": torch.zeros(2, 3).long()}, ValueError, r"tokens has shape \[2, 3\]; expected \[2, 2\]"),
        ("token", {"length": torch.zeros(2).int()}, TypeError, "length has dtype torch.int32; expected torch.int64"),
        ("token", {"final": torch.zeros(2, device="meta").long()}, ValueError, "final is on meta and target_probs on cpu; expected one device"),
    ],
)
def test_bad_input_is_refused(rule, change, error, words) -> None:
    with pytest.raises(error, match=words):
        verify(rule, **{**laws(), **change})


def test_arguments_are_not_changed() -> None:
    given, before = laws(), laws()
    verify("block", **given)
    assert all(given[name].equal(before[name]) for name in given)


def test_every_launch_is_a_variant_that_the_gate_compiles() -> None:
    names = {variant.name for module in (verify_draw_triton, verify_choice_triton) for variant in module.variants()}
    for vocab in (1, 8192, 8193, verify_triton.MAX_VOCAB):
        for dtype in (torch.float32, torch.float64):
            assert verify_draw_triton.variant("block", dtype, vocab, soft=True).name in names
            assert verify_choice_triton.variant("coupled", dtype, vocab, keyed=True).name in names


@pytest.mark.parametrize(
    ("rule", "soft"), [("token", True), ("token", False), ("block", True), ("block", False), ("coupled", False), ("greedy", False)]
)
@pytest.mark.parametrize("bad", [-7, 5, 2**40])
def test_an_id_outside_the_vocabulary_is_rejected_and_looked_up_nowhere(rule, soft, bad) -> None:
    """It has no probability in p, nor in q, so what is emitted is drawn from what p has over q; far reads would end the process."""
    p = torch.tensor([[[0.1, 0.2, 0.3, 0.4, 0.0], [0.2] * 5]])
    q = torch.tensor([[[0.1, 0.4, 0.3, 0.2, 0.0]]])
    word = torch.tensor([[2**61]])  # a uniform of 1/8
    named = {"accept": word, "final": word[0]} if rule in ("token", "block") else {"noise": torch.ones(1, 2, 5, dtype=torch.float64)}
    tokens, accepted = verify(rule, p, torch.tensor([[bad]]), q if soft else None, torch.tensor([1]), **({} if rule == "greedy" else named))
    assert accepted.tolist() == [0]
    # max(p - q, 0) is all on 3, the choice of the other two rules; behind a one-hot draft of no id all of p is left, and 1/8 of it falls on 1.
    expected = 3 if rule in ("coupled", "greedy") or soft else 1
    assert tokens.tolist() == [[expected, -1]]
