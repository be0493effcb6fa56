"""A target pass to hold other costs against, jobs timed in turns, and how busy the machine is: the stages measure with the same."""

from specdec_fn.stages.passes import CONTEXT, in_turns, load_average, target_pass

__all__ = ["CONTEXT", "in_turns", "load_average", "target_pass"]
