"""Stage 8, paged attention in Triton: the kernel gives what the torch reference gives, spills no register, and on a GPU reads near the peak."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from specdec_fn.stages.stage import Gate, Line, NeedsGpuError, Plot, Progress, Result, Setup, Stage

__all__ = ["stage"]

ROOM = "paged_attention_triton"
SHARE = 0.5  # of the copy bandwidth, at least
PEAK = "share of the memory bandwidth"
# In a process of its own: triton looks at its environment once, when it is imported.
PROGRAM = """
import json, sys, time, torch
from specdec_kernels.paged_attention import paged_attention
device, shapes = sys.argv[1], json.loads(sys.argv[2])
found = []
for batch, context, rows, heads, kv_heads, head, page in shapes:
    draw = torch.Generator().manual_seed(batch * context)
    each = -(-context // page)
    query = torch.randn(batch * rows, heads, head, generator=draw).to(device)
    keys, values = (torch.randn(batch * each, page, kv_heads, head, generator=draw).to(device) for _ in range(2))
    table = torch.randperm(batch * each, generator=draw).view(batch, each).to(torch.int32).to(device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * rows
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    took, out = {}, {}
    for impl in ("torch", "triton"):
        start = time.perf_counter()
        out[impl] = paged_attention(query, keys, values, table, starts, lengths, impl=impl)
        if device == "cuda":
            torch.cuda.synchronize()
        took[impl] = 1e3 * (time.perf_counter() - start)
    found.append({"error": float((out["torch"] - out["triton"]).abs().max()), "ms": took})
share = None
if device == "cuda":
    batch, context, heads, head, page = 64, 4096, 8, 128, 16
    pools = [torch.randn(batch * context // page, page, heads, head, device=device, dtype=torch.bfloat16) for _ in range(2)]
    table = torch.randperm(batch * context // page, device=device).view(batch, -1).to(torch.int32)
    query = torch.randn(batch, 32, head, device=device, dtype=torch.bfloat16)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    copy = torch.empty_like(pools[0])
    jobs = {
        "copy": lambda: copy.copy_(pools[0]),
        "attention": lambda: paged_attention(query, *pools, table, starts, lengths, impl="triton", trusted=True),
    }
    times = {name: [] for name in jobs}
    for turn in range(12):
        for name, job in jobs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(); job(); end.record(); torch.cuda.synchronize()
            if turn > 2:
                times[name].append(begin.elapsed_time(end))
    share = sorted(times["copy"])[4] / sorted(times["attention"])[4]  # a copy moves the same bytes: one pool read, one written
print(json.dumps({"found": found, "share": share}))
"""


def _run(setup: Setup, progress: Progress) -> Result:
    import torch

    if importlib.util.find_spec("triton") is None:
        raise NeedsGpuError("triton is not installed (the extra gpu)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = ((1, 33, 1, 4, 2, 16, 16), (2, 40, 5, 6, 2, 32, 16), (3, 17, 3, 3, 1, 64, 16))[: setup.pick(3, 2)]
    progress.say("the kernel, interpreted" if device == "cpu" else "the kernel")
    given = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = (sys.executable, "-W", "ignore", "-c", PROGRAM, device, json.dumps(shapes))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=given | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {})
    )
    if done.returncode:
        raise RuntimeError(f"the kernel did not run: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    worst = max(one["error"] for one in answer["found"])
    targets = _compiled()
    rows = [
        (f"{b} sequences of {c}, {r} rows, heads {h}/{g} of {d}", f"{one['error']:.1e}", "", "")
        for (b, c, r, h, g, d, _), one in zip(shapes, answer["found"], strict=True)
    ]
    rows += [(f"compiled for {name}", "", str(registers), str(spilled)) for name, (registers, spilled) in targets.items()]
    also = [("no compiled kernel spills a register", all(not spilled for _, spilled in targets.values()))] if targets else []
    if answer["share"] is not None:
        rows.append((PEAK, f"{answer['share']:.2f}", "", ""))
        also.append((f"{PEAK} is at least {SHARE:g}", answer["share"] >= SHARE))
    places = tuple(range(len(targets)))
    return Result(
        worst,
        f"error {worst:.1e}" + (f", at most {max(most for most, _ in targets.values())} registers" if targets else ""),
        (
            ("torch reference", sum(one["ms"]["torch"] for one in answer["found"])),
            ("kernel, interpreted" if device == "cpu" else "kernel", sum(one["ms"]["triton"] for one in answer["found"])),
        ),
        Plot(
            "",
            "registers of the largest kernel",
            (Line("compiled", places, tuple(float(most) for most, _ in targets.values()), points=True),),
            names=tuple(targets),
        ),
        ("case", "largest difference", "registers", "spilled"),
        tuple(rows),
        tuple(also),
        PEAK if answer["share"] is None else "",
    )


def _compiled() -> dict[str, tuple[int, int]]:
    """Most registers and spills of the kernel by target, as the table beside the kernels says; nothing where an installation has no table."""
    import specdec_kernels

    path = Path(next(iter(specdec_kernels.__path__))).parent / "compiled.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    own = [row for row in rows if row["room"] == ROOM]
    targets = sorted({row["target"] for row in own})
    return {
        target: tuple(max(row[part] for row in own if row["target"] == target) for part in ("registers", "spilled"))  # type: ignore[misc]
        for target in targets
    }


stage = Stage(
    "paged attention, Triton",
    "difference from the reference; registers and spills of the compiled kernel; on a GPU its share of bandwidth",
    Gate(2e-5),
    "One kernel reads keys and values where they lie. It is interpreted here, compiled ahead for four targets, and timed on a GPU.",
    _run,
)
