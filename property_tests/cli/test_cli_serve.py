"""``specdec serve``: what it refuses before anything is loaded, and a process of its own that is asked, stopped and killed."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as http
import pytest

from specdec_fn import generate, load
from specdec_fn.engine import Config
from specdec_fn.serve.assembly import Settings, assembled

Specdec = Callable[..., Any]
BODY = {"model": "tiny", "prompt": "abcabcab", "max_tokens": 12, "seed": 3, "ignore_eos": True}


@contextmanager
def serving(model: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server process, and what it says of itself; SIGINT as a terminal leaves it."""
    command = [sys.executable, "-m", "specdec_fn", "serve", "--model", str(model), "--name", "tiny", "--port", "0", "--json", *options]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    restored = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with subprocess.Popen(command, preexec_fn=restored, env={**os.environ, **environment}, **pipes) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield process, json.loads(line)
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_serves_until_a_signal_and_prints_no_prompt(tiny: Path, number: signal.Signals, code: int) -> None:
    with serving(tiny) as (process, told):
        answer = http.post(f"{told['url']}/v1/completions", json=BODY)
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    model, tokenizer = load(tiny)
    expected = generate(model, "abcabcab", tokenizer=tokenizer, seed=3, max_tokens=12, ignore_eos=True, proposer="ngram", invariant=True).text
    assert answer.json()["choices"][0]["text"] == expected
    assert (process.returncode, rest) == (code, "")
    assert "POST /v1/completions 200" in errors
    assert "abc" not in errors


def test_keys_come_from_the_environment_or_a_file_and_are_not_printed(tiny: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("from the file\n\n")
    with serving(tiny, "--api-key-file", str(keys), "--log-prompts", SPECDEC_API_KEY="environment") as (process, told):
        statuses = [
            http.post(f"{told['url']}/v1/completions", json=BODY, headers={"authorization": f"Bearer {key}"}).status_code
            for key in ("from the file", "environment", "another")
        ]
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert statuses == [200, 200, 401]
    assert "abcabcab" in errors  # since that was asked for
    assert "from the file" not in errors
    assert "environment" not in errors


def test_what_cannot_be_is_refused_in_one_line(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    empty, foreign = tmp_path / "empty", tmp_path / "foreign"
    empty.touch()
    foreign.write_bytes("schlüssel\n".encode("latin-1"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, words in (
            (("--host", "0.0.0.0"), "without a key; expected 127.0.0.1, or --api-key"),
            (("--port", port), f"--port is {port}, which is in use; expected another, or 0 for a free one"),
            (("--host", "x" * 99, "--api-key", "k"), "which has no address; expected"),
            (("--host", "192.0.2.1", "--api-key", "k"), "--host is '192.0.2.1', which is no address of this machine; expected"),
            (("--port", 99999), "99999"),
            (("--api-key-file", empty), "has no key"),
            (("--api-key-file", tmp_path / "none"), "No such file"),
            (("--api-key-file", foreign), f"--api-key-file {str(foreign)!r} is not UTF-8; expected one key a line"),
            (("--proposer", "ngram_tree"), 'verifier is "token"; expected a proposer without trees, or one of the verifiers'),
            (("--proposer", "nobody"), "proposer is 'nobody'; expected one of"),
            (("--verifier", "typical"), "--lossy"),
            (("--verifier", "nobody"), "nobody"),
            (("--dtype", "float8"), "float8"),
            (("--quantize", "int3"), "int3"),
            (("--allow-proposer", "nobody"), "nobody"),
            (("--draft-model", tmp_path / "none.gguf"), "none.gguf"),
            (("--state", tmp_path), "no regular file"),
            (("--context", 4096), "context is 4096; expected at most"),
        ):
            run = specdec("serve", "--model", tiny, *(("--port", 0) if "--port" not in options else ()), *options)
            assert run.code == 2, options
            assert words in run.err, options
            assert len(run.err.strip().splitlines()) == 1, options
            assert run.out == "", options


def test_the_help_says_what_load_takes_in_an_order_of_its_own(specdec: Specdec) -> None:
    text = specdec("serve", "--help").out
    listed = re.findall(r"^  (--[a-z-]+)", text, flags=re.MULTILINE)
    groups = ("--model", "--host", "--proposer", "--invariant", "--max-tokens", "--grace", "--log-prompts")  # the first of each
    assert [listed.index(name) for name in groups] == sorted(listed.index(name) for name in groups)
    with pytest.raises(ValueError, match="expected one of") as refused:
        load("smollm2-135m", dtype="nothing")
    help_of_dtype = text[text.index("--dtype") : text.index("--quantize")]
    assert set(re.findall(r"b?float\d+", help_of_dtype)) == set(re.findall(r"b?float\d+", str(refused.value)))


def test_a_host_that_nobody_knows_and_a_port_that_is_not_ours(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*address: Any, **how: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def forbidden(*address: Any, **how: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", nobody)
        run = specdec("serve", "--host", "there", "--api-key", "k")
    expected = "specdec: --host is 'there', which has no address; expected an address or a name of this machine\n"
    assert (run.code, run.out, run.err) == (2, "", expected)
    monkeypatch.setattr(socket, "create_server", forbidden)
    run = specdec("serve", "--port", 80)
    assert (run.code, run.out, run.err) == (
        2,
        "",
        "specdec: --port is 80, which this user may not take; expected 1024 or more, or 0 for a free one\n",
    )


def test_a_server_that_would_refuse_every_default_request_is_not_put_together(tiny: Path) -> None:
    def put_together(proposer: str, verifier: str) -> None:
        assembled(*load(tiny), Config(num_pages=16), Settings("tiny", proposer, verifier))

    for proposer, verifier in (("ngram", "greedy"), ("ngram_tree", "greedy"), ("ngram_tree", "tree"), ("suffix+ngram", "block")):
        put_together(proposer, verifier)
    for proposer, verifier in (("ngram_tree", "token"), ("suffix+ngram_tree", "block")):
        with pytest.raises(
            ValueError, match=f'^verifier is "{verifier}"; expected a proposer without trees, or one of the verifiers .*tree'
        ) as refused:
            put_together(proposer, verifier)
        assert refused.type is ValueError
