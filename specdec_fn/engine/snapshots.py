"""An engine written down: everything that decides what comes next, as one safetensors file whose first tensor is JSON.

Functions are not written: a proposer, a verifier or a constraint given by value is kept by name and must be given again. What follows from a
request and its tokens (laws, spelling, stop strings) is made anew from them. Of the pools, the pages in use are kept.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from rpds import HashTrieMap

from specdec_fn.engine.encoding import decoded, encoded
from specdec_fn.engine.identity import identity
from specdec_fn.engine.job import checked_model
from specdec_fn.engine.lifecycle import renewed, with_drafter
from specdec_fn.engine.mute import mute
from specdec_fn.engine.request import Config, Constraint, Request
from specdec_fn.engine.state import EngineState, Record, init, with_kin
from specdec_fn.kv import store
from specdec_fn.models import Model
from specdec_fn.pytree import alive
from specdec_fn.random import Key, key_data
from specdec_fn.speculate import Proposer, Verifier
from specdec_fn.speculate import verifiers as registered
from specdec_fn.text import Tokenizer
from specdec_fn.typing import Tensor

__all__ = ["restore", "snapshot"]

FORMAT = 1
ROUND = 4096  # bytes
KEPT = ("logprobs", "likeliest", "prompt_logprobs", "stats", "forks", "drafted")


def snapshot(state: EngineState) -> bytes:
    """Writes an engine down; the state stays as it is.

    Raises:
        TypeError: something in it that cannot be written, such as a constraint or a proposer's state made of functions.

    >>> from specdec_fn.engine.request import Config
    >>> from specdec_fn.models import toy
    >>> circle = toy.bigram(torch.eye(3))
    >>> restore(circle, snapshot(init(circle, Config(num_pages=5)))).config.num_pages
    5
    """
    from safetensors.torch import save  # who generates only need not bring it

    alive((state.key, state.store, state.drafts), "the state")
    held = sorted(state.work.pool.held.keys())
    work, tensors = encoded(state.work)
    counters, tensors = encoded(state.counters, tensors)
    records = []
    for number, record in sorted(state.records.items()):
        made, tensors = _record(record, tensors)
        records.append([number, made])
    written = {
        "format": FORMAT,
        "model": state.model,
        "tokenizer": None if state.tokenizer is None else {"eos_ids": list(state.tokenizer.eos_ids), "size": state.tokenizer.size},
        "config": _setting(state.config),
        "key": key_data(state.key).tolist(),
        "work": work,
        "counters": counters,
        "records": records,
        "drafters": [_drafted_by(state, place) for place in range(len(state.drafters))],
        "held": held,
    }
    arrays = {f"value.{place}": tensor.contiguous() for place, tensor in enumerate(tensors)}
    for place, pool in enumerate((state.store, *state.drafts)):
        for part in ("keys", "values"):
            arrays[f"pool.{place}.{part}"] = _by_page(getattr(pool, part), pool)[:, held].contiguous()
    text = json.dumps(written, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ROUND)  # safetensors keeps a type for ever for each length that it has seen
    arrays["state"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return save({"digest": _digest(arrays), **arrays})


def restore(
    model: Model,
    data: bytes,
    *,
    proposers: Mapping[str, Proposer] = {},
    verifiers: Mapping[str, Verifier] = {},
    constraints: Mapping[int, Constraint] = {},
    tokenizer: Tokenizer | None = None,
) -> EngineState:
    """The engine that was written down, which goes on with the same tokens.

    Args:
        model: the one the engine was made for.
        data: what ``snapshot`` gave.
        proposers, verifiers: those that were given as values, by their names; ones given by name need not be given again.
        constraints: of the requests that have one, by request id.
        tokenizer: the engine's. Left out, the state goes on with the same tokens and without text, which requests with stop strings refuse.

    Raises:
        TypeError, ValueError: data that is cut short or no snapshot, one of another version or model, or something that must be given again.

    >>> restore(None, b"")
    Traceback (most recent call last):
    ...
    TypeError: model is None; expected a Model, such as load(...)[0]
    """
    checked_model(model)
    arrays, written = _opened(data)
    if written.get("model") != identity(model):
        raise ValueError(f"the snapshot is of model {written.get('model')}; expected {identity(model)}, the model that was given")
    try:
        return _restored(model, arrays, written, _Given(proposers, verifiers, constraints), tokenizer)
    except (AttributeError, ImportError, IndexError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"the snapshot does not hang together ({type(error).__name__}: {error}); expected what snapshot() gave") from error


def _restored(model: Model, arrays: dict[str, Tensor], written: dict[str, Any], given: "_Given", tokenizer: Tokenizer | None) -> EngineState:
    tensors = [arrays[f"value.{place}"] for place in range(sum(name.startswith("value.") for name in arrays))]
    for number, old in written["records"]:
        if tokenizer is None and old["request"]["stop"] != {"tuple": []}:
            raise ValueError(f"request {number} has stop strings; expected the engine's tokenizer, as tokenizer=...")
    spelled = written["tokenizer"]
    tokenizer = tokenizer if tokenizer or spelled is None else mute(spelled["eos_ids"], spelled["size"])
    fresh = init(model, Config(**_unsettled(written["config"], given)), tokenizer)
    fresh = _with_drafters(fresh, written["drafters"], given)
    for _, old in written["records"]:
        named = decoded(old["request"]["proposer"], []) if isinstance(old["request"]["proposer"], str) else None
        fresh = dataclasses.replace(fresh, family=with_kin(fresh.family, named))
    records = HashTrieMap({number: _renewed(fresh, number, old, tensors, given) for number, old in written["records"]})
    pools = [_filled(pool, arrays, place, written["held"]) for place, pool in enumerate((fresh.store, *fresh.drafts))]
    work, counters = decoded(written["work"], tensors), decoded(written["counters"], tensors)
    key = Key(torch.tensor(written["key"]))
    return dataclasses.replace(fresh, key=key, records=records, work=work, counters=counters, store=pools[0], drafts=tuple(pools[1:]))


class _Given(NamedTuple):
    """What cannot be written down and was given again."""

    proposers: Mapping[str, Proposer]
    verifiers: Mapping[str, Verifier]
    constraints: Mapping[int, Constraint]


def _opened(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"the snapshot is {data!r:.40}; expected bytes, what snapshot() gave")
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        arrays = load(bytes(data))
        written = json.loads(arrays["state"].numpy().tobytes())
        found = written.get("format") if isinstance(written, dict) else None
        whole = found != FORMAT or arrays.pop("digest").equal(_digest(arrays))  # another version may reckon otherwise
    except (SafetensorError, KeyError, RecursionError, ValueError) as error:
        raise ValueError(f"{len(data)} bytes are no whole snapshot ({error}); expected all the bytes that snapshot() gave") from error
    if found != FORMAT:
        raise ValueError(f"the snapshot has format {found!r}; expected {FORMAT}, the one of this version")
    if not whole:
        raise ValueError(f"{len(data)} bytes are no whole snapshot (a byte has changed); expected all the bytes that snapshot() gave")
    return arrays, written


def _digest(arrays: Mapping[str, Tensor]) -> Tensor:
    """Of all tensors and their names: a byte that has changed anywhere is seen."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(arrays.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def _setting(owner: Config | Request) -> dict[str, Any]:
    """The fields of a config or request, functions by name."""
    written: dict[str, Any] = {}
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if field.name == "constraint":
            written[field.name] = value is not None
        elif isinstance(value, Proposer | Verifier):
            written[field.name] = {"given": value.name}
        else:
            written[field.name], _ = encoded(value.tolist() if isinstance(value, Tensor) else value)
    return written


