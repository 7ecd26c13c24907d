# Two images from one file:
#   docker build --target service .   API, reconciler and command line; no torch
#   docker build --target worker .    the same plus the packages of the stages; also runs MLflow's server
#
# Build arguments:
#   BASE_IMAGE   any Debian-like image with Python 3.11 or newer, its venv module and pip
#                (`make pin-images` writes it to .env with its digest)
#   TORCH_INDEX  a package index for torch and for torch alone. PyPI's torch for x86-64 Linux is the
#                CUDA build, which also runs on a CPU but is several GB larger. With PyTorch's own
#                index of CPU wheels, the same pin selects the CPU build.
#   TORCH_SHA256 the hash of torch's wheel in TORCH_INDEX; without it that one file is not checked
#
# Every other package comes from PyPI and must have a hash of requirements/*.txt.
ARG BASE_IMAGE=python:3.11-slim

# ---- shared by all targets: the user, the folders, and the control plane's dependencies --------
FROM ${BASE_IMAGE} AS dependencies
ENV PATH=/opt/finetune/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONPATH=/opt/finetune/packages \
    PYTHONSAFEPATH=1 \
    FINETUNE_HOME=/var/lib/finetune \
    FINETUNE_LOG_FORMAT=json
# A named volume takes owner and mode from the folder on which it is first mounted, so create them.
RUN useradd --system --uid 10001 --home-dir /var/lib/finetune --shell /usr/sbin/nologin finetune \
    && install -d -o finetune -g finetune -m 0700 \
        /var/lib/finetune /var/lib/finetune-secrets /var/lib/mlflow-secrets /var/lib/mlflow \
    && install -d -o finetune -g finetune -m 0755 /var/lib/postgres-secrets \
    && python3 -m venv /opt/finetune \
    # Where the service's own packages will lie, for `python -m worker` and health checks.
    && ln -s "$(echo /opt/finetune/lib/python3*/site-packages)/finetune_service" /opt/finetune/packages
WORKDIR /opt/finetune/src
# Dependencies before sources: this layer is reused until the requirements change.
COPY requirements ./requirements
RUN pip install --require-hashes --no-deps -r requirements/service.txt

# ---- the package itself, built once for both targets --------------------------------------------
FROM dependencies AS wheel
COPY . .
RUN pip install --require-hashes --no-deps -r requirements/build.txt \
    && pip wheel --no-build-isolation --no-deps --wheel-dir /wheel ./client .

# ---- worker: torch and the rest of the ML stack -------------------------------------------------
FROM dependencies AS worker
# The allocator of stages that train on a CPU (FINETUNE_MALLOC); newer Debians name it …t64.
# A C and a C++ compiler, because torch.compile, torchao's optimizers and every Triton kernel are
# compiled where they run: Triton builds a small Python module for each kernel with `cc` and
# Python.h, and torch's inductor builds its CPU code with `g++`. The official images have Python.h.
RUN apt-get update \
    && { apt-get install -y --no-install-recommends libtcmalloc-minimal4t64 \
         || apt-get install -y --no-install-recommends libtcmalloc-minimal4; } \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
    && { test -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
         || apt-get install -y --no-install-recommends python3-dev; } \
    && rm -rf /var/lib/apt/lists/*
ARG TORCH_INDEX=
ARG TORCH_SHA256=
# torch's index gives nothing but torch: a package of another name there is never asked for.
RUN if [ -n "${TORCH_INDEX}" ]; then \
        printf '%s%s\n' "$(grep -oE '^torch==[^ ]+' requirements/torch.txt)" \
            "${TORCH_SHA256:+ --hash=sha256:${TORCH_SHA256}}" > torch.txt \
        && PIP_EXTRA_INDEX_URL= pip install --no-deps --index-url "${TORCH_INDEX}" -r torch.txt; \
    else \
        pip install --require-hashes --no-deps -r requirements/torch.txt; \
    fi \
    && pip install --require-hashes --no-deps -r requirements/build.txt \
    && pip install --require-hashes --no-deps --no-build-isolation -r requirements/worker.txt
COPY --from=wheel /wheel /opt/finetune/wheel
RUN pip install --no-deps --force-reinstall /opt/finetune/wheel/*.whl && pip check
WORKDIR /var/lib/finetune
USER finetune
CMD ["python", "-m", "worker", "--queues", "cpu,gpu"]

# ---- service: last, so that a build without --target creates the small image --------------------
FROM dependencies AS service
COPY --from=wheel /wheel /opt/finetune/wheel
RUN pip install --no-deps --force-reinstall /opt/finetune/wheel/*.whl && pip check
WORKDIR /var/lib/finetune
USER finetune
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health/live', timeout=4)"]
CMD ["finetune", "api"]
