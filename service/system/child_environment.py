"""Which environment variables a process that we start receives: the named ones, and no others.

The worker's own environment holds what its operator has set for anything: keys of other services,
agents' sockets, passwords. None of it reaches a stage unless it is listed here or in
FINETUNE_STAGE_ENV.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

STACK_MARK: Final = "_FINETUNE_STACK"
"""By this variable `finetune up` finds the processes that it has started."""

_NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES", "XDG_CACHE_HOME", "CC", "CXX"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HF_HUB_DISABLE_IMPLICIT_TOKEN", "HUGGINGFACE_HUB_CACHE", STACK_MARK),
    }
)
_PREFIXES: Final = (
    *("LC_", "PYTHON", "COVERAGE_", "COV_CORE_", "MALLOC_", "TCMALLOC_"),
    # Threads and numerics.
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "ONEDNN_"),
    *("DNNL_", "ATEN_", "RAYON_", "TOKENIZERS_", "ARROW_"),
    # torch, its compilers, its devices and their communication.
    *("TORCH", "PYTORCH_", "TRITON_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_", "GLOO_"),
    *("HIP_", "HSA_", "ROCM_", "ROCR_", "MIOPEN_", "AMD_", "ACCELERATE_", "DS_", "BNB_"),
    # The Hub's libraries.
    *("HF_", "TRANSFORMERS_"),
)
# Of a process of ours that talks to databases, MLflow and storage.
_OWN_PREFIXES: Final = ("FINETUNE_", "PG", "MLFLOW_", "AWS_", "AZURE_", "GOOGLE_", "OTEL_")
_CLIENTS: Final = ("FINETUNE_URL", "FINETUNE_API_KEY")
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
# Not TOKENIZERS_PARALLELISM.
_SECRET_NAME: Final = re.compile(
    r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|(?:^|_)KEY", re.IGNORECASE
)
_CREDENTIALS: Final = re.compile(r"://[^/@\s]*@")


def allowed(environ: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """The variables of `environ` that any of our processes may have, and those in `more`."""
    return {
        name: value
        for name, value in environ.items()
        if name in more or name in _NAMES or (name.startswith(_PREFIXES) and not is_secret(name))
    }


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """How `environ` says that the network is reached; a value may hold a password."""
    return {name: value for name, value in environ.items() if name.upper() in PROXIES}


def own(environ: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """The variables for a process of the service itself, secrets included (see `split`)."""
    settings = {
        name: value
        for name, value in environ.items()
        if name.startswith(_OWN_PREFIXES) and name not in _CLIENTS
    }
    return {**allowed(environ, more), **proxies(environ), **settings}


def split(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(what may be seen, secrets)."""
    secrets = {name: value for name, value in environ.items() if is_secret(name, value)}
    return {n: v for n, v in environ.items() if n not in secrets}, secrets


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable holds a secret, by its name or because its value is a URL with one."""
    is_path = name.endswith("_FILE")
    return bool((not is_path and _SECRET_NAME.search(name)) or _CREDENTIALS.search(value))
