# The course in two commands: `make course`, `make test`. Both may be run again at any time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python
STAMP  := $(VENV)/.ready

.PHONY: course test book pdf exercises demo serve bench verify verify-full lint clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

course: $(STAMP) ## set up, generate, build the book, grade a demonstration class
	@$(RUN) -m autograder.commands.make_course

test: $(STAMP) ## every test, the built book and the graders' own test included
	@$(MAKE) --no-print-directory -j2 lint book
	@$(RUN) -m pytest -q
	@$(RUN) -m autograder verify --json build/verify.json

book: $(STAMP) ## build the book alone; EDITION=course: without the answers to exercises
	@$(RUN) -m toolkit.book $(if $(EDITION),--edition $(EDITION))

pdf: $(STAMP) ## print the built book into one PDF; EDITION=course, PAPER=Letter
	@$(RUN) -m toolkit.pdf $(if $(EDITION),--edition $(EDITION)) $(if $(PAPER),--paper $(PAPER))

exercises: $(STAMP) ## regenerate the students' notebooks after editing solutions/
	@$(RUN) -m autograder build

demo: $(STAMP) ## grade the demonstration class again
	@$(RUN) -m autograder.commands.make_course --only demo

serve: $(STAMP) ## read the built book at http://localhost:8000
	@$(RUN) -m http.server 8000 --directory build/book/_build/html

bench: $(STAMP) ## measure grading, check, verify, the models and the book; writes build/bench.json
	@$(RUN) -m autograder.benchmarks

verify: $(STAMP) ## judge the graders by misconceptions and mutants
	@$(RUN) -m autograder verify

verify-full: $(STAMP) ## the same at 20 seeds; takes most of an hour
	@$(RUN) -m autograder verify --seeds 20 --json build/verify-full.json

lint: $(STAMP) ## ruff, spelling, types, which package imports which
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(BIN)/codespell
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/mypy --no-error-summary

clean: ## remove what was built; the environment stays
	@rm -rf build

# The environment is made once, and again when the pins change.
$(STAMP): requirements.txt pyproject.toml toolkit/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash toolkit/setup.sh
	@touch $@
