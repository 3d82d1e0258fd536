"""A training loop written by hand in plain PyTorch, with batches of similar length.

Usage: speed_hand.py SETTINGS, a JSON object.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from speed_pace import Pace
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

_BUCKET_STEPS = 50

Row = tuple[list[int], int]


def batches_of(rows: Sequence[Row], size: int, generator: torch.Generator, by_length: bool) -> Iterator[list[Row]]:
    """Yields the batches of an epoch; rows of similar length together, in random order."""
    order = torch.randperm(len(rows), generator=generator).tolist()
    if by_length:
        window = _BUCKET_STEPS * size
        for start in range(0, len(order), window):
            part = sorted(order[start : start + window], key=lambda index: -len(rows[index][0]))
            batches = [part[first : first + size] for first in range(0, len(part), size)]
            for index in torch.randperm(len(batches), generator=generator).tolist():
                yield [rows[row] for row in batches[index]]
    else:
        for start in range(0, len(order), size):
            yield [rows[row] for row in order[start : start + size]]


def tensors(rows: Sequence[Row], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Pads rows to the longest."""
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row, _ in rows], batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(row) for row, _ in rows])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([label for _, label in rows])}
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def main() -> None:
    """Trains until nobody asks any more."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    device = torch.device(settings["device"])
    folder, name = settings["folder"], settings["rows"]
    train = json.loads(Path(folder, f"{name}.json").read_text())
    evaluated = json.loads(Path(folder, f"{settings['eval_rows']}.json").read_text())
    pad = AutoTokenizer.from_pretrained(settings["model"]).pad_token_id
    model = AutoModelForSequenceClassification.from_pretrained(settings["model"], num_labels=settings["num_labels"])
    model.to(device).train()
    context = _as_lit_trainer_runs_it(model) if settings.get("same_model") else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"], fused=True)

    def autocast() -> Any:
        return torch.autocast(device.type, torch.bfloat16, enabled=settings["precision"] == "bf16-mixed")

    @torch.no_grad()
    def evaluate() -> float:
        model.eval()
        size, right = settings["eval_batch_size"], []
        rows = sorted(evaluated, key=lambda row: -len(row[0]))
        for start in range(0, len(rows), size):
            batch = tensors(rows[start : start + size], pad, device)
            labels = batch.pop("labels")
            with autocast():
                right.append(model(**batch).logits.argmax(1) == labels)
        model.train()
        return float(torch.cat(right).float().mean())

    pace = Pace(evaluate)
    pace.count_tokens(model)
    pace.begin(settings["precision"])
    generator, step = torch.Generator().manual_seed(0), 0
    while True:
        for rows in batches_of(train, settings["batch_size"], generator, by_length=True):
            batch = tensors(rows, pad, device)
            labels = batch.pop("labels")
            if context is not None:
                context.set_rows(0, torch.arange(step * len(rows), (step + 1) * len(rows)))
            with autocast():
                logits = model(**batch).logits
            loss = F.cross_entropy(logits.float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % settings["log_every_n_steps"] == 0:
                print(step, float(loss))
            pace.step_done()


def _as_lit_trainer_runs_it(model: nn.Module) -> Any:
    """Takes over how lit_trainer runs the model, so that what is left to compare is the loop."""
    from lit_trainer.models import keyed_dropout, padding_free

    context = keyed_dropout.install(model, 0)
    padding_free.install(model)
    return context


if __name__ == "__main__":
    main()
