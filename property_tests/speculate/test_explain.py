"""What is said of a pass is what was decided: kinds are the verdict's, and every uniform passes exactly below the bound that is told."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.speculate import Draft, Race, Tape, tree, verifiers
from specdec_fn.speculate.explain import Explained, cut_at, explained
from specdec_fn.speculate.threshold import threshold
from specdec_fn.speculate.verifier import Verifier

RATIOS = ("token", "lenient")
TREES = ("tree", "multi_draft", "multi_draft_without_replacement", "k_seq", "traversal")
SAMPLING = (*RATIOS, "block", *TREES)
V = 4


def law(weights: list[int]) -> torch.Tensor:
    row = torch.tensor(weights, dtype=torch.float64)
    return row / row.sum()


@st.composite
def passes(draw: Any, name: str) -> tuple[Any, torch.Tensor, Draft]:
    """A tape, target laws and a draft: soft or one-hot, with zeros in p and q, uniforms of 0 and such as lie on a ratio."""
    rule, k = verifiers[name], draw(st.integers(0, 4))
    weights = st.lists(st.integers(0, 3), min_size=V, max_size=V).filter(any)
    target = torch.stack([law(draw(weights)) for _ in range(k + 1)])
    if draw(st.integers(0, 9)) == 0:
        target[draw(st.integers(0, k))] = 0  # a row that is no law
    parents = torch.tensor([draw(st.integers(-1, i - 1)) for i in range(k)], dtype=torch.int64) if rule.trees and draw(st.booleans()) else None
    ids = torch.tensor([draw(st.integers(0, V - 1)) for _ in range(k)], dtype=torch.int64)
    probs = None
    if draw(st.booleans()):
        hung = (torch.arange(k) - 1 if parents is None else parents).tolist()
        by_parent = {parent: law(draw(weights)) for parent in hung}
        probs = torch.stack([by_parent[parent] for parent in hung]) if k else torch.empty(0, V, dtype=torch.float64)
    draft = Draft(ids, probs, torch.tensor(draw(st.integers(0, k))), parents)
    if name == "coupled":
        noise = [draw(st.lists(st.floats(0.01, 9), min_size=V, max_size=V)) for _ in range(k + 1)]
        return Race(torch.tensor(noise, dtype=torch.float64)), target, draft
    u = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 2 / 3, 0.75, math.nextafter(1, 0)]) | st.floats(0, 1, exclude_max=True)
    return Tape(torch.tensor([draw(u) for _ in range(k)], dtype=torch.float64), torch.tensor(draw(u), dtype=torch.float64)), target, draft


def told(name: str, case: tuple[Any, torch.Tensor, Draft]) -> tuple[Explained, Any]:
    rule, (tape, target, draft) = verifiers[name], case
    verdict = rule.decide(tape, target, draft)
    return explained(rule, tape, target, draft, verdict, base=9), verdict


def agrees(why: Explained, verdict: Any, case: tuple[Any, torch.Tensor, Draft]) -> None:
    """Whatever the rule: kinds, tokens, p, q and parents."""
    tape, target, draft = case
    accepted, length = int(verdict.accepted), int(draft.length)
    path = verdict.path[:accepted].tolist()
    parents = tree.parents_of(draft).tolist()
    assert why.base == 9
    assert [i for i, node in enumerate(why.nodes) if node.kind == "accepted"] == path
    assert [node.token for node in why.nodes] == draft.tokens[:length].tolist()
    assert [node.parent for node in why.nodes] == parents[:length]
    for i, node in enumerate(why.nodes):
        assert node.kind in ("accepted", "rejected", "unread")
        assert node.p == float(target[parents[i] + 1, node.token])
        assert node.q == (1.0 if draft.probs is None else float(draft.probs[i, node.token]))
        assert node.u is None or node.u == float(tape.accept[i])
        assert node.kind != "unread" or (node.u, node.bound, node.noise) == (None, None, None)
    last = path[-1] if path else -1
    if int(verdict.tokens[accepted]) < 0:
        assert why.final is None
        return
    assert why.final is not None
    assert (why.final.token, why.final.parent) == (int(verdict.tokens[accepted]), last)
    assert why.final.kind == ("plain" if not length else "recovered" if last in parents[:length] else "bonus")
    assert why.final.p == float(target[last + 1, why.final.token])
    assert why.final.p > 0
    assert (why.final.q, why.final.bound) == (None, None)


@pytest.mark.parametrize("name", list(verifiers))
@given(st.data())
def test_kinds_and_numbers_are_those_of_the_verdict(name: str, data: st.DataObject) -> None:
    case = data.draw(passes(name))
    why, verdict = told(name, case)
    agrees(why, verdict, case)
    if name in (*RATIOS, "coupled", "greedy", "typical"):
        assert all(node.p > 0 for node in why.nodes if node.kind == "accepted")


@pytest.mark.parametrize("name", SAMPLING)
@settings(max_examples=60)
@given(st.data())
def test_a_node_is_accepted_exactly_where_its_uniform_lies_below_its_bound(name: str, data: st.DataObject) -> None:
    why, verdict = told(name, data.draw(passes(name)))
    read = [node for node in why.nodes if node.u is not None]
    if int(verdict.accepted):  # it was kept by its own uniform, whatever kept those before it
        assert why.nodes[int(verdict.path[verdict.accepted - 1])].u is not None
    for node in read:
        assert node.bound is not None
        assert node.u is not None
        assert 0 <= node.bound <= 1 + 1e-12
        assert (node.u < node.bound) == (node.kind == "accepted")
    assert sum(node.kind == "rejected" for node in why.nodes) == sum(node.kind == "rejected" for node in read)
    if name in RATIOS:
        assert [node.kind for node in why.nodes if node.u is None] == ["unread"] * (len(why.nodes) - len(read))


@pytest.mark.parametrize("name", SAMPLING)
@settings(max_examples=200)
@given(st.data())
def test_the_bound_is_where_the_decision_flips(name: str, data: st.DataObject) -> None:
    """Moved below its bound a judged node is accepted; moved up to it, it is not."""
    tape, target, draft = data.draw(passes(name))
    why, _ = told(name, (tape, target, draft))
    judged = [i for i, node in enumerate(why.nodes) if node.bound is not None]
    if not judged:
        return
    place = data.draw(st.sampled_from(judged))
    bound = why.nodes[place].bound
    assert bound is not None

    def moved(u: float) -> bool:
        other = tape._replace(accept=tape.accept.index_fill(0, torch.tensor([place]), u))
        return place in verifiers[name].decide(other, target, draft).path.tolist()

    if bound < 1:
        assert not moved(bound)
    if bound > 0:
        assert moved(math.nextafter(min(bound, 1.0), 0))


@pytest.mark.parametrize("name", ["token", "lenient"])
@given(st.data())
def test_bounds_of_ratios_are_the_formula(name: str, data: st.DataObject) -> None:
    why, _ = told(name, data.draw(passes(name)))
    for node in why.nodes:
        if node.bound is not None and node.q:
            assert node.bound == pytest.approx(min(1, node.p / (node.q * (0.8 if name == "lenient" else 1))), abs=1e-15)


@given(st.data())
def test_block_tells_the_heights_of_its_formula(data: st.DataObject) -> None:
    """h_i reckoned anew, in plain numbers, from the formula of the room's docstring."""
    tape, target, draft = data.draw(passes("block"))
    if bool((target.sum(-1) == 0).any()):
        return
    why, _ = told("block", (tape, target, draft))
    length, weight = int(draft.length), 1.0
    laws = torch.nn.functional.one_hot(draft.tokens, V).double() if draft.probs is None else draft.probs
    for i, node in enumerate(why.nodes):
        assert node.q is not None
        weight = min(1.0, weight * node.p / node.q) if node.q else float(weight * node.p > 0)
        if i + 1 < length:
            excess = sum(max(weight * float(p) - float(q), 0) for p, q in zip(target[i + 1], laws[i + 1], strict=True))
            height = excess / (excess + 1 - weight) if excess + 1 - weight > 1e-12 else 1.0
        else:
            height = weight
        assert node.bound is None or node.bound == pytest.approx(height, abs=1e-9)
    assert [node.bound is None for node in why.nodes] == [i < sum(n.kind == "accepted" for n in why.nodes) - 1 for i in range(length)]


