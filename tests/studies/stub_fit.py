"""Stands for ``lit-trainer fit`` where a test is about what is done with runs: answers at once, without torch.

Usage: stub_fit.py --config SETTINGS. A learning rate of 0 fails; of 1 it waits to be interrupted.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.studies.finished_runs import write_run

settings = yaml.safe_load(Path(sys.argv[2]).read_text())
root, lr = Path(settings["trainer"]["default_root_dir"]), settings["model"]["init_args"]["optimizer"]["lr"]
print(os.getpid(), flush=True)
if lr == 0:
    sys.exit("lit-trainer: error: model.optimizer.lr is 0")
if lr == 1:
    time.sleep(60)
random = np.random.default_rng(settings["seed_everything"])
labels = np.arange(100) % 2
decided = np.where(random.random(100) < lr, 1 - labels, labels)
folder = root / f"version_{len(list(root.glob('version_*')))}"
write_run(folder, labels, decided)
(folder / "checkpoints").mkdir()
