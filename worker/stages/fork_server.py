"""Imports the libraries of a stage once, and forks a process for each stage that is asked for.

Started by worker.processes.fork_client as `python -P -m worker.stages.fork_server <socket> <module>
...`. It holds no secret, runs no stage itself, starts no thread and no CUDA, and ends with its
supervisor.
"""

import gc
import importlib
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from traceback import print_exc
from typing import Any, NoReturn

import numpy as np
from threadpoolctl import ThreadpoolController

from service.contract.stages import EVENT_FD_VARIABLE
from service.prctl import die_with_parent
from worker.devices.cpus import affinity
from worker.processes import linux
from worker.processes.fork_protocol import (
    FORK,
    LAUNCHER,
    MAX_MESSAGE,
    MOST_DESCRIPTORS,
    READY,
    ForkRequest,
)
from worker.stages.base import EXIT_STOPPED, run_stage

_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_TRUE = {"1", "ON", "YES", "TRUE"}
_CUDA_FAULT = "the fork server has started CUDA"
# Functions that remember what devices there are: the server sees none.
_DEVICE_FUNCTIONS = (
    ("transformers.utils.import_utils", re.compile("cuda|accelerator|gpu|device|tf32|flash")),
    ("torch.utils._triton", re.compile("")),
)
_OFFLINE_CONSTANTS = (
    ("huggingface_hub.constants", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_DATASETS_OFFLINE"),
)


def serve(control: socket.socket, imports: list[str]) -> None:
    """Until the supervisor hangs up, which it does when it hears that this process is unfit."""
    supervisor = os.getppid()
    die_with_parent(supervisor)
    for module in imports:
        importlib.import_module(module)
    pools = ThreadpoolController()
    gc.collect()
    gc.freeze()  # what is there stays: no collection in a stage writes to these shared pages
    control.send(_fault().encode() or READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, len(FORK), 1)
        if message != FORK:
            return
        with socket.socket(fileno=descriptors[0]) as gate:
            fault = _fault()
            if fault:
                control.send(fault.encode())
            elif between := _fork():
                control.close()
                _become_stage(gate, supervisor, between, pools)


def _fault() -> str:
    """Why this process must not fork; empty when it may."""
    names = linux.threads()
    if len(names) > 1:
        return f"the fork server has threads: {', '.join(names[1:])}"
    torch = sys.modules.get("torch")
    return _CUDA_FAULT if torch and torch.cuda.is_initialized() else ""


def _fault_of_fork() -> str:
    """Why this process, which was forked, must not be a stage; empty when it may. Only here torch
    says that CUDA was started by a mere count of the devices."""
    torch = sys.modules.get("torch")
    return _CUDA_FAULT if torch and torch.cuda._is_in_bad_fork() else ""


def _fork() -> int:
    """Twice: the process between ends at once, so that the supervisor adopts the new one.

    Returns 0 here, and in the new process the pid of the one between.
    """
    between = os.fork()
    if between == 0:
        between = os.getpid()
        if os.fork() == 0:
            return between
        os._exit(0)
    os.waitpid(between, 0)
    return 0


def _become_stage(
    gate: socket.socket, supervisor: int, between: int, pools: ThreadpoolController
) -> NoReturn:
    """What a new interpreter would be by now; then the stage. Never returns into the server."""
    try:
        run(_wait_for_request(gate, supervisor, between), pools)
    except BaseException:
        with suppress(OSError):
            print_exc()
    os._exit(1)


def run(request: ForkRequest, pools: ThreadpoolController) -> None:
    """Run the stage that `request` names, in a process that has taken it over; ends the process."""
    _set_late_constants(request.environment)
    _forget_devices()
    if request.command[3] == LAUNCHER:
        # It forks once more, so nothing may start a thread in it.
        importlib.import_module(LAUNCHER).main(partial(_fork_rank, pools))
    _run(request.command[3], pools)


def _run(module: str, pools: ThreadpoolController) -> None:
    pools.limit(limits=_blas_threads(os.environ), user_api="blas")
    _draw_new_seeds()
    run_stage(importlib.import_module(module).main)


def _fork_rank(pools: ThreadpoolController, words: list[str], variables: Mapping[str, str]) -> int:
    """A child of a launcher that was forked itself (`worker.stages.launch_ranks.StartRank`)."""
    launcher = os.getpid()
    rank = os.fork()
    if rank:
        return rank
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        die_with_parent(launcher)
        os.environ.update(variables)
        sys.argv[:] = words
        linux.set_command_line([*sys.orig_argv[:3], *words])
        # Libraries have read the variable long ago.
        sys.modules["torch"].set_num_threads(int(variables["OMP_NUM_THREADS"]))
        _run(words[0], pools)
    except BaseException:
        with suppress(OSError):
            print_exc()
    os._exit(1)


def _wait_for_request(gate: socket.socket, supervisor: int, between: int) -> ForkRequest:
    """Be the supervisor's child, in a session of its own, until it says what to do."""
    while os.getppid() != supervisor:
        if select.select([gate], [], [], 0)[0]:  # it has given up, or ended
            os._exit(EXIT_STOPPED)
        time.sleep(0.0005)
    os.setsid()
    die_with_parent(supervisor)
    gate.send(f"{os.getpid()} {between} {_fault_of_fork()}".encode())
    try:
        message, descriptors, _, _ = socket.recv_fds(gate, MAX_MESSAGE, MOST_DESCRIPTORS)
    except ConnectionResetError:  # it hung up and had not even heard the pid
        message = b""
    if not message:
        os._exit(EXIT_STOPPED)
    gate.close()
    request = ForkRequest.model_validate_json(message)
    # What follows are the locks on the stage's GPUs, which stay open until the stage has ended.
    output, events, *_ = descriptors
    take_over(request, output, events)
    return request


def take_over(request: ForkRequest, output: int, events: int) -> None:
    """The stage's command line, folder, output and environment in the place of the server's."""
    os.chdir(request.folder)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    # The one variable that an interpreter sets for itself (PEP 538).
    coerced = {"LC_CTYPE": os.environ["LC_CTYPE"]} if "LC_CTYPE" in os.environ else {}
    os.environ.clear()
    os.environ.update({**coerced, **request.environment, EVENT_FD_VARIABLE: str(events)})
    sys.argv[:] = request.command[3:]
    sys.orig_argv[:] = request.command
    linux.set_command_line(request.command)


def _set_late_constants(environment: dict[str, str]) -> None:
    """Give libraries what they would have read from the LATE variables when they were imported.

    HF_TOKEN is looked up at each use.
    """
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    is_offline = offline.upper() in _TRUE
    for name, constant in _OFFLINE_CONSTANTS:
        module: Any = sys.modules.get(name)
        if module is not None:
            setattr(module, constant, is_offline)


def _forget_devices() -> None:
    """What libraries found out about devices when they were imported."""
    for name, pattern in _DEVICE_FUNCTIONS:
        module = sys.modules.get(name)
        for function in list(vars(module).values()) if module is not None else []:
            if hasattr(function, "cache_clear") and pattern.search(function.__name__):
                function.cache_clear()


def _draw_new_seeds() -> None:
    """What is not seeded is random in each process; Python's own generator sees to that itself."""
    np.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _blas_threads(environment: Mapping[str, str]) -> int:
    """As OpenBLAS counts when it is loaded; the server has it loaded with one thread."""
    for name in _BLAS_VARIABLES:
        value = environment.get(name, "")
        if value.isdecimal() and int(value) > 0:
            return int(value)
    return affinity()


if __name__ == "__main__":
    _descriptor, *_imports = sys.argv[1:-1]  # the last one only takes room
    linux.set_command_line(sys.orig_argv[:-1])
    serve(socket.socket(fileno=int(_descriptor)), _imports)
