"""The notebooks are small and without output, and they run from the first cell to the last."""

from pathlib import Path

import nbformat
import pytest

from tests.documents import ROOT, copy_configs

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def name(path: Path) -> str:
    return path.stem


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_is_kept_without_output(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ")
    for cell in notebook.cells:
        assert cell.cell_type == "markdown" or (cell.outputs, cell.execution_count) == ([], None), cell.id
        assert not cell.metadata, cell.id
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}, "the version of one machine's Python"
    assert path.stat().st_size < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(zmq|jupyter_client|nbclient)")  # what runs a kernel, not us
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real data and weights, and four steps of training."""
    from nbclient import NotebookClient

    copy_configs(tmp_path)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setenv("NOTEBOOK_FLAGS", "--config ../configs/overlays/smoke.yaml --trainer.accelerator cpu")
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    assert {file.name for file in tmp_path.iterdir()} == {"configs", "notebooks"}, "it writes beside itself alone"
