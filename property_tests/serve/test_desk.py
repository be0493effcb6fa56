"""The desk: what fails fails alone, everything that was held is given back, and the log keeps what a request came to mean."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as http
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.serve import Limits, answers, completion, loop, server
from specdec_fn.serve.asked import Served
from specdec_fn.serve.desk import Desk
from specdec_fn.serve.journal import Entry
from specdec_fn.serve.logged import logged, unlogged

from .house import CONTEXT, NAME, House, alone, house, tokenizer
from .test_leaving import LONG, Slow, begun, idle, result, until

SERVED = Served(NAME, tokenizer(), CONTEXT, 90, Limits(), "ngram", "token", 5)
PROMPT = "the cat sat on the mat, the cat"


@given(
    prompts=st.lists(st.text("abc ", min_size=1, max_size=CONTEXT - 1), min_size=1, max_size=3),
    more=st.fixed_dictionaries(
        {},
        optional={
            "max_tokens": st.integers(1, 2),
            "n": st.integers(1, 3),
            "seed": st.integers(0, 2**53),
            "temperature": st.sampled_from([0, 0.5, 1]),
            "stop": st.sampled_from(["a", ["b", "cd"]]),
            "speculation": st.fixed_dictionaries({}, optional={"k": st.integers(0, 4), "verifier": st.just("block"), "explain": st.booleans()}),
        },
    ),
)
def test_the_log_keeps_what_a_request_meant(prompts: list[str], more: dict[str, Any]) -> None:
    body = {"model": NAME, "prompt": prompts, **more}
    asked = completion.asked(body, SERVED, 99)
    written = json.loads(json.dumps(logged(body, asked)))
    other = SERVED._replace(model="renamed", proposer="suffix", verifier="coupled", k=2)
    assert unlogged(Entry("a", "completions", b"", 0, written), other) == asked


UNLUCKY = 13


@pytest.mark.parametrize("where", ["an event", "the whole answer"])
def test_a_fault_in_one_answer_leaves_the_others_alone(where: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    told, whole, got = Desk._told, answers.whole, dict[int, Any]()

    def of_event(self: Any, ticket: Any, *rest: Any) -> None:
        if ticket.asked.seed == UNLUCKY:
            raise ArithmeticError("thirteen")
        told(self, ticket, *rest)

    def of_whole(asked: Any, *rest: Any) -> Any:
        return 1 / 0 if asked.seed == UNLUCKY else whole(asked, *rest)

    if where == "an event":
        monkeypatch.setattr(Desk, "_told", of_event)
    else:
        monkeypatch.setattr(answers, "whole", of_whole)
    with house() as served:

        def ask(seed: int) -> None:
            got[seed] = http.post(f"{served.url}/v1/completions", json=body(seed), timeout=60)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ask, (12, UNLUCKY, 14)))
        until(lambda: idle(served))
    assert [got[seed].status_code for seed in (12, UNLUCKY, 14)] == [200, 500, 200]
    assert got[UNLUCKY].json()["error"]["type"] == "server_error"
    for seed in (12, 14):
        assert got[seed].json()["choices"][0]["text"] == alone(PROMPT, seed=seed, max_tokens=20).text
    assert "Traceback" in capfd.readouterr().err


def body(seed: int) -> dict[str, Any]:
    return {"model": NAME, "prompt": PROMPT, "max_tokens": 20, "seed": seed}


def test_an_engine_that_fails_outside_of_a_step_is_made_anew(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    slow = Slow(monkeypatch)
    with house() as served:
        first = begun(served, LONG)
        right = loop.engine.abort
        monkeypatch.setattr(loop.engine, "abort", lambda state, number: 1 / 0)
        second = begun_late(served, slow)
        http.delete(f"{served.url}/v1/requests/{first['id']}")
        slow.go(1)
        assert result(served, second)["error"]["code"] == "engine_failed"
        monkeypatch.setattr(loop.engine, "abort", right)
        slow.go(10_000)
        until(lambda: idle(served))
        assert http.post(f"{served.url}/v1/completions", json=body(5)).json()["choices"][0]["text"] == alone(PROMPT, seed=5, max_tokens=20).text
    assert "ZeroDivisionError" in capfd.readouterr().err


def begun_late(served: House, slow: Slow) -> str:
    """A request that comes while the engine is in a step, and the step after it."""
    got: list[str] = []
    asking = threading.Thread(target=lambda: got.append(begun(served, LONG)["id"]))
    asking.start()
    while asking.is_alive():
        slow.go(1)
        asking.join(0.1)
    return got[0]


def test_the_choices_beside_one_that_failed_are_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with house() as served:
        step = loop.engine.step

        def failing(*arguments: Any, **named: Any) -> Any:
            state, events = step(*arguments, **named)
            return state, [loop.Event(one.request_id, [], [], "error") if one.request_id == 0 and slow.steps == 3 else one for one in events]

        monkeypatch.setattr(loop.engine, "step", failing)
        id = begun(served, {**LONG, "n": 4})["id"]
        slow.go(3)
        assert result(served, id)["status"] == "failed"
        slow.go(1)  # the step before whose end the letter came
        until(lambda: served.load().running <= 1)  # the failed one is gone for the server; the engine itself was not told here
        slow.go(10_000)
        until(lambda: served.load().running == 0)


def test_nothing_is_kept_of_clients_that_vanished_in_mid_step() -> None:
    with house() as served:
        desk = served.assembly.desk
        for _ in range(12):
            with pytest.raises(http.TimeoutException):
                http.post(f"{served.url}/v1/completions", json={**LONG, "stream": False, "n": 4}, timeout=0.03)
        until(lambda: idle(served))
        assert (desk._choices, desk._timers, desk._live) == ({}, {}, {})


def test_a_request_that_comes_as_the_server_stops_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with house(grace=0.0) as served:
        begun(served, LONG)
        got: dict[str, Any] = {}
        asking = threading.Thread(target=lambda: got.update(one=http.post(f"{served.url}/v1/completions", json=body(1), timeout=60)))
        asking.start()
        until(lambda: served.load().requests == 2)  # it waits for the engine, which is in a step
        waiting = slow.go_once(lambda: served.load().status == "closing")
    waiting.join()
    asking.join()
    assert (got["one"].status_code, got["one"].json()["error"]["code"]) == (503, "shutting_down")


def test_a_second_wish_to_stop_is_not_lost() -> None:
    """However soon it comes after the first."""

    async def both(desk: Any) -> int:
        desk.hurry()
        await asyncio.sleep(0)
        left: int = await desk.close(60.0)
        return left

    with house() as served:
        begun(served, {**LONG, "max_tokens": 150})
        desk = served.assembly.desk
        assert asyncio.run_coroutine_threadsafe(both(desk), desk._sockets).result(30) in (0, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /health HT"],
        [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /health HTTP/1.1\r\nHo"],
        [b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n", b"x"],
    ],
)
def test_slow_senders_are_not_held_for_ever(monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]) -> None:
    monkeypatch.setattr(server, "FIRST", 0.3)
    with house() as served, socket.create_connection(("localhost", int(served.url.rpartition(":")[2]))) as one:
        for piece in pieces:
            one.sendall(piece)
        one.settimeout(30)
        try:
            while one.recv(4096):
                pass
        except ConnectionResetError:
            pass


def test_an_answer_that_nobody_takes_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST", 2.0)  # what the system's own buffers took in is let go with the connection
    with house(Limits(stalled=0.5)) as served, socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        one.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        content = json.dumps({**LONG, "stream": False, "n": 16, "logprobs": 20}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content)
        one.sendall(head + content)
        one.settimeout(60)
        gone = threading.Event()
        while not gone.wait(0.2):  # the buffer of this end is small, so only a cut connection can be written to no more
            try:
                one.sendall(b"x")
            except OSError:
                gone.set()
