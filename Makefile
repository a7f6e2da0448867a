# Targets for developers; CONTRIBUTING.md explains them. Users need none of these.
export PYTHONSAFEPATH := 1
PYTHON ?= python

.PHONY: setup check format lint types test test-gpu bench oracles docs clean \
	oracle-transformers oracle-vllm oracle-llamacpp oracle-gguf oracle-calculators oracle-logs

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
	pytest -m gpu -n 0

bench:  ## ratios measured side by side in one run
	$(PYTHON) benchmarks/startup.py
	$(PYTHON) benchmarks/simulate.py

# Compare the golden files with other people's code and report drift; `make -k` goes on after one.
oracles: $(addprefix oracle-,transformers vllm llamacpp gguf calculators logs)

oracle-transformers:
	$(PYTHON) tests/oracles/transformers_oracle.py defaults --check
	$(PYTHON) tests/oracles/transformers_oracle.py counts --cards --check
	$(PYTHON) tests/oracles/class_counts.py --check
	$(PYTHON) tests/oracles/towers_oracle.py defaults --check
	$(PYTHON) tests/oracles/transformers_cache_oracle.py --check

oracle-vllm:
	$(if $(and $(VLLM_SRC),$(VLLM_PYTHON),$(VLLM_VERSION)), \
	PYTHONPATH=tests/oracles $(VLLM_PYTHON) tests/oracles/vllm_oracle.py \
	--source $(VLLM_SRC) --version $(VLLM_VERSION) --check, \
	@echo "not run: vllm_oracle.py needs VLLM_SRC, VLLM_PYTHON and VLLM_VERSION")

oracle-llamacpp:
	$(if $(LLAMACPP_PYTHON), \
	PYTHONPATH=$(CURDIR) $(LLAMACPP_PYTHON) tests/oracles/llamacpp_oracle.py --check, \
	@echo "not run: llamacpp_oracle.py needs LLAMACPP_PYTHON")

oracle-gguf:
	$(if $(and $(GGUF_SRC),$(CONFIGS)), \
	$(PYTHON) tests/oracles/gguf_oracle.py --source $(GGUF_SRC) --configs $(CONFIGS) \
	--check tests/golden/gguf_converter.json, \
	@echo "not run: gguf_oracle.py needs GGUF_SRC and CONFIGS")

oracle-calculators:
	$(PYTHON) tests/oracles/calculators.py page --check
	$(if $(CALCULATORS_PYTHON), \
	$(CALCULATORS_PYTHON) tests/oracles/calculators.py figures --check, \
	@echo "not run: calculators.py figures needs CALCULATORS_PYTHON")

oracle-logs:
	$(if $(RECORDS), \
	$(PYTHON) tests/oracles/ground_truth.py $(RECORDS) --check, \
	@echo "not run: ground_truth.py needs RECORDS")

docs:  ## rebuild the generated pages
	$(if $(CONFIGS), \
	$(PYTHON) tests/oracles/models_table.py $(CONFIGS), \
	@echo "not run: models_table.py needs CONFIGS, a folder with configurations")
	$(PYTHON) tests/oracles/calculators.py page

clean:
	rm -rf .types .ci-venv build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
