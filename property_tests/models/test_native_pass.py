"""A pass in the C library, whole and step by step, against the same pass in torch; and that parameters are what they are at the time of the pass."""

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as torch_pytree

from specdec_fn.kv import dense, paged, store
from specdec_fn.kv.paged import Span
from specdec_fn.models import Config, Model, RopeConfig, invariant, llama, logits
from specdec_fn.models import native as model_native
from specdec_fn.models.model import causal
from specdec_fn.models.quantized import quantized
from specdec_fn.models.truncate import first_layers
from specdec_kernels import native

SIZES = dict(vocab_size=70, context=256, layers=3)  # noqa: C408
LLAMA = Config("llama", **SIZES, width=36, heads=6, kv_heads=2, head_dim=16, ffn=50, rope=RopeConfig(base=100.0))
TIED = Config("llama", **SIZES, width=48, heads=3, kv_heads=1, head_dim=32, ffn=40, tied=True)
QWEN2 = Config("qwen2", **SIZES, width=32, heads=4, kv_heads=4, head_dim=16, ffn=64, tied=True, qkv_bias=True)
QWEN3 = Config("qwen3", **SIZES, width=32, heads=4, kv_heads=2, head_dim=48, ffn=96, qk_norm=True)
BOTH = Config("qwen3", **SIZES, width=64, heads=2, kv_heads=2, head_dim=16, ffn=32, tied=True, qkv_bias=True, qk_norm=True)
PACKABLE = Config("llama", **SIZES, width=64, heads=4, kv_heads=2, head_dim=16, ffn=96)
CONFIGS = (LLAMA, TIED, QWEN2, QWEN3, BOTH)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKENS = torch.arange(60) * 11 % 70
configs = pytest.mark.parametrize("config", CONFIGS, ids=["llama", "tied", "qwen2", "qwen3", "both"])
Passes = list[tuple[str, int]]


@pytest.fixture(autouse=True, scope="module")
def there() -> None:
    assert native.wait(), native.status()


def made(config: Config, dtype: torch.dtype = torch.float32, seed: int = 0) -> Model:
    make = torch.Generator().manual_seed(seed)
    shapes = llama.shapes(config)

    def weight(name: str) -> Tensor:
        spread = 0.5 * torch.randn(shapes[name], generator=make)
        return ((1 + spread) if "norm" in name else spread * (1 if len(shapes[name]) == 1 else 2 * shapes[name][1] ** -0.5)).to(dtype)

    return llama.model(config, llama.assemble(config, weight))


@contextmanager
def without_the_library() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        patch.setattr(native, "ready", lambda: False)
        patch.setattr(native, "wait", lambda: False)
        yield


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """How often a whole pass, or what lies between attentions, went through the library."""
    calls = {"whole": 0, "step": 0}
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in (("whole_pass", "whole"), ("run", "step")):
            inner = getattr(model_native, name)

            def outer(*args: Any, inner: Any = inner, kind: str = kind, **kwargs: Any) -> Any:
                calls[kind] += 1
                return inner(*args, **kwargs)

            patch.setattr(model_native, name, outer)
        yield calls


def fresh(model: Model, capacity: int = 80, dtype: torch.dtype | None = None) -> dense.DenseCache:
    cache = dense.init(model.config, capacity, dtype=dtype or model.params.norm.dtype)
    for part in (*cache.keys, *cache.values):
        part.fill_(float("nan"))
    return cache


def run(model: Model, sizes: list[int], attend: dense.Attend = dense.attend, params: Any = None, first: int = 0) -> tuple[Tensor, dense.DenseCache]:
    """Logits of the tokens in passes of the given sizes, the first ``first`` of them without logits."""
    cache, at, rows, params = fresh(model), 0, [], model.params if params is None else params
    for index, size in enumerate(sizes):
        tokens, positions = TOKENS[at : at + size], torch.arange(at, at + size)
        if index < first:
            assert model.prefill is not None
            cache = model.prefill(params, tokens, positions, cache, attend)
        else:
            out, cache = model.apply(params, tokens, positions, cache, attend)
            rows.append(out)
        cache, at = dense.advance(cache, size), at + size
    return torch.cat(rows), cache


