"""For the engineer: the kernels alone, on a pool of pages and on drafts that any engine can hand over. Run: python examples/lift_kernels.py

Without a GPU they are interpreted: slow, and the same numbers; without triton their torch references run. To take them out: kernels/README.md.
"""

import os
from importlib.util import find_spec

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

from specdec_fn.random import key, split
from specdec_fn.speculate import Draft, ragged, verifiers
from specdec_kernels import paged_attention, paged_write

IMPL = "torch" if find_spec("triton") is None else "triton"


def attention(device: str) -> float:
    """Writes two sequences into pages and attends from their last rows; the largest difference from a dense product in float64."""
    heads, kv_heads, size, page = 4, 2, 64, 16
    contexts, counts = [21, 7], [3, 1]  # positions of each sequence, and how many of them are query rows
    table = torch.tensor([[5, 2], [3, -1]], device=device)  # their pages
    pools = [torch.full((8, page, kv_heads, size), torch.nan, device=device) for _ in range(2)]
    keys, values = ([torch.randn(count, kv_heads, size, device=device) for count in contexts] for _ in range(2))
    query = [torch.randn(count, heads, size, device=device) for count in counts]
    places = [torch.arange(count, device=device) for count in contexts]
    slots = torch.cat([table[b, at // page] * page + at % page for b, at in enumerate(places)])
    paged_write(*pools, torch.cat(keys), torch.cat(values), slots, impl=IMPL)
    starts = torch.tensor([0, 3, 4], device=device)
    out = paged_attention(torch.cat(query), *pools, table, starts, torch.tensor(contexts, device=device), impl=IMPL)
    worst = 0.0
    for b, got in enumerate(out.split(counts)):
        q, k, v = (rows.double().transpose(0, 1) for rows in (query[b], keys[b], values[b]))
        k, v = (rows.repeat_interleave(heads // kv_heads, 0) for rows in (k, v))
        seen = places[b] <= places[b][-counts[b] :, None]
        scores = (q @ k.mT * size**-0.5).masked_fill(~seen, -torch.inf)
        worst = max(worst, (scores.softmax(-1) @ v - got.transpose(0, 1)).abs().max().item())
    return worst


def deciding(device: str, batch: int = 6, k: int = 4, vocab: int = 100) -> tuple[bool, int]:
    """Judges random drafts by the kernel and by the reference: whether they agree, and how many tokens were emitted."""
    p, q = ((2 * torch.randn(batch, rows, vocab, device=device)).softmax(-1) for rows in (k + 1, k))
    tokens = torch.multinomial(q.flatten(0, 1), 1).view(batch, k)
    draft = Draft(tokens, q, torch.full((batch,), k, device=device))
    drawn = ragged.Words(*(words.to(device) for words in ragged.words(split(key(0), batch), k, torch.zeros(batch, dtype=torch.int64))))
    ours, law = (ragged.decide_all(verifiers["token"], drawn, p, draft, impl=impl) for impl in (IMPL, "torch"))
    return torch.equal(ours.tokens, law.tokens), int(ours.emitted.sum())


if __name__ == "__main__":
    where = "cuda" if torch.cuda.is_available() else "cpu"
    if IMPL == "torch":
        print("triton is not installed, which the kernels need (pip install triton): these are their torch references")
    print(f"attention over pages: within {attention(where):.1e} of a dense product in float64")
    same, emitted = deciding(where)
    print(f"drafts judged: {emitted} tokens for 6 sequences, {'the same as' if same else 'DIFFERENT FROM'} the reference's")
