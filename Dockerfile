# Two images from one file:
#   docker build --target service .   API, reconciler and command line; no torch
#   docker build --target worker .    all of it, and what the stages need; also runs MLflow's server
#
# Build arguments:
#   BASE_IMAGE   any Debian-like image with Python 3.11 or newer, its venv module and pip
#   TORCH_INDEX  a further package index to look for torch in. PyPI's torch for x86-64 Linux is the
#                CUDA build, which also runs on a CPU but is several GB larger. With PyTorch's own
#                index of CPU wheels here the same pin (constraints.txt) takes the CPU build.
ARG BASE_IMAGE=python:3.11-slim

# ---- what every target shares: the user, the folders, and the control plane's dependencies -----
FROM ${BASE_IMAGE} AS dependencies
ENV PATH=/opt/finetune/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    FINETUNE_HOME=/var/lib/finetune \
    FINETUNE_LOG_FORMAT=json
# A named volume takes owner and mode from the folder it first covers, so all of them exist here.
RUN useradd --system --uid 10001 --home-dir /var/lib/finetune --shell /usr/sbin/nologin finetune \
    && install -d -o finetune -g finetune -m 0700 \
        /var/lib/finetune /var/lib/finetune-secrets /var/lib/mlflow \
    && python3 -m venv /opt/finetune
WORKDIR /opt/finetune/src
# Dependencies before sources: this layer lasts until pyproject.toml or the constraints change.
# The package itself is still empty here; the last layer of each target puts it in its place.
COPY pyproject.toml constraints.txt ./
RUN touch README.md && pip install --constraint constraints.txt .

# ---- the package itself, built once for both targets --------------------------------------------
FROM dependencies AS wheel
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheel .

# ---- worker: torch and the rest of the ML stack -------------------------------------------------
FROM dependencies AS worker
# The allocator of stages that train on a CPU (FINETUNE_MALLOC); newer Debians call it …t64.
# A C and a C++ compiler, because torch.compile, torchao's optimizers and every Triton kernel are
# compiled where they run: Triton builds a small Python module for each kernel with `cc` and
# Python.h, torch's inductor builds its CPU code with `g++`. Python's own images have Python.h.
RUN apt-get update \
    && { apt-get install -y --no-install-recommends libtcmalloc-minimal4t64 \
         || apt-get install -y --no-install-recommends libtcmalloc-minimal4; } \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
    && { test -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
         || apt-get install -y --no-install-recommends python3-dev; } \
    && rm -rf /var/lib/apt/lists/*
ARG TORCH_INDEX=
RUN PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL} ${TORCH_INDEX}" \
    pip install --constraint constraints.txt ".[worker]"
COPY --from=wheel /wheel /opt/finetune/wheel
RUN pip install --no-deps --force-reinstall /opt/finetune/wheel/*.whl && pip check
WORKDIR /var/lib/finetune
USER finetune
CMD ["python", "-m", "worker", "--queues", "cpu,gpu"]

# ---- service: the last one, so that a build without --target makes the small image --------------
FROM dependencies AS service
COPY --from=wheel /wheel /opt/finetune/wheel
RUN pip install --no-deps --force-reinstall /opt/finetune/wheel/*.whl && pip check
WORKDIR /var/lib/finetune
USER finetune
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health/live', timeout=4)"]
CMD ["finetune", "api"]
