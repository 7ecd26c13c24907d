.DEFAULT_GOAL := help
.PHONY: help demo up test test-all coverage heavy openai-clients deepspeed release-checks lint chaos mutants containers cgroups bench docs client-types site \
	constraints locks sbom audit pin-images clean

VENV := .venv
BIN := $(VENV)/bin
# `make test ARGS="tests/api -k list"`
ARGS :=
# `make test CHANGED=1`
CHANGED :=
TEST_PROCESSES ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# `make bench NAME=memory`
NAME :=
# The newest Python that the constraints were tested with, or a newer python3.
FIND_PYTHON := for p in python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 \
	&& $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { command -v $$p; exit 0; }; done; exit 1
PYTHON ?= $(shell $(FIND_PYTHON))
SUPPLY := $(VENV)/supply
# In a separate folder, because accelerate imports the package wherever it is installed.
DEEPSPEED := $(CURDIR)/$(VENV)/deepspeed
# For a test. In a separate folder, because it asks for an older typer than the service has; the
# other packages that it needs are those of the tests.
CLIENT_GENERATOR := openapi-python-client ruamel.yaml
# Older releases of the client, each in a folder of its own: the tests' own packages have the newest,
# which is enough for every change.
OPENAI_CLIENTS := $(wildcard tests/openai_clients/openai-*.txt)
# Makes client/finetune_client/types.py; `make constraints` keeps their versions.
TYPES_GENERATOR := datamodel-code-generator argcomplete genson inflect jaraco.functools more-itertools typeguard
# Processes that tests start read the mutants, and can import what switches them.
MUTATION_TESTER := libcst mutmut setproctitle textual
MUTMUT := OMP_NUM_THREADS=1 PYTHONPATH="$(CURDIR)/mutants:$(CURDIR)/$(VENV)/mutmut" $(BIN)/python -P -m mutmut
# How many mutants `make mutants` draws; ARGS="service.jobs.*" names those of a module instead.
SAMPLE := 60
SEED := 1
# Percent of the mutants with tests, all of the folder `mutants`, that the tests must notice; and of
# those in the packages that were named last.
AT_LEAST := 97.0
AT_LEAST_NEWER := 93.0
NEWER := (service[.](api[.]openai|searches|studies|webhooks)|worker[.]sandbox)[.]
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

help: ## Show this list
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Run

demo: $(VENV)/.demo ## Fine-tune a small model in five minutes; FULL=1: in full; KEEP=1 leaves the service running
	$(BIN)/python -m examples.demo $(if $(KEEP),--keep) $(if $(FULL),--full)

up: $(VENV)/.demo ## Run the whole service on this machine until Ctrl-C
	$(BIN)/finetune up $(ARGS)

##@ Check

# One process more than cores, because many tests wait. A pool of threads in each would only wait
# for the other processes. ARGS="-n 0" runs the tests in this process, for a debugger.
PYTEST := OMP_NUM_THREADS="$${OMP_NUM_THREADS:-1}" $(BIN)/python -m pytest -n $(TEST_PROCESSES) \
	--dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev ## Run the fast tests; CHANGED=1: those of changed folders; ARGS="tests/cli -k watch": some of them
	$(if $(CHANGED),folders="$$($(BIN)/python -m scripts.changed_tests)" && )$(PYTEST) --tier fast \
		$(if $(CHANGED),$$folders) $(ARGS)

test-all: $(VENV)/.dev ## Run all tests of CI, also those that start servers or train; ARGS as above
	$(PYTEST) $(ARGS)

# A target of its own, because tracing lines takes 45 % more time where Python is older than 3.12.
coverage: $(VENV)/.dev ## Run the tests and print the lines that they do not run in their own process
	$(MAKE) test-all ARGS="--cov=service --cov=worker --cov=finetune_client --cov-report=term-missing:skip-covered $(ARGS)"

heavy: $(VENV)/.dev ## Run the tests that take too long for every change
	$(BIN)/python -m pytest -m heavy $(ARGS)

