"""Twenty measurements of an engine, in the order in which it is built: what must move at each stage, and by how much at least.

A stage is a room with one value, ``stage``. ``order.stages()`` gives all of them in order, ``settle.settle`` runs one and says how it ended,
``record`` writes what was found and reads it again. A gate is a ratio of figures that were taken in the same run, in turns, so that a busy machine
slows both sides; the milliseconds stand beside it, since a slow base flatters a ratio.

Rooms that several stages measure with: ``passes`` (a target pass after some context, jobs timed in turns) and ``serving`` (engines side by side).
"""

__all__ = ["order", "passes", "record", "serving", "settle", "stage"]
