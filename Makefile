# The commands of fp4lab; `make help` lists them. All of them run in .venv, which is made when needed.
PYTHON ?= python3
WORKERS ?= 2
DEMO ?= runs/demo
BENCH ?= runs/bench
BIN := .venv/bin
QUICK := not slow and not gpu and not network
SLOW := slow and not gpu and not network

.DEFAULT_GOAL := help
.PHONY: help demo bench test check readme clean venv format lint types imports slow notebooks docs

# One core a test process: two processes with two threads each are slower than with one.
test slow notebooks: export OMP_NUM_THREADS := 1

# $(call step,name,command): the name, the command, its time. A comma cannot stand in either.
define step
@printf '\n== %s\n' '$(1)'; start=$$(date +%s); $(2) && \
printf '== %s: passed in %d s\n' '$(1)' $$(($$(date +%s) - start))
endef

help:
	@echo 'make demo    train one model under several precision recipes and write $(DEMO)/report.html'
	@echo 'make test    the quick test suite'
	@echo 'make check   formatting, lint, types, import order, slower tests, packages, notebooks;'
	@echo '             one step alone: make format | lint | types | imports | slow | notebooks'
	@echo 'make docs    this documentation and that of every public name, into build/docs/index.html'
	@echo 'make bench   measure the speed here, other packages included where .venv has them'
	@echo 'make readme  write the results of make demo, make bench and the golden tests into README.md'
	@echo 'make clean   remove .venv and everything else that was built, but no runs'
	@echo
	@echo 'PYTHON=python3.12 chooses the interpreter of a new .venv, WORKERS=4 the test processes,'
	@echo 'DEMO=folder and BENCH=folder the places of the demo and the measurements.'

venv:
	@$(PYTHON) tools/venv.py

demo: venv
	@$(BIN)/fp4lab compare --out $(DEMO)

bench: venv
	@OMP_NUM_THREADS=1 $(BIN)/fp4lab bench --peers --out $(BENCH)

test: venv
	$(call step,quick tests,$(BIN)/pytest -n $(WORKERS) -m "$(QUICK)" --durations 5 --durations-min 1)

check: format lint types imports slow notebooks

format: venv
	$(call step,formatting,$(BIN)/ruff format --check --quiet --diff)

lint: venv
	$(call step,lint,$(BIN)/ruff check --quiet)

types: venv
	$(call step,types,$(BIN)/mypy && $(BIN)/mypy tools docs)

imports: venv
	$(call step,import order,$(BIN)/lint-imports)

slow: venv
	$(call step,slower tests and packages,$(BIN)/pytest -n $(WORKERS) -m "$(SLOW)" --timeout 600 --durations 5)

notebooks: venv
	$(call step,notebooks,$(BIN)/python tools/notebooks.py)

docs: venv
	@$(BIN)/mkdocs build --quiet --strict && echo build/docs/index.html

readme: venv
	@$(BIN)/pytest -n $(WORKERS) -k golden --junitxml build/golden.xml
	@$(BIN)/python docs/update_readme.py $(DEMO)/summary.json build/golden.xml \
		$(addprefix --speed ,$(wildcard $(BENCH)/bench.json))
	@$(BIN)/python -m docs.update_compat

clean:
	rm -rf .venv .venv.lock build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis .import_linter_cache
	find fp4lab kernels models tests tools docs -name __pycache__ -type d -prune -exec rm -rf {} +
