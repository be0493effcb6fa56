"""Verification and sampling at the vocabulary of a large model, as a share of the pass that they follow."""

from collections.abc import Callable
from typing import Any

import torch
from gpu_checks_decide import controls, peaked, words
from gpu_machine import Machine, Report, Table, timed

__all__ = ["decide"]

TARGET = 0.02  # of a pass


def decide(at: Machine, report: Report, passes: dict[tuple[int, int], float], share: float) -> None:
    """Times the laws of every row, each rule of verification, and a plain draw.

    Args:
        passes: seconds of a pass by (batch, K).
    """
    from specdec_kernels.laws_triton import laws
    from specdec_kernels.sample_triton import sample
    from specdec_kernels.verify_triton import verify

    batch, k, vocab = (1, 1, 21) if at.rehearse else (64, 4, 151_936)
    table = Table(f"Deciding tokens: batch {batch}, K = {k}, vocabulary {vocab}", ("what", "ms", "share of a pass"))
    report.tables["decide"] = table
    seconds = passes.get((batch, k))
    generator = torch.Generator(at.device).manual_seed(5)
    logits = (3 * torch.randn(batch * (k + 1), vocab, generator=generator, device=at.device)).to(torch.bfloat16)
    target, probs = peaked(generator, batch, k + 1, vocab), peaked(generator, batch, k, vocab)
    tokens = torch.multinomial(probs.flatten(0, 1), 1, generator=generator).view(batch, k)
    length = torch.full((batch,), k, dtype=torch.int64, device=at.device)
    tape = {"accept": words(generator, batch, k), "final": words(generator, batch)}
    race = {"keys": torch.randint(0, 2**32, (batch, 2), device=at.device), "position": torch.randint(0, 2**20, (batch,), device=at.device)}
    hard = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
    plain, cut = controls(at, batch * (k + 1), {}), controls(at, batch * (k + 1), hard)
    drawn = words(generator, batch)
    few_plain, few_cut = ([each[:batch] for each in every] for every in (plain, cut))
    ways: dict[str, Callable[[], Any]] = {
        "verify, token, soft draft": lambda: verify("token", target, tokens, probs, length, **tape),
        "verify, token, one-hot draft": lambda: verify("token", target, tokens, None, length, **tape),
        "verify, block, soft draft": lambda: verify("block", target, tokens, probs, length, **tape),
        "verify, coupled": lambda: verify("coupled", target, tokens, None, length, **race),
        "verify, greedy": lambda: verify("greedy", target, tokens, None, length),
        f"laws of {len(logits)} rows, plain": lambda: laws(logits, *plain),
        f"laws of {len(logits)} rows, top-k 50, top-p 0.95": lambda: laws(logits, *cut),
        f"sample {batch} rows, plain": lambda: sample(logits[:batch], *few_plain, words=drawn),
        f"sample {batch} rows, top-k 50, top-p 0.95": lambda: sample(logits[:batch], *few_cut, words=drawn),
    }
    took: dict[str, float] = {}
    for what, run in ways.items():
        if at.passed(share):
            report.cut.append(f"deciding from {what!r} on: the time was up")
            break
        took[what] = timed(at, run)
        table.rows.append((what, took[what] * 1e3, None if seconds is None else took[what] / seconds))
    both = [f"sample {batch} rows, plain", "verify, token, soft draft"]
    if seconds is None:
        table.notes.append("no share: the pass of this batch and K was not timed")
    elif all(what in took for what in both):
        part = sum(took[what] for what in both) / seconds
        table.rows.append(("verify, token + sample, plain", part * seconds * 1e3, part))
        if not at.rehearse:
            report.figures.append((f"verify + sample at V = {vocab}, batch {batch}: share of a pass", part, f"at most {TARGET}", part <= TARGET))
