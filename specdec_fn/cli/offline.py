"""The part of ``specdec generate`` that runs a file of prompts: options and lines to requests, a bar on stderr, and a summary."""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status

if TYPE_CHECKING:
    from specdec_fn.batch import Line, Results
    from specdec_fn.engine import EngineState, Request
    from specdec_fn.sampling import SamplingParams

__all__ = ["Defaults", "Shape", "offline", "pages_for"]

BATCH, PAGE_SIZE, CHUNK = 16, 16, 256
CACHE = 2**30  # bytes of keys and values, unless --pages says otherwise
AHEAD = 3  # requests that are submitted at once, in batches
CONTROLS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "bad_words",
    "allowed_ids",
    "min_tokens",
)
OVERRIDES = ("max_tokens", "seed", "k", "stop", "ignore_eos", "proposer", "verifier", *CONTROLS)


class Shape(NamedTuple):
    """What the engine is given; it decides how fast, not what.

    Attributes:
        batch: requests that run at once.
        pages, page_size: of the cache of keys and values; None derives the pages from the batch, the context and ``CACHE``.
        chunk: prompt rows of a pass.
    """

    batch: int | None = None
    pages: int | None = None
    page_size: int | None = None
    chunk: int | None = None


class Defaults(NamedTuple):
    """What decides the results: the options of the command, most of which a line may say for itself."""

    model: str
    chat: bool
    proposer: str
    draft_model: str | None
    verifier: str
    lossy: bool
    k: int
    seed: int
    max_tokens: int
    stop: tuple[str, ...]
    ignore_eos: bool
    invariant: bool
    logprobs: bool
    sampling: "SamplingParams"


def offline(source: str, output: str, shape: Shape, defaults: Defaults, json_: bool) -> int:
    """Runs the prompts of a file, or what is left of them, and appends a result for each; 1 if a result has an error."""
    from specdec_fn import batch
    from specdec_fn.engine import PassError, submit

    first = _request(batch.Line(0, 0, {"prompt": [0]}), defaults)  # what is wrong with the options should not be said of line 1
    interrupted = False
    with ExitStack() as stack:
        with Status(f"reading {source}"):
            asked = stack.enter_context(batch.prompts(source, lambda line: _request(line, defaults)))
        target, tokenizer = o.load_model(defaults.model)
        draft = o.load_draft(defaults.draft_model, tokenizer)
        state = _engine(target, tokenizer, shape, defaults)
        checked, _ = submit(state, _drafting(replace(first, max_tokens=1), draft, target))  # nor should it be said in every result
        state = replace(state, family=checked.family)  # the request is dropped, models that were made for it are not
        settings = {"input": asked.digest, "model": state.model, **_decisive(defaults), **_identity(draft)}
        kept = stack.enter_context(batch.results(output, settings, asked.lines))

        def request_of(line: "Line") -> "Request":
            request = _request(line, defaults)
            return _drafting(replace(request, prompt=_prompt(line.fields, defaults.chat, tokenizer)), draft, target)

        left = (line for line in asked if not kept.has(line.number))
        start = time.monotonic()
        try:
            with _Bar(asked.count, kept, hidden=output == "-" and sys.stdout.isatty()) as bar:
                for now, outcomes in batch.served(target, state, left, request_of, ahead=AHEAD * state.config.max_batch):
                    state = now
                    for outcome in outcomes:
                        kept.write(batch.as_result(outcome, logprobs=defaults.logprobs))
                    bar.show(state, time.monotonic() - start)
        except PassError as error:
            raise ValueError(f"{error}; results that were written stay, and the same command goes on from there") from error
        except KeyboardInterrupt:
            interrupted = True
        told = _told(source, output, defaults, asked.count, kept, state, time.monotonic() - start, interrupted)
    if json_:
        print(json.dumps(told), file=sys.stderr if output == "-" else sys.stdout)
    else:
        print(_summary(told), file=sys.stderr)
    return 130 if interrupted else int(kept.failed + kept.failed_before > 0)


