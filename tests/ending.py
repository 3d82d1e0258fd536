"""How a script that has trained on several ranks ends."""

import os
import sys
from typing import NoReturn


def end() -> NoReturn:
    """Ends the process without the interpreter's tidying up, once all that matters is written.

    Threads of gloo that a plain Trainer leaves behind abort a process that has succeeded (PyTorch #190489). The
    commands of this package leave the process group themselves, which has tests of its own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
