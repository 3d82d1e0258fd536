"""Which processes were started together is found for each way to start them."""

import pytest

from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.preflight.launch import Launch, find_launch

SLURM = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_NNODES": "2",
    "SLURM_NODELIST": "a,b",
}
TORCHRUN = {
    "RANK": "9",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_a_job_of_slurm_meets_where_lightning_does() -> None:
    assert find_launch(environment=SLURM) == Launch(3, 1, 4, 2, "a", 18456, "SLURM job 123456")
    chosen = find_launch(environment={**SLURM, "MASTER_ADDR": "b", "MASTER_PORT": "29999"})
    assert chosen is not None
    assert (chosen.address, chosen.port) == ("b", 29999)


def test_torchrun_goes_before_slurm_and_listens_itself() -> None:
    assert find_launch(environment={**SLURM, **TORCHRUN}) == Launch(9, 1, 16, 2, "a", 29500, "job2", True)


def test_nodes_that_are_started_by_hand_meet_by_their_first_processes() -> None:
    variables = {"NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    assert find_launch(2, variables) == Launch(1, 0, 2, 2, "a", 29500)
    assert find_launch(1, variables) is None
    assert find_launch(2, {**variables, "LOCAL_RANK": "1"}) is None, "a process that Lightning has started"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {**SLURM, "SLURM_NTASKS": "1"},
        {**SLURM, "SLURM_JOB_NAME": "bash"},
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"},
        {**TORCHRUN, "WORLD_SIZE": "1"},
        {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
    ],
)
def test_one_process_alone_is_no_launch(variables: dict[str, str]) -> None:
    assert find_launch(environment=variables) is None


@pytest.mark.parametrize(
    ("devices", "expected"), [(2, 2), ("2", 2), ("0,1,", 2), ([0, 3], 2), ("auto", None), (-1, None), ("-1", None)]
)
def test_devices_are_counted_as_the_trainer_takes_them(devices: object, expected: int | None) -> None:
    run = IntendedRun.of_settings({"trainer.devices": devices, "trainer.accelerator": "cpu"})
    assert run.devices == expected
    assert run.uses_gpus is False
