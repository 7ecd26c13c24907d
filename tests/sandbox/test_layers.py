"""Which layers are used, and what a stage finds behind each of them alone."""

import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from service.system import own_packages
from worker.sandbox import landlock, layers, machine
from worker.sandbox.confined_command import confined
from worker.sandbox.view import Layer, View

# transformers imports the package that replaces the standard one, if MLflow is installed.
_VERSION = (
    "import importlib_metadata, importlib.metadata as m; print(m.version('finetune-service'))"
)


def test_a_stage_reads_our_version(layer: Layer) -> None:
    """In a source tree its metadata lies next to our packages, and Python finds it first."""
    view = View(
        (layer,),
        read=tuple(machine.readable({})),
        devices=machine.devices(with_gpus=False),
        listed=machine.import_folders(),
    )
    variables = {**os.environ, **own_packages.variables({})}
    with confined([sys.executable, "-P", "-c", _VERSION], view) as (command, passed):
        done = subprocess.run(
            command, env=variables, pass_fds=passed, capture_output=True, text=True, cwd="/"
        )
    assert (done.stdout.strip(), done.stderr) == (version("finetune-service"), "")


# What no version of Landlock alone covers.
_OPEN = [
    "send UDP",
    "connect to unix sockets whose path it knows",
    "see the names and command lines of other processes",
    "read, change and leave behind files in /dev/shm",
    "leave processes behind that leave its process group",
]
_FILES = [
    "read and change every file of the worker's user",
    "trace other processes of the worker's user",
]
_TRUNCATE = "truncate files of the worker's user"
_SCOPES = [
    "send signals to other processes of the worker's user",
    "connect to abstract unix sockets",
]
# Of the two stages that have the machine's network.
_SOCKETS = "`prepare` and `publish`: connect to abstract unix sockets of this machine"
_PORTS = "`prepare` and `publish`: connect to any TCP port"


@pytest.mark.parametrize(
    ("abi", "has_namespaces", "layers_used", "gaps"),
    [
        (0, False, "landlock", [*_FILES, *_SCOPES, "use TCP", *_OPEN]),
        (1, False, "landlock", [_TRUNCATE, *_SCOPES, "use TCP", *_OPEN]),
        (2, False, "landlock", [_TRUNCATE, *_SCOPES, "use TCP", *_OPEN]),
        (3, False, "landlock", [*_SCOPES, "use TCP", *_OPEN]),
        (4, False, "landlock", [*_SCOPES, *_OPEN]),
        (5, True, "landlock", [*_SCOPES, *_OPEN]),
        (6, False, "landlock,namespaces", _OPEN),
        (6, True, "namespaces", [_SOCKETS, _PORTS]),
        (3, True, "landlock,namespaces", [_SOCKETS, _PORTS]),
        (4, True, "landlock,namespaces", [_SOCKETS]),
        (5, True, "namespaces,landlock", [_SOCKETS]),
        (6, True, "landlock,namespaces", []),
    ],
)
def test_what_a_stage_could_still_do(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    abi: int,
    has_namespaces: bool,
    layers_used: str,
    gaps: list[str],
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: abi)
    monkeypatch.setattr(layers, "_has_namespaces", lambda: has_namespaces)
    found = layers.missing(Settings(home=tmp_path, sandbox_layers=layers_used))
    assert found == gaps
    for mode in ("auto", "off", "require"):
        settings = Settings.model_validate(
            {"home": tmp_path, "sandbox": mode, "sandbox_layers": layers_used}
        )
        assert layers.missing(settings) == ([] if mode == "off" else found)
        is_refused = mode == "require" and bool(gaps)
        message = re.escape(
            "FINETUNE_SANDBOX is `require`, and on this machine a stage could still: "
            f"{'; '.join(gaps)}. Use a newer kernel, allow user namespaces (docs/sandbox.md), or "
            "set FINETUNE_SANDBOX=auto."
        )
        refused = pytest.raises(layers.SandboxError, match=f"^{message}$")
        with refused if is_refused else nullcontext():
            layers.require(settings)


@pytest.mark.parametrize(
    ("mode", "wanted", "has_namespaces", "expected"),
    [
        ("auto", "namespaces,landlock", True, tuple(Layer)),
        ("require", "namespaces", True, (Layer.NAMESPACES,)),
        ("auto", "landlock,namespaces", False, (Layer.LANDLOCK,)),
        ("off", "landlock,namespaces", True, ()),
    ],
)
def test_the_layers_that_are_used(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mode: str,
    wanted: str,
    has_namespaces: bool,
    expected: tuple[Layer, ...],
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 1)
    monkeypatch.setattr(layers, "_has_namespaces", lambda: has_namespaces)
    settings = Settings.model_validate(
        {"home": tmp_path, "sandbox": mode, "sandbox_layers": wanted}
    )
    assert layers.used(settings) == expected


@pytest.mark.parametrize(
    ("first", "others", "expected"),
    [
        ([], -signal.SIGSYS, False),  # what a policy does to it
        ([-signal.SIGKILL] * 2, 0, True),
        ([None] * 2, 0, True),  # not in time
        ([None, -signal.SIGKILL, None], 0, False),
    ],
)
def test_a_trial_that_says_nothing_is_repeated(
    monkeypatch: pytest.MonkeyPatch, first: list[int | None], others: int, expected: bool
) -> None:
    statuses = iter([*first, others])
    tried = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options["errors"] == "replace"  # a policy says why in any encoding
        # Nothing of the worker's folder, packages or terminal can change what the trial shows.
        assert command[-5:] == [sys.executable, "-I", "-S", "-c", ""]
        assert (options["cwd"], options["stdin"]) == ("/", subprocess.DEVNULL)
        assert options["start_new_session"] is True
        (descriptor,) = options["pass_fds"]
        tried.append(View.from_json(os.read(descriptor, 1024**2)))
        status = next(statuses)
        if status is None:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, status, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert layers._has_namespaces.__wrapped__() is expected
    read, devices = tuple(machine.readable({})), machine.devices(with_gpus=False)
    assert tried == [View((Layer.NAMESPACES,), read=read, devices=devices)] * len(tried)
    assert len(tried) == min(3, len(first) + 1)
