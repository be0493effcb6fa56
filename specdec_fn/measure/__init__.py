"""The clock: wall time by part, the cost curve of a model on this machine, and how fast this machine reads and multiplies.

Nothing below this floor knows what time it is. What is measured here is a value, and whoever is given it decides the same again without a clock.
"""

from specdec_fn.measure.curve import curve
from specdec_fn.measure.machine import machine
from specdec_fn.measure.stopwatch import Stopwatch

__all__ = ["Stopwatch", "curve", "machine"]
