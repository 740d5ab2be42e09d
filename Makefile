# `make repro` runs the study on the embedded synthetic data; `make repro DATASET=task2mcp` is the paper.
# `make test` passes the tests. Both set up everything first, in .venv. `make help` lists the rest.

DATASET ?= synthetic
PROFILE ?= laptop
LAUNCHER ?= local
TRAINER ?= cpu
FORCE ?=
LLM ?=
LORA ?=
FAISS ?=
RAY ?=
# The lock is made with 3.11; where that is not there, the newest that the study runs on.
PYTHON ?= $(shell for v in 3.11 3.13 3.12; do python$$v --version >/dev/null 2>&1 && echo python$$v && exit; done; echo python3.11)
VENV ?= .venv
BIN = $(VENV)/bin
UV ?=
INSTALL = $(if $(UV),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check)
STAMP = $(VENV)/.installed
TORCH = $(shell grep -o 'torch==[0-9.]*' pyproject.toml)
# The first job of `dvc` and of the notebooks is to find the environment's own programs.
RUN = PATH="$(abspath $(BIN)):$$PATH"
SWEEPS = fusion_weight temperature learning_rate wo_cl_passes
DVC_TARGETS = report judged usefulness notebooks

.DEFAULT_GOAL := help
.PHONY: help setup scm repro test test-slow bench lint notebooks site verify lock clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# LLM=1 adds the engine of local models, LORA=1 what trains adapters for language models, FAISS=1 the search of large
# catalogues, RAY=1 a later Ray than RecBole's. UV=1 installs with uv, if it is on the path, instead of pip.
setup: $(STAMP) scm $(if $(LLM),$(VENV)/.llm) $(if $(LORA),$(VENV)/.lora) $(if $(FAISS),$(VENV)/.faiss) $(if $(RAY),$(VENV)/.ray)  ## create .venv, install the exact lock; LLM=1, LORA=1, FAISS=1, RAY=1: extras; UV=1: by uv

# torch comes first and exactly: where a processor-only build of this version is at hand, pip then keeps to it.
# The lock is complete, so nothing is resolved again. No ray that RecBole takes runs on Python 3.12 and later.
$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) --version >/dev/null 2>&1 || { echo "error: $(PYTHON) not found; install Python 3.11, 3.12 or 3.13, or set PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(INSTALL) --no-deps -r requirements.txt
	$(INSTALL) --no-deps -e .
	@! $(BIN)/python -m pip check --disable-pip-version-check | grep -Ev '^No broken requirements|requires ray, which is not installed'
	@touch $@

# DVC asks for a git repository, which an unpacked archive of the study is not.
scm: $(STAMP)
	@git rev-parse --git-dir >/dev/null 2>&1 || $(BIN)/dvc config --local core.no_scm true

$(VENV)/.llm $(VENV)/.lora $(VENV)/.faiss $(VENV)/.ray: $(VENV)/.%: $(STAMP)
	$(INSTALL) --editable '.[$*]'
	@touch $@

# What the synthetic results are made of: `make repro` does nothing while none of it has changed.
# The folders of conf count, too: a file that is removed changes its folder.
SOURCES = $(shell find src baselines conf notebooks -name '*.py' -o -name '*.yaml' -o -name '*.ipynb') $(shell find conf -type d)
MADE = results/synthetic/.made

# Another profile than the committed one makes every row again, tuned for its sizes. LAUNCHER=ray or slurm: on a cluster.
ROWS = study run --all $(if $(FORCE),--replace) --launcher $(LAUNCHER) dataset=$(DATASET) profile=$(PROFILE)
repro: setup  ## run the study on DATASET (synthetic | task2mcp); FORCE=1 retrains everything; PROFILE=full: larger models, nearer to the papers', for GPUs
ifneq ($(PROFILE),laptop)
	$(RUN) study fetch dataset=$(DATASET)
	$(RUN) study prepare dataset=$(DATASET)
	$(RUN) study split dataset=$(DATASET)
	@status=0; $(RUN) $(ROWS) || status=$$?; \
	$(RUN) study report dataset=$(DATASET) && $(RUN) study notebooks dataset=$(DATASET) || exit 2; \
	exit $$status
else ifeq ($(DATASET),synthetic)
	@$(if $(FORCE),rm -rf $(MADE) results/synthetic models/synthetic)
	@$(MAKE) --no-print-directory $(MADE)
else
	$(if $(FORCE),rm -rf models/$(DATASET))
	@status=0; $(if $(FORCE),{ $(RUN) dvc repro split && $(RUN) study run --all --replace dataset=$(DATASET) \
	$(foreach sweep,$(SWEEPS),&& $(RUN) study sweep $(sweep) --replace dataset=$(DATASET)); } || status=$$?;) \
	$(RUN) dvc repro --keep-going $(if $(FORCE),--force) $(DVC_TARGETS) || status=$$?; \
	if [ $$status -ne 0 ]; then \
	  echo "error: the stages named above failed; the tables follow without them"; $(RUN) study report dataset=$(DATASET); \
	fi; \
	[ $$status -eq 0 ] && $(RUN) study export dataset=$(DATASET) && $(RUN) study export dataset=$(DATASET) system=field_dense; \
	exit $$status
endif
	@$(RUN) study show dataset=$(DATASET)
	@$(if $(filter task2mcp,$(DATASET)),$(RUN) study docs)
	@echo "tables: results/$(DATASET)/tables   figures: figures/$(DATASET)   notebooks: results/$(DATASET)/notebooks"

# A row that fails is named at the end; tables, figures and notebooks are made without it.
# The stamp bears the time of the beginning, so that what is written meanwhile is seen by the next run.
$(MADE): $(SOURCES)
	@mkdir -p $(@D) && touch $@.begun
	@status=0; $(RUN) $(ROWS) || status=$$?; \
	$(RUN) study report dataset=$(DATASET) && $(RUN) study export dataset=$(DATASET) system=field_dense && \
	$(RUN) study notebooks dataset=$(DATASET) || exit 2; \
	[ $$status -eq 0 ] || exit $$status; \
	mv $@.begun $@

PYTEST = OMP_NUM_THREADS=1 pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: setup  ## run the tests but the slow ones (T2M_MIRROR=folder adds those on the public data)
	$(RUN) $(PYTEST) -m "not slow"

test-slow: setup  ## run the slow tests alone
	$(RUN) $(PYTEST) -m slow

lint: setup  ## check style and types
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy src/study baselines

bench: setup  ## measure speed on DATASET into results/DATASET/tables/efficiency.csv (TRAINER=gpu: of a GPU)
	$(RUN) study bench dataset=$(DATASET) trainer=$(TRAINER)

notebooks: setup  ## execute the notebooks of DATASET again
	$(RUN) study notebooks dataset=$(DATASET)

site: setup  ## write docs, notebooks, leaderboards, systems and figures as pages: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --quiet --strict

verify: setup  ## compare results/expected.yaml with the runs
	$(RUN) study verify

lock:  ## redo requirements.txt from pyproject.toml (needs uv); versions stay where they may
	uv pip compile pyproject.toml --extra study --extra dev --universal --python-version 3.11.2 --generate-hashes --no-annotate --no-header --quiet -o requirements.txt
	$(PYTHON) .ci/lock.py

clean:  ## remove what runs made outside git (data, caches, models); .venv stays
	rm -rf data .cache models results/synthetic figures/synthetic .pytest_cache .mypy_cache .ruff_cache .hypothesis
