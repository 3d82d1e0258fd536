"""A job of SLURM that training could not run in is told."""

import shutil

import pytest

from lit_trainer.preflight.job import job
from tests.preflight.told import kinds, texts

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "2",
}


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_JOB_NAME": "bash"}, "the job's name is bash, one of bash and interactive: Lightning takes it for a"),
        (
            {"SLURM_STEP_ID": ""},
            "4 tasks but no srun: this process would wait for ever for the others; put srun before",
        ),
        ({"SLURM_NTASKS_PER_NODE": ""}, "the job was made with --ntasks alone, which Lightning refuses"),
        ({"SLURM_NTASKS_PER_NODE": "4"}, "trainer.devices is 2 but --ntasks-per-node is 4: make them equal"),
        ({"SLURM_NNODES": "1"}, "trainer.num_nodes is 2 but --nodes is 1: make them equal"),
        ({"SLURM_GPUS_ON_NODE": "1"}, "2 tasks on this node but 1 GPUs: make --ntasks-per-node and --gpus-per-node"),
        (
            {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "1"},
            "CUDA_VISIBLE_DEVICES is '1' but 2 tasks run on this node: Lightning has each take the GPU of its number",
        ),
    ],
)
def test_a_job_that_training_could_not_run_in_is_wrong(variables, message) -> None:
    changed = {name: value for name, value in {**JOB, **variables}.items() if value}
    (wrong,) = texts(job(2, 2, changed), "wrong")
    assert wrong.startswith(message)


def test_a_job_that_fits_is_fine() -> None:
    gpus = {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert kinds(job(2, 2, JOB)) == kinds(job(2, 2, {**JOB, **gpus})) == ["ok"]
    assert kinds(job(2, 2, {**JOB, "SLURM_GPUS_ON_NODE": "1"}, uses_gpus=False)) == ["ok"]


def test_outside_of_a_job_and_under_torchrun_there_is_nothing_to_say() -> None:
    assert not kinds(job(2, 2, {}))
    assert not kinds(job(8, 2, {**JOB, "TORCHELASTIC_RUN_ID": "1"}))


def test_a_session_by_hand_with_one_process_is_no_more_than_worth_a_look() -> None:
    assert kinds(job(None, None, {**JOB, "SLURM_JOB_NAME": "interactive", "SLURM_STEP_NUM_TASKS": "1"})) == ["look"]


def test_without_scontrol_no_job_is_queued_again(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (wrong,) = texts(job(2, 2, JOB), "wrong")
    assert wrong.startswith("there is no scontrol: the job cannot have itself queued again")
