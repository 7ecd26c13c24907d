"""Stub stages as a worker starts stages: forked from a process that has imported them.

A new interpreter takes half a second of a core for each. The server ends with this test process.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from service.settings import Settings
from service.system import own_packages
from worker.processes.fork_client import ForkClient
from worker.processes.spawn import Launch, Process
from worker.processes.stage_environment import stage_environment

STAGE: Final = "tests.support.stages.stage"
PREVIEW: Final = "tests.support.stages.preview"


def command(_request: StageRequest, request_file: Path) -> list[str]:
    """For the supervisor, instead of the real stages."""
    return own_packages.python(STAGE, str(request_file))


def preview_command(request_file: Path) -> list[str]:
    return own_packages.python(PREVIEW, str(request_file))


def start(wanted: Launch) -> Process:
    """If a test has changed the environment, it is a new interpreter."""
    return _forks().start(replace(wanted, environment=_of_all_tests(wanted.environment)))


@cache
def _forks() -> ForkClient:
    environment = stage_environment(Settings(), Stage.PREPARE)
    stubs = (STAGE, PREVIEW)
    return ForkClient(_of_all_tests(environment), modules=stubs, imports=stubs)


def _of_all_tests(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key != "PYTEST_CURRENT_TEST"}
