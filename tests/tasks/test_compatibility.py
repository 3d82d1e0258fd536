"""Pairs that are known to break are refused at the start, with the reason."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy

from lit_trainer.losses.contrastive import SupervisedContrastive
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.function import FunctionLoss
from lit_trainer.tasks.compatibility import check_checkpointing, check_optimizer, check_strategy


def trainer(strategy, **settings):
    always = {"accumulate_grad_batches": 1, "world_size": 2, "gradient_clip_val": None}
    return SimpleNamespace(strategy=strategy, **{**always, **settings})


def ddp(**options):
    strategy = DDPStrategy(**options)
    strategy.parallel_devices = [torch.device("cpu")] * 2
    strategy.cluster_environment = SimpleNamespace(local_rank=lambda: 0)
    return strategy


def test_a_static_graph_does_not_accumulate():
    check_strategy(trainer(ddp(static_graph=True)), CrossEntropy())
    with pytest.raises(ValueError, match=r"static_graph .* accumulate_grad_batches=4 .* set one of the two back"):
        check_strategy(trainer(ddp(static_graph=True), accumulate_grad_batches=4), CrossEntropy())


def test_a_communication_hook_that_would_be_ignored_is_refused():
    with pytest.raises(ValueError, match="ddp_comm_hook has no effect on cpu"):
        check_strategy(trainer(ddp(ddp_comm_hook=lambda state, bucket: None)), CrossEntropy())


def test_processes_that_would_share_rows_are_refused():
    strategy = ModelParallelStrategy()
    strategy._device_mesh = {"data_parallel": SimpleNamespace(size=lambda: 1, get_local_rank=lambda: 0)}
    with pytest.raises(
        ValueError,
        match=r"2 processes would see 1 different shares .* data_parallel_size: 2 and tensor_parallel_size: 1",
    ):
        check_strategy(trainer(strategy), CrossEntropy())


def test_a_weight_that_is_known_late_needs_a_step_of_lightnings():
    late = FunctionLoss(lambda logits, labels: (logits.sum(), logits.sum()), returns="total_and_weight")
    strategy = SingleDeviceStrategy("cpu")
    check_strategy(trainer(strategy), late)
    strategy = SimpleNamespace(handles_gradient_accumulation=True)  # as DeepSpeed says
    with pytest.raises(ValueError, match="return one value per row"):
        check_strategy(trainer(strategy), late)


def test_a_loss_across_rows_says_that_accumulation_limits_it(caplog):
    check_strategy(trainer(SingleDeviceStrategy("cpu")), SupervisedContrastive())
    assert not caplog.records
    check_strategy(trainer(SingleDeviceStrategy("cpu"), accumulate_grad_batches=4), SupervisedContrastive())
    assert "accumulate_grad_batches=4 it sees a part of each step" in caplog.text


def test_lightning_15501_fused_optimizers_do_not_clip_under_lightnings_scaler():
    parameter = torch.nn.Parameter(torch.ones(1))
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    settings = {"precision_plugin": plugin, "gradient_clip_val": 1.0}
    check_optimizer(trainer(None, **settings), torch.optim.AdamW([parameter], fused=False))
    check_optimizer(
        trainer(None, **{**settings, "gradient_clip_val": None}), torch.optim.AdamW([parameter], fused=True)
    )
    with pytest.raises(ValueError, match=r"precision_16\.yaml, or set model.optimizer.fused to false"):
        check_optimizer(trainer(None, **settings), torch.optim.AdamW([parameter], fused=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_accelerate_2017_reentrant_checkpointing_does_not_go_with_unused_parameters(reentrant):
    model = torch.nn.Linear(1, 1)
    model._gradient_checkpointing_func = partial(torch.utils.checkpoint.checkpoint, use_reentrant=reentrant)
    check_checkpointing(trainer(ddp()), model)
    if reentrant:
        with pytest.raises(ValueError, match="re-entrant gradient checkpointing"):
            check_checkpointing(trainer(ddp(find_unused_parameters=True)), model)
    else:
        check_checkpointing(trainer(ddp(find_unused_parameters=True)), model)
