"""The files of jobs can be read by the shell and hold what lets a job survive."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "configs" / "slurm").glob("*.sbatch"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_holds_what_lets_its_job_survive(file: Path) -> None:
    text = file.read_text()
    subprocess.run(["bash", "-n", file], check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE))
    assert options.keys() >= {"requeue", "nodes", "ntasks-per-node", "time"}
    assert options["signal"] == "USR1@120"
    assert options["open-mode"] == "append"
    assert options["job-name"] not in ("bash", "interactive")
    assert ("%A_%a" if "array" in options else "%j") in options["output"]
    assert options["gpus-per-node"] == options["ntasks-per-node"]
    assert f"--trainer.devices {options['ntasks-per-node']} " in text
    assert options["nodes"] == "1" or f"--trainer.num_nodes {options['nodes']} " in text
    assert "--ckpt_path auto" in text
    for config in re.findall(r"--config (configs/[\w/]+\.yaml)", text):
        assert (ROOT / config).is_file()
    for overlay in re.findall(r"overlays=\((.*)\)", text):
        assert all((ROOT / f"configs/overlays/{name}.yaml").is_file() for name in overlay.split())
