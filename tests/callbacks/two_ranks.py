"""Runs a piece of code on two ranks, each a process of its own, with a hard end."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 120


def run_on_two_ranks(code: str, folder: Path) -> list[str]:
    """Runs code on ranks 0 and 1 as Lightning's launcher would start them, and returns what each printed.

    Args:
        code: Python source; Lightning finds rank and world size in the environment, as ``devices=2, strategy="ddp"``.
        folder: Where the processes run, and write.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    processes = []
    for rank in range(2):
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "2",
            "NODE_RANK": "0",
            "LOCAL_RANK": str(rank),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, "-W", "ignore", "-c", f"{code}\nfrom tests.ending import end\nend()\n"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **streams))
    try:
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [output for output, _ in outputs]
