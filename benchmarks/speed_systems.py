"""The systems that are compared, each as the command of a process. lit_trainer runs as its own command, from YAML."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from speed_processes import HERE, Measured

BF16 = "bf16-mixed"
TRAINER_512 = "Trainer, padded to 512"
TRAINER_DEFAULT = "Trainer, defaults"
TRAINER_GROUPED = "Trainer, by length"
TRAINER_BEST = "Trainer, by length, bf16"
HAND = "by hand, by length"
HAND_BF16 = "by hand, by length, bf16"
OURS_SAME = "lit_trainer, untuned"
OURS_32 = "lit_trainer, float32"
OURS = "lit_trainer"
OURS_NO_ATTENTION_DROPOUT = "lit_trainer, attention dropout 0"
OURS_16 = "lit_trainer, float16"

SMALL_HAND = "loop by hand"
SMALL_PLAIN = "Lightning, a plain module"
SMALL_BARE = "lit_trainer, no callbacks"
SMALL_MONITOR = "+ StepTimeMonitor"
SMALL_GRADIENTS = "+ GradientMonitor"
SMALL_CALLBACKS = "+ LRSchedule and GradientMonitor"
SMALL_OVERRIDING = "the same by overriding"

_AS_TORCH_DOES = {"OMP_WAIT_POLICY": ""}
"""lit_trainer has waiting threads sleep soon unless this is set; empty, it means what it means where it is not set."""

_CALLBACKS = "lit_trainer.callbacks"
_MONITOR = [{"class_path": f"{_CALLBACKS}.step_time_monitor.StepTimeMonitor"}]
_GRADIENTS = [{"class_path": f"{_CALLBACKS}.gradient_monitor.GradientMonitor"}]
_SCHEDULE = [
    {
        "class_path": f"{_CALLBACKS}.lr_schedule.LRSchedule",
        "init_args": {"schedule": "lit_trainer.optim.schedules.Linear"},
    }
]
_TASK = "lit_trainer.tasks.sequence_classification.SequenceClassification"


@dataclass(frozen=True)
class Bench:
    """What all systems of a comparison share.

    Args:
        folder: Of the inputs.
        settings: Model, rows, sizes.
    """

    folder: Path
    settings: dict[str, Any]

    def by_hand(self, name: str, **more: Any) -> Measured:
        """Returns the hand-written loop."""
        return self._script(name, "speed_hand.py", more)

    def trainer(self, name: str, precision: str = "32-true", **more: Any) -> Measured:
        """Returns the Trainer of Transformers."""
        arguments = {"bf16": precision == BF16, **more.pop("arguments", {})}
        return self._script(name, "speed_transformers.py", {"arguments": arguments, **more})

    def ours(
        self,
        name: str,
        *,
        task: str = _TASK,
        callbacks: list[dict[str, Any]] | None = None,
        model: dict[str, Any] | None = None,
        trainer: dict[str, Any] | None = None,
        is_tuned: bool = True,
    ) -> Measured:
        """Returns lit_trainer's command, with a callback that has it wait between rounds."""
        own = self.settings
        path = self.folder / f"{len(list(self.folder.glob('run_*.yaml')))}.yaml"
        path = path.with_name(f"run_{path.name}")
        files = {"train": f"{own['folder']}/{own['rows']}.csv", "validation": f"{own['folder']}/{own['eval_rows']}.csv"}
        source = {"class_path": "lit_trainer.data.sources.csv.CSVFile", "init_args": {"files": files}}
        run = {
            "model": {
                "class_path": task,
                "init_args": {"pretrained": own["model"], "optimizer": {"lr": own["lr"]}, **(model or {})},
            },
            "data": {
                "class_path": "lit_trainer.data.text.TextData",
                "init_args": {
                    "source": source,
                    "batch_size": own["batch_size"],
                    "max_length": own["max_length"],
                },
            },
            "trainer": {
                "max_epochs": 1000,
                "accelerator": "gpu" if own["device"] == "cuda" else "cpu",
                "devices": 1,
                "default_root_dir": f"{self.folder}/runs/{path.stem}",
                "log_every_n_steps": own["log_every_n_steps"],
                "check_val_every_n_epoch": 10**6,
                "num_sanity_val_steps": 0,
                "enable_model_summary": False,
                "callbacks": [{"class_path": "speed_ours.Paced"}, *(callbacks or [])],
                **(trainer or {}),
            },
            "test_after_fit": False,
        }
        if not is_tuned:
            run["machine"] = {"keep_freed_memory": False}
        path.write_text(yaml.safe_dump(run, sort_keys=False))
        return Measured(name, ["-m", "lit_trainer", "fit", "--config", str(path)], {} if is_tuned else _AS_TORCH_DOES)

    def _script(self, name: str, script: str, more: dict[str, Any]) -> Measured:
        settings = {"precision": "32-true", **self.settings, **more}
        return Measured(name, [str(HERE / script), json.dumps(settings)])


