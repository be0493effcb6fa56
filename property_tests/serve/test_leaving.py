"""Clients that go away, hardly read, come too many at once or take too long; and a server that is told to stop."""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import httpx2 as http
import openai
import pytest

from specdec_fn import SamplingParams, serve
from specdec_fn.cli.bench.wire import streamed
from specdec_fn.engine import Config
from specdec_fn.serve import Limits

from .house import NAME, House, alone, house, model, tokenizer

LONG = {"model": NAME, "prompt": "a", "max_tokens": 150, "seed": 1, "stream": True, "ignore_eos": True}


def until(true: Callable[[], bool]) -> None:
    """Waits for what other threads do; pytest's time limit is the limit."""
    pause = threading.Event()
    while not true():
        pause.wait(0.002)


def idle(served: House) -> bool:
    load = served.load()
    return load.requests + load.waiting + load.running == 0 and load.free_pages == load.pages


class Slow:
    """An engine whose steps wait for leave, so that a test can do things between two of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from specdec_fn.serve import loop

        self.leave, self.steps, right = threading.Semaphore(0), 0, loop.engine.step

        def step(*arguments: Any, **named: Any) -> Any:
            self.leave.acquire()
            self.steps += 1
            return right(*arguments, **named)

        monkeypatch.setattr(loop.engine, "step", step)

    def go(self, steps: int = 1) -> None:
        self.leave.release(steps)

    def go_once(self, true: Callable[[], bool]) -> threading.Thread:
        """Lets it run on as soon as something is true, as a server that is stopped waits for the step that it is in."""

        def wait() -> None:
            until(true)
            self.go(10_000)

        waiting = threading.Thread(target=wait)
        waiting.start()
        return waiting


def test_a_client_that_vanishes_is_out_of_the_engine_within_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with house() as served:
        one = socket.create_connection(served.url.removeprefix("http://").split(":"))
        content = json.dumps(LONG).encode()
        one.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(content), content)
        )
        slow.go(3)
        got = b""
        while got.count(b"data: ") < 3:
            got += one.recv(4096)
        until(lambda: slow.steps == 3 or slow.steps == 4)  # the engine waits before its next step
        assert served.load().running == 1
        one.close()
        until(lambda: served.load().requests == 0)  # the server has noticed
        taken = slow.steps
        slow.go(2)
        until(lambda: idle(served))
        assert slow.steps <= taken + 2
        slow.go(1000)


def test_a_cancelled_request_of_openais_client_gives_its_pages_back() -> None:
    with house() as served:
        stream = served.client.completions.create(
            **{name: value for name, value in LONG.items() if name != "ignore_eos"}, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
        until(lambda: idle(served))
        whole = {**LONG, "stream": False}
        with pytest.raises(http.ReadTimeout):  # a client that does not wait for the end
            http.post(f"{served.url}/v1/completions", json={**whole, "n": 16}, timeout=0.05)
        until(lambda: idle(served))
        text = served.client.completions.create(model=NAME, prompt="a", max_tokens=9, seed=2).choices[0].text
        assert text == alone("a", seed=2, max_tokens=9).text


def test_a_request_can_be_called_off_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with house() as served:
        begun = http.post(f"{served.url}/v1/completions", json={**LONG, "stream": False, "background": True}).json()
        slow.go(1)
        told = http.delete(f"{served.url}/v1/requests/{begun['id']}").json()
        assert told["status"] == "cancelled"
        assert http.delete(f"{served.url}/v1/requests/{begun['id']}").json()["status"] == "cancelled"  # once more changes nothing
        slow.go(1000)
        until(lambda: idle(served))


def test_a_reader_that_takes_nothing_is_cut_off_and_the_others_are_not_held_up() -> None:
    with house(Limits(stalled=1.0), config=Config(page_size=8, num_pages=400, max_batch=20, invariant=True)) as served:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        one.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        content = json.dumps({**LONG, "n": 16, "logprobs": 20, "speculation": {"explain": True, "k": 0}}).encode()
        one.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(content), content)
        )
        text = served.client.completions.create(model=NAME, prompt="b", max_tokens=40, seed=2).choices[0].text
        assert text == alone("b", seed=2, max_tokens=40).text
        until(lambda: idle(served))
        one.close()


def test_too_many_at_once_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with house(Limits(requests=3)) as served:
        begun = {**LONG, "stream": False, "background": True, "n": 2}
        assert http.post(f"{served.url}/v1/completions", json=begun).status_code == 202
        refused = http.post(f"{served.url}/v1/completions", json=begun)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        slow.go(1000)
        until(lambda: idle(served))
        assert http.post(f"{served.url}/v1/completions", json=begun).status_code == 202
        slow.go(1000)


def test_a_request_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with house(Limits(seconds=0.2)) as served:
        with pytest.raises(openai.InternalServerError) as caught:
            served.client.completions.create(model=NAME, prompt="a", max_tokens=9)
        assert caught.value.status_code == 504
        assert caught.value.response.headers["x-should-retry"] == "false"
        slow.go(1000)
        until(lambda: idle(served))


def test_two_hundred_clients_some_of_which_leave_or_hardly_read() -> None:
    distinct = [{**LONG, "prompt": "the cat " * (1 + i % 3), "max_tokens": 16 + i % 9, "seed": i} for i in range(40)]
    expected = [alone(one["prompt"], seed=one["seed"], max_tokens=one["max_tokens"], ignore_eos=True) for one in distinct]
    bodies = [distinct[i % 40] for i in range(200)]
    kinds = [{"chunks": 2} if i % 6 == 5 else {"pause": 0.01} if i % 20 == 19 else {} for i in range(200)]
    with house(config=Config(page_size=8, num_pages=200, max_batch=8, prefill_chunk=64, invariant=True)) as served:

        async def together() -> list[Any]:
            return await asyncio.gather(*(streamed(served.url, "/v1/completions", body, **kind) for body, kind in zip(bodies, kinds, strict=True)))

        got = asyncio.run(together())
        until(lambda: idle(served))
    for place, (kind, one) in enumerate(zip(kinds, got, strict=True)):
        text = expected[place % 40].text
        assert one.status == 200
        if "chunks" in kind:
            assert text.startswith(one.text)
        else:
            assert (one.text, one.finish_reason) == (text, "length")


def test_a_server_that_is_stopped_lets_what_runs_end_and_nothing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    got: dict[str, Any] = {}
    with house(grace=60.0) as served:

        def ask() -> None:
            got["done"] = served.client.completions.create(model=NAME, prompt="a", max_tokens=9, seed=2)

        asking = threading.Thread(target=ask)
        asking.start()
        slow.go(1)
        until(lambda: served.load().running == 1)
        keeps = http.Client()
        assert keeps.get(f"{served.url}/health").status_code == 200
        closing = threading.Thread(target=_stop, args=(served,))
        closing.start()
        until(lambda: served.load().status == "closing")
        assert keeps.get(f"{served.url}/health").status_code == 503
        refused = keeps.post(f"{served.url}/v1/completions", json={**LONG, "stream": False})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        keeps.close()
        slow.go(1000)
        asking.join()
        closing.join()
    assert got["done"].choices[0].text == alone("a", seed=2, max_tokens=9).text


def _stop(served: House) -> None:
    asyncio.run_coroutine_threadsafe(served.assembly.desk.close(60.0), served.assembly.desk._sockets).result()  # type: ignore[arg-type]


def closed(served: House) -> bool:
    load = served.load()
    return load.status == "closing" and load.requests == 0


def begun(served: House, body: dict[str, Any]) -> Any:
    return http.post(f"{served.url}/v1/completions", json={**body, "stream": False, "background": True}, timeout=60).json()


def result(served: House, id: str) -> Any:
    while (told := http.get(f"{served.url}/v1/requests/{id}").json())["status"] in ("queued", "running"):
        pass
    return told


def test_what_is_cut_off_stays_in_the_log_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    state, slow = str(tmp_path / "state"), Slow(monkeypatch)
    with house(grace=0.0, state=state) as served, ThreadPoolExecutor(2) as pool:
        both = [pool.submit(begun, served, {**LONG, "max_tokens": 60}) for _ in range(2)]
        while not all(one.done() for one in both):  # the second is taken in between two steps
            slow.go(1)
            wait(both, timeout=0.1)
        stays, gone = (one.result()["id"] for one in both)
        assert http.delete(f"{served.url}/v1/requests/{gone}").json()["status"] == "cancelled"
        waiting = slow.go_once(lambda: closed(served))
    waiting.join()
    assert os.stat(state).st_mode & 0o777 == 0o600
    with house(state=state) as served:
        assert served.assembly.unfinished == (stays,)
        told = result(served, stays)
        assert told["answer"]["choices"][0]["text"] == alone("a", seed=1, max_tokens=60, ignore_eos=True).text
        assert result(served, gone)["status"] == "cancelled"
    with house(state=state) as served:  # an answer outlives a restart as well
        assert served.assembly.unfinished == ()
        assert result(served, stays) == told


def test_the_log_settles_what_a_request_left_open(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, slow = str(tmp_path / "state"), Slow(monkeypatch)
    body = {"model": NAME, "prompt": "the cat sat on the cat", "max_tokens": 60, "temperature": 0.7}
    with house(grace=0.0, state=state, proposer="none", k=0) as served:
        id = begun(served, body)["id"]
        waiting = slow.go_once(lambda: closed(served))
    waiting.join()
    with house(state=state, proposer="ngram", verifier="block", k=7) as served:  # other defaults: the request keeps those that it came with
        told = result(served, id)
    expected = alone(body["prompt"], seed=told["answer"]["seed"], max_tokens=60, proposer="none", k=0, sampling=SamplingParams(0.7))
    assert told["answer"]["choices"][0]["text"] == expected.text


def test_keys_part_results_and_cached_prefixes() -> None:
    assembly = serve.assembled(
        model(), tokenizer(), Config(page_size=4, num_pages=100, invariant=True), serve.Settings(NAME, keys=["one", "two"], hosts=None)
    )
    body = {"model": NAME, "prompt": "a secret of thirty letters and so", "max_tokens": 2, "seed": 1}
    with serve.in_thread(assembly) as url:

        def post(key: str) -> Any:
            return http.post(f"{url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})

        def cached() -> int:
            return assembly.desk._engine.gauges.counters.cached

        assert post("three").status_code == 401
        for route in ("/v1/models", "/metrics", "/v1/requests/x"):
            assert http.get(f"{url}{route}").status_code == 401
        for route in ("/health", "/"):
            assert http.get(f"{url}{route}").status_code == 200
        first = post("one").json()
        assert cached() == 0
        post("two")
        assert cached() == 0  # another key's: computed anew
        post("one")
        assert cached() > 0
        for key, status in (("one", 200), ("two", 404)):
            assert http.get(f"{url}/v1/requests/{first['id']}", headers={"authorization": f"Bearer {key}"}).status_code == status