def unplanned(attend: dense.Attend) -> dense.Attend:
    """The same attention, which does not say beforehand what it will do."""
    return lambda *args: attend(*args)


def wide(model: Model) -> Model:
    return llama.model(model.config, torch_pytree.tree_map(lambda leaf: leaf.double(), model.params))


@configs
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_pass_of_torch(config: Config, dtype: torch.dtype) -> None:
    """Against float64; and what it rounds costs no more than what torch rounds, which keeps activations in the dtype of the weights."""
    model = made(config, dtype)
    sizes, few = [7, 1, 5, 16, 1], 1
    exact, held = run(wide(model), sizes, first=few)
    with counted() as calls:
        ours, cache = run(model, sizes, first=few)
    assert calls == {"whole": len(sizes), "step": 0}
    with without_the_library():
        theirs, _ = run(model, sizes, first=few)
    assert ours.isfinite().all()
    error, allowed = (ours - exact).abs(), (theirs - exact).abs()
    assert error.max() < (2e-5 if dtype is torch.float32 else 0.2) * exact.abs().max()
    if dtype is not torch.float32:
        assert error.pow(2).mean() <= 1.1 * allowed.pow(2).mean()
    for mine, true in zip((*cache.keys, *cache.values), (*held.keys, *held.values), strict=True):
        step = 1e-5 if dtype is torch.float32 else 16 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            mine[: cache.length].double(), true[: cache.length], rtol=step, atol=step * float(true[: cache.length].abs().max())
        )
        assert mine[cache.length :].isnan().all()


@configs
@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_and_step_by_step_are_the_same_bits(config: Config, dtype: torch.dtype) -> None:
    model = made(config, dtype)
    for attend in (dense.attend, dense.attend_invariant):
        whole, cache = run(model, [7, 1, 5], attend, first=1)
        with counted() as calls:
            apart, other = run(model, [7, 1, 5], unplanned(attend), first=1)
        assert calls["whole"] == 0
        assert calls["step"] > 0
        assert torch.equal(whole, apart)
        for one, two in zip((*cache.keys, *cache.values), (*other.keys, *other.values), strict=True):
            assert torch.equal(one[:13], two[:13])


@configs
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_cut_of_the_invariant_form_gives_the_bits_of_single_rows(config: Config, dtype: torch.dtype) -> None:
    model = invariant(made(config, dtype))
    single, cache = run(model, [1] * 60, dense.attend_invariant)
    for sizes in ([60], [33, 27], [5] * 12, [17, 1, 1, 16, 25], [2, 3, 7, 8, 9, 31]):
        out, other = run(model, sizes, dense.attend_invariant)
        assert torch.equal(out, single), sizes
        for one, two in zip((*cache.keys, *cache.values), (*other.keys, *other.values), strict=True):
            assert torch.equal(one[:60], two[:60])
    late, _ = run(model, [40, 3, 17], dense.attend_invariant, first=1)
    assert torch.equal(late, single[40:])


@configs
def test_few_rows_have_the_bits_of_the_invariant_form(config: Config) -> None:
    """Up to 16 rows both are the same calls."""
    model = made(config)
    assert torch.equal(run(model, [16, 1, 7, 16])[0], run(invariant(model), [1] * 40, dense.attend_invariant)[0])


