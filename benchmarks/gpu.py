"""Checks and times the kernels on this GPU: ``python benchmarks/gpu.py [--quick] [--json FILE]``, under eight minutes.

It is written for NVIDIA cards (CUDA). The kernels are compiled for AMD's gfx942 too, and have never been run there; torch's ROCm build calls its
devices cuda, so the script may work. It needs torch, triton and this repository, which need not be installed. The parts are the files ``gpu_*.py``
beside it: ``gpu_checks`` holds every kernel to a float64 reference, ``gpu_attention``, ``gpu_stack`` and ``gpu_decide`` time, ``gpu_machine`` is the
clock. One report is printed at the end.

Exit codes: 0 all checks passed; 1 a check failed or was not run, or a part ended in an error; 2 nothing could be run. What time or memory cuts off
the timings is left out, and said; a target that is missed is shown. Neither changes the exit code.

``--rehearse`` runs every line that a CPU can on tiny sizes, with kernels interpreted; no figure of it means anything. It captures no graph and has
no targets.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
REHEARSAL = (
    "This is a rehearsal on a CPU, with tiny sizes and interpreted kernels: no figure of it means anything.\n"
    "It captures no graph and judges no target."
)
CODES = """exit codes: 0 all checks passed; 1 a check failed or was not run, or a part ended in an error; 2 nothing could be run (no GPU, no triton, a
bad option). Timings that time or memory leaves no room for are left out, and said. Targets are shown, met or not, and do not change the exit code."""


def main() -> int:
    """Runs the parts in turn and prints what they found."""
    options = _options()
    for name, remedy in (("torch", "https://pytorch.org says how"), ("triton", "pip install triton (3.7 or 3.8)")):
        if find_spec(name) is None:
            return _refuse(f"{name} is not installed; expected torch and triton: {remedy}")
    if options.rehearse:
        print(REHEARSAL, flush=True)
    os.environ["TRITON_INTERPRET"] = "1" if options.rehearse else "0"  # before triton is imported
    for path in (ROOT / "kernels", ROOT / "proofs", ROOT, HERE):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
    import gpu_standins
    import torch

    if not options.rehearse and not torch.cuda.is_available():
        return _refuse("torch sees no GPU; expected one with CUDA, or --rehearse, which runs tiny sizes on a CPU and measures nothing")
    gpu_standins.provide()
    from gpu_attention import attention
    from gpu_checks import check
    from gpu_decide import decide
    from gpu_machine import Report, best_of, facts, machine
    from gpu_stack import five_for_one, graphs, stack
    from gpu_table import as_json, shown

    at, report = machine(rehearse=options.rehearse, quick=options.quick, seconds=options.seconds), Report()
    torch.manual_seed(time.time_ns() % 2**31)

    def part(name: str, run: Callable[[], Any]) -> Any:
        """A part that cannot be run is a fault, and the others run all the same."""
        print(f"{time.monotonic() - at.began:5.0f} s  {name}", file=sys.stderr, flush=True)
        try:
            return run()
        except Exception as error:
            words = str(error).strip().splitlines()
            report.faults.append(f"{name}: {type(error).__name__}: {words[0] if words else 'no words'}")
            return None

    with torch.no_grad():
        device = facts(at, ROOT)
        best = part("copy and product", lambda: best_of(at))
        part("checks", lambda: check(at, report, 0.40))
        if best is not None:
            part("attention", lambda: attention(at, best, report, 0.60))
            made = part("weights", lambda: stack(at, report))
            passes = {} if made is None else part("passes", lambda: five_for_one(at, best, made, report, 0.86)) or {}
            part("deciding", lambda: decide(at, report, passes, 0.92))
            if made is not None:
                part("graphs", lambda: graphs(at, made, report, 0.97))
    seconds = time.monotonic() - at.began
    print(shown(device, best, report, seconds))
    if options.json:
        Path(options.json).write_text(json.dumps(as_json(device, best, report, seconds, rehearsal=options.rehearse), indent=1) + "\n", "utf-8")
    return 1 if report.faults else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu.py", description="Check and time the kernels on this GPU.", epilog=CODES)
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--json", metavar="FILE", help="write everything there as JSON too")
    parser.add_argument("--seconds", type=float, default=450.0, help="time for the whole run; what does not fit is left out, and said (default 450)")
    parser.add_argument("--rehearse", action="store_true", help="run tiny sizes on a CPU; measures nothing")
    options = parser.parse_args()
    if options.json and (Path(options.json).is_dir() or not Path(options.json).absolute().parent.is_dir()):
        parser.error(f"--json is {options.json}; expected a file in a folder that is there")
    if not options.seconds > 0:
        parser.error(f"--seconds is {options.seconds:g}; expected more than 0")
    return options


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
