"""The clock: wall time by part, measured from outside, so that nothing below knows what time it is."""

import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Stopwatch"]


class Stopwatch:
    """Adds up the seconds spent inside wrapped functions and iterators, by part.

    Parts may nest: the time of an inner part is taken out of the outer one, so that the parts add up to what was spent in all.

    >>> watch = Stopwatch(clock=iter(range(100)).__next__)
    >>> inner = watch.wrap("inner", lambda: None)
    >>> watch.wrap("outer", inner)()
    >>> watch.seconds
    {'inner': 1.0, 'outer': 2.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._inner = [0.0]

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                whole = self._clock() - start
                within = self._inner.pop()
                self._inner[-1] += whole
                self.seconds[part] = self.seconds.get(part, 0.0) + whole - within

        return timed

    def iterate(self, part: str, items: Iterator[Any]) -> Iterator[Any]:
        """The same items, with the time to produce each counted under ``part``."""
        step = self.wrap(part, lambda: next(items, _END))
        while (item := step()) is not _END:
            yield item


_END = object()
