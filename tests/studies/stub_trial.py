"""Stands for ``lit-trainer fit`` as a trial: its value is 1 - (lr - 0.3)^2, without torch.

A learning rate above 0.9 fails, and one of exactly 0.5 waits to be interrupted. What is below 0.1 is said to be pruned.
"""

import json
import os
import sys
import time
from pathlib import Path

import yaml

words = sys.argv[1:]
settings = yaml.safe_load(Path(words[-1]).read_text())["trainer"]
report = settings["callbacks+"][0]["init_args"]
lr = float(next(word.partition("=")[2] for word in words if word.startswith("--model.optimizer.lr=")))
print(os.getpid(), flush=True)
if lr > 0.9:
    sys.exit("lit-trainer: error: the loss is NaN")
if lr == 0.5:
    time.sleep(60)
(Path(settings["default_root_dir"]) / "version_0" / "checkpoints").mkdir(parents=True)
if lr < 0.1:
    from lit_trainer.studies.journal import load_trial

    load_trial(Path(report["folder"]), report["number"]).report(0.0, 1)
result = {"value": 1 - (lr - 0.3) ** 2, "pruned": lr < 0.1, "num_steps": 3}
(Path(report["result"]) / "trial.json").write_text(json.dumps(result))
