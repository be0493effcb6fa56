"""Every kernel against a float64 reference: fresh random inputs, poisoned outputs, NaN in every page and slot that may not be read.

An error stands beside its tolerance: for each number, a share of the reference and a share of the sum that it comes from. Integers and copies must
be equal. What is checked of the engine's own laws (verify, sample) is checked against ``decide``, ``distribution`` and ``draw`` in float64.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gpu_checks_decide
import torch
from gpu_compare import STEP, Outcome, close, equal, normal, short
from gpu_machine import Machine, Report, Table, poisoned
from torch import Tensor

__all__ = ["check"]

NAN = float("nan")


def check(at: Machine, report: Report, share: float) -> None:
    """Runs all checks, or as many as fit into the share of time."""
    table = Table("Kernels against float64 references, on random inputs and poisoned outputs", ("kernel", "largest error", "allowed there", "passed"))
    report.tables["checks"] = table
    generator = torch.Generator(at.device).manual_seed(torch.seed() % 2**31)
    table.notes.append(f"seed of the inputs: {generator.initial_seed()}")
    waiting = [*_checks(at), *gpu_checks_decide.checks(at)]
    for place, (name, run) in enumerate(waiting):
        if at.passed(share):
            report.faults.append(f"{len(waiting) - place} of {len(waiting)} checks were not run: the time was up")
            return
        try:
            outcomes = list(run(generator))
        except Exception as error:  # one kernel that cannot run must not hide the others
            outcomes = [
                Outcome(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}", NAN, NAN, False)
            ]
        for outcome in outcomes:
            table.rows.append(tuple(outcome))
            if not outcome.passed:
                report.faults.append(f"{outcome.name}: the error is {outcome.error:.3g}; expected at most {outcome.allowed:.3g}")


def _checks(at: Machine) -> Iterator[tuple[str, Callable[[torch.Generator], Any]]]:
    dtypes = (torch.bfloat16,) if at.rehearse else (torch.bfloat16, torch.float16, torch.float32)
    yield "threefry", partial(_threefry, at)
    for dtype in dtypes:
        yield f"rows {dtype}", partial(_rows, at, dtype)
        yield f"paged_write {dtype}", partial(_write, at, dtype)
        yield f"copy_pages {dtype}", partial(_copy, at, dtype)
    shapes = ((2, 1, 64),) if at.rehearse else ((32, 8, 128), (32, 32, 128), (9, 3, 64), (8, 8, 80), (12, 2, 96), (4, 1, 256))
    for dtype, shape, form in itertools.product(dtypes, shapes, ("causal", "mask", "invariant")):
        yield f"paged_attention {form} {dtype} {shape}", partial(_attention, at, dtype, *shape, form)


def _threefry(at: Machine, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.threefry import threefry2x32
    from specdec_kernels.threefry_triton import threefry2x32 as fast

    words = torch.randint(0, 2**32, (4, 33 if at.rehearse else 1_000_003), generator=generator, device=at.device)
    poisoned([words[0], words[0]])
    for number, (got, want) in enumerate(zip(fast(*words), threefry2x32(*words), strict=True)):
        yield equal(f"threefry, word {number}", got, want)


def _rows(at: Machine, dtype: torch.dtype, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.rows import rows

    for count, inputs, outputs in [(3, 32, 5)] if at.rehearse else [(1, 4096, 4096), (5, 4096, 1111), (33, 577, 640)]:
        x, weight = (normal(generator, dtype, size, inputs) for size in (count, outputs))
        want = x.double() @ weight.double().T
        poisoned([want.to(dtype)])
        allowed = STEP[dtype] * want.abs() + 2e-6 * (x.double().abs() @ weight.double().abs().T)
        yield close(f"rows {short(dtype)} [{count}, {inputs}] x [{outputs}, {inputs}]", rows(x, weight, impl="triton"), want, allowed)


def _write(at: Machine, dtype: torch.dtype, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.paged_write import paged_write

    pages, page, heads, width, tokens = (5, 4, 2, 8, 6) if at.rehearse else (4096, 16, 8, 128, 3001)
    pools: Any = [normal(generator, dtype, pages, page, heads, width) for _ in range(2)]
    new: Any = [normal(generator, dtype, tokens, heads, width) for _ in range(2)]
    slots = torch.randperm(pages * page, generator=generator, device=at.device)[:tokens]
    slots[::5] = -1
    want = []
    for pool, rows in zip(pools, new, strict=True):
        expected = pool.clone()
        expected.view(-1, heads, width)[slots[slots >= 0]] = rows[slots >= 0]
        want.append(expected)
    got = paged_write(*pools, *new, slots, impl="triton")
    for name, mine, expected in zip(("keys", "values"), got, want, strict=True):
        yield equal(f"paged_write {short(dtype)}, {name}", mine, expected)


def _copy(at: Machine, dtype: torch.dtype, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.paged_write import copy_pages

    layers, pages, page, heads, width = (2, 5, 4, 2, 8) if at.rehearse else (3, 1001, 16, 8, 80)
    pools: Any = [normal(generator, dtype, layers * pages, page, heads, width) for _ in range(2)]
    order = torch.randperm(pages, generator=generator, device=at.device)
    sources, targets = order[: pages // 3], order[pages // 3 : 2 * (pages // 3)]
    want = [pool.clone() for pool in pools]
    for expected in want:
        layered = expected.view(layers, pages, page, heads, width)
        layered[:, targets] = layered[:, sources]
    got = copy_pages(*pools, sources, targets, layers=layers, impl="triton")
    for name, mine, expected in zip(("keys", "values"), got, want, strict=True):
        yield equal(f"copy_pages {short(dtype)}, {name}", mine, expected)


def _attention(at: Machine, dtype: torch.dtype, heads: int, kv_heads: int, head: int, form: str, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.paged_attention import paged_attention

    # Rows and context of each sequence: a tail of a page, none at all, a long one that is split, a prompt.
    sizes = [(2, 5), (0, 0), (3, 3)] if at.rehearse else [(1, 1), (5, 33), (0, 0), (1, 9001), (17, 300), (40, 40), (5, 1024)]
    page, counts, contexts = 4 if at.rehearse else 16, [count for count, _ in sizes], [context for _, context in sizes]
    width = max(-(-context // page) for context in contexts) + 1
    used = sum(-(-context // page) for context in contexts)
    order = torch.randperm(2 * used + 1, generator=generator, device=at.device)
    table = torch.full((len(sizes), width), -1, dtype=torch.int64, device=at.device)
    pools: Any = [torch.full((2 * used + 1, page, kv_heads, head), NAN, dtype=dtype, device=at.device) for _ in range(2)]
    query = normal(generator, dtype, sum(counts), heads, head)
    longest = max(counts)
    mask = torch.rand(sum(counts), longest, generator=generator, device=at.device) < 0.5 if form == "mask" else None
    want, allowed, start, taken = [], [], 0, 0
    for sequence, (count, context) in enumerate(sizes):
        own = order[taken : taken + -(-context // page)]
        taken += own.numel()
        table[sequence, : own.numel()] = own
        slots = (own[:, None] * page + torch.arange(page, device=at.device)).flatten()[:context]
        laid: Any = [normal(generator, dtype, context, kv_heads, head) for _ in range(2)]
        for pool, rows in zip(pools, laid, strict=True):
            pool.view(-1, kv_heads, head)[slots] = rows
        seen = torch.ones(count, context, dtype=torch.bool, device=at.device).tril(context - count)
        if mask is not None and count:
            mask[start : start + count, :count] |= torch.eye(count, dtype=torch.bool, device=at.device)
            seen[:, context - count :] = mask[start : start + count, :count]
        result, bound = _dense(query[start : start + count].double(), *(rows.double() for rows in laid), seen)
        want.append(result)
        allowed.append(bound)
        start += count
    reference, bound = torch.cat(want), torch.cat(allowed)
    starts = torch.tensor([0, *counts], device=at.device).cumsum(0)
    lengths = torch.tensor(contexts, device=at.device)
    poisoned([query])
    extra: dict[str, Any] = {"invariant": True} if form == "invariant" else {}
    got = paged_attention(query, *pools, table, starts, lengths, mask=mask, impl="triton", **extra)
    # Half types: weights of ten bits in the second product; float32: the exponent and the sums.
    share = 4e-6 if dtype is torch.float32 else 2.0**-10
    yield close(
        f"paged_attention {form} {short(dtype)}, heads {heads}/{kv_heads} of {head}", got, reference, STEP[dtype] * reference.abs() + share * bound
    )


def _dense(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention written out, and the sum of weights times |values| that bounds its rounding."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", query, keys) / query.shape[2] ** 0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, values), torch.einsum("hts,shd->thd", weights, values.abs())
