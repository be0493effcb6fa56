"""These tests run many small tensor operations, which several threads only slow down."""

from collections.abc import Iterator

import pytest

from specdec_proofs.claim import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
