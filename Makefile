# Works on a fresh Debian machine, as root, with git, make and python3: scripts/bootstrap installs the rest.
PYTHON := .venv/bin/python
# The first that is supported, and the beta of the next; .venv has the newest release.
VERSIONS := 3.3.0 3.4.0b2
# Rooms with what differs between versions.
ROOMS := board executors functions operators pipelines triggers
# Tests begin many Pythons, each of which would compile all modules anew where the environment keeps it from saving them.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help venv demo docs test matrix soak flaky sandbox bench pictures wheel release lint format clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: ## Install what is missing, into .venv and (as root) from Debian
	@scripts/bootstrap

demo: venv ## Start a sandbox and an Airflow, and watch an example DAG run in them; EXECUTOR=slurm for tasks on nodes
	$(PYTHON) -m sandbox demo $(if $(EXECUTOR),--executor=$(EXECUTOR)) $(ARGS)

docs: venv ## Build the documentation as a site, into build/site; ARGS=serve shows it while you write
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs $(or $(ARGS),build --strict)

test: venv ## Run all tests; ARGS="tests/unit -k NAME" for some of them
	$(PYTHON) -m pytest --numprocesses=10 --dist=loadgroup --no-loadscope-reorder $(ARGS)

matrix: ## Run the tests in an Airflow on each version that is supported; VERSIONS=3.3.1 for another
	@for version in $(VERSIONS); do \
		echo "matrix: Airflow $$version"; \
		AIRFLOW=$$version scripts/bootstrap && \
		.venv-$$version/bin/python -m pytest --numprocesses=2 --dist=loadgroup --no-loadscope-reorder \
			tests/airflow tests/ui $(addprefix tests/unit/,$(ROOMS)) $(ARGS) || exit 1; \
	done

soak: venv ## Run what is a matter of luck, for a while; ARGS="--minutes 60 --seed 7"
	$(PYTHON) -m tests.soak $(ARGS)

flaky: venv ## Find flaky tests among those that a change touches; ARGS="tests/unit --runs 10" for others
	$(PYTHON) -m tests.flaky $(ARGS)

sandbox: venv ## Bring up a sandbox and leave it running
	$(PYTHON) -m sandbox up $(ARGS)

bench: venv ## Run the benchmarks and print one table
	$(PYTHON) -m benchmarks $(ARGS)

pictures: venv ## Take the pictures of the documentation anew, of a real Airflow
	$(PYTHON) -m pytest tests/airflow/pictures.py $(ARGS)

wheel: venv ## Build the wheels into dist/, twice, and see that they are the same
	scripts/wheel $(ARGS)

release: venv ## Build what a release has into dist/; ARGS=v0.1.0 is its tag
	scripts/release $(ARGS)

lint: venv ## Check style, format, types, the direction of imports, and shell files
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m mypy
	.venv/bin/lint-imports --no-logo --no-cache
	git ls-files '*.bash' '*.sh' scripts/bootstrap scripts/release scripts/wheel .ci/debian .ci/run docker/entrypoint | xargs .venv/bin/shellcheck

format: venv ## Mend style and format in place
	$(PYTHON) -m ruff check --fix-only --quiet
	$(PYTHON) -m ruff format

clean: ## Stop all sandboxes; remove .venv and every cache in this folder
	if [ -x $(PYTHON) ] && [ "$$(id -u)" = 0 ]; then $(PYTHON) -m sandbox down --all; fi
	rm -rf .venv .venv-* build dist *.egg-info sandbox/build sandbox/*.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
