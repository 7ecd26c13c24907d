"""The parts of the machine that every stage sees: programs, libraries, devices."""

import os
import site
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from service.system import own_packages

# Of /etc only what programs and libraries read: an operator may keep secrets there.
_ETC: Final = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "alternatives"),
    *("passwd", "group", "nsswitch.conf", "hosts", "host.conf", "resolv.conf", "gai.conf"),
    *("protocols", "services", "localtime", "timezone", "locale.alias", "os-release"),
    *("debian_version", "mime.types", "machine-id"),
    *("ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "pki/tls/certs", "pki/ca-trust"),
    *("ca-certificates", "ca-certificates.conf", "crypto-policies", "nvidia", "OpenCL"),
)
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_GPU_DEVICES: Final = ("nvidia*", "dxg", "kfd", "dri")
_FILES_IN: Final = ("LD_PRELOAD", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_FOLDERS_IN: Final = ("LD_LIBRARY_PATH", "SSL_CERT_DIR", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH")


def readable(environment: Mapping[str, str]) -> Iterator[Path]:
    """`environment`: of the stage; libraries that it names are readable."""
    yield from map(Path, _SYSTEM)
    yield from (Path("/etc") / name for name in _ETC)
    yield from installed()
    for name in (*_FILES_IN, *_FOLDERS_IN):
        for value in environment.get(name, "").replace(" ", os.pathsep).split(os.pathsep):
            if value.startswith("/"):
                yield Path(value)


def installed() -> Iterator[Path]:
    """Python, what is installed for it, and our own packages: a stage imports the same copies."""
    yield from map(Path, {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix})
    yield Path(site.getusersitepackages())
    yield from (own_packages.FOLDER / name for name in ("service", "worker"))
    # In a source tree: the first metadata of our package on the path, also if another one is there.
    yield from own_packages.FOLDER.glob("*.egg-info")


def import_folders() -> tuple[Path, ...]:
    """Where the service's own packages lie: in a source tree, next to files that are not a stage's
    business."""
    return (own_packages.FOLDER,)


def devices(*, with_gpus: bool) -> tuple[Path, ...]:
    folder = Path("/dev")
    found = [folder / name for name in _DEVICES]
    if with_gpus:
        found += [path for pattern in _GPU_DEVICES for path in folder.glob(pattern)]
    return tuple(found)