openai-clients: $(VENV)/.openai-clients ## Run the tests with each supported release of the openai package
	$(BIN)/python -m pytest -m "heavy or not heavy" tests/openai_clients $(ARGS)

deepspeed: $(VENV)/.deepspeed ## Run the tests of `strategy: deepspeed`, with the package in a separate folder
	PYTHONPATH="$(DEEPSPEED):$(CURDIR)" \
		$(BIN)/python -m pytest tests/training/distributed/test_deepspeed.py $(ARGS)

# All that runs less strictly for each change: one database where SQL is not the subject, one release
# of the OpenAI client, one attack, two samplers, one guide. A skipped test is a failure.
release-checks: $(VENV)/.dev ## Before a release: every test, the heavy ones too, on both databases and with each client
	CI=true $(PYTEST) --databases all $(ARGS)
	CI=true $(BIN)/python -m pytest -m heavy --databases all $(ARGS)
	$(MAKE) openai-clients
	$(MAKE) deepspeed

lint: $(VENV)/.dev ## Check style, types, and which folder may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: $(VENV)/.dev ## Attack a running service and print the results; ARGS="--only kills --seed 7"
	$(BIN)/python -m chaos $(ARGS)

# The first run makes the folder `mutants`: all mutants, and which tests call what they change.
mutants: $(VENV)/.mutmut ## Change core modules at random and print what their tests miss; SAMPLE=60, or ARGS="service.jobs.*"
	mkdir -p mutants  # before Python starts: it ignores a folder of PYTHONPATH that comes later
	test -f mutants/mutmut-stats.json || $(MUTMUT) run 'worker.training.evaluation.early_stopping.*'
	$(MUTMUT) run $(or $(ARGS),$$(grep -rohE '[a-z_.]+\.x[^"]+__mutmut_[0-9]+' mutants --include='*.meta' | sed 's/\\u01c1/ǁ/g' \
		| sort -u | awk 'BEGIN {srand($(SEED))} {print rand() "\t" $$0}' | sort | head -n $(SAMPLE) | cut -f 2))
	$(MUTMUT) results | sed -n 's/^ *\(.*\): survived$$/\1/p' | while read -r name; do $(MUTMUT) show "$$name"; done
	$(MUTMUT) results --all true | awk -F ': ' '{newer = $$1 ~ /^ *$(NEWER)/} \
		$$2 == "survived" {tested[newer]++} \
		$$2 ~ /^(killed|timeout|suspicious|segfault)$$/ {tested[newer]++; killed[newer]++} \
		END {least[0] = $(AT_LEAST); least[1] = $(AT_LEAST_NEWER); failed = 1; \
			for (newer in tested) { \
				share = 100 * killed[newer] / tested[newer]; \
				few += share < least[newer]; failed = few > 0; \
				printf "%d of %d killed: %.1f %%, needed: %s %%\n", \
					killed[newer], tested[newer], share, least[newer]} \
			exit failed}'

containers: $(VENV)/.dev ## Build the images and run a job through docker-compose.yml (or podman)
	$(BIN)/python tests/containers/run.py

cgroups: $(VENV)/.dev ## Run the tests of control groups in a virtual machine (needs root and QEMU)
	$(BIN)/python tests/cgroups/run.py $(ARGS)

##@ Measure and document

bench: $(VENV)/.dev ## Run a benchmark; without NAME, list them. NAME=training_speed ARGS="qa --pairs 3"
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

docs: $(VENV)/.dev ## Regenerate the pages of settings, commands, routes and training options
	$(BIN)/python -m scripts.reference docs

client-types: $(VENV)/.dev ## Regenerate client/finetune_client/types.py from the OpenAPI document
	$(BIN)/python -m scripts.client_types > types.new
	mv types.new client/finetune_client/types.py

site: $(VENV)/.docs ## Build the documentation as a website in site/; OPEN=1 serves it on port 8001
	$(BIN)/zensical build --clean
	$(BIN)/python scripts/check_site.py docs site
	$(if $(OPEN),$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8001)

