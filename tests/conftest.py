"""What several test files use."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of measured data beside the project; a test that needs it skips without it."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs ../shared/data, the measured data beside the project, which is not here")
    return SHARED / "data"
