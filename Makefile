# storagecache: every target installs what it needs first.
PYTHON = .venv/bin/python
CARGO = $$(./scripts/install.sh --cargo)

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt lint type bench suites clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## mount three unequal stores and compare lru with lazy-clock
	@./scripts/install.sh plot
	$(PYTHON) examples/demo.py

test: ## run all tests
	@./scripts/install.sh test
	$(CARGO) test --release --no-default-features
	$(PYTHON) -m pytest

check: lint type test ## everything that must be green before a commit

fmt: ## format Python and Rust
	@./scripts/install.sh check
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .
	$(CARGO) fmt

lint: ## ruff, rustfmt and clippy
	@./scripts/install.sh check
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	@if $(CARGO) fmt --version >/dev/null 2>&1; then $(CARGO) fmt --check; \
	else echo "lint: this cargo has no rustfmt, skipped"; fi
	@if $(CARGO) clippy --version >/dev/null 2>&1; then \
	  $(CARGO) clippy --release --all-targets --all-features -- -D warnings; \
	else echo "lint: this cargo has no clippy, skipped"; fi

type: ## strict mypy, and the core's stub against the core
	@./scripts/install.sh check
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy.stubtest storagecache._core --ignore-disjoint-bases

bench: ## the bounds, each as a ratio from one run
	@./scripts/install.sh test
	@./scripts/install-suites.sh
	$(CARGO) bench --no-default-features
	@for file in bench/bench_*.py; do echo "== $$file"; $(PYTHON) $$file || exit 1; done

suites: ## fsx, pjdfstest, fio, git, sqlite, make on a real mount
	@./scripts/install.sh test
	@./scripts/install-suites.sh
	$(PYTHON) bench/suites.py

clean: ## remove what the targets made
	rm -rf .venv target build *.egg-info storagecache/*.so partitions.png
