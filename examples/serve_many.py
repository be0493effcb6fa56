"""For who serves many: an engine as a value, with a batch, answers that share a prompt's pages, a past to go back to and a snapshot.

Run: python examples/serve_many.py
"""

from specdec_fn import SamplingParams, engine, load


def main() -> None:
    model, tokenizer = load("smollm2-135m")
    config = engine.Config(num_pages=128, prefill_chunk=64, proposer="ngram", seed=7)
    state = engine.init(model, config, tokenizer)

    ask = tokenizer.chat([{"role": "user", "content": "Name a colour and a fruit of that colour."}])
    state, first = engine.submit(state, engine.Request(ask, max_tokens=24, sampling=SamplingParams(temperature=0.8)))
    state, other = engine.submit(state, engine.Request("one two three one two", max_tokens=12, k=3, verifier="block"))

    state, events = engine.step(model, state)  # one forward: both prompts, both first tokens
    for request_id, tokens, logprobs, finish_reason in events:
        print(f"request {request_id}: {tokens} with log-probability {logprobs[0]:.2f}, {finish_reason or 'going on'}")

    state, second = engine.fork(state, first)  # another answer: the same pages, its own randomness
    print(f"{engine.free_pages(state)} of {config.num_pages} pages are free")

    past = engine.clone(state)  # owns a copy of the pool; ``run`` gives the state up
    written = engine.snapshot(state)
    state, done = engine.run(model, state)
    for number in (first, second, other):
        print(f"request {number}, {done[number].finish_reason}: {done[number].text!r}")

    _, again = engine.run(model, past)
    _, elsewhere = engine.run(model, engine.restore(model, written, tokenizer=tokenizer))
    assert again[first].tokens == elsewhere[first].tokens == done[first].tokens
    print("the past and the snapshot went on with the same tokens")


if __name__ == "__main__":
    main()
