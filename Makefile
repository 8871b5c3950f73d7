# Everything a developer runs. `make` alone lists it.

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

# The same selection for every cargo command, so that no crate is built twice for its features.
SELECT := --workspace --all-features --locked

.DEFAULT_GOAL := help
.PHONY: help setup run test lint doc bench-smoke miri ci

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## Install what building takes and is missing here
	@scripts/setup.sh

run: setup ## Build the release binary and run the demo on this machine's own file names
	$(CARGO) build --release --locked -p farleaf-cli
	@scripts/demo.sh $(TARGET_DIR)/release/farleaf

test: setup ## Run all tests
	$(CARGO) test $(SELECT)

lint: ## Check formatting, clippy's lints and what scripts/check-sources.sh looks for
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(SELECT) --all-targets -- -D warnings
	scripts/check-sources.sh

# The command has the name of the library, and nothing to import.
doc: ## Build the documentation of all libraries; its warnings are errors
	RUSTDOCFLAGS="-D warnings $(RUSTDOCFLAGS)" $(CARGO) doc $(SELECT) --no-deps --lib

bench-smoke: ## Run a small benchmark of every engine on every fabric (unoptimised: not for figures)
	$(CARGO) build --profile test $(SELECT) --bin farleaf
	scripts/bench-smoke.sh $(TARGET_DIR)/debug/farleaf

miri: ## Run the unsafe module's tests under Miri (needs: rustup +nightly component add miri rust-src)
	MIRIFLAGS="-Zmiri-strict-provenance -Zmiri-symbolic-alignment-check" \
		$(CARGO) +nightly miri test -p farleaf-fabric --lib raw::

ci: ## Run all that continuous integration runs
	@.ci/run
