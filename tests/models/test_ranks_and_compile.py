from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lit_trainer.models import keyed_dropout, padding_free
from tests.models.small_models import FOURS, gradients, relative, small_model

SCRIPT = """
import gc
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from lit_trainer.models import keyed_dropout, padding_free
from tests.models.small_models import LENGTHS, WHOLE, batch, gradients, relative, small_model

def installed():
    model = small_model("bert").double()
    context = keyed_dropout.install(model, seed=7)
    padding_free.install(model)
    return model, context

def sharded(model):
    for layer in model.bert.encoder.layer:
        fully_shard(layer)
    return fully_shard(model)

def compare(rank):
    model, context = installed()
    whole = gradients(model, WHOLE, lambda rows: context.set_rows(0, torch.tensor(rows)))
    mine = list(range(rank, 16, 2))
    for way in ("ddp", "sharded later", "sharded before"):
        if way == "sharded before":
            model = sharded(small_model("bert").double())
            context = keyed_dropout.install(model, seed=7)
            padding_free.install(model)
        else:
            model, context = installed()
            model = DistributedDataParallel(model) if way == "ddp" else sharded(model)
        context.set_rows(0, torch.tensor(mine))
        logits = model(**batch(mine, 0), lengths=[LENGTHS[row] for row in mine]).logits
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(mine) % 2, reduction="sum")
        (2 * loss).backward()
        grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
        grads = [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in grads]
        error = relative(whole, torch.cat([grad.flatten() for grad in grads]))
        assert error < 1e-12, (way, error)

def run(rank, meeting):
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    compare(rank)
    dist.barrier()
    gc.collect()  # models keep threads of gloo alive, which abort a process that ends
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(run, (sys.argv[1],), nprocs=2)
    print("equal")
"""


@pytest.mark.slow
@pytest.mark.exact
def test_two_ranks_drop_what_one_does(run_python: Callable[..., str], tmp_path: Path) -> None:
    assert "equal" in run_python(SCRIPT, tmp_path / "meeting", PYTHONPATH=str(Path(__file__).parents[2]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which Dynamo reads after a break in the graph
@pytest.mark.parametrize("is_free", [False, True])
def test_a_compiled_model_gives_the_same(is_free: bool) -> None:
    model = small_model("bert")
    context = keyed_dropout.install(model, seed=7)
    if is_free:
        padding_free.install(model)
    plain = gradients(model, FOURS[:2], lambda rows: context.set_rows(0, torch.tensor(rows)))
    model.compile(dynamic=True, backend="aot_eager")  # what is traced is the question, not the code made from it
    compiled = gradients(model, FOURS[:2], lambda rows: context.set_rows(0, torch.tensor(rows)))
    assert relative(plain, compiled) < 1e-5
