"""What only a process of its own can show: signals, broken pipes, and how it is started. Each costs an import of torch, so there are few."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec_fn import SamplingParams, generate, load

COMMAND = (sys.executable, "-m", "specdec_fn")


@contextmanager
def talking(model: Path) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """``specdec generate`` with much to say, once its first text is there; SIGINT as a terminal leaves it (a shell's background jobs ignore it)."""
    arguments = ("generate", "abcabcab", "--model", str(model), "--seed", "3", "--max-tokens", "90000", "--ignore-eos", "--temperature", "0.5")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    restored = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with subprocess.Popen([*COMMAND, *arguments], bufsize=0, preexec_fn=restored, **pipes) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.read(1)
            assert first, process.communicate()[1].decode()
            yield process, first
        finally:
            process.kill()


def test_an_interrupt_keeps_the_text_and_ends_with_130(long: Path) -> None:
    """Ctrl-C: what exists is on stdout, one line on stderr, no traceback."""
    with talking(long) as (process, first):
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.decode() == "seed 3 · interrupted\n"
    model, tokenizer = load(long)
    whole = generate(
        model, "abcabcab", tokenizer=tokenizer, seed=3, sampling=SamplingParams(0.5), proposer="ngram", ignore_eos=True, max_tokens=60
    ).text
    text, known = (first + rest).removesuffix(b"\n"), whole.encode()
    assert text[: len(known)] == known[: len(text)]


def test_a_reader_that_goes_away_ends_it_quietly(long: Path) -> None:
    """As with ``| head``: no message, and no failure."""
    with talking(long) as (process, _):
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 0
    assert errors == b""


def test_python_m_is_the_command() -> None:
    done = subprocess.run([*COMMAND, "generate", "--help"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--proposer" in done.stdout
    done = subprocess.run([*COMMAND, "generate", "--proposr", "ngram", "Hello"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("specdec: ")
    assert "--proposr" in done.stderr
