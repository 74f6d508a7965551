# The two commands of the README, and their parts. Logic lives in scripts/ and in the programs.

.PHONY: demo test test-microvm test-clients deps build release bench lint openapi clean

demo: deps release
	scripts/demo

test: deps
	scripts/test

test-microvm: deps build
	cargo test --locked -p atoll-isolation-microvm --features failpoints
	cargo test --locked -p atoll-blackbox --test microvm
	tests/langsmith/run machines
	ATOLL_TEST_LEVEL=microvm cargo test --locked -p atoll-blackbox --test egress_bypass -- --test-threads 2

test-clients: deps build
	tests/langsmith/run all

deps:
	scripts/install-deps

build:
	cargo build --locked

release:
	cargo build --locked --release -p atoll

bench: deps release
	bench/run

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

openapi:
	cargo run --locked -q -p atoll-server --example openapi

clean:
	cargo clean
