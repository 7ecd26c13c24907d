"""The two ways to build the images and to run docker-compose.yml: Docker, and podman without it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import yaml

from tests.containers import pip_settings
from tests.support.servers import services

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PROJECT = "finetune-containers-test"
SERVICE_IMAGE, WORKER_IMAGE = f"{PROJECT}-service", f"{PROJECT}-worker"
TARGETS = {"service": SERVICE_IMAGE, "worker": WORKER_IMAGE}
START_ORDER = (
    *("secrets", "postgres", "redis", "setup", "mlflow"),
    *("api", "reconciler", "worker"),
)
ONE_SHOTS = ("secrets", "setup")
HEALTHY_SECONDS = 120


def sh(*arguments: str, env: Mapping[str, str], stdin: bytes | None = None) -> None:
    """Run a command with its output shown; CalledProcessError when it fails."""
    print("+", " ".join(arguments), flush=True)
    subprocess.run(arguments, env=dict(env), input=stdin, check=True, cwd=ROOT)


def output(*arguments: str, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        arguments, env=dict(env), stdout=subprocess.PIPE, check=True, text=True, cwd=ROOT
    )
    return done.stdout


class Engine(Protocol):
    def build(self) -> None:
        """Both images, under the names of TARGETS."""

    def up(self) -> None:
        """All services, in the order of their conditions; the last may not be healthy yet."""

    def python(self, image: str, code: str) -> str:
        """What `code` prints in a fresh container of the image."""

    def exec(self, service: str, *command: str) -> str:
        """What a command prints in the running service's container."""

    def logs(self) -> None: ...

    def down(self) -> None:
        """No container, volume or network stays; images do, so that the next build is quick."""


class Docker:
    """A Docker engine with its compose plugin."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._env = {**os.environ, **variables}
        self._compose = ("docker", "compose", "--project-name", PROJECT)

    @staticmethod
    def is_at_hand() -> bool:
        return all(
            shutil.which("docker") and subprocess.run(probe, capture_output=True).returncode == 0
            for probe in (["docker", "info"], ["docker", "compose", "version"])
        )

    def build(self) -> None:
        sh(*self._compose, "build", env=self._env)

    def up(self) -> None:
        sh(*self._compose, "up", "--detach", env=self._env)

    def python(self, image: str, code: str) -> str:
        return output("docker", "run", "--rm", image, "python", "-c", code, env=self._env)

    def exec(self, service: str, *command: str) -> str:
        return output(*self._compose, "exec", "-T", service, *command, env=self._env)

    def logs(self) -> None:
        sh(*self._compose, "logs", "--tail", "40", env=self._env)

    def down(self) -> None:
        sh(*self._compose, "down", "--volumes", "--timeout", "30", env=self._env)


CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=32768:32768"]
# Of every container: podman-compose 1.0 does not know `pids_limit`.
pids_limit = 512
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[network]
network_backend = "netavark"
"""
PACKAGES = (
    *("podman", "buildah", "runc", "podman-compose"),
    *("netavark", "aardvark-dns", "iptables", "catatonit", "debootstrap"),
)


