# Thin: each target names what it needs (scripts/setup.sh) and runs one command. `make demo ARGS=--once` passes ARGS on.
SHELL := /bin/sh
export PATH := $(PATH):$(HOME)/.cargo/bin
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
ARGS ?=
# A sandglass-demo that is built already, for `make demo`; .ci/run names that of the tests.
DEMO ?=
# Where cargo builds, and where builds of peers are kept; sudo passes neither on by itself.
PLACES = target=$$(scripts/places.sh target) && cache=$$(scripts/places.sh cache)
KEEP = CARGO_TARGET_DIR="$$target" SANDGLASS_CACHE="$$cache"

.PHONY: help demo test test-cluster image release bench lint setup clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

demo: ## Trace real pod sandboxes of a private containerd (root; ARGS=--once checks and ends, --observability adds Prometheus and Jaeger, --cluster: in a Kubernetes, --windows: a recording of a Windows node)
ifneq ($(filter --cluster,$(ARGS)),)
	@scripts/setup.sh build demo cluster
	@$(PLACES) && $(SUDO) env $(KEEP) DEMO_ARGS="$(filter-out --cluster,$(ARGS))" deploy/cluster/test.sh --demo
else
	@scripts/setup.sh build demo $(if $(findstring --observability,$(ARGS)),observability)
	$(if $(DEMO),,cargo build --profile demo --locked --package sandglass-demo --bin sandglass-demo)
	$(PLACES) && $(if $(findstring --observability,$(ARGS)),jaeger=$${SANDGLASS_JAEGER:-$$(scripts/peer.sh jaeger)} && )$(SUDO) $(if $(findstring --observability,$(ARGS)),env SANDGLASS_JAEGER="$$jaeger" )"$(or $(DEMO),$$target/demo/sandglass-demo)" $(ARGS)
endif

test: ## Run all tests; the last line counts them
	@scripts/setup.sh build demo test
	@scripts/test.sh $(ARGS)

test-cluster: ## Run the image and the chart in a real one-node Kubernetes (root; ARGS=--keep leaves it running)
	@scripts/setup.sh build demo cluster
	@$(PLACES) && $(SUDO) env $(KEEP) deploy/cluster/test.sh $(ARGS)

image: ## Build the static binary and its OCI archive, without a container engine (ARGS="amd64 arm64")
	@scripts/setup.sh build
	@scripts/image.sh $(ARGS)

release: ## Build all that a release has: binaries, images, chart, bill of materials, checksums; two runs give the same bytes
	@scripts/setup.sh build
	@scripts/release.sh

bench: ## Measure against bench/BUDGETS.md; results are kept in bench/results/
	@scripts/setup.sh build demo
	cargo build --release --locked --package sandglass --package sandglass-bench
	$(PLACES) && $(SUDO) "$$target/release/sandglass-bench" $(ARGS)

lint: ## Format and lints, warnings denied
	@scripts/setup.sh build
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

setup: ## Install what is missing (Debian, Ubuntu), or say what to install
	@scripts/setup.sh build demo test

clean: ## Remove what cargo built (built peers stay in the cache, see scripts/places.sh)
	cargo clean
