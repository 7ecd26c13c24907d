.DEFAULT_GOAL := help
.PHONY: help demo up test heavy deepspeed lint chaos containers bench bench-api bench-claims bench-start bench-training bench-evaluation bench-quality bench-checkpoints bench-job bench-scaling docs constraints clean

VENV := .venv
BIN := $(VENV)/bin
# `make test ARGS="tests/api -k list"`
ARGS :=
# `make bench NAME=memory`
NAME := list_jobs
# The newest of the Pythons that the constraints were tested on, or a newer python3.
FIND_PYTHON := for p in python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 \
	&& $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { command -v $$p; exit 0; }; done; exit 1
PYTHON ?= $(shell $(FIND_PYTHON))
# A folder of its own: accelerate imports the package wherever it is installed.
DEEPSPEED := $(CURDIR)/$(VENV)/deepspeed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

help: ## What can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Fine-tune a small model on real questions, start to end; KEEP=1 leaves the stack up
	$(BIN)/python examples/demo.py $(if $(KEEP),--keep)

up: $(VENV)/.demo ## Run the whole service here until Ctrl-C
	$(BIN)/finetune up $(ARGS)

test: $(VENV)/.dev ## Run the tests; ARGS="tests/cli -k watch" for some of them
	$(BIN)/python -m pytest $(ARGS)

heavy: $(VENV)/.dev ## Run the tests that take too long for every change: attacks in short, interrupted ranks, shared evaluations
	$(BIN)/python -m pytest -m heavy $(ARGS)

deepspeed: $(VENV)/.deepspeed ## Run the tests of `strategy: deepspeed`, with the package beside .venv
	PYTHONPATH="$(DEEPSPEED):$(CURDIR)" \
		$(BIN)/python -m pytest tests/training/distributed/test_deepspeed.py $(ARGS)

lint: $(VENV)/.dev ## Style, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: $(VENV)/.dev ## Attack the service and print what came of it; ARGS="--only kills --seed 7"
	$(BIN)/python -m chaos $(ARGS)

containers: $(VENV)/.dev ## Build the images and run a job through docker-compose.yml (or podman)
	$(BIN)/python tests/containers/run.py

bench: $(VENV)/.dev ## Run a benchmark by its file's name: NAME=memory; without, GET /v1/jobs with 100,000 jobs
	$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

bench-api: $(VENV)/.dev ## Time POST and GET of a job beside a bare FastAPI route
	$(BIN)/python -m benchmarks.api $(ARGS)

bench-claims: $(VENV)/.dev ## Time claims and reads with 100 and with 10,000 queued jobs
	$(BIN)/python -m benchmarks.claims $(ARGS)

bench-start: $(VENV)/.dev ## Time small whole jobs, stages forked against new interpreters
	$(BIN)/python -m benchmarks.start $(ARGS)

bench-training: $(VENV)/.dev ## Train beside transformers.Trainer and print how much faster; ARGS="qa --pairs 3"
	$(BIN)/python -m benchmarks.training_speed $(ARGS)

bench-evaluation: $(VENV)/.dev ## Evaluate 1,000 questions beside transformers.Trainer and run_qa's answers; ARGS="--pairs 3"
	$(BIN)/python -m benchmarks.evaluation $(ARGS)

bench-quality: $(VENV)/.dev ## Train beside transformers.Trainer over five seeds and compare F1 and perplexity; ARGS="clm"
	$(BIN)/python -m benchmarks.quality $(ARGS)

bench-checkpoints: $(VENV)/.dev ## Time how long a training stands still for its checkpoints; ARGS="--pairs 3"
	$(BIN)/python -m benchmarks.checkpoint_stall $(ARGS)

bench-job: $(VENV)/.dev ## Time a whole job of 50 steps beside a script that does what run_qa does
	$(BIN)/python -m benchmarks.whole_job $(ARGS)

bench-scaling: $(VENV)/.dev ## Time a step as sequences, batches and models grow; ARGS="length --pairs 1"
	$(BIN)/python -m benchmarks.scaling $(ARGS)

docs: $(VENV)/.dev ## Write docs/training-options.md anew from the tables in service/contract
	$(BIN)/python scripts/training_options.py > docs/training-options.md

constraints: ## Write constraints.txt anew from the newest versions that install together
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 1; }
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(PYTHON) -m venv "$$folder"; \
	"$$folder/bin/python" -m pip install --quiet -e '.[dev]'; \
	"$$folder/bin/python" -m pip check; \
	{ grep '^#' constraints.txt; \
	  "$$folder/bin/python" -m pip freeze --exclude-editable | sed 's/+.*//'; } > constraints.new; \
	mv constraints.new constraints.txt

clean: ## Remove what make has made: .venv, caches, the demo's files
	rm -rf $(VENV) var build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed (python3 -m venv must work);" \
		"name it with PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamps: a second call installs nothing. What tests need holds what the demo needs.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), about two minutes"
	$(INSTALL) -e '.[worker,embedded,demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), about two minutes"
	$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.demo $@

# Without its compiled parts, which the worker does not use, and without a second torch beside it.
$(VENV)/.deepspeed: $(VENV)/.dev
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --upgrade --target "$(DEEPSPEED)" \
		$$(grep -E '^(deepspeed|einops|hjson|msgpack|ninja|py-cpuinfo)==' constraints.txt)
	@touch $@
