# Everything a developer does, in one word each. On a fresh machine "make demo" and
# "make test" need Go, make and git, and fetch the rest themselves.

.DEFAULT_GOAL := help
.PHONY: help demo test up down put invoke bench lint build
SHELL := /bin/sh

# The program behind most targets. CALLER_DIR is where make was called from, which
# "make -C" hides: files are named relative to it.
PROGRAM = .local/bin/geodlq-local
LOCAL = test -x $(PROGRAM) || echo "Building $(PROGRAM), which does the work (once; a minute or two) ..." >&2; \
	export CALLER_DIR="$(PWD)"; CGO_ENABLED=0 go build -buildvcs=false -o $(PROGRAM) ./infra/local/cmd/geodlq-local && exec $(PROGRAM)

help:
	@sed -n 's/^## //p' Makefile

## make demo                        see it work: real functions on a local stack, from failure file to map
demo:
	@$(LOCAL) demo

## make test                        format, vet and every test; PKG=./shared/queue TESTFLAGS='-run Claim -v' for some
PKG = ./...
test:
	@$(LOCAL) test $(TESTFLAGS) $(PKG)

## make up                          the local stack in the background; settings in .local/stack.env
up:
	@$(LOCAL) up

## make down                        the local stack gone
down:
	@$(LOCAL) down

## make put FILE=f [KEY=k]          upload a failure file to the local inbox; writes the event to .local/put.json
put:
	@$(LOCAL) put "$${FILE:?FILE=<failure file>}" $${KEY:+"$$KEY"}

## make -s invoke FN=f [EVENT=e]    run a function on the local stack; its response is standard output
invoke:
	@$(LOCAL) invoke "$${FN:?FN=<function>}" $${EVENT:+"$$EVENT"}

## make bench [BENCH=b]             the benchmarks in infra/bench, or one
bench:
	@$(LOCAL) bench $${BENCH:+"$$BENCH"}

## make lint                        gofmt, go vet, staticcheck, govulncheck, template
lint:
	@$(LOCAL) lint

## make build                       the functions as they are deployed, in .local/build
FUNCTIONS = CaptureFunction ReplayFunction MetricsFunction RedriveFunction MigrateFunction
build:
	@for f in $(FUNCTIONS); do mkdir -p .local/build/$$f && $(MAKE) -s build-$$f ARTIFACTS_DIR=.local/build/$$f || exit 1; done

# "sam build" calls these with the directory that it packs, after copying the tree
# without its repository. Without -trimpath the bytes would depend on the directory,
# and every build would be deployed anew.
BOOTSTRAP = GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags lambda.norpc -ldflags='-s -w' -o "$(ARTIFACTS_DIR)/bootstrap"
.PHONY: $(FUNCTIONS:%=build-%)
build-CaptureFunction: ; $(BOOTSTRAP) ./functions/capture
build-ReplayFunction:  ; $(BOOTSTRAP) ./functions/replay
build-MetricsFunction: ; $(BOOTSTRAP) ./functions/metrics
build-RedriveFunction: ; $(BOOTSTRAP) ./functions/redrive
build-MigrateFunction: ; $(BOOTSTRAP) ./functions/migrate
