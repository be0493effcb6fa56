"""What speculation costs and brings, by arithmetic alone: yields of drafts, machines, the roofline of a pass, queues, measured curves.

Numbers in, numbers out: no tensor, no clock, no file. ``chapter`` holds every figure of the text that this project started from, recomputed.
"""

from specdec_fn.cost.curve import Curve
from specdec_fn.cost.machines import Machine
from specdec_fn.cost.shapes import Shape

__all__ = ["Curve", "Machine", "Shape"]
