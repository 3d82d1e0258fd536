"""A job's file holds what lets it survive, and a job that cannot work is not submitted."""

import subprocess
import sys
from pathlib import Path

import pytest

from lit_trainer.cli import main
from tests.tiny_recipe import told


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("recipe.yaml")
    path.touch()
    return path


def rendered(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    capsys.readouterr()
    main(["submit", "--dry-run", *args])
    text = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    return text.splitlines()


def test_the_file_holds_what_training_needs(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = rendered(
        capsys,
        *("--nodes", "2", "--gpus-per-node", "8", "--time", "4:00:00", "--partition", "big"),
        *("fit", "--config", "recipe.yaml", "--data.text", "a,b"),
    )
    assert lines[0] == "#!/bin/bash"
    for option in (
        *("job-name=lit-fit", "nodes=2", "ntasks-per-node=8", "gpus-per-node=8", "time=4:00:00", "partition=big"),
        *("signal=USR1@120", "requeue", "open-mode=append", "output=slurm/%x-%j.out"),
    ):
        assert f"#SBATCH --{option}" in lines
    assert lines[-1].startswith(f"srun --kill-on-bad-exit=1 --cpus-per-task=4 {sys.executable} -u -m lit_trainer fit")
    assert lines[-1].endswith(
        "--config recipe.yaml --data.text a,b --trainer.devices 8 --trainer.num_nodes 2 --ckpt_path auto"
    )
    before_commands = lines[: lines.index("set -euo pipefail")]
    assert all(line.startswith("#") for line in before_commands), "SLURM reads its options up to the first command"


def test_words_reach_the_command_as_they_are(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = rendered(capsys, "--time", "30", "--array", "0-3", "fit", "--a", "$HOME `x`", "--b={task}.yaml", "--c", "")[
        -1
    ]
    assert "--a '$HOME `x`' --b=\"$SLURM_ARRAY_TASK_ID\".yaml --c ''" in line


def test_an_array_has_a_log_for_each_element(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = rendered(capsys, "--time", "30", "--array", "0-3", "fit", "--seed_everything={task}")
    assert "#SBATCH --output=slurm/%x-%A_%a.out" in lines
    assert "#SBATCH --array=0-3" in lines


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "--ckpt_path auto"),
        ("--ckpt_path auto:best", "--ckpt_path auto:best"),
        ("--ckpt_path runs/a", "--ckpt_path auto:runs/a"),
        ("--ckpt_path=runs/a", "--ckpt_path auto:runs/a"),
    ],
)
def test_a_job_that_is_queued_again_goes_on_from_its_own_checkpoint(recipe, capsys, given, expected) -> None:
    line = rendered(capsys, "--time", "30", "fit", *given.split())[-1]
    assert f"{expected} " in f"{line} "


def test_a_test_keeps_its_checkpoint(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = rendered(capsys, "--time", "30", "test", "--ckpt_path", "best")[-1]
    assert "auto" not in line


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            "--time 30 --job-name bash fit",
            "--job-name bash is what Lightning takes for a session by hand; give another",
        ),
        ("--time 2 fit", "--time 2 is 120 s, which leaves nothing before the warning 120 s before the end; give more"),
        ("--time soon fit", "--time is soon but must be minutes, HH:MM:SS or D-HH:MM:SS"),
        ("--time 30 --nodes 0 fit", "--nodes is 0 but must be at least 1"),
        ("--time 30 --gpus-per-node 4 --tasks-per-node 1 fit", "--tasks-per-node is 1 but --gpus-per-node 4: each GPU"),
        (
            "--time 30 --gpus-per-node 4 fit --trainer.devices 8",
            "--trainer.devices is 8 but the job has 4; leave it out",
        ),
        (
            "--time 30 fit --trainer.num_nodes=2",
            "--trainer.num_nodes is 2 but the job has 1; leave it out, --nodes sets",
        ),
        ("--time 30 --array 0-3 fit", "--array is 0-3 but all its elements would do the same: use {task} somewhere"),
        (
            "--time 30 fit --seed_everything {task}",
            "the command contains {task}, the number of an array's element, but",
        ),
        ("--time 30 fit --config absent.yaml", "--config is absent.yaml, but there is no such file"),
        ("--time 30 --sbatch=--no-requeue fit", "--sbatch --no-requeue would undo what lets the job survive"),
        ("--time 30 --sbatch=x fit", "--sbatch is x but must be an option of sbatch"),
    ],
)
def test_a_job_that_cannot_work_is_refused(recipe, capsys, args, message) -> None:
    assert told(capsys, "submit", "--dry-run", *args.split()).startswith(message)


def test_without_slurm_that_is_said(recipe, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert told(capsys, "submit", "--time", "30", "fit") == (
        "there is no sbatch here: submit on a login node of the cluster, or look with --dry-run"
    )


def test_what_sbatch_refuses_is_told(recipe, capsys, monkeypatch, tmp_path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: big' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert "sbatch does not accept the job: sbatch: error: invalid partition specified: big" in told(
        capsys, "submit", "--time", "30", "--partition", "big", "fit"
    )


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("10:30", 630), ("4:00:00", 14400), ("2-0", 172800), ("1-12:30", 131400), ("0-0:5:9", 309)],
)
def test_times_are_read_as_slurm_does(time: str, seconds: int) -> None:
    from lit_trainer.submit import _seconds

    assert _seconds(time) == seconds


def test_submitting_imports_no_torch() -> None:
    code = "import sys; from lit_trainer.cli import main; main(['submit', '--dry-run', '--time', '30', 'fit']); "
    code += "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
