"""What does not fit into memory is computed in parts, to the same weights, metrics and predictions."""

import json
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy

from lit_trainer.data.sources.memory import Table
from lit_trainer.data.text import TextData
from lit_trainer.losses.contrastive import SupervisedContrastive
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.runtime.precision import ScaledMixedPrecision
from lit_trainer.tasks.compatibility import refusal_of_parts
from lit_trainer.tasks.memory_limit import MemoryLimit
from tests.tasks import limited_runs, runs
from tests.tasks.limited_runs import LittleMemory

SCRIPT = Path(limited_runs.__file__)
NUM_STEPS = 6


@pytest.fixture
def train(tmp_path, tiny_bert, run_python):
    """Trains with dropout, class weights and weighted sampling; returns what came out and how often memory ran out."""

    def run(**settings):
        settings = {
            "folder": str(tiny_bert),
            "out": str(tmp_path / "out.pt"),
            "max_steps": 8,
            "dropout": 0.1,
            **settings,
        }
        failures = 0
        if settings.get("ranks", 1) > 1:
            code = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
            run_python(code, json.dumps({"limit": 10**9, **settings}))
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Lightning's advice, which is not what is tested
                failures = limited_runs.run(settings) if "limit" in settings else runs.run(settings)
        return torch.load(settings["out"]), failures

    return run


@pytest.fixture(scope="module")
def unlimited():
    """The runs with all the memory they need, each made once."""
    return {}


CASES = {
    "rows": {"limit": 60},
    "accumulated, a row at a time": {"limit": 20, "accumulate": 2},
    "tokens, without padding": {"limit": 60, "padding": "free", "max_tokens": True},
}
RANKS = {
    "2 ranks": {"limit": 60, "ranks": 2, "fails_in": "backward"},
    "2 ranks x 2, one of them small": {
        "limit": 20,
        "ranks": 2,
        "accumulate": 2,
        "small_rank": 1,
        "fails_in": "backward",
    },
}
PASSES = {
    f"{name}, {fails_in}": {**case, "fails_in": fails_in} for name, case in CASES.items()
    for fails_in in ("forward", "backward")
}  # fmt: skip


