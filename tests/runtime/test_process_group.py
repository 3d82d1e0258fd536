"""A process that has trained on several ranks ends as it says."""

import pytest

from tests.callbacks.two_ranks import run_on_two_ranks

CODE = """
import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lit_trainer.runtime.process_group import leave_process_group
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer

trainer = make_trainer("run", [], devices=2, strategy="ddp", max_steps=2, use_distributed_sampler=False,
                       limit_val_batches=0)
trainer.fit(TinyTask({folder!r}), TinyData())
assert dist.is_initialized()
leave_process_group(trainer)
assert not dist.is_initialized()
leave_process_group(trainer)
print("RESULT")
"""


@pytest.mark.slow
def test_the_group_is_left_and_the_exit_code_is_zero(tiny_bert, tmp_path) -> None:
    outputs = run_on_two_ranks(CODE.format(folder=str(tiny_bert)), tmp_path)
    assert all("RESULT" in output for output in outputs)