def _unsettled(written: dict[str, Any], given: _Given, number: int | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in written.items():
        if name == "constraint":
            if value and number not in given.constraints:
                raise ValueError(f"request {number} has a constraint, which is not kept; expected it again, as constraints={{{number}: ...}}")
            made[name] = given.constraints[cast(int, number)] if value else None
        elif isinstance(value, dict) and "given" in value:
            made[name] = _again(name, value["given"], given)
        else:
            made[name] = decoded(value, [])
    return made


def _again(field: str, name: str, given: _Given) -> Any:
    known: dict[str, Any] = {**registered.all, **given.verifiers} if field == "verifier" else dict(given.proposers)
    if name not in known:
        raise ValueError(f"{field} {name!r} was given as a value, which is not kept; expected it again, as {field}s={{{name!r}: ...}}")
    return known[name]


def _record(record: Record, tensors: tuple[Tensor, ...]) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    run = record.run
    kept, tensors = encoded({name: getattr(record, name) for name in KEPT}, tensors)
    guess, tensors = encoded(run.guess, tensors)
    request = dataclasses.replace(record.request, prompt=run.tokens[: run.prompt])  # text needs a tokenizer to be read again
    written = {"request": _setting(request), "key": key_data(run.key).tolist(), "tokens": list(run.tokens), "guess": guess, "kept": kept}
    return written, tensors


def _renewed(fresh: EngineState, number: int, old: dict[str, Any], tensors: list[Tensor], given: _Given) -> Record:
    request = Request(**_unsettled(old["request"], given, number))
    return renewed(fresh, request, Key(torch.tensor(old["key"])), old["tokens"], decoded(old["guess"], tensors))._replace(
        **decoded(old["kept"], tensors)
    )


def _drafted_by(state: EngineState, place: int) -> str | None:
    """The name of the proposer of a drafting model; None where no live request has it, so that its pool need not be kept."""
    return next((record.run.proposer.name for _, record in sorted(state.records.items()) if record.drafter == place), None)


def _with_drafters(fresh: EngineState, names: list[str | None], given: _Given) -> EngineState:
    for place, name in enumerate(names):
        if name is None:  # nobody reads its pool any more; its place stays taken, since cached pages are told apart by it
            nothing = store.init(
                SimpleNamespace(layers=0, kv_heads=0, head_dim=0), fresh.config.num_pages, fresh.config.page_size, dtype=torch.float32
            )
            fresh = dataclasses.replace(fresh, drafters=(*fresh.drafters, cast(Model, None)), drafts=(*fresh.drafts, nothing))
        else:
            fresh, found = with_drafter(fresh, _again("proposer", name, given))
            if found != place:
                raise ValueError(f"proposer {name!r} does not draft with a model of its own any more; expected the one of the snapshot")
    return fresh


def _filled(pool: store.Store, arrays: dict[str, Tensor], place: int, held: list[int]) -> store.Store:
    """A fresh pool with the contents of the pages that were in use."""
    if pool.layers:
        for part in ("keys", "values"):
            kept, pages = arrays[f"pool.{place}.{part}"], _by_page(getattr(pool, part), pool)
            if kept.shape != (pages.shape[0], len(held), *pages.shape[2:]):
                raise ValueError(f"the snapshot's {part} have shape {list(kept.shape)}; expected those of {len(held)} pages")
            pages[:, held] = kept
    return pool


def _by_page(pool: Tensor, shape: store.Store) -> Tensor:
    return pool.view(shape.layers, shape.pages, *pool.shape[1:])