class Podman:
    """Debian's podman 4.3 as root, with its own settings, so that the machine's stay as they are.

    podman-compose knows no conditions, and health checks do not fire by themselves where no
    systemd runs: compose creates the containers, `up` starts them in the order of their
    conditions and asks each health check itself.
    """

    def __init__(self, variables: Mapping[str, str], folder: Path) -> None:
        if missing := [name for name in ("podman", "podman-compose") if not shutil.which(name)]:
            self._install(missing)
        settings = folder / "containers.conf"
        settings.write_text(CONTAINERS_CONF)
        self._folder = folder
        self._env = {
            **os.environ,
            "CONTAINERS_CONF": str(settings),
            "BUILDAH_ISOLATION": "chroot",
            **variables,
        }
        base = self._image("python:3.11-slim", self._bootstrap)
        standins = {
            f"{server.upper()}_IMAGE": self._image(image, self._build_server, server, base)
            for server, image in (("postgres", "postgres:17"), ("redis", "redis:7"))
        }
        self._env |= {"BASE_IMAGE": base, **standins}

    @staticmethod
    def _install(missing: Sequence[str]) -> None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            sys.exit(
                "make containers needs a Docker engine with its compose plugin, or podman: no "
                f"{', '.join(missing)} here, and only root on Debian can have them installed"
            )
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        sh("apt-get", "update", "-qq", env=env)
        sh("apt-get", "install", "-qq", "-y", "--no-install-recommends", *PACKAGES, env=env)

    # ---- images -------------------------------------------------------------------------------

    def _image(self, wanted: str, make: Callable[..., None], *arguments: str) -> str:
        """`wanted` where a registry answers, else a stand-in that `make` builds."""
        if self._succeeds("podman", "image", "exists", wanted) or self._succeeds(
            "podman", "pull", "--quiet", wanted
        ):
            return wanted
        name = f"localhost/{PROJECT}-{wanted.partition(':')[0]}"
        print(f"{wanted} cannot be pulled; {name} takes its place", flush=True)
        make(name, *arguments)
        return name

    def _succeeds(self, *arguments: str) -> bool:
        return subprocess.run(arguments, env=self._env, capture_output=True).returncode == 0

    def _bootstrap(self, name: str) -> None:
        """A Debian 12, whose Python is 3.11, from its packages."""
        if self._succeeds("podman", "image", "exists", name):
            return
        root = self._folder / "debian"
        packages = "python3,python3-venv,python3-pip,ca-certificates"
        variant = ("--variant=minbase", f"--include={packages}")
        sh("debootstrap", *variant, "bookworm", str(root), env=self._env)
        archive = self._folder / "debian.tar"
        sh("tar", "--directory", str(root), "--create", "--file", str(archive), ".", env=self._env)
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        sh("podman", "import", "--change", f"ENV {path}", str(archive), name, env=self._env)

    def _build_server(self, name: str, server: str, base: str) -> None:
        file = ("--file", str(HERE / "servers.Dockerfile"), "--target", server)
        arguments = (*file, "--build-arg", f"BASE_IMAGE={base}", "--tag", name)
        sh("podman", "build", "--format", "docker", *arguments, str(HERE), env=self._env)

    def build(self) -> None:
        mounts = [f"--volume={mount}" for mount in pip_settings.mounts(self._folder)]
        base = ("--build-arg", f"BASE_IMAGE={self._env['BASE_IMAGE']}")
        wanted = self._env.get("TORCH_INDEX") or pip_settings.torch_index()
        index = ("--build-arg", f"TORCH_INDEX={wanted}")
        for target, tag in TARGETS.items():
            options = ("--format", "docker", "--target", target, "--tag", tag, *base, *index)
            sh("podman", "build", *options, *mounts, str(ROOT), env=self._env)

    # ---- containers ---------------------------------------------------------------------------

    def up(self) -> None:
        self._compose("up", "--no-start", "--no-build")
        for service in START_ORDER:
            self._start(service)

    def _start(self, service: str) -> None:
        container = self._container(service)
        sh("podman", "start", container, env=self._env)
        if service in ONE_SHOTS:
            status = output("podman", "wait", container, env=self._env).strip()
            assert status == "0", f"{service} ended with {status}"
        elif probe := self._health_probe(service, container):
            services.wait_until(lambda: self._succeeds(*probe), HEALTHY_SECONDS, service)

    @staticmethod
    def _health_probe(service: str, container: str) -> tuple[str, ...]:
        """The service's health check as the compose file has it, or else its image; () for none.

        Read here and not from the container: podman-compose 1.0 breaks quotes within its words.
        """
        described = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][service]
        kind, *command = described.get("healthcheck", {}).get("test", ["IMAGE"])
        if kind == "CMD":
            return ("podman", "exec", container, *command)
        return () if kind == "NONE" else ("podman", "healthcheck", "run", container)

    def _compose(self, *arguments: str) -> None:
        sh("podman-compose", "--project-name", PROJECT, *arguments, env=self._env)

    @staticmethod
    def _container(service: str) -> str:
        return f"{PROJECT}_{service}_1"

    def python(self, image: str, code: str) -> str:
        return output("podman", "run", "--rm", image, "python", "-c", code, env=self._env)

    def exec(self, service: str, *command: str) -> str:
        return output("podman", "exec", self._container(service), *command, env=self._env)

    def logs(self) -> None:
        for service in START_ORDER:
            print(f"---- {service}", flush=True)
            tail = ("podman", "logs", "--tail", "40", self._container(service))
            subprocess.run(tail, env=self._env, check=False)

    def down(self) -> None:
        self._compose("down", "--volumes", "--timeout", "30")
        # conmon leaves it where it was started, when memory ran out in a container.
        (ROOT / "oom").unlink(missing_ok=True)
        described = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        networks = [f"{PROJECT}_{name}" for name in described["networks"]]
        sh("podman", "network", "rm", "--force", *networks, env=self._env)
        # podman-compose leaves those that are called like a service.
        volumes = [f"{PROJECT}_{name}" for name in described["volumes"]]
        sh("podman", "volume", "rm", "--force", *volumes, env=self._env)