def training_systems(bench: Bench) -> list[Measured]:
    """Returns the systems that train the real model in float32, at equal settings, and lit_trainer as it comes."""
    grouped = {"train_sampling_strategy": "group_by_length"}
    return [
        bench.trainer(TRAINER_512, pad_to_max=True),
        bench.trainer(TRAINER_DEFAULT),
        bench.trainer(TRAINER_GROUPED, arguments=grouped),
        bench.by_hand(HAND),
        bench.ours(OURS_SAME, trainer={"precision": "32-true"}, is_tuned=False),
        bench.ours(OURS_32, trainer={"precision": "32-true"}),
        bench.ours(OURS, trainer={"precision": "auto"}),
    ]


def half_precision_systems(bench: Bench) -> list[Measured]:
    """Returns the systems that train the real model in half precision."""
    no_dropout = {"config": {"attention_probs_dropout_prob": 0.0}}
    systems = [
        bench.trainer(TRAINER_BEST, BF16, arguments={"train_sampling_strategy": "group_by_length"}),
        bench.by_hand(HAND_BF16, precision=BF16),
        bench.ours(OURS, trainer={"precision": "auto"}),
        bench.ours(OURS_NO_ATTENTION_DROPOUT, trainer={"precision": "auto"}, model=no_dropout),
    ]
    if bench.settings["device"] == "cuda":
        systems.append(bench.ours(OURS_16, trainer={"precision": "16-mixed"}))
    return systems


def score_systems(bench: Bench) -> list[Measured]:
    """Returns the systems whose time to a score is measured."""
    return [
        bench.ours(OURS, trainer={"precision": "auto"}),
        bench.trainer(TRAINER_BEST, BF16, arguments={"train_sampling_strategy": "group_by_length"}),
        bench.trainer(TRAINER_DEFAULT),
    ]


def small_systems(bench: Bench) -> list[Measured]:
    """Returns the systems that show what is added to a step, on a small model."""
    full = {"precision": "32-true"}
    systems = [
        bench.by_hand(SMALL_HAND, same_model=True),
        bench.ours(SMALL_PLAIN, task="speed_ours.PlainLightning", model={"keyed_dropout": False}, trainer=full),
        bench.ours(SMALL_BARE, trainer=full),
        bench.ours(SMALL_MONITOR, callbacks=_MONITOR, trainer=full),
        bench.ours(SMALL_GRADIENTS, callbacks=_GRADIENTS, trainer=full),
        bench.ours(SMALL_CALLBACKS, callbacks=_SCHEDULE + _GRADIENTS, trainer=full),
        bench.ours(SMALL_OVERRIDING, task="speed_ours.Overriding", trainer=full),
    ]
    for system in systems:  # what a loop adds, one thread does; others would only make it less even
        system.environment = {**system.environment, "OMP_NUM_THREADS": "1"}
    return systems