@given(st.data())
def test_typical_compares_p_with_its_threshold(data: st.DataObject) -> None:
    tape, target, draft = data.draw(passes("typical"))
    why, _ = told("typical", (tape, target, draft))
    for i, node in enumerate(why.nodes):
        assert node.u is None
        if node.kind != "unread":
            entropy = -sum(float(p) * math.log(float(p)) for p in target[i] if p > 0)
            assert node.bound == pytest.approx(min(0.09, 0.3 * math.exp(-entropy)), abs=1e-12)
            assert (node.p > node.bound) == (node.kind == "accepted")


@given(st.data())
def test_a_coupled_token_is_the_winner_of_its_race(data: st.DataObject) -> None:
    race, target, draft = data.draw(passes("coupled"))
    why, _ = told("coupled", (race, target, draft))
    depth = [0, *tree.depths(tree.parents_of(draft)).tolist()]
    assert isinstance(race, Race)
    for node in [node for node in why.nodes if node.kind == "accepted"] + ([why.final] if why.final else []):
        row, noise = target[node.parent + 1].tolist(), race.noise[depth[node.parent + 1]].tolist()
        times = [noise[x] / row[x] if row[x] else math.inf for x in range(V)]
        assert node.token == times.index(min(times))
        assert node.noise == noise[node.token]
        assert (node.u, node.bound) == (None, None)


