"""Examples in the kernels' docstrings run without a GPU, in triton's interpreter."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
