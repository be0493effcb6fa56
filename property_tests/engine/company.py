"""Requests in company and alone: what the tests of drafting in the engine share.

A ``Company`` is a small target with proposers by name. It asks for requests of every kind, runs them together on few pages, and says what each gives
with nobody beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from specdec_fn import SamplingParams, generate
from specdec_fn.engine import Config, EngineState, Request, free_pages, init, run, submit
from specdec_fn.models import Model
from specdec_fn.pytree import checking
from specdec_fn.speculate import Proposer, verifiers

VOCAB, CONTEXT = 16, 48
GREEDY, WARM = SamplingParams(temperature=0), SamplingParams(temperature=0.8)
PENALISED = SamplingParams(temperature=0.9, top_k=9, repetition_penalty=1.3, presence_penalty=0.4)
LINE = (1, 2, 3, 4, 5, 6, 7, 8)
MORE, MOST = 2, 9  # tokens of a prompt after LINE, and tokens to emit


def timeless(done: Any) -> Any:
    """A generation without the seconds that it took."""
    return done._replace(stats=done.stats._replace(seconds={}))


class Company(NamedTuple):
    """Who may share passes and pages.

    Attributes:
        target: the model, of VOCAB tokens and a context of CONTEXT.
        guess: proposers by a name of the tests'; other names are the product's.
        loop: the proposer that drafts in ``generate`` what the given one drafts in the engine.
    """

    target: Model
    guess: Mapping[str, Any]
    loop: Callable[[Any], Any] = lambda proposer: proposer

    def ask(self, name: str | Proposer | None, prompt: Sequence[int] = LINE[:6], max_tokens: int = 10, **more: Any) -> Request:
        """A request that drafts with the named or given proposer, or with none."""
        more = {"sampling": WARM, "seed": 3, "k": 3, "verifier": "token", **more}
        return Request(prompt, max_tokens, proposer="none" if name is None else self.guess.get(name, name) if isinstance(name, str) else name, **more)

    def engine(self, asked: Sequence[Request] = (), **sizes: Any) -> EngineState:
        """An engine to which these were submitted."""
        state = init(self.target, Config(**{"page_size": 2, "num_pages": 64, "prefill_chunk": 4, "invariant": True, **sizes}))
        for request in asked:
            state, _ = submit(state, request)
        return state

    def alone(self, request: Request, **changes: Any) -> Any:
        """What the same request gives in the loop."""
        names = ("seed", "sampling", "verifier", "k", "max_tokens", "stop_ids")
        asked = {name: getattr(request, name) for name in names}
        asked |= {"proposer": None if request.proposer == "none" else self.loop(request.proposer)} | changes
        return timeless(generate(self.target, asked.pop("prompt", request.prompt), invariant=True, **asked))

    def check(self, asked: Sequence[Request], done: dict[int, Any]) -> None:
        """Each gave what it gives alone."""
        assert sorted(done) == list(range(len(asked)))
        for number, request in enumerate(asked):
            assert timeless(done[number]) == self.alone(request), f"request {number}: {request}"

    def check_together(self, asked: Sequence[Request], sizes: dict[str, Any], gaps: Sequence[int], enforced: bool) -> EngineState:
        """Submitted some steps apart, each gives what it gives alone, and no page is lost; ``enforced``: the last run is in check mode."""
        state, done = self.engine(**sizes), {}
        for request, gap in zip(asked, gaps, strict=False):
            state, _ = submit(state, request)
            state, some = run(self.target, state, gap)
            done |= some
        if enforced:
            with checking():
                state, rest = run(self.target, state)
        else:
            state, rest = run(self.target, state)
        self.check(asked, done | rest)
        assert free_pages(state) == sizes["num_pages"]
        return state


@st.composite
def requests(draw: Any, company: Company, names: Sequence[str | None]) -> Request:
    """Requests of every kind that draft with one of these."""
    sampling = draw(st.sampled_from([GREEDY, WARM, PENALISED]))
    rules = [name for name, rule in verifiers.items() if rule.lossless and (sampling.greedy or name != "greedy")]
    return company.ask(
        draw(st.sampled_from(names)),
        [*LINE[: draw(st.integers(1, 8))], *draw(st.lists(st.integers(0, VOCAB - 1), max_size=MORE))],
        draw(st.integers(1, MOST)),
        sampling=sampling,
        seed=draw(st.integers(0, 3)),
        k=draw(st.integers(0, 5)),
        verifier=draw(st.sampled_from(rules)),
        stop_ids=draw(st.sampled_from([(), (3, 9)])),
        priority=draw(st.integers(-1, 1)),
    )


@st.composite
def sizes_of(draw: Any) -> dict[str, Any]:
    """Sizes of an engine in which the largest of ``requests`` fits, and not much more."""
    page_size = draw(st.integers(1, 5))
    least = -(-(len(LINE) + MORE + MOST - 1) // page_size)
    return {
        "page_size": page_size,
        "num_pages": least + draw(st.integers(0, least)),
        "max_batch": draw(st.integers(1, 4)),
        "prefill_chunk": draw(st.integers(1, 9)),
        "prefix_cache": draw(st.booleans()),
    }


GAPS = st.lists(st.integers(0, 4), min_size=4, max_size=4)