@given(st.data())
def test_greedy_reads_no_uniform_and_judges_from_the_context_down(data: st.DataObject) -> None:
    case = data.draw(passes("greedy"))
    why, _ = told("greedy", case)
    assert all((node.u, node.bound, node.noise) == (None, None, None) for node in (*why.nodes, *([why.final] if why.final else [])))
    kept = {-1, *(i for i, node in enumerate(why.nodes) if node.kind == "accepted")}
    assert all(node.parent in kept for node in why.nodes if node.kind == "rejected")
    for i, node in enumerate(why.nodes):
        earlier = [other for other in why.nodes[:i] if other.parent == node.parent]
        assert node.kind == "unread" or all(other.kind == "rejected" for other in earlier)


def test_a_rule_of_ones_own_is_told_of_by_p_q_and_u() -> None:
    own = Verifier("mine", True, "p", verifiers.token.tape, verifiers.token.decide, verifiers["token"].verify)
    tape = Tape(torch.tensor([0.1, 0.9, 0.2], dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    target, draft = torch.full((4, 2), 0.5, dtype=torch.float64), Draft(torch.tensor([0, 1, 0]), None, torch.tensor(3))
    why = explained(own, tape, target, draft, own.decide(tape, target, draft), base=1)
    assert [(node.kind, node.u, node.bound) for node in why.nodes] == [("accepted", 0.1, None), ("rejected", 0.9, None), ("unread", None, None)]


@pytest.mark.parametrize("name", ["token", "tree"])
@given(st.data())
def test_a_pass_that_is_cut_keeps_what_was_emitted_before(name: str, data: st.DataObject) -> None:
    why, verdict = told(name, data.draw(passes(name)))
    emitted = verdict.tokens[: int(verdict.emitted)].tolist()
    size = data.draw(st.integers(0, len(emitted)))
    cut = cut_at(why, size)
    kept = [node.token for node in cut.nodes if node.kind == "accepted"] + ([cut.final.token] if cut.final else [])
    assert kept == [token for token in emitted[:size] if token >= 0]
    assert [node._replace(kind="") for node in cut.nodes] == [node._replace(kind="") for node in why.nodes]
    assert cut_at(why, len(emitted)) == why


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(st.data())
def test_a_threshold_is_found_to_the_last_bit(dtype: torch.dtype, data: st.DataObject) -> None:
    numbers = st.floats(0, 1, width=32)
    p, q = (torch.tensor(data.draw(st.lists(numbers, min_size=3, max_size=3)), dtype=dtype) for _ in range(2))
    found = threshold(lambda u: u * q < p, p)
    below = torch.nextafter(found, torch.zeros_like(found))
    assert bool(((found == 1) | ~(found * q < p)).all())
    assert bool(((found == 0) | (below * q < p)).all())
