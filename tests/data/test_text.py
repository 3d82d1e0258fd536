"""The data module: from a source to what the task and the loaders need."""

import logging
import warnings
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn

from lit_trainer.batch import LABELS, MICRO_BATCH, ROW
from lit_trainer.data.checks import Policies
from lit_trainer.data.sampling import WeightedSampling
from lit_trainer.data.sources.memory import Table
from lit_trainer.data.splits import Splits
from lit_trainer.data.text import TextData
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.tasks.sequence_classification import SequenceClassification


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def make(films, tiny_bert):
    """Makes a data module on the films, attached to a pretended Trainer."""

    def data(rows=films, rank=0, num_ranks=1, accumulate=1, **settings):
        module = TextData(Table(rows), tokenizer=str(tiny_bert), **settings)
        progress = SimpleNamespace(current=SimpleNamespace(ready=0))
        module.trainer = SimpleNamespace(
            lightning_module=None,
            global_rank=rank,
            world_size=num_ranks,
            accumulate_grad_batches=accumulate,
            current_epoch=0,
            reload_dataloaders_every_n_epochs=0,
            fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress)),
            state=SimpleNamespace(fn=TrainerFn.FITTING),
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
        )
        return module

    return data


def test_splits_are_made_and_labels_numbered(make):
    data = make()
    assert {split: len(rows) for split, rows in data.tables.items()} == {"train": 72, "validation": 9, "test": 9}
    assert data.label_map.names == ("bad", "good")
    assert data.label_counts == np.bincount(data.rows("train").labels).tolist()
    assert data.baseline_prediction == pytest.approx(np.array(data.label_counts) / 72)
    assert data.num_labelled_rows == 72


def test_the_order_of_the_classes_can_be_chosen(make):
    data = make(classes=["good", "bad"])
    assert data.label_map.names == ("good", "bad")
    assert data.rows("train").labels.sum() == data.label_counts[1]


def test_batch_size_is_what_one_step_sees_on_all_ranks_and_micro_batches(make):
    for num_ranks, accumulate in [(1, 1), (1, 4), (2, 2), (3, 1)]:
        loaders = [
            make(rank=rank, num_ranks=num_ranks, accumulate=accumulate, batch_size=30).train_dataloader()
            for rank in range(num_ranks)
        ]
        steps = [[], [], []]
        for loader in loaders:
            step = -1
            for batch in loader:
                step += batch[MICRO_BATCH] == 0
                steps[step] += [row for row in batch[ROW].tolist() if row >= 0]
        assert sorted(map(len, steps)) == [12, 30, 30]
        assert sorted(row for step in steps for row in step) == list(range(72))


def test_every_validation_row_is_loaded_once(make):
    rows = []
    for rank in range(2):
        loader = make(rank=rank, num_ranks=2, eval_batch_size=2).val_dataloader()
        rows += [row for batch in loader for row in batch[ROW].tolist() if row >= 0]
    assert sorted(rows) == list(range(9))


def test_rows_can_be_drawn_by_weight(make):
    data = make(sampling=WeightedSampling(weights="balanced", num_draws=4000))
    drawn = data.rows("train").labels[data.plan.epoch(0).rows]
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.05)


def test_a_token_budget_makes_lightning_count_every_epoch_anew(make):
    data = make(max_tokens=200)
    data.setup("fit")
    assert data.trainer.reload_dataloaders_every_n_epochs == 1
    lengths = data.rows("train").lengths
    assert all(lengths[data.plan.epoch(0).step(k)[0]].sum() <= 200 for k in range(data.num_steps(0)))


