# The two commands of the README, and their parts. The work is done by scripts/ and the programs.

.PHONY: demo test test-all fuzz deps build release package bench lint openapi clean

demo: deps
	cargo build --locked -p atoll
	ATOLL_BIN=$(CURDIR)/target/debug/atoll scripts/demo

# The tests that CI runs.
test: deps
	scripts/test fast

# The same with slower tests: every set of clients, machines under the whole LangSmith suite, a release build, fuzzing.
test-all: deps
	scripts/test all
	tests/langsmith/run machines
	ATOLL_TEST_LEVEL=microvm cargo nextest run --locked -p atoll --test network egress_bypass
	scripts/fuzz 60

# Seconds that each fuzz target runs: `make fuzz SECONDS=3600`.
SECONDS ?= 60
fuzz: deps
	scripts/fuzz $(SECONDS)

deps:
	scripts/install-deps

build:
	cargo build --locked

release:
	cargo build --locked --release -p atoll

# Makes everything that is published, in dist/.
package: deps release
	ATOLL_BIN=$(CURDIR)/target/release/atoll scripts/package

bench: deps release
	bench/run

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

openapi:
	cargo run --locked -q -p atoll-server --example openapi

clean:
	cargo clean
