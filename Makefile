# Targets for developers; CONTRIBUTING.md explains them. Users need none of these.
export PYTHONSAFEPATH := 1
PYTHON ?= python

.PHONY: setup check format lint types test test-gpu bench oracles docs clean

setup:  ## an editable install with everything, and the commit hooks
	$(PYTHON) -m pip install -e ".[all,test,dev]"
	pre-commit install

check: lint types  ## what a commit must pass besides the tests

lint:
	ruff check .
	ruff format --check .

format:
	ruff check --fix .
	ruff format .

# Type checkers do not follow setuptools' package-dir mapping: check an assembled copy.
types:
	rm -rf .types && mkdir -p .types
	cp -r kvtool .types/kvtool
	cp -r kernels .types/kvtool/kernels
	cp -r model_configs .types/kvtool/model_configs
	cd .types && mypy --config-file ../pyproject.toml -p kvtool

test:
	pytest

test-gpu:
	pytest -m gpu

bench:  ## ratios measured side by side in one run
	$(PYTHON) benchmarks/startup.py
	$(PYTHON) benchmarks/simulate.py

oracles:  ## compare the golden files with other people's code, report drift
	$(PYTHON) tests/oracles/transformers_oracle.py defaults --check
	$(PYTHON) tests/oracles/transformers_oracle.py counts --cards --check

docs:  ## rebuild the generated pages
	$(PYTHON) tests/oracles/models_table.py

clean:
	rm -rf .types .ci-venv build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
