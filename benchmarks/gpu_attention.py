"""Paged attention as a share of the measured copy bandwidth: what it must read is the keys and the values of the context, once."""

import itertools
from functools import partial

import torch
from gpu_machine import Best, Machine, Report, Table, timed
from torch import Tensor

__all__ = ["attention", "paged"]

PAGE = 16
TARGET = 0.85  # of the copy bandwidth, at batch 64 and context 4,096


def attention(at: Machine, best: Best, report: Report, share: float) -> None:
    """Times attention over heads, batch, context and rows."""
    from specdec_kernels.paged_attention import paged_attention

    table = Table(
        "Paged attention, bf16, one layer: bytes are the keys and values of the context",
        ("heads", "batch", "context", "K", "ms", "GB/s", "share of copy"),
    )
    report.tables["attention"] = table
    heads_of = ((2, 1, 64),) if at.rehearse else ((32, 8, 128), (32, 32, 128))
    batches = (1, 2) if at.rehearse else (64, 1, 16)
    contexts = (5, 9) if at.rehearse else (4096, 1024, 16384)
    if at.quick and not at.rehearse:
        batches, contexts = batches[:2], contexts[:2]
    for (heads, kv_heads, head), batch, context in itertools.product(heads_of, batches, contexts):
        size = 4 * batch * context * kv_heads * head
        said = f"heads {heads}/{kv_heads}, batch {batch}, context {context}"
        if at.passed(share):
            report.cut.append(f"attention with {said}, and what follows it: the time was up")
            break
        if not at.room(1.2 * size):
            report.cut.append(f"attention with {said}: {size / 2**30:.1f} GiB do not fit")
            continue
        pools, block_table = paged(at, batch, context, kv_heads, head)
        lengths = torch.full((batch,), context, dtype=torch.int32, device=at.device)
        for k in (0, 1) if at.rehearse else (0, 4):
            starts = torch.arange(batch + 1, dtype=torch.int32, device=at.device) * (k + 1)
            query = torch.randn(batch * (k + 1), heads, head, device=at.device).to(torch.bfloat16)
            seconds = timed(at, partial(paged_attention, query, *pools, block_table, starts, lengths, impl="triton", trusted=True))
            part = size / seconds / best.bandwidth
            table.rows.append((f"{heads}/{kv_heads}", batch, context, k, seconds * 1e3, size / seconds / 1e9, part))
            if (batch, context) == (64, 4096):
                report.figures.append((f"attention, {said}, K = {k}: share of the copy bandwidth", part, f"at least {TARGET}", part >= TARGET))
        del pools
    table.rows.sort(key=lambda row: (int(row[0].split("/")[1]), *row[1:4]))


def paged(at: Machine, batch: int, context: int, kv_heads: int, head: int, layers: int = 1) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Pools of random keys and values, and a table whose pages lie in random order."""
    each = -(-context // PAGE)
    shape = (layers * batch * each, PAGE, kv_heads, head)
    pools = [torch.empty(shape, dtype=torch.bfloat16, device=at.device).normal_() for _ in range(2)]
    return (pools[0], pools[1]), torch.randperm(batch * each, device=at.device).view(batch, each).to(torch.int32)
