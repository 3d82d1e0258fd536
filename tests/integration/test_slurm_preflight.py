"""On a real SLURM of two nodes, a job whose nodes could not train together ends in seconds and says why."""

import shutil
import time
from pathlib import Path

import pytest

from tests.integration.conftest import END, Slurm, Submit, finish

pytestmark = pytest.mark.slow


def start(slurm: Slurm, folder: Path, name: str, command: str) -> str:
    """Submits a command that each of two nodes runs; returns the job's id."""
    (folder / f"{name}.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=5 --open-mode=append\n"
        f"#SBATCH --job-name={name} --output={name}-%j.out\n"
        "export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo STEP_SECONDS=0\n"
        f"srun --kill-on-bad-exit=1 bash -c '{command}'\n"
    )
    return slurm.run("sbatch", "--parsable", f"{name}.sbatch", cwd=folder)


def log_of_failure(slurm: Slurm, folder: Path, name: str, job: str) -> str:
    info = slurm.wait(job, *END, seconds=90)
    log = (folder / f"{name}-{job}.out").read_text()
    assert info["JobState"] == "FAILED", log
    assert "Traceback" not in log
    return log


FIT = "exec python -m lit_trainer fit --config recipe.yaml --trainer.num_nodes 2 --trainer.devices 1"


def test_two_nodes_that_are_alike_pass_and_train(slurm: Slurm, folder: Path, submit: Submit) -> None:
    log = finish(slurm, folder, "alike", submit("alike", step_seconds=0))
    (line,) = [line for line in log.splitlines() if line.startswith("Pre-flight: ")]
    assert "2 ranks meet; an all-reduce of 4 KiB takes" in line
    assert "all nodes have the same code, packages, settings and data" in line


def test_a_node_with_other_settings_code_and_data_is_named_and_nothing_is_trained(slurm, folder) -> None:
    for node in ("n1", "n2"):
        place = folder / node
        place.mkdir()
        for name in ("recipe.yaml", "films.csv"):
            shutil.copy(folder / name, place)
        (place / "own_loss.py").write_text("")
    other = folder / "n2"
    (other / "films.csv").write_text((folder / "films.csv").read_text().replace("good", "fine"))
    (other / "own_loss.py").write_text("factor = 2\n")
    recipe = (other / "recipe.yaml").read_text()
    assert "lr: 0.001" in recipe
    (other / "recipe.yaml").write_text(recipe.replace("lr: 0.001", "lr: 0.002"))
    job = start(slurm, folder, "unlike", f"cd $SLURMD_NODENAME; {FIT}")
    log = log_of_failure(slurm, folder, "unlike", job)
    assert "lit-trainer: error: this keeps ranks from training:" in log
    assert "- code: own_loss.py on n2 (rank 1) is not the one on n1 (rank 0): give all nodes the same files" in log
    assert (
        "- setting: model.optimizer.lr is 0.002 on n2 (rank 1), 0.001 on n1 (rank 0): start all nodes with the same"
        " files and flags"
    ) in log
    assert "- data: data.source.files on n2 (rank 1) is not the one on n1 (rank 0): copy the files anew" in log
    assert log.count("lit-trainer: error") == 1, "rank 0 tells for all"
    assert not list(folder.glob("n?/steps-*")), "nothing was trained"


def test_a_node_that_does_not_come_is_named_in_seconds(slurm: Slurm, folder: Path) -> None:
    begun = time.monotonic()
    job = start(
        slurm, folder, "alone", f"if [ $SLURM_PROCID = 1 ]; then exec sleep 300; fi; {FIT} --preflight_seconds 5"
    )
    log = log_of_failure(slurm, folder, "alone", job)
    assert "lit-trainer: error: pre-flight: rank 1 of 2 did not come to n1:" in log
    assert time.monotonic() - begun < 60


def test_the_doctor_speaks_for_each_node(slurm: Slurm, folder: Path) -> None:
    doctor = "exec python -m lit_trainer doctor --devices 2 --num_nodes 2"
    job = start(slurm, folder, "doctor", f"export GLOO_SOCKET_IFNAME=ib$SLURM_PROCID; {doctor}")
    log = log_of_failure(slurm, folder, "doctor", job)
    for node, network in (("n1", "ib0"), ("n2", "ib1")):
        assert f"wrong {node}: trainer.devices is 2 but --ntasks-per-node is 1: make them equal" in log
        assert f"wrong {node}: GLOO_SOCKET_IFNAME is {network} but this machine has lo" in log
