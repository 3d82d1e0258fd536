"""The Trainer of Transformers, with the settings that it is given.

Usage: speed_transformers.py SETTINGS, a JSON object.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars
from speed_pace import Pace
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    trainer_pt_utils,
)
from transformers.utils import logging


class Paced(TrainerCallback):
    """Has the training wait between rounds."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.has_begun = False

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Begins."""
        if not self.has_begun:
            self.has_begun = True
            self.pace.begin("bf16-mixed" if args[0].bf16 else "32-true")

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Notes a step."""
        self.pace.step_done()


def load(path: str) -> Dataset:
    """Returns tokens and labels as the Trainer wants them."""
    rows = json.loads(Path(path).read_text())
    columns = {"input_ids": [ids for ids, _ in rows], "attention_mask": [[1] * len(ids) for ids, _ in rows]}
    return Dataset.from_dict({**columns, "labels": [label for _, label in rows], "length": [len(r[0]) for r in rows]})


def main() -> None:
    """Trains until nobody asks any more."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    folder = settings["folder"]
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    model = AutoModelForSequenceClassification.from_pretrained(settings["model"], num_labels=settings["num_labels"])
    evaluated = load(f"{folder}/{settings['eval_rows']}.json")
    padding = {"padding": "max_length", "max_length": settings["max_length"]} if settings.get("pad_to_max") else {}
    arguments = TrainingArguments(
        output_dir=f"{folder}/trainer",
        per_device_train_batch_size=settings["batch_size"],
        max_steps=10**6,
        learning_rate=settings["lr"],
        lr_scheduler_type="constant",
        weight_decay=0.01,  # torch's own default for AdamW, which the others have
        max_grad_norm=0.0,  # nor do the others clip
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=settings["device"] == "cpu",
        **settings.get("arguments", {}),
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=load(f"{folder}/{settings['rows']}.json"),
        data_collator=DataCollatorWithPadding(tokenizer, **padding),
    )

    def evaluate() -> float:
        found = trainer.predict(evaluated)
        return float((found.predictions.argmax(1) == found.label_ids).mean())

    # It sorts parts of 50 batches where there are 200 or more. Here are fewer, of which it would sort none.
    trainer_pt_utils.get_length_grouped_indices = partial(
        trainer_pt_utils.get_length_grouped_indices, mega_batch_mult=50
    )
    pace = Pace(evaluate)
    pace.count_tokens(model)
    trainer.add_callback(Paced(pace))
    trainer.train()


if __name__ == "__main__":
    main()
