"""llama-cpp-python as a decoder in a process of its own, which may be another environment's: a script that needs nothing of ours.

It reads one JSON object a line on standard input and answers each with one on standard output:

    {"do": "load", "path": FILE, "threads": N, "context": TOKENS, "lookup": K or null}  ->  {"version": TEXT}
    {"do": "decode", "ids": [...], "count": N}  ->  {"tokens": [...], "ms": MILLISECONDS A TOKEN, WITHOUT THE PREFILL}

What goes wrong is answered with {"error": TEXT}. Without a look-up the loop is llama.cpp's own: its decode and its greedy sampler, one token a
call. With one it is the package's ``generate`` and its prompt lookup, since llama.cpp has none of its own below that.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Answers requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no answer
    held: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line), held)
        except Exception as error:  # the other side tells it in one line
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _answer(asked: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    if asked["do"] == "load":
        library = importlib.import_module("llama_cpp")
        lookup, threads = asked["lookup"], asked["threads"]
        draft = None if lookup is None else importlib.import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding(num_pred_tokens=lookup)
        settings = {"n_threads": threads, "n_threads_batch": threads, "n_ctx": asked["context"], "draft_model": draft, "verbose": False}
        held["model"], held["library"] = library.Llama(asked["path"], **settings), library
        held["decode"] = _steps if lookup is None else _drafted
        return {"version": library.__version__}
    tokens: list[int] = []
    started = 0.0
    for token in held["decode"](held["library"], held["model"], asked["ids"]):
        tokens.append(int(token))
        if len(tokens) == 1:
            started = time.perf_counter()
        if len(tokens) == asked["count"]:
            break
    return {"tokens": tokens, "ms": 1e3 * (time.perf_counter() - started) / max(1, len(tokens) - 1)}


def _steps(library: Any, model: Any, ids: list[int]) -> Iterator[int]:
    """One token a call, taken by the library's greedy sampler."""
    context = model.ctx
    library.llama_memory_clear(library.llama_get_memory(context), True)
    sampler = library.llama_sampler_init_greedy()
    try:
        for start in range(0, len(ids), model.n_batch):
            _feed(library, context, ids[start : start + model.n_batch])
        while True:
            token = library.llama_sampler_sample(sampler, context, -1)
            yield token
            _feed(library, context, [token])
    finally:
        library.llama_sampler_free(sampler)


def _feed(library: Any, context: Any, ids: list[int]) -> None:
    tokens = (library.llama_token * len(ids))(*ids)
    code = library.llama_decode(context, library.llama_batch_get_one(tokens, len(ids)))
    if code:
        raise RuntimeError(f"llama_decode gave {code}")


def _drafted(library: Any, model: Any, ids: list[int]) -> Iterator[int]:
    """The package's own loop with its prompt lookup."""
    model.reset()
    return iter(model.generate(ids, temp=0.0))


if __name__ == "__main__":
    main()
