"""A plugin of pytest: a part of the tests for each of several processes, without a package for it.

``DECOMPX_FAST_TEST_SHARD=2/8 pytest -p shards`` runs every eighth, from the third on; ``device_check.py`` starts eight.
"""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shard, _, shards = os.environ.get("DECOMPX_FAST_TEST_SHARD", "0/1").partition("/")
    mine = items[int(shard) :: int(shards)]
    others = [item for item in items if item not in set(mine)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = mine
