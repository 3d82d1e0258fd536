"""The command for torchrun in ``configs/slurm/README.md``: two nodes, interrupted at one of them, go on."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.documents import blocks
from tests.tiny_recipe import write_recipe

pytestmark = pytest.mark.slow

COMMAND = next(
    command
    for block in blocks("configs/slurm/README.md")
    for command in block.commands
    if command.startswith("torchrun")
)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def start(port: int, *args: str) -> list[subprocess.Popen[str]]:
    """Starts the command as on each of two nodes, with a process each."""
    assert " 8 " in COMMAND
    command = COMMAND.replace("FIRST_NODE:29500", f"localhost:{port}").replace("FILE", "recipe.yaml")
    words = [*command.replace(" 8 ", " 1 ").split(), *args]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    variables |= {"GLOO_SOCKET_IFNAME": "lo", "STEP_SECONDS": "0.05"}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    return [
        subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]


def end(nodes: list[subprocess.Popen[str]]) -> str:
    try:
        return "".join(node.communicate(timeout=120)[0] for node in nodes)
    finally:
        for node in nodes:
            node.kill()


def test_two_nodes_are_interrupted_at_one_and_go_on(tmp_path, tiny_bert, films, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    recipe = yaml.safe_load(write_recipe(tiny_bert, films).read_text())
    recipe["model"]["class_path"] = "tests.integration.slow_task.SlowTask"
    recipe["trainer"]["max_epochs"] = 20
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    nodes = start(free_port())
    until = time.monotonic() + 120
    while not list(Path("runs/films").rglob("*.ckpt")):
        assert time.monotonic() < until
        assert nodes[0].poll() is None, end(nodes)
        time.sleep(0.1)
    nodes[1].terminate()
    said = end(nodes)
    (file,) = Path("runs/films").rglob("preempted-step=*.ckpt")
    assert f"SIGTERM: saved {file}, to go on from there" in said
    assert said.count("Pre-flight: 2 ranks meet") == 1
    resumed = start(free_port(), "--ckpt_path", "runs/films/version_0")
    said = end(resumed)
    assert [node.returncode for node in resumed] == [0, 0], said
    for rank in range(2):
        steps = [int(line.split()[0]) for line in Path(f"steps-{rank}.txt").read_text().splitlines()]
        assert steps == list(range(60)), "nothing lost and nothing repeated"