@pytest.mark.parametrize("page", [1, 3, 16])
@pytest.mark.parametrize("plan", [True, False])
def test_pages_give_the_bits_of_a_dense_cache(plan: bool, page: int) -> None:
    """Two sequences on pages that take turns, in chunks, in one pass."""
    model = invariant(made(TIED))
    single, _ = run(model, [1] * 30, dense.attend_invariant)
    pages = -(-30 // page)
    pool = store.init(model.config, 2 * pages, page, dtype=torch.float32)
    pool.keys.fill_(float("nan")), pool.values.fill_(float("nan"))
    slots = [[(2 * (pages - 1 - at // page) + who) * page + at % page for at in range(30)] for who in (0, 1)]
    at, found = [0, 0], [[], []]
    for counts in ((9, 1), (1, 1), (20, 5), (0, 23)):
        spans = [Span(own[: start + count], count) for own, start, count in zip(slots, at, counts, strict=True) if count]
        tokens = torch.cat([TOKENS[start : start + count] for start, count in zip(at, counts, strict=True)])
        positions = torch.cat([torch.arange(start, start + count) for start, count in zip(at, counts, strict=True)])
        attend = paged.attend_invariant(spans)
        with counted() as calls:
            out, pool = model.apply(model.params, tokens, positions, pool, attend if plan else unplanned(attend))
        assert (calls["whole"] == 1) == plan
        for who, part in enumerate(out.split(counts)):
            found[who].append(part)
        at = [start + count for start, count in zip(at, counts, strict=True)]
    for parts in found:
        assert torch.equal(torch.cat(parts), single)


@pytest.mark.parametrize(
    "asked",
    [[2], [0, 4], [4, 0, 4], [], [-1], [-5, 3], list(range(5)) * 20],
    ids=str,
)
def test_logits_of_some_rows(asked: list[int]) -> None:
    model = made(LLAMA)
    whole, _ = run(model, [5])
    rows = torch.tensor(asked, dtype=torch.int64)
    assert model.apply_at is not None
    for given in (rows, rows.to(torch.int32), torch.stack((rows, rows + 1), 1)[:, 0]):
        out, _ = model.apply_at(model.params, TOKENS[:5], torch.arange(5), fresh(model), dense.attend, given)
        assert torch.equal(out, whole[rows])


def test_rows_past_the_pass_are_refused() -> None:
    model = made(LLAMA)
    assert model.apply_at is not None
    for wrong in (5, -6):
        with pytest.raises(IndexError):
            model.apply_at(model.params, TOKENS[:5], torch.arange(5), fresh(model), dense.attend, torch.tensor([wrong]))


@pytest.mark.parametrize("form", ["plain", "invariant", "packed"])
@pytest.mark.parametrize("wrong", [70, -1, 2**40])
def test_ids_outside_the_vocabulary_are_refused_and_nothing_is_read(wrong: int, form: str) -> None:
    model = {"plain": lambda: made(LLAMA), "invariant": lambda: invariant(made(LLAMA)), "packed": lambda: quantized(made(PACKABLE))}[form]()
    for place in (0, 3):
        tokens = TOKENS[:5].clone()
        tokens[place] = wrong
        with pytest.raises(IndexError):
            model.apply(model.params, tokens, torch.arange(5), fresh(model), dense.attend_invariant)


def test_positions_that_are_too_few_are_refused() -> None:
    model = made(LLAMA)
    with pytest.raises((RuntimeError, ValueError, AssertionError, TypeError)):
        model.apply(model.params, TOKENS[:5], torch.arange(3), fresh(model), dense.attend)


def test_a_cache_of_more_layers_and_of_fewer() -> None:
    """The first layers of a model may write into its cache; a cache that is too small is refused, as torch refuses it."""
    model = made(TIED)
    short = first_layers(model, 2)
    out, cache = short.apply(short.params, TOKENS[:5], torch.arange(5), fresh(model), dense.attend)
    assert torch.equal(out, run(short, [5])[0])
    assert cache.keys[2].isnan().all()
    with pytest.raises((IndexError, ValueError, AssertionError)):
        model.apply(model.params, TOKENS[:5], torch.arange(5), fresh(short), dense.attend)


def test_a_cache_without_room_is_refused() -> None:
    model = made(TIED)
    with pytest.raises(AssertionError, match="5 rows at 0 of 4 slots"):
        model.apply(model.params, TOKENS[:5], torch.arange(5), fresh(model, 4), dense.attend)


# Parameters


def others(model: Model) -> Any:
    return made(model.config, model.params.norm.dtype, seed=1).params


@configs
@pytest.mark.parametrize("form", ["plain", "invariant"])
def test_replaced_parameters_are_those_of_the_pass(config: Config, form: str) -> None:
    """Handed to apply, put in by _replace, or a leaf at a time: what counts is what the pass is given."""
    model = made(config)
    attend = dense.attend_invariant if form == "invariant" else dense.attend
    shape = invariant if form == "invariant" else lambda given: given
    wanted, old = run(shape(made(config, seed=1)), [5, 1], attend)[0], run(shape(model), [5, 1], attend)[0]
    assert not torch.equal(wanted, old)
    for _ in range(2):
        assert torch.equal(run(shape(model), [5, 1], attend, others(model))[0], wanted)
        assert torch.equal(run(shape(model._replace(params=others(model))), [5, 1], attend)[0], wanted)
        assert torch.equal(run(shape(model), [5, 1], attend)[0], old)
    half = dataclasses.replace(model.params, layers=(others(model).layers[0], *model.params.layers[1:]))
    assert torch.equal(run(shape(model), [5, 1], attend, half)[0], run(shape(llama.model(config, half)), [5, 1], attend)[0])
    doubled = torch_pytree.tree_map(lambda leaf: leaf.double(), others(model))
    late = invariant(model._replace(params=doubled)) if form == "invariant" else model._replace(params=doubled)
    out = late.apply(doubled, TOKENS[:5], torch.arange(5), fresh(model, dtype=torch.float64), attend)[0]
    torch.testing.assert_close(out, wanted[:5].double(), rtol=1e-4, atol=1e-4)


@configs
def test_moved_and_changed_parameters_are_seen(config: Config) -> None:
    """Every leaf, written in place or given other memory, in a model that has run already."""
    names = [f.name for f in dataclasses.fields(llama.Layer)]
    for way in ("in place", "moved"):
        for name in ["embedding", "norm", "head", *names]:
            model, other = made(config), made(config, seed=1)
            run(model, [5])
            target, source = (getattr(one.params if name in ("embedding", "norm", "head") else one.params.layers[1], name) for one in (model, other))
            if target is None:
                continue
            if way == "in place":
                target.copy_(source)
            else:
                old = target.data
                target.data = source.clone()
                old.fill_(float("nan"))
            same = llama.model(config, torch_pytree.tree_map(torch.clone, model.params))
            assert torch.equal(run(model, [5, 1])[0], run(same, [5, 1])[0]), (name, way)


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_0", "q4_1"])
def test_packed_parameters_that_move_are_seen(kind: str) -> None:
    for name in ("codes", "scales"):
        model, other = quantized(made(PACKABLE), kind), quantized(made(PACKABLE, seed=1), kind)
        run(model, [5])
        target, source = (getattr(one.params.layers[1].down, name) for one in (model, other))
        if target is None:
            continue
        old = target.data
        target.data = source.clone()
        old.zero_()
        same = llama.model(PACKABLE, torch_pytree.tree_map(torch.clone, model.params))
        assert torch.equal(run(model, [5, 1])[0], run(same, [5, 1])[0])


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_0", "q4_1"])
def test_a_packed_model(kind: str) -> None:
    """Any cut gives the same bits, whole and step by step; and the numbers are near those of torch, whose activations it rounds alike."""
    model = quantized(made(PACKABLE), kind)
    with counted() as calls:
        whole, _ = run(model, [13, 1, 16, 30], dense.attend_invariant)
    assert calls["whole"] >= 3
    for sizes in ([1] * 60, [60], [7, 33, 20]):
        assert torch.equal(run(invariant(model), sizes, dense.attend_invariant)[0], whole)
    assert torch.equal(run(model, [13, 1, 16, 30], unplanned(dense.attend_invariant))[0], whole)
    with without_the_library():
        theirs, _ = run(model, [13, 1, 16, 30], dense.attend_invariant)
    apart = (whole - theirs).pow(2).mean().sqrt()
    rounded = (run(made(PACKABLE), [13, 1, 16, 30])[0] - theirs).pow(2).mean().sqrt()
    assert apart < 0.1 * theirs.pow(2).mean().sqrt()
    assert apart < rounded  # what differs is an activation here and there that falls on the other side of a step


def test_derivatives_go_through_torch() -> None:
    model = made(LLAMA)

    def loss(params: Any) -> Tensor:
        out, _ = model.apply(params, TOKENS[:6], torch.arange(6), None, causal)
        return out.log_softmax(-1)[:-1].gather(1, TOKENS[1:6, None]).sum()

    found = torch.func.grad(loss)(model.params)
    leaves, spec = torch_pytree.tree_flatten(model.params)
    wanted_leaves = [leaf.double().requires_grad_() for leaf in leaves]
    loss(torch_pytree.tree_unflatten(wanted_leaves, spec)).backward()
    for one, two in zip(torch_pytree.tree_leaves(found), wanted_leaves, strict=True):
        assert two.grad is not None
        torch.testing.assert_close(one.double(), two.grad, rtol=1e-3, atol=1e-4)
    kept = torch_pytree.tree_map(lambda leaf: leaf.clone().requires_grad_(), model.params)
    loss(kept).backward()
    assert all(leaf.grad is not None for leaf in torch_pytree.tree_leaves(kept))


def test_mapped_over_tokens_and_parameters() -> None:
    model = made(LLAMA)
    prompts = torch.stack([TOKENS[i : i + 5] for i in range(4)])
    out = torch.func.vmap(lambda tokens: model.apply(model.params, tokens, torch.arange(5), None, causal)[0])(prompts)
    for one, tokens in zip(out, prompts, strict=True):
        torch.testing.assert_close(one, logits(model, tokens), rtol=1e-4, atol=1e-4)
    stacked = torch_pytree.tree_map(lambda a, b: torch.stack((a, b)), model.params, others(model))
    out = torch.func.vmap(lambda params: model.apply(params, TOKENS[:5], torch.arange(5), None, causal)[0])(stacked)
    for one, params in zip(out, (model.params, others(model)), strict=True):
        torch.testing.assert_close(one, logits(model._replace(params=params), TOKENS[:5]), rtol=1e-4, atol=1e-4)


class Module(torch.nn.Module):
    """A model's parameters as those of a module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, (leaves, self.spec) = model, torch_pytree.tree_flatten(model.params)
        self.leaves = torch.nn.ParameterList([torch.nn.Parameter(leaf.clone()) for leaf in leaves])

    def forward(self, tokens: Tensor) -> Tensor:
        params = torch_pytree.tree_unflatten(list(self.leaves), self.spec)
        return self.model.apply(params, tokens, torch.arange(tokens.shape[0]), fresh(self.model), dense.attend)[0]


def test_functional_call() -> None:
    model = made(QWEN3)
    module = Module(model)
    new = {f"leaves.{i}": leaf for i, leaf in enumerate(torch_pytree.tree_leaves(others(model)))}
    with torch.no_grad():
        out = torch.func.functional_call(module, new, (TOKENS[:5],))
        assert torch.equal(module(TOKENS[:5]), run(model, [5])[0])
    assert torch.equal(out, run(made(QWEN3, seed=1), [5])[0])


@configs
def test_copies_are_models_of_their_own(config: Config) -> None:
    model = made(config)
    wanted, _ = run(model, [5, 1])
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(quantized(made(PACKABLE), "q4_0"))):
        if copied.config == config:
            assert torch.equal(run(copied, [5, 1])[0], wanted)
        for leaf in torch_pytree.tree_leaves(copied.params):
            leaf.zero_()
    assert torch.equal(run(model, [5, 1])[0], wanted)


def test_a_model_that_is_gone_leaves_nothing_behind() -> None:
    """Layouts hold addresses and no tensors: another model in the same memory is itself."""
    for seed in range(20):
        model = made(TIED, seed=seed % 3)
        out, _ = run(model, [5])
        fresh_params = torch_pytree.tree_map(torch.clone, model.params)
        assert torch.equal(run(llama.model(TIED, fresh_params), [5])[0], out)
        del model, fresh_params


@pytest.mark.parametrize("call", [torch.no_grad, torch.inference_mode])
def test_every_mode_of_autograd(call: Callable[[], Any]) -> None:
    model = made(LLAMA)
    wanted, _ = run(model, [5, 1])
    with call():
        assert torch.equal(run(model, [5, 1])[0], wanted)
        inside = made(LLAMA)
        assert torch.equal(run(inside, [5, 1])[0], wanted)
