"""What all tests share: Hypothesis profiles, one torch thread, and no leftovers from the user's own environment.

HYPOTHESIS_PROFILE=soak pytest tests/core      # many more examples
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported anywhere: two cores are shared by many processes in the end-to-end tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

_SLOW_MACHINES = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=_SLOW_MACHINES)
settings.register_profile("soak", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's run folders; child processes inherit it."""
    for variable in [name for name in os.environ if name.startswith("P2PTRAIN_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("P2PTRAIN_HOME", str(tmp_path_factory.getbasetemp() / "home"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Soak tests run when they are asked for (``-m soak``), never by the way."""
    if "soak" not in (config.option.markexpr or ""):
        kept = [item for item in items if item.get_closest_marker("soak") is None]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
