# Everything a developer runs. `make` alone lists it.

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

# The same selection for every cargo command, so that no crate is built twice for its features.
SELECT := --workspace --all-features --locked

.DEFAULT_GOAL := help
.PHONY: help setup run test engine check correctness threads fuzz tsan asan lint doc bench-smoke verbs verbs-rate peers miri python python-bench python-lint image image-test units ci

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## Install what building takes and is missing here
	@scripts/setup.sh

# First the command without its lab, which is built in half the time (docs/measurements/build.md).
run: setup ## Build the command soon, run the demo on this machine's own file names, and count operations
	@printf '\n--- 1 of 3: build the command; 2 to 4 minutes on two processors the first time\n'
	$(CARGO) build --profile demo --locked -p farleaf-cli --no-default-features
	@printf '\n--- 2 of 3: the demo: load, get, scan, put, del, verify\n'
	@scripts/demo.sh $(TARGET_DIR)/demo/farleaf job
	@printf '\n--- 3 of 3: build the lab (bench, check, repro), and count what each engine costs; as long again\n'
	$(CARGO) build --profile demo --locked -p farleaf-cli
	@scripts/demo.sh $(TARGET_DIR)/demo/farleaf costs

test: setup ## Run all tests
	@CARGO="$(CARGO)" scripts/test.sh $(SELECT)

# E: an engine's name, as `farleaf engines` prints it.
engine: ## Run one engine's tests: its own, the shared suites, 200 seeds and its crash points: make engine E=dart
	@CARGO="$(CARGO)" scripts/engine.sh "$(E)" $(SELECT)

# 2 to 3 minutes; `make test`, and so continuous integration, runs the same models, the random ones less
# often.
threads: ## Run the models of what threads share (loom, shuttle) for longer
	FARLEAF_SOAK=40 $(CARGO) test --locked -p farleaf-threads

# TARGET: one of crates/fuzz-targets' (node, superblock, pool, table, fabric, records, values, keys,
# ycsb, text, wire, history); TIME: seconds.
fuzz: ## Fuzz one target: make fuzz TARGET=node TIME=60 (needs nightly)
	@scripts/fuzz.sh "$(TARGET)" "$(or $(TIME),60)"

HOST = $(shell rustc -vV | sed -n 's/^host: //p')
STRESS = --target $(HOST) --locked -p farleaf --example stress

# The standard library is built too: else its locks are unknown, and races are seen that are none.
tsan: ## Look for data races under load (needs: rustup +nightly component add rust-src)
	CARGO_TARGET_DIR=$(TARGET_DIR)/tsan RUSTFLAGS=-Zsanitizer=thread \
		TSAN_OPTIONS=halt_on_error=1 $(CARGO) +nightly run -Zbuild-std $(STRESS)

asan: ## Look for wild accesses and leaks under load (needs nightly)
	CARGO_TARGET_DIR=$(TARGET_DIR)/asan RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly run $(STRESS)

lint: ## Check formatting, clippy's lints and what scripts/check-sources.sh looks for
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path python/Cargo.toml --check
	$(CARGO) clippy $(SELECT) --all-targets -- -D warnings
	scripts/check-sources.sh
	scripts/gate.sh

# The command has the name of the library, and nothing to import.
doc: ## Build the documentation of all libraries; its warnings are errors
	RUSTDOCFLAGS="-D warnings $(RUSTDOCFLAGS)" $(CARGO) doc $(SELECT) --no-deps --lib

# What fails is told with the command line that replays it.
check: setup ## Run the engines' suites in full and the whole lab: seeds, crash points, processes, canaries (some 30 minutes, and the build)
	FARLEAF_FULL=all $(CARGO) test $(SELECT) --test engines
	$(CARGO) build --profile lab --locked -p farleaf-cli --features canary
	scripts/lab.sh $(TARGET_DIR)/lab/farleaf

correctness: setup ## Run the whole lab and write its figures into docs/correctness.md
	$(CARGO) build --profile lab --locked -p farleaf-cli --features canary
	scripts/lab.sh $(TARGET_DIR)/lab/farleaf docs/correctness.md

# Of the tests' own build: without tests, cargo selects other features, and all would be built twice.
bench-smoke: ## Run a small benchmark of every engine on every fabric, and README's commands (not for figures)
	$(CARGO) test $(SELECT) --test cli --no-run
	scripts/bench-smoke.sh $(TARGET_DIR)/debug/farleaf
	scripts/readme.sh $(TARGET_DIR)/debug/farleaf

# Skips nothing: without the machine, or without its device, it fails and says why. Some minutes, on two free processors.
verbs: ## Run the tests of the fabric verbs, and of stores and commands by RDMA, in a virtual machine with Soft-RoCE
	@scripts/verbs.sh

verbs-rate: ## Measure verbs beside perftest in a virtual machine with Soft-RoCE
	@scripts/verbs.sh rate

peers: ## Set the papers' programs beside ours in a virtual machine with Soft-RoCE (on an idle machine)
	@scripts/verbs.sh peers

miri: ## Run the unsafe module's tests under Miri (needs: rustup +nightly component add miri rust-src)
	MIRIFLAGS="-Zmiri-strict-provenance -Zmiri-symbolic-alignment-check" \
		$(CARGO) +nightly miri test -p farleaf-fabric --lib raw::

# The wheel has a workspace of its own (docs/design/python.md). Memory servers of its tests are those of the tests' own build.
python: ## Build the Python wheel and run its tests in a fresh environment (needs Python 3.10 and PyPI)
	$(CARGO) test $(SELECT) --test cli --no-run
	scripts/python.sh test

python-lint: ## Check formatting and clippy's lints of the Python wheel
	$(CARGO) fmt --manifest-path python/Cargo.toml --check
	CARGO_TARGET_DIR=$(TARGET_DIR)/python $(CARGO) clippy --manifest-path python/Cargo.toml --locked --all-targets \
		-- -D warnings

python-bench: ## Measure the Python wheel beside py-lmdb and the Rust library
	scripts/python.sh bench

image: ## Build the container image, without a daemon (needs mmdebstrap and buildah: scripts/setup.sh --image)
	dist/image/build.sh

# With the tests' own program. Built again, it must be the same image.
IMAGE = dist/image/build.sh --binary $(TARGET_DIR)/debug/farleaf --out $(TARGET_DIR)/image-test
image-test: ## Build an image twice, and run each service of dist/compose.yaml within its files (needs root)
	$(CARGO) test $(SELECT) --test cli --no-run
	$(IMAGE)/again
	$(IMAGE)
	cmp $(TARGET_DIR)/image-test/digest $(TARGET_DIR)/image-test/again/digest
	dist/image/check.py $(TARGET_DIR)/image-test

units: ## Check the units of systemd
	scripts/units.sh

ci: ## Run all that continuous integration runs
	@.ci/run