def test_the_seed_is_that_of_the_run_unless_given(make, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    assert make().plan.seed == 5
    assert make(seed=7).plan.seed == 7
    assert make().tables["test"]["text"][:] == make(seed=7).tables["test"]["text"][:]


def test_several_labels_at_once(make):
    rows = {"text": ["w1", "w2", "w3", "w4"] * 10, "label": [["a"], ["a", "b"], [], ["c"]] * 10}
    data = make(rows, kind="multi_label", splits=Splits(stratify=False))
    assert data.label_map.names == ("a", "b", "c")
    assert data.rows("train").labels.shape == (32, 3)
    assert data.rows("train").labels.dtype == np.float32


def test_values(make):
    data = make({"text": ["w1", "w2", "w3"] * 10, "label": ["0.5", "1", "-2"] * 10}, kind="regression")
    assert data.rows("train").labels.dtype == np.float32
    assert float(data.baseline_prediction) == pytest.approx(float(np.mean(data.rows("train").labels)))


def test_two_columns_are_read_as_a_pair(make, films):
    data = make({**films, "reply": films["text"][::-1]}, text=["text", "reply"])
    assert data.rows("train").tokens[0]["token_type_ids"][-1] == 1


def test_rows_to_predict_need_no_label_and_keep_their_order(make, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("id,text\n7,w1 w2 w3\n9,good film\n")
    data = make(predict=str(path))
    assert data.predict_table["id"][:] == ["7", "9"]
    batches = list(data.predict_dataloader())
    assert sorted(row for batch in batches for row in batch[ROW].tolist()) == [0, 1]
    assert LABELS not in batches[0]


def test_without_rows_to_predict_the_test_split_is_predicted(make):
    data = make()
    assert data.predict_table["text"][:] == data.tables["test"]["text"][:]


def test_the_splits_are_told_in_the_log(make, caplog):
    caplog.set_level(logging.INFO, logger="lit_trainer")
    make().setup("fit")
    assert "train: 72 rows" in caplog.text


def test_what_is_cut_is_told_in_the_log(make, caplog):
    caplog.set_level(logging.INFO, logger="lit_trainer")
    make(max_length=8).rows("train")
    assert "rows were cut" in caplog.text
    assert "data.max_length" in caplog.text


def test_a_resumed_run_with_other_steps_is_told_so(make, caplog):
    state = make(batch_size=10).state_dict()
    make(batch_size=10).load_state_dict(state)
    assert not caplog.records
    make(batch_size=12).load_state_dict(state)
    assert "batch_size was 10, is 12" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"padding": "max_length"}, "padding: max_length needs data.max_length"),
        ({"text": ["a", "b", "c"]}, "one text or a pair, not 3 columns"),
        ({"text": "txt"}, "no column 'txt', only 'text', 'label'; did you mean 'text'"),
        ({"classes": ["good"]}, "a label that is none of good"),
        ({"splits": Splits(validation="dev")}, "no split 'dev', only train"),
    ],
)
def test_mistakes_are_named(make, settings, message):
    with pytest.raises(ValueError, match=message):
        assert make(**settings).tables


def test_data_without_labels_has_no_map_of_them(make):
    assert not hasattr(make(label=None), "label_map")
    with pytest.raises(AttributeError, match=r"data\.label: the data has no labels"):
        assert make(label=None).label_map


def test_a_split_that_is_not_there_is_an_error_where_it_is_needed(make):
    data = make(splits=Splits(test=0, validation=0))
    assert data.val_dataloader() == []
    with pytest.raises(ValueError, match=r"data\.splits\.test: there is no test split"):
        data.test_dataloader()


def test_a_row_without_a_label_can_be_kept(make, films):
    rows = {**films, "label": [None, *films["label"][1:]]}
    with pytest.raises(ValueError, match="missing label: 1 row"):
        assert make(rows).label_map.names
    data = make(rows, checks=Policies(missing_label="keep"), splits=Splits(stratify=False))
    assert data.num_labelled_rows + sum(int((data.rows(s).labels >= 0).sum()) for s in ("validation", "test")) == 89


def test_a_tokenizer_must_come_from_somewhere(films):
    with pytest.raises(ValueError, match=r"data\.tokenizer"):
        assert TextData(Table(films)).tokenizer


def test_where_classes_are_given_prediction_reads_no_other_rows(tiny_bert, tmp_path):
    class Unreadable(Table):
        def load(self):
            raise AssertionError("the training rows were read")

    data = TextData(
        Unreadable({"text": ["w1"], "label": ["a"]}),
        classes=["a", "b"],
        predict=Table({"text": ["w1 w2", "w3"]}),
        tokenizer=str(tiny_bert),
    )
    task = SequenceClassification(str(tiny_bert), loss=CrossEntropy(class_weights="balanced"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice, which is not what is tested
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path)
        found = trainer.predict(task, datamodule=data)
    assert torch.cat([batch["logits"] for batch in found]).shape == (2, 2)