@pytest.mark.exact
@pytest.mark.parametrize("case", [*PASSES, *(pytest.param(name, marks=pytest.mark.slow) for name in RANKS)])
def test_a_run_with_little_memory_ends_in_the_same_weights(train, unlimited, case):
    settings = (PASSES | RANKS)[case]
    free = {key: value for key, value in settings.items() if key in ("max_tokens", "padding")}
    if str(free) not in unlimited:
        unlimited[str(free)], _ = train(**free, max_steps=NUM_STEPS)
    whole = unlimited[str(free)]
    found, failures = train(**settings, max_steps=NUM_STEPS)
    assert found["steps"] == NUM_STEPS
    assert found["losses"] == pytest.approx(whole["losses"], rel=1e-9)
    for name, value in whole["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=0, atol=1e-12)
    if "ranks" not in settings:
        assert 1 <= failures <= 5  # it learns how much fits


def test_an_evaluation_with_little_memory_has_the_same_metrics(train):
    whole, _ = train(only_test=True)
    found, failures = train(only_test=True, limit=40)
    assert found["metrics"] == pytest.approx(whole["metrics"], rel=1e-6)
    assert found["rows"].tolist() == whole["rows"].tolist()
    assert 1 <= failures <= 4


def test_predictions_with_little_memory_are_the_same_for_each_row(tiny_bert, films):
    found = []
    for limit in (10**9, 60):
        LittleMemory.settings, LittleMemory.num_failures = {"limit": limit}, 0
        pl.seed_everything(0, verbose=False)
        rows = Table({"text": films["text"]})
        data = TextData(Table(films), predict=rows, padding="longest", classes=["good", "bad"])
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice, which is not what is tested
            batches = trainer.predict(LittleMemory(str(tiny_bert)), datamodule=data)
        order = torch.cat([batch["row"] for batch in batches])
        assert sorted(order.tolist()) == list(range(len(films["text"])))
        found.append(torch.cat([batch["logits"] for batch in batches])[order.argsort()])
    assert 1 <= LittleMemory.num_failures <= 5
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_one_line_says_what_happened(train, caplog):
    train(limit=60, max_steps=3)
    lines = [record.getMessage() for record in caplog.records if "memory" in record.getMessage()]
    assert len(lines) == 1
    assert re.fullmatch(
        r"out of memory on 16 rows of \d+ tokens: at most \d+ tokens at a time from here on, in more parts; steps, "
        "gradients and results stay the same",
        lines[0],
    )


def test_a_row_that_does_not_fit_is_an_error_that_says_what_takes_less(train):
    reason = re.escape("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(ValueError, match=rf"memory on 1 row of \d+ tokens, and there .*max_length.* \({reason}\)$"):
        train(limit=2, max_steps=1)


def batch_of(num_rows, length=4):
    return {
        "input_ids": torch.arange(num_rows * length).view(num_rows, length),
        "lengths": [length] * num_rows,
        "row": torch.arange(num_rows),
        "labels": {"a": torch.arange(num_rows), "b": torch.zeros(num_rows, 3)},
        "epoch": 2,
        "micro_batch": 0,
        "step_labels": [torch.zeros(num_rows)] * num_rows,
    }


@given(num_rows=st.integers(1, 40), limit=st.integers(1, 40))
def test_parts_have_every_row_once_and_all_that_belongs_to_it(num_rows, limit):
    found, sizes = [], []

    def function(part):
        if len(part["row"]) > limit:
            raise torch.OutOfMemoryError("no")
        assert part["input_ids"][:, 0].tolist() == (part["row"] * 4).tolist()
        assert part["labels"]["a"].tolist() == part["row"].tolist()
        assert len(part["labels"]["b"]) == len(part["lengths"]) == len(part["row"])
        assert (part["epoch"], len(part["step_labels"])) == (2, num_rows)
        found.extend(part["row"].tolist())
        sizes.append(len(part["row"]))
        return True

    memory = MemoryLimit(lambda: None)
    for _ in range(2):  # a second batch like it does not fail any more
        failed = memory.max_size
        found.clear()
        assert all(memory.in_parts(batch_of(num_rows), function))
        assert sorted(found) == list(range(num_rows))
    assert failed == memory.max_size
    assert max(sizes) <= min(limit, num_rows)
    assert (memory.attempt(batch_of(num_rows), lambda part: True) is None) == (num_rows > limit)


def test_another_error_is_none_of_its_business():
    def function(part):
        raise RuntimeError("device-side assert")

    with pytest.raises(RuntimeError, match="device-side"):
        MemoryLimit(lambda: None).attempt(batch_of(2), function)


@pytest.mark.parametrize(
    ("loss", "strategy", "said"),
    [
        (SupervisedContrastive(), SingleDeviceStrategy("cpu"), "SupervisedContrastive compares its rows"),
        (CrossEntropy(), ModelParallelStrategy(), "ModelParallelStrategy has all ranks compute together"),
        (CrossEntropy(), DDPStrategy(static_graph=True), "static_graph of trainer.strategy does not allow for parts"),
        (CrossEntropy(), DDPStrategy(ddp_comm_hook=print), "ddp_comm_hook of trainer.strategy does not allow"),
        (CrossEntropy(), DDPStrategy(), None),
    ],
)
def test_what_cannot_be_computed_in_parts_says_why(loss, strategy, said):
    trainer = SimpleNamespace(strategy=strategy, training=True)

    def function(part):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    memory = MemoryLimit(lambda: refusal_of_parts(trainer, loss))
    with pytest.raises(ValueError, match=said or "1 row of 4 tokens, and there are no fewer"):
        list(memory.in_parts(batch_of(2), function))


@pytest.mark.parametrize("fails_in", ["forward", "backward"])
def test_float16_gradients_in_parts_are_scaled_like_others(tiny_bert, films, fails_in):
    weights = []
    for limit in (10**9, 40):
        LittleMemory.settings = {"limit": limit, "fails_in": fails_in}
        pl.seed_everything(0, verbose=False)
        task = LittleMemory(str(tiny_bert), optimizer=OptimizerSpec("torch.optim.SGD", lr=1.0))
        trainer = pl.Trainer(
            accelerator="cpu", max_steps=3, plugins=[ScaledMixedPrecision("16-mixed", device="cpu")], logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(task, datamodule=TextData(Table(films), batch_size=8, padding="longest"))
        assert trainer.precision_plugin.num_skipped_steps == 0
        weights.append({name: value.clone() for name, value in task.model.state_dict().items()})
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-2, atol=2e-3)
