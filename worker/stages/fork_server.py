"""Imports the libraries of stages once, and forks a process for each requested stage.

Started by worker.processes.fork_client as `python -P -m worker.stages.fork_server <socket> <module>
...`. It has no secrets, runs no stage itself, starts neither threads nor CUDA, and ends with
its supervisor.
"""

import gc
import importlib
import os
import re
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from traceback import print_exc
from typing import Any, NoReturn

import numpy as np
from threadpoolctl import ThreadpoolController

from service.contract.stage.stages import EVENT_FD_VARIABLE
from service.system import inherited_secrets, quick_imports
from service.system.prctl import die_with_parent
from worker.devices.cpus import affinity
from worker.processes import linux
from worker.processes.fork_protocol import (
    FORK,
    LAUNCHER,
    MAX_MESSAGE,
    MOST_DESCRIPTORS,
    PREDICTOR,
    READY,
    ForkRequest,
)
from worker.sandbox import confinement
from worker.sandbox.view import View
from worker.stages.base import EXIT_STOPPED, run_stage

_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_TRUE = {"1", "ON", "YES", "TRUE"}
_CUDA_FAULT = "the fork server has started CUDA"
# Functions that cache which devices exist: the server sees none.
_DEVICE_FUNCTIONS = (
    ("transformers.utils.import_utils", re.compile("cuda|accelerator|gpu|device|tf32|flash")),
    ("torch.utils._triton", re.compile("")),
)
_HUB_LIBRARIES = {"huggingface_hub", "transformers", "datasets", "accelerate"}
_OFFLINE_CONSTANTS = (
    ("huggingface_hub.constants", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_DATASETS_OFFLINE"),
)


def serve(control: socket.socket, imports: list[str]) -> None:
    """Serve until the supervisor closes the socket, as it does if this process is unfit."""
    supervisor = os.getppid()
    die_with_parent(supervisor)
    with quick_imports.without_collections():
        for module in imports:
            importlib.import_module(module)
    pools = ThreadpoolController()
    gc.collect()
    gc.freeze()  # no garbage collection in a stage writes to these shared pages
    control.send(_fault().encode() or READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, len(FORK), 1)
        if message != FORK:
            return
        with socket.socket(fileno=descriptors[0]) as gate:
            fault = _fault()
            if fault:
                control.send(fault.encode())
            elif intermediate := _fork():
                control.close()
                _become_stage(gate, supervisor, intermediate, pools)


def _fault() -> str:
    """Why this process must not fork; empty if it may."""
    names = linux.threads()
    if len(names) > 1:
        return f"the fork server has threads: {', '.join(names[1:])}"
    torch = sys.modules.get("torch")
    return _CUDA_FAULT if torch and torch.cuda.is_initialized() else ""


def _fault_of_fork() -> str:
    """Why this forked process must not become a stage; empty if it may. Only after the fork torch
    reports that counting the devices has started CUDA."""
    torch = sys.modules.get("torch")
    return _CUDA_FAULT if torch and torch.cuda._is_in_bad_fork() else ""


def _fork() -> int:
    """Fork twice: the intermediate process ends at once, so that the supervisor adopts the new one.

    Returns 0 here, and the pid of the intermediate process in the new one.
    """
    intermediate = os.fork()
    if intermediate == 0:
        intermediate = os.getpid()
        if os.fork() == 0:
            return intermediate
        os._exit(0)
    os.waitpid(intermediate, 0)
    return 0


def _become_stage(
    gate: socket.socket, supervisor: int, intermediate: int, pools: ThreadpoolController
) -> NoReturn:
    """Become what a new interpreter would be, then run the stage. Never returns."""
    try:
        run(_wait_for_request(gate, supervisor, intermediate), pools)
    except BaseException:
        with suppress(OSError):
            print_exc()
    os._exit(1)


def run(request: ForkRequest, pools: ThreadpoolController) -> None:
    """Run the stage of `request` in this process, after `take_over`; ends the process."""
    _set_late_constants(request.environment)
    _forget_devices()
    if request.command[3] == LAUNCHER:
        # The launcher forks again, so it must not start a thread.
        importlib.import_module(LAUNCHER).main(partial(_fork_rank, pools))
    _run(request.command[3], pools)


def _run(module: str, pools: ThreadpoolController) -> None:
    pools.limit(limits=_blas_threads(os.environ), user_api="blas")
    _draw_new_seeds()
    main = importlib.import_module(module).main
    if module == PREDICTOR:
        main()
    run_stage(main)


def _fork_rank(pools: ThreadpoolController, words: list[str], variables: Mapping[str, str]) -> int:
    """A rank, forked from a forked launcher (`worker.stages.launch_ranks.StartRank`)."""
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
        # Libraries have already read the variable.
        sys.modules["torch"].set_num_threads(int(variables["OMP_NUM_THREADS"]))
        _run(words[0], pools)
    except BaseException:
        with suppress(OSError):
            print_exc()
    os._exit(1)


def _wait_for_request(gate: socket.socket, supervisor: int, intermediate: int) -> ForkRequest:
    """Wait as the supervisor's child, in a session of its own, for its request."""
    while os.getppid() != supervisor:
        if select.select([gate], [], [], 0)[0]:  # the supervisor has given up or ended
            os._exit(EXIT_STOPPED)
        time.sleep(0.0005)
    os.setsid()
    die_with_parent(supervisor)
    gate.send(f"{os.getpid()} {intermediate} {_fault_of_fork()}".encode())
    try:
        message, descriptors, _, _ = socket.recv_fds(gate, MAX_MESSAGE, MOST_DESCRIPTORS)
    except ConnectionResetError:  # the supervisor closed the socket before it read the pid
        message = b""
    if not message:
        os._exit(EXIT_STOPPED)
    gate.close()
    request = ForkRequest.model_validate_json(message)
    # The last descriptors are the locks on the stage's GPUs; they stay open until its end.
    output, events, *rest = descriptors
    if request.has_stdin:
        stdin = rest.pop(0)
        os.dup2(stdin, 0)
        os.close(stdin)
    take_over(request, output, events, secrets=rest[0] if request.has_secrets else None)
    if request.view is not None:
        _confine(View.from_json(request.view))
    return request


def _confine(view: View) -> None:
    """Before anything of a user's is read. This process stays outside and its child returns."""
    try:
        confinement.enter(view)
    except OSError as error:
        confinement.report(error)


def take_over(request: ForkRequest, output: int, events: int, secrets: int | None = None) -> None:
    """Replace the server's command line, folder, output and environment with the stage's.

    `secrets`: the pipe that `run_stage` reads them from.
    """
    os.chdir(request.folder)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    # The only variable that an interpreter sets itself (PEP 538).
    coerced = {"LC_CTYPE": os.environ["LC_CTYPE"]} if "LC_CTYPE" in os.environ else {}
    os.environ.clear()
    os.environ.update({**coerced, **request.environment, EVENT_FD_VARIABLE: str(events)})
    if secrets is not None:
        os.environ[inherited_secrets.VARIABLE] = str(secrets)
    tempfile.tempdir = None  # TMPDIR is another one now
    sys.argv[:] = request.command[3:]
    sys.orig_argv[:] = request.command
    linux.set_command_line(request.command)


def _set_late_constants(environment: dict[str, str]) -> None:
    """Give libraries the values of LATE variables that they would have read when imported.

    The proxies, HOME and HF_TOKEN need nothing: they are read at each use.
    """
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    is_offline = offline.upper() in _TRUE
    for name, constant in _OFFLINE_CONSTANTS:
        module: Any = sys.modules.get(name)
        if module is not None:
            setattr(module, constant, is_offline)
    hub = sys.modules.get("huggingface_hub.constants")
    home = environment.get("HF_HOME")
    if hub is not None and home is not None and home != hub.HF_HOME:
        _move_constants(hub.HF_HOME, home)


def _move_constants(before: str, home: str) -> None:
    """Every path below HF_HOME that a library has made when it was imported."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _HUB_LIBRARIES:
            continue
        for constant, value in list(vars(module).items()):
            if isinstance(value, str | Path) and f"{value}/".startswith(f"{before}/"):
                setattr(module, constant, type(value)(f"{home}{str(value)[len(before) :]}"))


def _forget_devices() -> None:
    """Clear what libraries have cached about devices when they were imported."""
    for name, pattern in _DEVICE_FUNCTIONS:
        module = sys.modules.get(name)
        for function in list(vars(module).values()) if module is not None else []:
            if hasattr(function, "cache_clear") and pattern.search(function.__name__):
                function.cache_clear()


def _draw_new_seeds() -> None:
    """Reseed unseeded generators, so that each process differs; Python reseeds its own."""
    np.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _blas_threads(environment: Mapping[str, str]) -> int:
    """The number of threads that OpenBLAS would choose; the server loaded it with one."""
    for name in _BLAS_VARIABLES:
        value = environment.get(name, "")
        if value.isdecimal() and int(value) > 0:
            return int(value)
    return affinity()


if __name__ == "__main__":
    _descriptor, *_imports = sys.argv[1:-1]  # the last one only reserves room
    linux.set_command_line(sys.orig_argv[:-1])
    serve(socket.socket(fileno=int(_descriptor)), _imports)
