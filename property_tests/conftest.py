"""Settings of the whole test run: hypothesis profiles, quiet threads, and a skipped test is a failed run."""

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton: kernels run without a GPU

settings.register_profile("dev", max_examples=40, deadline=None)
settings.register_profile("ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

pytest.register_assert_rewrite("property_tests.engine.company")  # a failing assertion there shows its values, too

ALLOWED_SKIPS: frozenset[str] = frozenset()  # node ids of tests that may be skipped, each with its reason beside it
ALLOWED_REASONS = ("no Chromium",)  # how the reasons begin for which any test may be skipped: not everybody has a browser, and CI installs one


def pytest_configure() -> None:
    """The C library first: which implementation runs must not change in the middle of a test."""
    from specdec_kernels import native

    native.wait()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run if a test was skipped that nobody expected to be."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = [
        one.nodeid for one in reporter.stats.get("skipped", []) if one.nodeid not in ALLOWED_SKIPS and not _reason(one).startswith(ALLOWED_REASONS)
    ]
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"unexpected skips: {', '.join(skipped)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _reason(report: pytest.TestReport) -> str:
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
