"""A process that computes nothing, for tests of a service's behaviour: what a text says is what it does."""

from __future__ import annotations

import json
import os
import time
from multiprocessing.connection import Connection

from decompx_fast.processes import begin_as_child
from decompx_fast.serve.messages import Load, Outcome, Work


def stub(connection: Connection, load: Load, number: int) -> None:
    """Answers with each text itself and the size of its batch. ``sleep S`` takes so long; ``die`` ends the process;
    ``refuse`` and ``break`` cannot be explained."""
    begin_as_child()
    connection.send(("ready", {}))
    while True:
        try:
            batch: Work = connection.recv()
        except EOFError:
            return
        connection.send(("begun",))
        for n, one in enumerate(batch.texts):
            connection.send(("outcome", n, _outcome(str(one.text), len(batch.texts), number)))
        connection.send(("done",))


def broken(connection: Connection, load: Load, number: int) -> None:
    """Cannot load its model."""
    begin_as_child()
    connection.send(("failed", "ModelLoadError", f"{load.path} is no model: name another one"))
    connection.recv()


def _outcome(text: str, size: int, number: int) -> Outcome:
    word, _, rest = text.partition(" ")
    if word == "sleep":
        time.sleep(float(rest))
    elif word == "die":
        os._exit(9)
    elif word == "refuse":
        return Outcome(error="targets='x' is no class: use one of the model's", error_type="OptionError")
    elif word == "break":
        return Outcome(error="unexpected KeyError at a.py:1", error_type="InternalError")
    about = {"text": text, "batch": size, "worker": number, "pid": os.getpid()}
    body = json.dumps(about).encode()
    return Outcome(body=body, prediction=b"{}", scores=(1.0, 2.0), shape=(2, 1), tokens=2, completeness_error=1e-6)
