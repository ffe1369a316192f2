# The two commands of the README are `make demo` and `make test`; both do all set-up themselves.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/thermocline-target

.PHONY: demo demo-cluster test interop interop-official setup setup-tests build compile clean-target

setup:
	@scripts/setup

setup-tests:
	@scripts/setup --tests

# The release binary: what the demo runs and what you would install.
build: setup
	@$(MAKE) --no-print-directory compile

compile:
	@echo "build: compiling thermocline (about 8 minutes the first time on two cores)"
	@cargo build --release --locked --package cli

# Writes real logs to three bookies, settles them into Parquet objects, releases the bookies' copies and replays everything.
demo: build
	@"$(CARGO_TARGET_DIR)/release/thermocline" demo $(DEMO_ARGS)

# The same road on a cluster of processes (etcd, bookies, gateways, offloaders) while one of each kind is killed with -9.
demo-cluster:
	@scripts/setup --cluster
	@$(MAKE) --no-print-directory compile
	@"$(CARGO_TARGET_DIR)/release/thermocline" demo --cluster $(DEMO_ARGS)

# Formatting, lints, house rules, then every test; ends with how many passed and what was skipped.
test: setup-tests
	@cargo xtask ci

# BookKeeper's own Java client against our bookies, and before that, to prove the tests, against its own.
interop: setup-tests
	@cargo xtask interop --bookies apache
	@cargo xtask interop

# BookKeeper's own tests, from its published test jar, against our bookies and, as the control, against its own.
interop-official: setup-tests
	@cargo xtask interop --official --bookies apache
	@cargo xtask interop --official
