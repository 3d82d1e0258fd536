"""A task whose steps take their time, and tell which they were."""

import os
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from lit_trainer.tasks.sequence_classification import SequenceClassification


class SlowTask(SequenceClassification):
    """Waits in each training batch and notes step, rank, world size and loss in ``steps-RANK.txt``.

    A rank exits at the step that the file ``die-RANK.txt`` names.
    """

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor | None:
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
        loss = super().training_step(batch, batch_idx)
        trainer = self.trainer
        with Path(f"steps-{os.environ.get('NAME', '')}{trainer.global_rank}.txt").open("a") as file:
            file.write(f"{trainer.global_step} {trainer.world_size} {os.environ.get('SLURMD_NODENAME')}\n")
        die = Path(f"die-{trainer.global_rank}.txt")
        if die.exists() and int(die.read_text()) == trainer.global_step:
            die.unlink()
            os._exit(7)
        return loss
