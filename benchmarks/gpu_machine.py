"""The machine that is measured, its clock, and what it can do at best: a copy, a large product.

On a GPU times are taken by events around a replayed CUDA graph, after the second-level cache was written over, and the median is kept: what is
timed is the device's work, not Python's. In a rehearsal the same lines run on a CPU, once, and their times mean nothing.
"""

import gc
import platform
import statistics
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["Best", "Machine", "Report", "Table", "best_of", "facts", "graphed", "host_and_total", "machine", "poisoned", "timed"]


@dataclass
class Table:
    """One table of the report: ``rows`` hold a value for each column."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What a run found out.

    Attributes:
        tables: by the name of their section.
        faults: checks that failed, a sentence each; any makes the script fail.
        cut: what was left out for want of time or memory, a sentence each.
        figures: (what, value, target, met) of the figures that the project promises.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    figures: list[tuple[str, float, str, bool]] = field(default_factory=list)


@dataclass(frozen=True)
class Machine:
    """Where things run.

    Attributes:
        device: a CUDA device, or the CPU in a rehearsal.
        rehearse: tiny sizes, kernels interpreted, no figure means anything.
        quick: fewer sizes.
        repeats: timings whose median is kept.
        began: when the run began, ``time.monotonic``.
        seconds: the time for the whole run.
        flush: a buffer larger than the second-level cache.
    """

    device: torch.device
    rehearse: bool
    quick: bool
    repeats: int
    began: float
    seconds: float
    flush: Tensor

    def passed(self, share: float) -> bool:
        """Whether this share of the run's time is over; a section asks before each of its sizes."""
        return time.monotonic() - self.began > share * self.seconds

    def room(self, size: float) -> bool:
        """Whether so many bytes can be taken, with some left."""
        if self.rehearse:
            return True
        gc.collect()
        torch.cuda.empty_cache()
        return size < 0.9 * torch.cuda.mem_get_info()[0]


@dataclass(frozen=True)
class Best:
    """What the device reached: bytes a second of a large copy (read and written), operations a second of a large bf16 product."""

    bandwidth: float
    flops: float


def machine(*, rehearse: bool, quick: bool, seconds: float) -> Machine:
    """Takes the device."""
    device = torch.device("cpu" if rehearse else "cuda")
    size = 64 if rehearse else max(256 << 20, 4 * torch.cuda.get_device_properties(0).L2_cache_size)
    flush = torch.empty(size, dtype=torch.uint8, device=device)
    return Machine(device, rehearse, quick, 1 if rehearse else 10 if quick else 20, time.monotonic(), seconds, flush)


def facts(at: Machine, root: Path) -> dict[str, Any]:
    """What the device is called and has, and what runs on it.

    Args:
        root: the repository.
    """
    import triton

    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    found: dict[str, Any] = {"specdec_fn": project["version"], **_commit(root)}
    found |= {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    if at.rehearse:
        return {"device": "a rehearsal on a CPU", **found}
    properties = torch.cuda.get_device_properties(0)
    found |= {
        "device": properties.name,
        "capability": f"sm_{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory GiB": round(properties.total_memory / 2**30, 1),
        "L2 MiB": round(properties.L2_cache_size / 2**20, 1),
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }
    return found


def _commit(root: Path) -> dict[str, str]:
    """The commit, marked where files differ from it; nothing in a copy without a history, or without git."""
    question = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return {"commit": subprocess.run(question, capture_output=True, text=True, timeout=20, check=True).stdout.strip()}
    except (OSError, subprocess.SubprocessError):
        return {}


def _driver() -> str:
    """The driver's version and the clocks, where the tool that knows them is there."""
    question = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit", "--format=csv,noheader"]
    try:
        return subprocess.run(question, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def best_of(at: Machine) -> Best:
    """Measures the copy and the product."""
    numbers = 1 << 10 if at.rehearse else 1 << 30 if at.room(6 * 2**30) else 1 << 27
    source, target = (torch.zeros(numbers, dtype=torch.bfloat16, device=at.device) for _ in range(2))
    bandwidth = 4 * numbers / timed(at, lambda: target.copy_(source))
    del source, target
    side = 16 if at.rehearse else 8192
    a, b = (torch.randn(side, side, device=at.device).to(torch.bfloat16) for _ in range(2))
    return Best(bandwidth, 2 * side**3 / timed(at, lambda: a @ b))


def graphed(run: Callable[[], Any]) -> Callable[[], Any]:
    """Records what ``run`` launches into a CUDA graph, and returns its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def timed(at: Machine, run: Callable[[], Any]) -> float:
    """Seconds of the device for one run: the median over replays of its graph, each after the cache was written over."""
    if at.rehearse:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    replay = graphed(run)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(at.repeats)]
    for start, end in events:
        at.flush.zero_()
        start.record()  # type: ignore[no-untyped-call]
        replay()
        end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1e3  # type: ignore[no-untyped-call]


def host_and_total(at: Machine, run: Callable[[], Any], passes: int = 10) -> tuple[float, float]:
    """Seconds of one run until Python is free again, and until the device is done: medians, each run waited for."""
    wait: Callable[[], Any] = (lambda: None) if at.rehearse else torch.cuda.synchronize
    hosts, totals = [], []
    for _ in range(1 if at.rehearse else passes):
        wait()
        start = time.perf_counter()
        run()
        hosts.append(time.perf_counter() - start)
        wait()
        totals.append(time.perf_counter() - start)
    return statistics.median(hosts), statistics.median(totals)


def poisoned(like: Iterable[Tensor]) -> None:
    """Leaves memory behind in which the next results of these sizes will lie: NaN for floats, -7 for integers.

    The allocator hands a freed block out again where the size fits, so a place that a kernel forgets keeps the poison.
    """
    blocks = [_filled(tensor) for tensor in like for _ in range(2)]
    del blocks


def _filled(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, float("nan") if tensor.is_floating_point() else -7)
