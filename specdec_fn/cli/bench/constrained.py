"""``specdec bench constrained``: JSON schemas under speculation, every answer read again by a validator that knows nothing of the grammar."""

import collections
import json
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["constrained"]


class Answered(NamedTuple):
    """What came of the schemas.

    Attributes:
        faults: of every schema why its answer does not follow it; empty where it does.
        reasons: finish reasons and how often.
        tokens, passes, proposed, accepted: of all answers.
        seconds: of the engine's run.
        spent: milliseconds of each mask, and of each token taken in.
        built: milliseconds in which each grammar was built.
    """

    faults: list[str]
    reasons: dict[str, int]
    tokens: int
    passes: int
    proposed: int
    accepted: int
    seconds: float
    spent: dict[str, list[float]]
    built: list[float]


def constrained(
    model: o.ModelName = "smollm2-135m",
    schemas: Annotated[int, typer.Option("--schemas", min=1, help="Schemas, drawn from the seed.")] = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Requests that share a pass.")] = 16,
    proposer: o.NamedProposer = "ngram",
    verifier: o.VerifierName = "token",
    k: o.K = 5,
    temperature: o.Temperature = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=64, help="Most tokens of an answer; no text of a schema is longer.")] = 200,
    seed: o.Seed = 0,
    json_: o.Json = False,
) -> int:
    """Answers to JSON schemas with masks at every drafted position; exits 1 unless each is valid JSON that follows its schema."""
    from rich.table import Table

    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch

    target, tokenizer = o.load_model(model)
    with Watch(f"{schemas} schemas, batches of {batch}") as watch:
        found = _answered(target, tokenizer, schemas, batch, proposer, verifier, k, temperature, max_tokens, seed, watch)
    valid = found.faults.count("")
    passed = valid == schemas
    per_pass = found.tokens / found.passes
    share = sum(map(sum, found.spent.values())) / 1e3 / found.seconds
    medians = {name: statistics.median(ms) for name, ms in found.spent.items() if ms}
    facts = {"proposer": proposer, "verifier": verifier, "k": k, "temperature": temperature, "batch": batch, "seed": seed, "load": load_average()}
    counts = {"schemas": schemas, "valid": valid, "finish_reasons": found.reasons, "tokens": found.tokens, "passes": found.passes}
    counts |= {"tokens_per_pass": per_pass, "proposed": found.proposed, "accepted": found.accepted, "seconds": found.seconds}
    counts |= {"ms": medians, "share_of_run": share, "build_ms": statistics.median(found.built), "faults": [one for one in found.faults if one]}
    if json_:
        print(json.dumps(facts | counts | {"passed": passed}))
        return 0 if passed else 1
    table = Table(title=f"{schemas} schemas, batch {batch}, {proposer}, {verifier}, K = {k}, temperature {temperature:g}, seed {seed}")
    table.add_column("what")
    table.add_column("value", justify="right")
    reasons = ", ".join(f"{name} {count}" for name, count in sorted(found.reasons.items()))
    rows = [("valid", f"{valid} of {schemas}"), ("finish reasons", reasons), ("tokens", f"{found.tokens}"), ("tokens a pass", f"{per_pass:.2f}")]
    rows += [("accepted of proposed", f"{found.accepted} of {found.proposed}"), ("seconds", f"{found.seconds:.1f}")]
    rows += [(f"ms of {name}, median and most", f"{medians[name]:.3f}, {max(found.spent[name]):.1f}") for name in medians]
    rows += [("masks and tokens taken in, of the run", f"{share:.1%}"), ("ms to build a grammar", f"{statistics.median(found.built):.0f}")]
    for row in rows:
        table.add_row(*row)
    wide_console().print(table)
    for fault in found.faults:
        if fault:
            print(fault)
    print(f"gate: {valid} of {schemas} answers follow their schema, all must: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _answered(
    target: Any,
    tokenizer: Any,
    count: int,
    batch: int,
    proposer: str,
    verifier: str,
    k: int,
    temperature: float,
    max_tokens: int,
    seed: int,
    watch: Any,
) -> Answered:
    from specdec_fn import engine, grammar
    from specdec_fn.batch import seed_of
    from specdec_fn.cli.bench.schemas import schemas
    from specdec_fn.cli.bench.serving import engine_for
    from specdec_fn.sampling import SamplingParams

    fault_of = _validator()
    drawn = schemas(count, seed, max_tokens - 1)  # the last token is the end
    try:
        known = grammar.vocabulary(tokenizer, target.config.vocab_size)
    except ImportError as error:
        raise ValueError(f"{error}") from None
    spent: dict[str, list[float]] = {"a mask": [], "a token taken in": []}
    built: list[float] = []
    asked = []
    for place, schema in enumerate(drawn):
        watch.say(f"grammar {place + 1} of {count}")
        begin = time.perf_counter()
        init, mask, advance = grammar.json_schema(known, schema)
        built.append(1e3 * (time.perf_counter() - begin))
        rules = engine.Constraint(init, _timed(mask, spent["a mask"]), _timed(advance, spent["a token taken in"]))
        fields = json.dumps(dict.fromkeys(schema["properties"], "..."), separators=(",", ":"))
        prompt = tokenizer.chat([{"role": "user", "content": f"Write a JSON object like {fields}"}])
        how: dict[str, Any] = {"sampling": SamplingParams(temperature), "proposer": proposer, "verifier": verifier, "k": k}
        asked.append(engine.Request(prompt, max_tokens, seed=seed_of(seed, place), constraint=rules, **how))
    state = engine_for(target, asked, tokenizer, max_batch=batch, prefill_chunk=256, prefix_cache=False)
    for request in asked:
        state, _ = engine.submit(state, request)
    done: dict[int, Any] = {}
    begin = time.perf_counter()
    while len(done) < count:
        state, events = engine.step(target, state)
        done |= {one.request_id: one.generation for one in events if one.finish_reason is not None}
        watch.say(f"{len(done)} of {count} answers")
    seconds = time.perf_counter() - begin
    ended = [done[number] for number in range(count)]
    faults = [fault_of(schema, one) for schema, one in zip(drawn, ended, strict=True)]
    reasons = dict(collections.Counter(one.finish_reason for one in ended))
    passes, proposed, accepted = (sum(getattr(one.stats, name) for one in ended) for name in ("passes", "proposed", "accepted"))
    return Answered(faults, reasons, sum(len(one.tokens) for one in ended), passes, proposed, accepted, seconds, spent, built)


def _validator() -> Callable[[dict[str, Any], Any], str]:
    """Why an answer does not follow a schema; empty where it does."""
    try:
        import jsonschema
    except ImportError:
        raise ValueError("jsonschema is not installed, which reads the answers; expected pip install jsonschema") from None

    def fault_of(schema: dict[str, Any], answer: Any) -> str:
        if answer.finish_reason == "error":
            return str(answer.error)
        try:
            error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(json.loads(answer.text)))
        except json.JSONDecodeError as failure:
            return f"{answer.text!r:.80} is no JSON: {failure}"
        return "" if error is None else f"{answer.text!r:.80} does not follow its schema: {error.message}"

    return fault_of


def _timed(work: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        made = work(*arguments)
        spent.append(1e3 * (time.perf_counter() - begin))
        return made

    return timed
