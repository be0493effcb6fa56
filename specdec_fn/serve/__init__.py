"""An OpenAI-compatible server: one thread owns the engine's state; everything around it is values, and functions of values.

From the wire inwards: ``server`` (socket, signals), ``app`` (routes), ``body`` and ``access`` (who may ask, and what was sent), ``completion`` and
``chat`` (a body becomes an ``Asked``), ``desk`` (lets it in, keeps what it comes to), ``loop`` (the thread with the engine), ``answers`` and
``stream`` (events become an answer), ``journal`` (the log that a restart goes on from).
"""

from specdec_fn.serve.assembly import Assembly, Settings, assembled
from specdec_fn.serve.limits import Limits
from specdec_fn.serve.server import in_thread, serve

__all__ = ["Assembly", "Limits", "Settings", "assembled", "in_thread", "serve"]
