"""The Hub, as far as it can be asked without a network: a local folder stands in for a repository."""

import datasets
import pytest

from lit_trainer.data.sources.hub import Hub


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "repository"
    folder.mkdir()
    for split, num_rows in (("train", 20), ("test", 5)):
        lines = [f'{{"text": "{split} {row}", "label": {row % 2}}}\n' for row in range(num_rows)]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    datasets.disable_progress_bars()
    yield str(folder)
    datasets.enable_progress_bars()


@pytest.mark.parametrize("streaming", [False, True])
def test_the_first_rows_of_every_split(repository, streaming):
    loaded = Hub(repository, streaming=streaming, num_rows=7).load()
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 7, "test": 5}
    assert loaded["train"]["text"][:] == [f"train {row}" for row in range(7)]
    assert loaded["train"].features["label"].dtype == "int64"


def test_all_rows_and_chosen_ones(repository):
    assert len(Hub(repository).load()["train"]) == 20
    loaded = Hub(repository, splits={"train": "train[:50%]", "validation": "train[50%:]"}).load()
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 10, "validation": 10}


def test_streaming_without_an_end_is_refused():
    with pytest.raises(ValueError, match="streaming needs num_rows"):
        Hub("some/data", streaming=True)


def test_what_cannot_be_loaded_is_one_line(repository):
    with pytest.raises(
        ValueError, match=r"the data set 'no/such' of the Hub cannot be loaded: .*; check path, name"
    ) as e:
        Hub("no/such").load()
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match=r"cannot be loaded: .*dev"):
        Hub(repository, splits={"train": "dev"}).load()
    with pytest.raises(ValueError, match=r"cannot be loaded: "):
        Hub(repository, name="other").load()