def _engine(model: Any, tokenizer: Any, shape: Shape, defaults: Defaults) -> "EngineState":
    from specdec_fn.engine import Config, init

    batch, page_size = shape.batch or BATCH, shape.page_size or PAGE_SIZE
    pages = shape.pages or pages_for(model, batch, page_size)
    # How requests speculate is said by each: one that draws at temperature 0 under "greedy" is no setting of an engine.
    return init(model, Config(page_size, pages, batch, shape.chunk or CHUNK, invariant=defaults.invariant), tokenizer)


def pages_for(model: Any, batch: int, page_size: int) -> int:
    """Enough for a whole batch to fill the model's context, or as many as fit into ``CACHE``."""
    from specdec_fn.models.model import parameter

    sizes = model.config
    page = 2 * sizes.layers * sizes.kv_heads * sizes.head_dim * parameter(model).itemsize * page_size
    return max(1, min(batch * -(-sizes.context // page_size), CACHE // page if page else sys.maxsize))


def _request(line: "Line", defaults: Defaults) -> "Request":
    """A line's request, its prompt left as it is; TypeError or ValueError says what is wrong with the line."""
    from specdec_fn.batch import seed_of
    from specdec_fn.engine import Request
    from specdec_fn.text import stop

    given = line.fields
    for name in given:
        if name not in ("prompt", "messages", *OVERRIDES):
            raise ValueError(f"the field {name!r} is unknown; expected id, prompt or messages, and any of {', '.join(OVERRIDES)}")
    _check_prompt(given)
    stops = given.get("stop", defaults.stop)
    if not isinstance(stops, str | list | tuple):
        raise TypeError(f"stop is {stops!r}; expected a string or a list of strings")
    return Request(
        given.get("prompt", "messages"),
        max_tokens=given.get("max_tokens", defaults.max_tokens),
        sampling=_sampling(given, defaults.sampling),
        seed=given["seed"] if "seed" in given else seed_of(defaults.seed, line.number),
        stop=stop.init(stops).strings,
        ignore_eos=given.get("ignore_eos", defaults.ignore_eos),
        k=given.get("k", defaults.k),
        proposer=o.proposer_name(given.get("proposer", defaults.proposer), defaults.draft_model),
        verifier=_verifier(given.get("verifier", defaults.verifier), defaults.lossy),
    )


def _check_prompt(given: Mapping[str, Any]) -> None:
    if ("prompt" in given) == ("messages" in given):
        raise ValueError(f"there is {'a prompt beside' if 'prompt' in given else 'neither a prompt nor'} messages; expected one of the two")
    prompt, messages = given.get("prompt", ""), given.get("messages", [])
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(type(item) is int for item in prompt)):
        raise TypeError(f"the prompt is {prompt!r:.80}; expected text or a list of ids")
    if not isinstance(messages, list) or not all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in messages):
        raise TypeError(f"messages is {messages!r:.80}; expected a list of objects with role and content")


def _sampling(given: Mapping[str, Any], common: "SamplingParams") -> "SamplingParams":
    own = {name: given[name] for name in CONTROLS if name in given}
    bias = own.get("logit_bias")
    if isinstance(bias, dict):  # the names of a JSON object are strings
        try:
            own["logit_bias"] = [(int(token), value) for token, value in bias.items()]
        except ValueError:
            raise ValueError(f"logit_bias is {bias!r:.80}; expected numbers by id, as {{'5': -1.5}}") from None
    return replace(common, **own)


def _drafting(request: "Request", draft: Any, target: Any) -> "Request":
    """The request with the proposer of its second model, where there is one; an engine knows the others by their names."""
    return request if draft is None else replace(request, proposer=o.proposer_of(str(request.proposer), draft, target, request.sampling))


def _identity(draft: Any) -> dict[str, str]:
    """What decides results besides the options: which model drafts."""
    from specdec_fn.engine.identity import identity

    return {} if draft is None else {"draft": identity(draft)}


def _verifier(name: Any, lossy: bool) -> Any:
    from specdec_fn.speculate import verifiers

    if not isinstance(name, str) or name not in verifiers.all:
        raise ValueError(f"verifier is {name!r}; expected one of the names {', '.join(verifiers.all)}")
    return o.verifier_of(name, lossy)


def _prompt(given: Mapping[str, Any], chat: bool, tokenizer: Any) -> Any:
    """Ids, or text to be taken literally."""
    if "messages" in given:
        return tokenizer.chat(given["messages"])
    prompt = given["prompt"]
    return tokenizer.chat([{"role": "user", "content": prompt}]) if chat and isinstance(prompt, str) else prompt


def _decisive(defaults: Defaults) -> dict[str, Any]:
    """The options that decide the results, by their names."""
    options = defaults._asdict()
    del options["model"], options["draft_model"], options["sampling"]  # a model is known by its fingerprint, not by its path
    return {**options, **asdict(defaults.sampling)}


class _Bar:
    """Prompts done, speed and free pages, on stderr; silent where that is no terminal."""

    def __init__(self, count: int, kept: "Results", *, hidden: bool) -> None:
        self._count, self._kept, self._hidden = count, kept, hidden or not sys.stderr.isatty()
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> "_Bar":
        if not self._hidden:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("prompts {task.description}"), TimeRemainingColumn())
            # Standard output is not for rich: it may be where the results go.
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
            self._task = self._progress.add_task("", total=self._count, completed=self._kept.skipped)
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, state: "EngineState", seconds: float) -> None:
        """Moves the bar."""
        if self._progress is not None:
            from specdec_fn.engine import free_pages

            completed = self._kept.skipped + self._kept.done + self._kept.failed
            line = f"· {state.counters.emitted / seconds:.0f} tokens a second · {free_pages(state)} of {state.config.num_pages} pages free"
            self._progress.update(self._task, completed=completed, description=line)


