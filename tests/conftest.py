"""Options of the test run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

_BATCH = 100

# a slow or busy machine is no fault of the code: what is slow shows in the benchmark
settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz",
        type=int,
        default=2000,
        metavar="N",
        help="random instances on which brute force, dynamic program and HiGHS must agree",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``seeds``: ranges of seeds, so that the workers of pytest-xdist share them."""
    if "seeds" in metafunc.fixturenames:
        total = metafunc.config.getoption("fuzz")
        starts = range(0, total, _BATCH)
        batches = [range(start, min(start + _BATCH, total)) for start in starts]
        metafunc.parametrize("seeds", batches, ids=[str(start) for start in starts])
