"""Which requests run in the next pass, and with which rows and pages: deciding work, as deciding tokens is ``speculate``.

The scheduler is one value, ``Schedule``, and it knows of no model: ``schedule`` plans a pass, ``commit`` takes over what came out of it,
``submit``, ``fork`` and ``remove`` let requests come and go in between. See ``schedule`` for the rules of a pass, ``admit`` for who comes in and how
long the others may have to wait, and ``preempt`` for who goes when pages are lacking, and why everybody finishes.
"""

from specdec_fn.schedule.arrive import fork, remove, submit
from specdec_fn.schedule.commit import commit as commit
from specdec_fn.schedule.request import Done, Entry, Lane, Limits, Plan
from specdec_fn.schedule.schedule import schedule as schedule
from specdec_fn.schedule.state import Schedule, find, free_pages, init

__all__ = [
    "Done",
    "Entry",
    "Lane",
    "Limits",
    "Plan",
    "Schedule",
    "commit",
    "find",
    "fork",
    "free_pages",
    "init",
    "remove",
    "schedule",
    "submit",
]
