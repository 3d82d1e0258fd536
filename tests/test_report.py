"""The command writes the page of a run quickly, and tells a mistake in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from lit_trainer.cli import main
from tests.reporting.folders import make_run
from tests.tiny_recipe import told


def test_it_writes_the_page_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(make_run(tmp_path / "run"))])
    assert capsys.readouterr().out == f"{tmp_path}/run/report.html\n"
    main(["report", str(tmp_path / "run"), "--path", str(tmp_path / "elsewhere" / "page.html")])
    written = [path.read_text().replace("elsewhere", "") for path in tmp_path.rglob("*.html")]
    assert len(written) == 2
    assert written[0] == written[1], "the same run has the same page"


def test_what_cannot_be_read_is_told_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (make_run(tmp_path) / "run.json").write_text("{")
    main(["report", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"left out: {tmp_path}/run.json does not tell about a run: ")
    assert lines[1:] == [f"{tmp_path}/report.html"]


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"{tmp_path} is not the folder of a run: it has neither config.yaml nor metrics.csv"
    assert told(capsys, "report", str(tmp_path)) == expected
    assert not list(tmp_path.iterdir())


def test_it_waits_neither_for_torch_nor_for_what_it_does_not_need(tmp_path: Path) -> None:
    script = f"""
import sys
from lit_trainer.cli import main
main(["report", {str(make_run(tmp_path))!r}])
heavy = {{"torch", "lightning", "transformers", "datasets", "jsonargparse", "pandas", "matplotlib.pyplot"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
