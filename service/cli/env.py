"""`finetune env`: versions, devices and settings, without secrets, to paste into an issue."""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from service.cli import output
from service.cli.client import (
    AnotherServerError,
    ApiError,
    Client,
    ClientSettings,
    Json,
    UnreachableError,
)
from service.cli.exit_codes import UsageError
from service.cli.stack.devices import found_devices
from service.cli.workers import described
from service.settings import Settings

_PACKAGES: Final = (
    *("finetune-service", "torch", "transformers", "accelerate", "datasets", "peft"),
    *("tokenizers", "safetensors", "huggingface-hub", "numpy", "mlflow", "bitsandbytes"),
    *("torchao", "deepspeed", "fastapi", "pydantic", "SQLAlchemy", "psycopg", "celery", "redis"),
)
_OTHER_VARIABLES: Final = re.compile(
    r"(HF|CUDA|NVIDIA|NCCL|OMP|MKL|PYTORCH|TORCH|MLFLOW|TOKENIZERS|TRANSFORMERS)_\w+|"
    r"(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy|LD_PRELOAD|VIRTUAL_ENV"
)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]*)(:[0-9]+)?")
_SET: Final = "set"
_NO_ANSWER: Final = "no answer"
_GIB: Final = 1024**3


def show_env(*, json: output.AsJson = False) -> None:
    """Versions, devices and settings of this machine, as Markdown for an issue; no secrets."""
    found = collected()
    if json:
        output.print_json(found)
    else:
        output.print_text("\n".join(_markdown(found)) + "\n")


def collected() -> Json:
    """What `env` shows: no value of a secret, and of an address only the host."""
    settings = _settings(Settings)
    return {
        "system": _system(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "devices": _devices(),
        "settings": {**_shown(settings), **_shown(_settings(ClientSettings))},
        "other_variables": sorted(filter(_OTHER_VARIABLES.fullmatch, os.environ)),
        "database": _database(settings),
        "service": _service(),
    }


# ---- the machine ------------------------------------------------------------------------------


def _system() -> Json:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "os": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": _memory(),
        "container": Path("/.dockerenv").exists() or "container" in os.environ,
        "virtual_environment": sys.prefix != sys.base_prefix,
    }


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> Json:
    try:
        return {"found": found_devices(os.environ), "problem": None}
    except UsageError as error:
        return {"found": [], "problem": str(error)}


# ---- the settings -----------------------------------------------------------------------------


def _settings(kind: type[BaseSettings]) -> BaseSettings | Json:
    """The settings; where they are invalid, the faults without their values."""
    try:
        return kind()
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        return {_variable(fault["loc"]): "invalid" for fault in faults}


def _variable(place: tuple[Any, ...]) -> str:
    return "_".join(["FINETUNE", *map(str, place)]).upper()


def _shown(settings: BaseSettings | Json) -> Json:
    """Variable → its value as anybody may see it, of those that are set."""
    if isinstance(settings, dict):
        return settings
    return {
        _variable((name,)): shown(getattr(settings, name))
        for name in type(settings).model_fields
        if name in settings.model_fields_set and getattr(settings, name) is not None
    }


def shown(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return _SET
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, Path):
        return _short(value)
    if isinstance(value, str) and ("://" in value or "@" in value):
        return _address(value)
    if isinstance(value, str) and value.startswith("/"):
        return _short(Path(value))
    return value


def _short(path: Path) -> str:
    """With `~`: the name of a home folder is often that of a person."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _address(url: str) -> str:
    """`scheme://host:port` of a URL; user, password, path and query may hold secrets."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # An @ behind the first slash may belong to a password that is not escaped.
    if "@" in rest.removeprefix(authority) or not re.fullmatch(r"[A-Za-z][\w+.-]*", scheme):
        return _SET
    host = authority.rpartition("@")[2]
    return f"{scheme}://{host}" if _HOST.fullmatch(host) else _SET


def _database(settings: BaseSettings | Json) -> str:
    if not isinstance(settings, Settings):
        return "unknown"
    try:
        return make_url(settings.sqlalchemy_url).get_backend_name()
    except ArgumentError:
        return "not a database URL"


# ---- the service ------------------------------------------------------------------------------


def _service() -> Json:
    """Whether the service answers, and how many workers it has."""
    try:
        address = ClientSettings().base_url()
        with Client.from_environment() as client:
            workers = client.get("/v1/workers")["data"]
    except ApiError as error:
        problem = error.code or f"HTTP {error.status}"
        return {"url": _address(address), "reachable": True, "problem": problem}
    except AnotherServerError:
        return {"url": _address(address), "reachable": True, "problem": "another server"}
    except UnreachableError:
        return {"url": _address(address), "reachable": False, "problem": _NO_ANSWER}
    except UsageError as error:  # of the address or the key
        return {"url": None, "reachable": False, "problem": str(error)}
    except (ValidationError, ValueError, OSError) as error:
        return {"url": None, "reachable": False, "problem": type(error).__name__}
    live = [
        {"version": worker["version"], "queues": worker["queues"], "devices": worker["devices"]}
        for worker in workers
    ]
    return {"url": _address(address), "reachable": True, "problem": None, "workers": live}


# ---- for people -------------------------------------------------------------------------------


def _markdown(found: Mapping[str, Any]) -> Iterator[str]:
    system, devices = found["system"], found["devices"]
    yield "### Versions\n"
    yield f"- {system['python']} on {system['os']}"
    yield f"- container: {_yes(system['container'])}; virtual environment: " + _yes(
        system["virtual_environment"]
    )
    installed = {name: number for name, number in found["packages"].items() if number}
    yield f"- {', '.join(f'{name} {number}' for name, number in installed.items())}"
    missing = [name for name, number in found["packages"].items() if not number]
    if missing:
        yield f"- not installed: {', '.join(missing)}"
    yield "\n### Devices\n"
    memory = f", {system['memory_bytes'] / _GIB:.1f} GiB" if system["memory_bytes"] else ""
    yield f"- {system['cores'] or '?'} CPU cores{memory} memory"
    yield f"- {devices['problem'] or described(devices['found'])}"
    yield "\n### Settings\n"
    for name, value in found["settings"].items():
        yield f"- {name}: {':'.join(map(str, value)) if isinstance(value, list) else value}"
    yield f"- other variables that are set: {', '.join(found['other_variables']) or 'none'}"
    yield f"- database: {found['database']}"
    yield "\n### Service\n"
    yield from _service_lines(found["service"])


def _service_lines(service: Mapping[str, Any]) -> Iterator[str]:
    state = "answers" if service["reachable"] else "does not answer"
    problem = f" ({service['problem']})" if service["problem"] not in (None, _NO_ANSWER) else ""
    yield f"- {service['url'] or 'the service'} {state}{problem}"
    for worker in service.get("workers", ()):
        queues = ", ".join(worker["queues"])
        yield f"- worker {worker['version']} for {queues}: {described(worker['devices'])}"


def _yes(value: object) -> str:
    return "yes" if value else "no"
