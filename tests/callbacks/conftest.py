"""Warnings of Lightning that say nothing about the code under test."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "callbacks" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:The `srun` command is available"))