##@ Maintain

constraints: ## Regenerate constraints.txt from the newest versions that install together
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 1; }
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(PYTHON) -m venv "$$folder"; \
	"$$folder/bin/python" -m pip install --quiet -e ./client -e '.[dev,docs]'; \
	"$$folder/bin/python" -m pip check; \
	"$$folder/bin/python" -m pip install --quiet --no-deps $(CLIENT_GENERATOR) $(TYPES_GENERATOR) $(MUTATION_TESTER); \
	{ grep '^#' constraints.txt; \
	  "$$folder/bin/python" -m pip freeze --exclude-editable | sed 's/+.*//'; } > constraints.new; \
	mv constraints.new constraints.txt

# Tools that no test needs, in a folder of their own: they must not change what they report on.
$(SUPPLY)/bin/python: | $(BIN)/python
	$(BIN)/python -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check uv cyclonedx-bom pip-audit

locks: $(SUPPLY)/bin/python ## Regenerate requirements/*.txt, the constraints with a hash of every file
	$(BIN)/python -m scripts.locks $(SUPPLY)/bin/uv

sbom: $(SUPPLY)/bin/python ## Write what the images are made of to sbom/*.cdx.json (CycloneDX)
	mkdir -p sbom
	cat requirements/torch.txt requirements/worker.txt > sbom/worker.txt
	cp requirements/service.txt sbom/service.txt
	for image in service worker; do $(SUPPLY)/bin/cyclonedx-py requirements sbom/$$image.txt \
		--pyproject pyproject.toml --output-reproducible --output-format JSON \
		--output-file sbom/$$image.cdx.json || exit 1; rm sbom/$$image.txt; done

audit: $(SUPPLY)/bin/python ## Look for known vulnerabilities in the versions of requirements/*.txt
	for file in service torch worker; do \
		$(SUPPLY)/bin/pip-audit --disable-pip --no-deps --requirement requirements/$$file.txt || exit 1; done

pin-images: ## Write the base images with their current digests to .env (needs docker)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 1; }
	$(PYTHON) scripts/pin_images.py

clean: ## Remove everything that make created: .venv, caches, the demo's files
	rm -rf $(VENV) var mutants site sbom build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed (python3 -m venv must work);" \
		"name it with PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# The pip of Python 3.11 takes half a minute longer to choose among the index's files.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

# Stamps: a second call installs nothing. The packages for tests include those for the demo.
$(VENV)/.demo: pyproject.toml client/pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV); this takes about two minutes."
	$(INSTALL) -e ./client -e '.[worker,embedded,demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml client/pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV); this takes about two minutes."
	$(INSTALL) -e ./client -e '.[dev]'
	$(INSTALL) --no-deps --upgrade --target "$(CURDIR)/$(VENV)/openapi-python-client" $(CLIENT_GENERATOR)
	$(INSTALL) --no-deps --upgrade --target "$(CURDIR)/$(VENV)/datamodel-code-generator" $(TYPES_GENERATOR)
	@touch $(VENV)/.demo $@

$(VENV)/.openai-clients: $(VENV)/.dev $(OPENAI_CLIENTS)
	for file in $(OPENAI_CLIENTS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target "$(CURDIR)/$(VENV)/clients/$$(basename $$file .txt)" -r $$file || exit 1; done
	@touch $@

$(VENV)/.mutmut: $(VENV)/.dev
	$(INSTALL) --no-deps --upgrade --target "$(CURDIR)/$(VENV)/mutmut" $(MUTATION_TESTER)
	@touch $@

$(VENV)/.docs: pyproject.toml client/pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ./client -e '.[docs]'
	@touch $@

# Without its compiled parts, which the worker does not use, and without a second torch.
$(VENV)/.deepspeed: $(VENV)/.dev
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --upgrade --target "$(DEEPSPEED)" \
		$$(grep -E '^(deepspeed|einops|hjson|msgpack|ninja|py-cpuinfo)==' constraints.txt)
	@touch $@
