"""What a process makes of the variables of its job."""

from pathlib import Path

import pytest

from lit_trainer import slurm


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, "7"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "bash"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "interactive"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}, "5_2"),
    ],
)
def test_an_element_of_an_array_has_an_id_of_its_own(variables, expected) -> None:
    assert slurm.job_id(variables) == expected


@pytest.mark.parametrize(
    ("script", "fault"),
    [("exit 0", None), ("echo 'Requested operation is disabled' >&2; exit 1", "Requested operation is disabled")],
)
def test_a_refusal_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, fault: str) -> None:
    command = tmp_path / "scontrol"
    command.write_text(f'#!/bin/sh\n[ "$*" = "requeue 5_2" ] || exit 3\n{script}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert slurm.requeue("5_2") == fault


def test_without_scontrol_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no scontrol on this node" in str(slurm.requeue("7"))


def test_a_job_continues_its_run_of_weights_and_biases() -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2", "SLURM_STEP_ID": "0"}
    slurm.name_run_after_job(environment)
    assert environment["WANDB_RUN_ID"] == "slurm-5_2-0"
    assert environment["WANDB_RESUME"] == "allow"
    given = {"SLURM_JOB_ID": "7", "WANDB_RUN_ID": "mine"}
    slurm.name_run_after_job(given)
    assert given["WANDB_RUN_ID"] == "mine"
    outside: dict[str, str] = {}
    slurm.name_run_after_job(outside)
    assert not outside