def _told(
    source: str, output: str, defaults: Defaults, count: int, kept: "Results", state: "EngineState", seconds: float, interrupted: bool
) -> dict[str, Any]:
    counters = state.counters
    return {
        "model": defaults.model,
        "input": source,
        "output": output,
        "seed": defaults.seed,
        "prompts": count,
        "done": kept.done,
        "failed": kept.failed,
        "skipped": kept.skipped,
        "failed_before": kept.failed_before,
        "left": count - kept.done - kept.failed - kept.skipped,
        "interrupted": interrupted,
        "tokens": counters.emitted,
        "passes": counters.steps,
        "proposed": counters.proposed,
        "accepted": counters.accepted,
        "prompt_tokens": counters.prompted,
        "prompt_tokens_cached": counters.cached,
        "preempted": counters.preempted,
        "seconds": seconds,
        "tokens_per_second": counters.emitted / seconds if seconds else 0.0,
    }


def _summary(told: Mapping[str, Any]) -> str:
    """One line of counts."""
    prompts = [f"{told['done']} of {told['prompts']} prompts done"] if told["skipped"] < told["prompts"] else ["nothing left to do"]
    prompts += [f"{told['skipped']} were there"] if told["skipped"] else []
    failed = told["failed"] + told["failed_before"]
    prompts += [f"{failed} failed (see their error in the output)"] if failed else []
    parts = [f"seed {told['seed']}", ", ".join(prompts)]
    if told["tokens"]:
        parts.append(f"{told['tokens']} tokens in {told['passes']} passes of the batch")
    if told["proposed"]:
        parts.append(f"accepted {told['accepted']} of {told['proposed']} proposed ({told['accepted'] / told['proposed']:.0%})")
    parts.append(f"{told['seconds']:.2f} s, {told['tokens_per_second']:.1f} tokens a second")
    if told["interrupted"]:
        parts.append("interrupted" if told["output"] == "-" else "interrupted; the same command goes on from here")
    return " · ".join(parts)
