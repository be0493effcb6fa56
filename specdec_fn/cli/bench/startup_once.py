"""One start, timed, in a process of its own: load, emit one token, wait for the native build. ``specdec bench startup`` starts it again and again.

Prints one JSON object, seconds since the process was begun: ``imported``, ``loaded``, ``first`` (the first token), ``ready`` (the native build, which
is asked for once the model is loaded; None where there is none on this machine), and the build's own line, ``status``.
"""

import json
import sys
import threading
import time

__all__ = ["main"]

PROMPT = "Write a story about a lighthouse keeper who finds a letter in a bottle."


def main(model: str, weights: str, begun: float) -> None:
    """Times one start.

    Args:
        model, weights: what is loaded, and its precision.
        begun: ``time.time()`` when the process was begun.
    """
    from specdec_fn.cli.bench.variants import load_variant
    from specdec_fn.doors import stream
    from specdec_kernels import native

    seconds = {"imported": time.time() - begun}
    target, tokenizer = load_variant(model, weights, wait=False)
    seconds["loaded"] = time.time() - begun
    ready: list[float] = []
    watcher = threading.Thread(target=lambda: ready.extend([time.time() - begun] if native.wait() else []), daemon=True)
    watcher.start()  # beside the first answer, which does not wait for it
    ids = tokenizer.chat([{"role": "user", "content": PROMPT}])[: target.config.context - 1]
    next(stream(target, ids, tokenizer=tokenizer, max_tokens=1, ignore_eos=True))
    seconds["first"] = time.time() - begun
    watcher.join()
    print(json.dumps({**seconds, "ready": ready[0] if ready else None, "status": native.status()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
