"""A stack of the size of a 7B model with random weights: what a pass of K + 1 rows costs beside a pass of one row, and what a graph saves.

The sizes are those of Mistral 7B. The pass is ``specdec_fn.models.llama`` over one paged pool, through ``kv.layout.attend``: what the engine
captures. Its byte bound is the weights (the head, and not the embedding, of which a pass reads a row a token) and the keys and values of every
context, at the copy bandwidth that was measured. The roofline adds the operations, at the speed of a large product.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from gpu_attention import PAGE, paged
from gpu_machine import Best, Machine, Report, Table, host_and_total, timed
from torch import Tensor

from specdec_fn.kv.layout import Layout, attend
from specdec_fn.kv.store import Store
from specdec_fn.models import llama
from specdec_fn.models.config import Config
from specdec_fn.models.model import Model

__all__ = ["five_for_one", "graphs", "stack"]

SEVEN = Config("llama", vocab_size=32_000, context=32_768, width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn=14_336)
TINY = Config("llama", vocab_size=50, context=64, width=64, layers=1, heads=2, kv_heads=1, head_dim=64, ffn=32)
CONTEXT = 1024  # keys of every sequence, its rows included


class Stack(NamedTuple):
    """The model, and the pools of keys and values of as many sequences as fit."""

    model: Model
    pools: tuple[Tensor, Tensor]
    table: Tensor
    context: int


def stack(at: Machine, report: Report) -> Stack | None:
    """Makes the weights and the pool on the device, or says that they do not fit."""
    config, context = (TINY, 20) if at.rehearse else (SEVEN, CONTEXT)
    weights = 2 * sum(int(torch.tensor(shape).prod()) for shape in llama.shapes(config).values())
    each = config.layers * context * config.kv_heads * config.head_dim * 4
    batch = next((batch for batch in ((2,) if at.rehearse else (64, 32, 16, 8, 4, 2, 1)) if at.room(1.05 * weights + batch * each + 2e9)), None)
    if batch is None:
        report.cut.append(f"the 7B-sized stack: {weights / 2**30:.1f} GiB of weights do not fit")
        return None
    if batch < 64 and not at.rehearse:
        report.cut.append(f"the 7B-sized stack at batches over {batch}: their keys and values do not fit")
    shapes = llama.shapes(config)
    params = llama.assemble(config, lambda name: torch.empty(shapes[name], dtype=torch.bfloat16, device=at.device).normal_(0, 0.02))
    pools, table = paged(at, batch, context, config.kv_heads, config.head_dim, config.layers)
    return Stack(llama.model(config, params), pools, table, context)


def a_pass(at: Machine, made: Stack, batch: int, rows: int) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """The pass of ``rows`` rows of each sequence as a function of tensors, and its arguments: (keys, values, tokens, positions)."""
    config, device = made.model.config, at.device
    positions = made.context - rows + torch.arange(rows, device=device).repeat(batch)
    tokens = torch.randint(0, config.vocab_size, (batch * rows,), device=device)
    table = made.table[:batch].to(torch.int64)
    pages = made.table.numel()
    slots = table.repeat_interleave(rows, 0).gather(1, (positions // PAGE)[:, None])[:, 0] * PAGE + positions % PAGE
    lengths, counts = (torch.full((batch,), count, device=device) for count in (made.context, rows))
    layout = Layout(table, lengths, counts, slots)

    def run(keys: Tensor, values: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        pool = Store(keys, values, config.layers, pages, PAGE)
        attention = attend(layout, page_size=PAGE, impl="triton")
        logits: Tensor = made.model.apply(made.model.params, tokens, positions, pool, attention)[0]
        return logits

    return run, (*made.pools, tokens, positions)


def five_for_one(at: Machine, best: Best, made: Stack, report: Report, share: float) -> dict[tuple[int, int], float]:
    """Times passes over batch and K.

    Returns:
        seconds of a pass by (batch, K).
    """
    config = made.model.config
    table = Table(
        f"A pass of K + 1 rows: {config.layers} layers, width {config.width}, heads {config.heads}/{config.kv_heads} of {config.head_dim}, "
        f"ffn {config.ffn}, bf16, context {made.context}, {'launched by Python' if at.rehearse else 'as a CUDA graph'}",
        ("batch", "K", "rows", "ms", "ratio to 1 row", "share of byte bound", "roofline ms", "predicted ratio"),
    )
    report.tables["pass"] = table
    most = made.table.shape[0]
    batches = [batch for batch in ((1, 2) if at.rehearse else (1, 64, 16, 4, 32, 8, 2)) if batch <= most]
    ks = (0, 1) if at.rehearse else (0, 4, 1, 2, 3, 5, 6, 7, 8, 12, 16)
    if at.quick and not at.rehearse:
        batches, ks = batches[:3], (0, 4, 1, 2, 8, 16)
    found: dict[tuple[int, int], float] = {}
    for batch, k in itertools.product(batches, ks):
        if at.passed(share):
            report.cut.append(f"passes from batch {batch}, K = {k} on: the time was up")
            break
        run, arguments = a_pass(at, made, batch, k + 1)
        found[batch, k] = timed(at, partial(run, *arguments))
    for (batch, k), seconds in sorted(found.items()):
        bound, predicted = _bounds(best, made, batch, k + 1)
        one, predicted_one = found[batch, 0], _bounds(best, made, batch, 1)[1]
        ratio, part = seconds / one, bound / seconds
        table.rows.append((batch, k, batch * (k + 1), seconds * 1e3, ratio, part, predicted * 1e3, predicted / predicted_one))
        if batch == 1 and k == 4 and not at.rehearse:
            report.figures.append((f"5 rows / 1 row at batch 1 ({one * 1e3:.2f} ms a row)", ratio, "at most 1.05", ratio <= 1.05))
        if batch == 1 and k == 0 and not at.rehearse:
            report.figures.append(("1 row at batch 1: share of its byte bound", part, "at least 0.80", part >= 0.80))
    return found


def _bounds(best: Best, made: Stack, batch: int, rows: int) -> tuple[float, float]:
    """Seconds of the bytes, and of the slower of bytes and operations."""
    config, model = made.model.config, made.model
    matrices = [tensor for layer in model.params.layers for tensor in (layer.qkv, layer.output, layer.gate_up, layer.down)] + [model.params.head]
    numbers = sum(matrix.numel() for matrix in matrices)
    kv = 4 * batch * made.context * config.layers * config.kv_heads * config.head_dim
    bytes_bound = (2 * numbers + kv) / best.bandwidth
    operations = batch * rows * (2 * numbers + 4 * made.context * config.layers * config.heads * config.head_dim)
    return bytes_bound, max(bytes_bound, operations / best.flops)


def graphs(at: Machine, made: Stack, report: Report, share: float) -> None:
    """Times a pass as Python runs it beside the same pass captured: until Python is free again, and until the device is done."""
    table = Table("A pass without and with a graph", ("batch", "K", "how", "host ms", "total ms", "host / total", "total / plain"))
    report.tables["graph"] = table
    most = made.table.shape[0]
    for batch, k in itertools.product([batch for batch in ((1,) if at.rehearse else (1, 16, 64)) if batch <= most], (1,) if at.rehearse else (0, 4)):
        if at.passed(share):
            report.cut.append(f"graphs from batch {batch}, K = {k} on: the time was up")
            break
        run, arguments = a_pass(at, made, batch, k + 1)
        ways: dict[str, Any] = {"plain": run}
        if not at.rehearse:  # on a CPU a capture is a compiler's work of minutes
            from specdec_fn.engine.capture import capture

            ways["engine.capture"] = capture(run, *arguments, donated=(0, 1))
        plain = 0.0
        for how, way in ways.items():
            way(*arguments)
            host, total = host_and_total(at, partial(way, *arguments))
            plain = plain or total
            table.rows.append((batch, k, how, host * 1e3, total * 1e3, host / total, total / plain))
