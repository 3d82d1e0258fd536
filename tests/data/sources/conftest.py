"""Every test of a source has a cache of its own."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(folder))
    return folder
