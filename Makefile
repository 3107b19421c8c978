# The one entry, for people and for CI. `make test` is everything; each other target is one stage of it.
#
# Needs Rust, Go and Python 3. What is slow to build (the API server of the tests, grpcurl, cargo-deny,
# a Python environment) is made once and kept in $XDG_CACHE_HOME/sidewatch, keyed by version.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules

CARGO ?= cargo
# Debian's packages that the stages need besides the languages, by the program that tells whether they are there.
PROGRAMS := cc flock

# The short form that `make test` runs; a long run: `make e2e E2E_OBJECTS=10000 E2E_CHANGES=20000`.
SIM_RUNS ?= 500
E2E_OBJECTS ?= 2000
E2E_CHANGES ?= 4000
E2E_LEADER_KILLS ?= 5
E2E_RECONNECTS ?= 20

STAGES := fmt clippy repo unit sim doc deny playground-test it e2e

.PHONY: test $(STAGES) help tools

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

test: tools ## every stage in its short form, then the counts
	@MAKE='$(MAKE)' tests/tools/stages.sh $(STAGES)

tools: ## what the machine lacks of the few programs besides Rust, Go and Python
	@tests/tools/machine.sh $(PROGRAMS)

fmt: ## formatting
	$(CARGO) fmt --all --check

clippy: ## lints, warnings are errors
	$(CARGO) clippy --locked --workspace --all-targets --features it -- -D warnings

repo: ## the repository: imports, API, documents
	$(CARGO) test --locked --test repo

unit: ## unit, property and golden tests: Rust alone
	$(CARGO) test --locked --workspace --exclude sidewatch --lib --bins --tests
	$(CARGO) test --locked -p sidewatch --lib --bins --test model

sim: ## the shipped machines against the model of the API server, SIM_RUNS seeds
	$(CARGO) run --locked --profile checked -p sidewatch-sim -- --seeds $(SIM_RUNS)

doc: ## documentation, warnings are errors, and its examples
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps --document-private-items
	$(CARGO) test --locked --workspace --doc

deny: ## bans, licences, sources (advisories: `cargo deny check advisories`, needs the network)
	deny=$$(tests/tools/cargo-deny.sh); "$$deny" --locked check bans licenses sources

playground-test: ## the playground starts, changes and streams
	$(CARGO) test --locked --features it --test playground -- --nocapture

it: ## the sidecar against a real API server, with grpcurl and a Python consumer
	export KUBEBUILDER_ASSETS=$$(tests/apiserver/ensure.sh) GRPCURL=$$(tests/tools/grpcurl.sh) PYTHON=$$(tests/tools/python.sh); \
	$(CARGO) test --locked --features it --test it 2>&1 | tests/tools/result.sh it

e2e: ## no change lost, invented or disordered while leaders die and the consumer reconnects
	export KUBEBUILDER_ASSETS=$$(tests/apiserver/ensure.sh); \
	E2E_OBJECTS=$(E2E_OBJECTS) E2E_CHANGES=$(E2E_CHANGES) E2E_LEADER_KILLS=$(E2E_LEADER_KILLS) E2E_RECONNECTS=$(E2E_RECONNECTS) \
	$(CARGO) test --locked --profile checked --features it --test e2e
