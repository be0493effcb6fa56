"""A captured step gives what the step gives; a step that looks at a value is named; an argument that does not fit is refused."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from specdec_fn.engine.capture import capture, traced
from specdec_fn.engine.decode import Batch, Knobs, decode
from specdec_fn.kv import store
from specdec_fn.kv.layout import layout
from specdec_fn.kv.table import Table
from specdec_fn.models import llama, toy
from specdec_fn.pytree import state
from specdec_fn.random import key, split
from specdec_fn.speculate import Draft, verifiers
from specdec_fn.speculate.ragged import races, words

VOCAB = 12
MODEL = toy.llama(key(5), vocab_size=VOCAB)
RULES = ("token", "block", "coupled", "greedy")


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_results_are_those_of_the_step_and_own_their_memory() -> None:
    def step(pair: Pair, factor: Tensor, times: int) -> dict[str, Tensor]:
        return {"sum": (pair.first + pair.second).softmax(0) * factor * times, "first": pair.first + 0}

    run = capture(step, Pair(torch.zeros(7), torch.ones(7)), torch.tensor(2.0), 3)
    for seed in range(3):
        pair = Pair(*torch.randn(2, 7, generator=torch.Generator().manual_seed(seed)))
        found, wanted = run(pair, torch.tensor(1.5), 3), step(pair, torch.tensor(1.5), 3)
        assert torch.allclose(found["sum"], wanted["sum"], atol=1e-7)
        assert torch.equal(found["first"], pair.first)
        found["first"].fill_(9)
        assert not torch.equal(found["first"], pair.first)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((torch.zeros(3), 2), "shape .3. where the captured step had .2."),
        ((torch.zeros(2, dtype=torch.float64), 2), "dtype torch.float64 where the captured step had torch.float32"),
        ((torch.zeros(2), 3), "has 3 where the captured step had 2"),
        ((torch.zeros(2), 2.0), "has 2.0 where the captured step had 2"),
        ((torch.zeros(2), torch.tensor(2)), "where the captured step had 2"),
        (([torch.zeros(2)], 2), "another structure"),
        ((torch.zeros(2),), "received 1 arguments; expected 2"),
    ],
)
def test_what_does_not_fit_is_refused_and_compiles_nothing(arguments: tuple[Any, ...], says: str, small: Any) -> None:
    with pytest.raises(ValueError, match=says):
        small(*arguments)


def test_however_a_tensor_lies_it_is_the_same_step() -> None:
    """Strides, gradients, inference mode and shared memory compile nothing new; results share nothing with arguments."""
    run = capture(lambda a, b: (a.view(-1), a * 2 + b.sum()), torch.ones(4, 4), torch.ones(4, 4))
    before = dict(torch._dynamo.utils.counters["stats"])
    square = torch.arange(16.0).view(4, 4)
    with torch.inference_mode():
        inferred = square + 0
    ways = [square, square.T, torch.arange(64.0).view(8, 8)[::2, ::2], torch.ones(4, 1).expand(4, 4), square.clone().requires_grad_(), inferred]
    for one in ways:
        with torch.inference_mode(one is inferred):
            flat, sums = run(one, one)
        assert torch.equal(flat, one.detach().reshape(-1))
        assert torch.allclose(sums, one.detach() * 2 + one.detach().sum())
        assert flat.untyped_storage().data_ptr() != one.untyped_storage().data_ptr()
    assert dict(torch._dynamo.utils.counters["stats"]) == before


def test_another_kind_of_tree_in_the_process_changes_nothing(small: Any) -> None:
    @state()
    class Box:
        content: Tensor

    assert small(torch.ones(2), 2).tolist() == [2, 2]
    assert Box(torch.ones(1)).content.item() == 1


def test_a_process_that_has_changed_is_named(small: Any) -> None:
    kept = torch.get_num_threads()
    try:
        torch.set_num_threads(kept + 1)
        with pytest.raises(ValueError, match="the process is not as it was when the step was captured"):
            small(torch.zeros(2), 2)
    finally:
        torch.set_num_threads(kept)
    assert small(torch.ones(2), 2).tolist() == [2, 2]


@pytest.fixture(scope="module")
def small() -> Any:
    return capture(lambda a, times: a * times, torch.zeros(2), 2)


def test_an_example_without_a_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one tensor"):
        capture(lambda a: a, 3)
    with pytest.raises(ValueError, match="expected places of the 1 arguments"):
        capture(lambda a: a, torch.zeros(2), donated=(1,))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda a: a[a > 0], "makes a shape of a value in aten.nonzero"),
        (lambda a: a if float(a[0]) > 0 else -a, "looks at a value"),
        (lambda a: a * int(a.sum()), "looks at a value"),
        (lambda a: a.unique(), "makes a shape of a value"),
        (lambda a: torch.ones(a.argmax().item()), "looks at a value"),
    ],
)
def test_a_step_that_looks_at_a_value_is_named(step: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        traced(step, torch.ones(2))


# The decode-and-verify step


def batch_of(rule: str, soft: bool) -> tuple[store.Store, Batch]:
    """Two sequences with 2 and 1 drafted tokens and an empty place, in a bucket for three drafted tokens."""
    pool = store.init(MODEL.config, 6, 4, dtype=torch.float64)
    tables, bases = [Table((3, 1), 4), Table((5,), 1)], torch.tensor([5, 2, 1])
    where = layout(tables, [7, 3], page_size=4, sequences=3, rows=4, pages=2)
    drafted = torch.tensor([[3, 4, -1], [7, -1, -1], [-1, -1, -1]])
    laws = torch.full((3, 3, VOCAB), 1 / VOCAB, dtype=torch.float64) if soft else None
    keys = split(key(3), 3)
    drawn = words(keys, 3, bases) if rule != "coupled" else races(keys, bases)
    knobs = Knobs(torch.tensor([0.9, 0.0, 1.0]).double(), torch.tensor([0, 0, 5]), torch.tensor([0.9, 1.0, 1.0]).double(), torch.zeros(3).double())
    tokens = torch.cat([torch.tensor([[1], [2], [0]]), drafted.clamp(min=0)], 1)
    return pool, Batch(tokens, bases[:, None] - 1 + torch.arange(4), where, Draft(drafted, laws, torch.tensor([2, 1, 0])), knobs, drawn)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_the_step_has_no_shape_of_a_value_and_waits_for_none(rule: str, soft: bool) -> None:
    """Traced whole on tensors without values; what it computes so is what it computes at once."""
    pool, batch = batch_of(rule, soft)
    program = traced(lambda pool, batch: decode(MODEL, verifiers[rule], pool, batch), pool, batch)
    wanted = decode(MODEL, verifiers[rule], store.clone(pool), batch)
    found = program.module()(store.clone(pool), batch)
    assert torch.equal(found[1].verdict.tokens, wanted[1].verdict.tokens)
    assert torch.allclose(found[1].logprobs, wanted[1].logprobs)
    assert torch.equal(found[0].keys, wanted[0].keys)


@pytest.mark.parametrize("rule", RULES)
def test_on_a_gpu_everything_in_the_step_is_on_the_gpu(rule: str) -> None:
    """On tensors of another device than the host, without values: one that was made on the host would meet them and be refused."""
    pool, batch = batch_of(rule, True)
    with FakeTensorMode(shape_env=None, allow_non_fake_inputs=True):

        def moved(leaf: Any) -> Any:
            return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") if isinstance(leaf, Tensor) else leaf

        model = llama.model(MODEL.config, tree_map(moved, MODEL.params))
        out = decode(model, verifiers[rule], *tree_map(moved, (pool, batch)), impl="torch")
    assert {leaf.device.type for leaf in tree_leaves(out) if isinstance(leaf, Tensor)} == {"meta"}
