# Every target does its own set-up: Python packages with hashes, Java, the jars of Kafka and of Spark's Kafka connector,
# a Redis server. What is there already is not done again.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
UV := .tidegate/uv/bin/uv
SPARK ?= 3.5
OTHER_SPARK := .tidegate/spark-$(SPARK)
# Tests and demo start hundreds of Python processes: none shall compile again what another has compiled.
unexport PYTHONDONTWRITEBYTECODE
COMPILE := $(UV) pip compile --quiet --generate-hashes --python-version 3.11 --no-header --no-emit-index-url

.PHONY: help demo test test-docker test-k8s test-yarn test-hdfs test-kerberos test-s3 test-all spark test-spark faults check docs bench compiled lab up down lock schemas setup prometheus kerberos browser kubeconfig k8s-images demo-k8s

help:  ## what there is to make
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: setup  ## a lagging Spark job grows and shrinks by itself, live; at the end a table, a picture and the proof
	$(BIN)/python -m demo $(ARGS)

demo-k8s: setup k8s-images  ## the same with the job in pods, on the one-node cluster of KUBECONFIG
	$(BIN)/python -m demo --backend kubernetes $(ARGS)

test: setup prometheus browser  ## the tests, against real Kafka and Redis on this machine, with one loop on Spark (ARGS="-k name" picks some)
	$(BIN)/python -m pytest -n 3 -m "not slow and not spark" $(ARGS)

test-all: setup prometheus browser  ## these, and those that run jobs and queries on Spark: what CI runs
	$(BIN)/python -m pytest -n 3 -m "not slow" $(ARGS)

test-docker: setup prometheus  ## the Compose file and the stack's tests in containers; needs a Docker daemon
	TESTCONTAINERS_RYUK_DISABLED=true $(BIN)/python -m pytest --stack=containers \
		tests/contract/test_compose_docker.py tests/integration $(ARGS)

test-k8s: $(INSTALLED) kubeconfig k8s-images  ## tests on the Kubernetes cluster of KUBECONFIG, whose node is this machine; see docs/how-to/kubernetes.md
	TIDEGATE_TEST_KUBERNETES=1 $(BIN)/python -m pytest tests/kubernetes $(ARGS)

test-yarn: setup  ## tests on a YARN of their own on this machine: jobs changed in every way
	TIDEGATE_TEST_YARN=1 $(BIN)/python -m pytest tests/yarn $(ARGS)

test-hdfs: setup  ## tests on an HDFS of their own on this machine: jobs with nothing shared
	TIDEGATE_TEST_HDFS=1 $(BIN)/python -m pytest tests/hdfs $(ARGS)

test-kerberos: setup kerberos  ## tests on a YARN and an HDFS of their own that ask for tickets of a KDC of their own
	TIDEGATE_TEST_KERBEROS=1 PYTHONPATH="$(CURDIR)/.tidegate/kerberos" $(BIN)/python -m pytest tests/kerberos $(ARGS)

test-s3: setup  ## tests on an S3 server on this machine: checkpoint, event log and control files in it, nothing shared
	TIDEGATE_TEST_S3=1 $(BIN)/python -m pytest tests/s3 $(ARGS)

spark: $(OTHER_SPARK)/.installed  ## another version of Spark, in .tidegate: SPARK=3.5 (the default), 4.0 or 4.1
	PYTHONPATH="$(CURDIR)/$(OTHER_SPARK)" $(BIN)/python -m tidegate.stack.setup

# Before 4.2, pyspark leaves its sockets to the garbage collector.
UNCLOSED := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

test-spark: spark  ## those on Spark, on that version: start, resize, stop, archive, audit (which needs 4.0)
	PYTHONPATH="$(CURDIR)/$(OTHER_SPARK)" $(BIN)/python -m pytest -m "spark and not slow" $(UNCLOSED) tests/integration \
		$(if $(filter 3.5,$(SPARK)),--ignore tests/integration/test_audit.py) $(ARGS)

faults: setup  ## what takes minutes each: actuator, drivers, executors killed at any point of each way; a batch of two minutes
	$(BIN)/python -m pytest -n 2 -m slow $(ARGS)

compiled: $(INSTALLED) prometheus  ## the engine compiled by mypyc, in a copy of this checkout: the same decisions, its tests
	$(BIN)/python -m bench.compiled
	cd .tidegate/compiled && "$(CURDIR)/$(BIN)/python" -m pytest -p no:cacheprovider tests/property tests/unit $(ARGS)

PROSE := README.md CONTRIBUTING.md CHANGELOG.md docs schemas tidegate services demo bench tools tests deploy

docs: $(INSTALLED)  ## the docs site in .tidegate/site; a link that leads nowhere fails
	$(BIN)/zensical build --strict --clean

check: $(INSTALLED)  ## lint, format, types, import directions, words, generated files, the docs site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/codespell --dictionary tools/words.txt --skip '*.lock,*.json,*.gz,*.csv,*.ndjson,words.txt,compose_spec,axe,vendor' \
		--ignore-regex '\{\w+[^}]*\}|formerly.{0,2}["`]\w+' $(PROSE)
	$(BIN)/python -m tools.schemas --check
	$(BIN)/python -m tools.crd --check
	$(BIN)/python -m tools.policy_pages --check
	$(BIN)/python -m tools.observe --check
	$(BIN)/python -m tools.reference_pages --check
	$(BIN)/zensical build --strict --clean

bench: setup  ## benchmarks, as ratios against a floor or a peer
	$(BIN)/python -m bench

