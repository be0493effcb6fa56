"""Examples in the kernels' docstrings run without a GPU, in triton's interpreter."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure() -> None:
    """The C library first: which implementation runs must not change in the middle of an example."""
    from specdec_kernels import native

    native.wait()
