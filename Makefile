.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := src tests benchmarks docs/build.py docs/docstrings.py docs/figures.py examples experiments
# Only packages are downloaded. What the tests need is built in process or installed.
OFFLINE := HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
# accelerate gives a process one thread unless told otherwise.
THREADS := $(shell $(PYTHON) -c 'import os; print(os.cpu_count())')

.PHONY: help install train test test-slow test-gpu test-stress test-lowest test-integrations docs release-check style quality bench bench-full bench-batching bench-training bench-index bench-load clean

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("cde-hf needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(VENV)/installed  ## Create the virtual environment .venv and install the package with its development dependencies

train: install  ## Train a small contextual model on docstrings and test it on unseen libraries (16 minutes on two cores)
	$(OFFLINE) $(BIN)/accelerate launch --config_file examples/accelerate_configs/single.yaml \
		--num_cpu_threads_per_process $(THREADS) examples/train.py examples/recipes/docstrings.yaml
	$(OFFLINE) $(BIN)/python examples/held_out_libraries.py runs/docstrings
	$(OFFLINE) $(BIN)/python examples/context_map.py runs/docstrings

test: install  ## Run all tests except slow tests and GPU tests
	$(OFFLINE) $(BIN)/python -m pytest -n auto --dist loadgroup -m 'not slow and not gpu'

test-slow: install  ## Run the slow tests
	$(OFFLINE) $(BIN)/python -m pytest -m 'slow and not gpu'

test-gpu: install  ## Run the GPU tests. Needs one or two GPUs, and for some tests the extras flash and gpu
	$(OFFLINE) $(BIN)/python -m pytest -m gpu

test-stress: install  ## Run each stress test for 60 seconds, or as given: make test-stress SECONDS=600 SEED=1
	$(OFFLINE) OMP_NUM_THREADS=1 STRESS_SECONDS=$(or $(SECONDS),60) STRESS_SEED=$(SEED) $(BIN)/python -m pytest -s tests/stress

# Where pip itself only finds the newest version that a range allows, uv finds the oldest. torch comes with its CUDA packages, some gigabytes.
LOWEST := .venv-lowest
$(LOWEST)/installed: setup.cfg
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--only-binary :all: --no-binary cde-hf -e '.[train,eval,offline,plots,peft]' 'pytest>=8' 'pytest-xdist>=3' \
		'hypothesis>=6.100' 'bm25s>=0.2'
	@touch $@

test-lowest: $(LOWEST)/installed  ## Run the tests with the oldest versions that setup.cfg allows (slow)
	$(OFFLINE) $(LOWEST)/bin/python -m pytest -n auto --dist loadgroup -m 'not slow and not gpu' $(TESTS)

# The notebook, the page to play with and the site, in an environment of their own.
PAGES := .venv-integrations/pages
$(PAGES)/installed: setup.cfg constraints.txt examples/space/requirements.txt
	$(PYTHON) -m venv $(PAGES)
	$(PAGES)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[search,offline,docs]' pytest gradio playwright
	@touch $@

docs: install  ## Build the documentation site, build/site, without a download; a broken link is an error
	$(OFFLINE) $(BIN)/python docs/build.py

RELEASE := build/release
release-check:  ## Build the wheel, install it into an empty environment and run the README's first block there
	rm -rf $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(RELEASE)/tools/bin/python -m build --outdir $(RELEASE)/dist .
	$(RELEASE)/tools/bin/twine check --strict $(RELEASE)/dist/*
	$(PYTHON) -m venv $(RELEASE)/empty
	$(RELEASE)/empty/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		"$$(ls $(RELEASE)/dist/*.whl)[offline]"
	awk '/^```python/ {inside = 1; next} /^```/ && inside {exit} inside' README.md > $(RELEASE)/first_block.py
	cd $(RELEASE) && $(OFFLINE) empty/bin/python first_block.py && empty/bin/cde-hf --version

# fastembed needs an older huggingface-hub, and shows that an exported folder needs neither PyTorch nor this package.
INTEGRATIONS := .venv-integrations
$(INTEGRATIONS)/installed: setup.cfg constraints.txt tests/integrations/requirements.txt
	$(PYTHON) -m venv $(INTEGRATIONS)/fastembed
	$(INTEGRATIONS)/fastembed/bin/python -m pip install --quiet --disable-pip-version-check fastembed==0.9.1
	$(PYTHON) -m venv $(INTEGRATIONS)/package
	$(INTEGRATIONS)/package/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -r tests/integrations/requirements.txt -e '.[search,offline,onnx,ray]'
	@touch $@

test-integrations: $(INTEGRATIONS)/installed $(PAGES)/installed  ## Run the tests with fastembed, LangChain, Chroma, PostgreSQL, Ray, OpenAI's client, the notebook and the pages
	$(OFFLINE) FASTEMBED_PYTHON=$(CURDIR)/$(INTEGRATIONS)/fastembed/bin/python \
		$(INTEGRATIONS)/package/bin/python -m pytest tests/integrations
	$(OFFLINE) $(PAGES)/bin/python -m pytest $(addprefix tests/integrations/test_,notebook.py site.py space.py)

style: install  ## Format the code and apply the linter's fixes
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

quality: install  ## Check formatting, lint and types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

bench: install  ## Time encoding, surrogates and training, and write docs/benchmarks.md (about 20 minutes)
	$(OFFLINE) $(BIN)/python benchmarks/report.py

bench-full: install  ## Run make bench with more lengths, batches and rounds (hours)
	$(OFFLINE) $(BIN)/python benchmarks/report.py --full

bench-batching: install  ## Make batch plans of one and four million synthetic pairs, and compare one level of k-means with two
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python benchmarks/batching.py --level-pairs 10000 20000 40000

bench-training: install  ## Time the training step and measure its memory, as in make bench
	$(OFFLINE) $(BIN)/python benchmarks/report.py --tables training 'training memory'

bench-index: install  ## Time the index against bare FAISS and a contextual query against a plain one (5 minutes)
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python benchmarks/index.py

bench-load: install  ## Measure the memory and time of an index of a million vectors (10 minutes)
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python benchmarks/load.py

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) $(INTEGRATIONS) build .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