lab: $(INSTALLED)  ## every policy on the report set, next to what is attainable: tables of the docs, pictures (WHOLE=1: over night; ARGS="--trace load.csv": your load)
	$(BIN)/python -m $(if $(strip $(ARGS)),tidegate.lab $(ARGS),tools.lab_page $(if $(WHOLE),--whole))

up: setup  ## start Kafka, Redis and Spark in .tidegate/stack
	$(BIN)/tidegate up

down: $(INSTALLED)  ## end them and everything they launched
	$(BIN)/tidegate down

schemas: $(INSTALLED)  ## write what is generated: JSON Schemas, the AsyncAPI document, pages, metrics, dashboards
	$(BIN)/python -m tools.schemas
	$(BIN)/python -m tools.crd
	$(BIN)/python -m tools.policy_pages
	$(BIN)/python -m tools.observe
	$(BIN)/python -m tools.reference_pages

lock: $(UV)  ## resolve all Python packages again and write the lock files
	$(COMPILE) --universal $(patsubst %,--no-emit-package %,colorama httpx2-jsfetch pywin32) \
		pyproject.toml --extra dev -o requirements.lock  # of all Pythons, and of Linux alone
	$(COMPILE) pyproject.toml --extra decider --extra traces -o deploy/requirements/decider.lock
	for service in collector actuator; do \
		$(COMPILE) pyproject.toml --extra $$service --extra hdfs --extra s3 --extra traces -o deploy/requirements/$$service.lock; done
	$(COMPILE) pyproject.toml --extra console-service -o deploy/requirements/console.lock
	for service in operator keda; do \
		$(COMPILE) pyproject.toml --extra $$service -o deploy/requirements/$$service.lock; done
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["kerberos"], sep="\n")' \
		| $(COMPILE) - -o deploy/requirements/kerberos.lock
	for version in 3.5.7 4.0.0 4.1.1; do \
		echo "pyspark==$$version" | $(COMPILE) - -o deploy/requirements/spark-$${version%.*}.lock; done
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], "mypy", sep="\n")' \
		| $(COMPILE) - pyproject.toml --constraint requirements.lock -o deploy/requirements/build.lock

setup: $(INSTALLED)
	@$(BIN)/python -m tidegate.stack.setup

kubeconfig:  # before minutes go into images
	@test -n "$${KUBECONFIG:-}" || { echo "set KUBECONFIG to a cluster that may be used for tests" >&2; exit 1; }

k8s-images:  # built and loaded by a command that gets their names, such as K8S_LOAD="kind load docker-image"
	$(if $(strip $(K8S_LOAD)),deploy/kubernetes/load-images.sh $(K8S_LOAD))

prometheus:  # Debian's: the tests run the dashboards' queries and the alerts on it
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
			|| { echo "the tests need Prometheus 2.42 or later: install Debian's package prometheus" >&2; exit 1; }; \
		echo "installing Debian's prometheus"; \
		apt-get update -q >/dev/null; apt-get install -q -y --no-install-recommends prometheus >/dev/null; }

kerberos: .tidegate/kerberos/.installed  # Debian's KDC, and the package that is built against Debian's Kerberos

.tidegate/kerberos/.installed: deploy/requirements/kerberos.lock | $(INSTALLED)
	@for program in gcc krb5-config krb5kdc kadmin.local; do \
		command -v $$program >/dev/null && continue; \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "the tests need $$program:" \
			"install gcc, python3-dev, libkrb5-dev, krb5-kdc and krb5-admin-server" >&2; exit 1; }; \
		echo "installing Debian's krb5-kdc, krb5-admin-server, libkrb5-dev, python3-dev and gcc"; \
		apt-get update -q >/dev/null; DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
			krb5-kdc krb5-admin-server libkrb5-dev python3-dev gcc libc6-dev >/dev/null; break; done
	@rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes --target $(@D) -r $<
	@touch $@

# The console is tested in Debian's Chromium. Root gets it installed; everybody else is told what to install.
browser:
	@if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing Debian's chromium and chromium-driver"; \
			apt-get update -q >/dev/null; \
			DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
				chromium chromium-driver >/dev/null; \
		else echo "the console's tests need Chromium: install chromium and chromium-driver" >&2; exit 1; fi; \
	fi

$(UV):
	$(PYTHON) -m venv .tidegate/uv
	.tidegate/uv/bin/pip install --quiet --disable-pip-version-check uv

# Debian's python may come without ensurepip: then its own package is the remedy, or another pip fills the venv.
$(INSTALLED): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
		|| { echo "Python 3.11 to 3.14 is needed: install one, or say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@if [ ! -x $(BIN)/pip ]; then \
		package=python$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv; \
		if ! $(PYTHON) -c 'import ensurepip' 2>/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing Debian's $$package"; \
			apt-get update -q >/dev/null; apt-get install -q -y --no-install-recommends $$package >/dev/null; \
		fi; \
		$(PYTHON) -m venv .venv 2>/dev/null \
			|| { $(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } \
			|| { rm -rf .venv; echo "$(PYTHON) can make no virtual environment: install $$package" >&2; exit 1; }; \
	fi
	@echo "installing the packages of requirements.lock (the first time: some minutes)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Only pyspark, in a folder that goes before the environment's own on the import path.
.tidegate/spark-%/.installed: deploy/requirements/spark-%.lock | $(INSTALLED)
	@echo "installing Spark $* (a minute)"
	@rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --use-pep517 --require-hashes \
		--target $(@D) -r $<
	@touch $@
