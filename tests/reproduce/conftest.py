from __future__ import annotations

import pytest

from tests.reproduce.invented_paper import invented_table


@pytest.fixture
def table():
    return invented_table()
