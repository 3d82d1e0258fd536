"""A model that runs without padding is told how long the rows are, so that a GPU is not waited for; others are not."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
from transformers import AutoTokenizer

from lit_trainer.batch import LENGTHS
from lit_trainer.data.collation import PaddingCollator
from lit_trainer.data.sources.memory import Table
from lit_trainer.data.splits import Splits
from lit_trainer.data.text import TextData
from lit_trainer.models.packing import Packing
from lit_trainer.tasks.sequence_classification import SequenceClassification


@pytest.mark.parametrize(("padding", "is_told"), [("auto", True), ("longest", False)])
def test_lengths_reach_a_model_without_padding_alone(
    tiny_bert: Path,
    films: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    padding: Any,
    is_told: bool,
) -> None:
    told: list[list[int] | None] = []
    before = Packing.__init__

    def init(self: Packing, mask: Any, lengths: Any = None) -> None:
        if lengths is not None:
            assert mask.sum(1).tolist() == list(lengths)
        told.append(lengths)
        before(self, mask, lengths)

    rows = [{"text": text, "label": label} for text, label in zip(films["text"], films["label"], strict=True)]
    data = TextData(Table(rows), batch_size=16, padding=padding, splits=Splits(validation=0.2))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=3,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        num_sanity_val_steps=2,
    )
    task = SequenceClassification(str(tiny_bert))
    trainer.fit(task, datamodule=data)
    assert task.takes_lengths is is_told
    monkeypatch.setattr(Packing, "__init__", init)
    trainer.validate(task, datamodule=data, verbose=False)
    trainer.predict(task, dataloaders=data.val_dataloader())
    if is_told:
        assert told
        assert None not in told
    else:
        assert told == []


def test_a_batch_knows_its_lengths_if_asked(tiny_bert: Path) -> None:
    collate = PaddingCollator(AutoTokenizer.from_pretrained(tiny_bert), with_lengths=True)
    columns = {"input_ids": [[2, 5, 3], [2, 3]], "attention_mask": [[1, 1, 1], [1, 1]]}
    batch = collate({**columns, "row": np.array([7, -1]), "draw": np.array([0, -1])})
    assert batch[LENGTHS] == batch["attention_mask"].sum(1).tolist() == [3, 2]
    assert LENGTHS not in PaddingCollator(collate.tokenizer)({**columns, "row": np.zeros(2), "draw": np.zeros(2)})
