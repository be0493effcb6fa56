"""For who serves over HTTP: a server beside an experiment, and one answer that says how each of its tokens came to be.

Run: python examples/serve_http.py
"""

import json
from urllib.request import Request, urlopen

from specdec_fn import engine, load, serve


def main() -> None:
    model, tokenizer = load("smollm2-135m")
    config = engine.Config(num_pages=128, invariant=True)  # a seed gives one text, whoever else is served
    assembly = serve.assembled(model, tokenizer, config, serve.Settings("smollm2-135m"))
    speculation = {"proposer": "ngram", "verifier": "token", "k": 4, "explain": True}
    body = {"model": "smollm2-135m", "prompt": "one two three one two", "max_tokens": 16, "seed": 7, "speculation": speculation}
    with serve.in_thread(assembly) as url:
        request = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        with urlopen(request) as answer:
            done = json.load(answer)
    choice = done["choices"][0]
    print(f"{choice['finish_reason']}: {choice['text']!r}")
    for one in choice["speculation"]:
        for node in one["proposed"]:
            print(f"  {node['text']!r:12} {node['kind']:9} p {node['p']:.3f}  u {node['u'] or 0:.3f}")
        if one["final"] is not None:
            print(f"  {one['final']['text']!r:12} {one['final']['kind']:9} p {one['final']['p']:.3f}")
    print(f"{done['usage']['completion_tokens']} tokens in {len(choice['speculation'])} passes of the model")


if __name__ == "__main__":
    main()
