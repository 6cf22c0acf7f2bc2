# Targets for people and for continuous integration; "make help" lists them.
# Needs: Go, git, bash and GNU make. QEMU, containerd and the guest's kernel come from the
# distribution; everything else is built from Go modules.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# The same commands must do the same everywhere, so neither a GOFLAGS nor a
# go.work of the surroundings takes part. Version control is not asked by the go
# command, since that fails for a user who does not own the checkout; the version
# is linked in by the target build.
export GOFLAGS := -buildvcs=false -trimpath
export GOWORK := off
# Everything is compiled in the way of releases, so that what tests, linters, programs and images
# have in common is compiled once.
export CGO_ENABLED := 0

# The versions of Cluster API that the tests run against, the newest last.
CAPI_VERSIONS := v1.7.1 v1.14.2

# Every Go module of the repository.
MODULES := . api client compat/mcm controlplane examples/mcm-provider examples/provider guest/full/programs hack/image test/suites/chart test/suites/monitoring tools $(CAPI_VERSIONS:%=test/suites/capi/%)
# Modules whose tests run, and that the linters read. controlplane and guest/full/programs are left
# out: they hold small mains over all of Kubernetes and containerd, and to build them is to check them.
CODE_MODULES := . api client compat/mcm examples/mcm-provider examples/provider hack/image test/suites/chart test/suites/monitoring

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# Go tools run in the module they work on, but are built from the versions that
# tools/go.mod pins. Use: $(call tool,DIRECTORY) NAME ARGUMENTS
tool = go -C $(1) tool -modfile=$(CURDIR)/tools/go.mod
gotestsum = $(call tool,.) gotestsum

# Packages of the root module to test (default: all packages of all modules), and
# more flags for go test: make test-unit PKG=./internal/flow/... TESTFLAGS=-v
PKG ?= ./...
test_modules = $(if $(filter ./...,$(PKG)),$(CODE_MODULES),.)
TESTFLAGS ?=
# Ends what hangs; on a slow machine a package takes over twenty minutes.
TEST_TIMEOUT ?= 60m
# Packages tested at the same time. With three, two processors are busy nine tenths of the time. With four, on slow ones, a
# control plane needs a minute to start, and tests reach their limits.
TEST_PARALLEL ?= 3
# What is tested: in "make test", what hack/test-list.sh finds; the other tests call tier.All and run in "make test-all". What
# took longest begins first, or it would be waited for alone at the end.
TIER ?= test
packages = $(if $(filter ./...,$(PKG)),$$(hack/test-list.sh packages $(TIER)),$(PKG))
# RECORD=1 writes how long packages took into hack/test-times.tsv, for make test-list.
RECORD ?=
# Test binaries without debug information and symbols are linked in half the time; traces of panics
# need none. What go test vets of its own accord, make verify does.
gotest = go test -p $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) -vet=off -ldflags=-s
# Use: $(call test_module,MODULE,FLAGS,PACKAGES)
test_module = (cd $(1) && $(gotest) $(2) $(TESTFLAGS) $(3))
# Use: $(call test_all,FLAGS OF THE ROOT MODULE,FLAGS OF THE SMALL ONES). The small modules are tested beside the root module, whose end
# would else be waited for, and are shown after it.
test_all = failed=; beside=$$(mktemp); \
	(failed=; $(foreach module,$(filter-out .,$(test_modules)),$(call test_module,$(module),-p 1 $(2),./...) || failed=yes;) \
	[[ -z "$$failed" ]]) >"$$beside" & \
	$(call test_module,.,$(1),$(packages)) || failed=yes; \
	wait $$! || failed=yes; cat "$$beside"; rm -f "$$beside"; [[ -z "$$failed" ]];
# go test keeps results by -skip, among other flags. These skip nothing, but name what is installed, and for the small modules
# all files, as it sees none outside of a module: see hack/test-inputs.sh. What PKG names, or has a flag -skip of its
# own, is tested in any case.
kept = $(if $(filter-out ./...,$(PKG))$(findstring -skip,$(TESTFLAGS)),-count=1,-skip="^inputs-$(1)$$")

# Where a function's cyclomatic complexity is reported, and where it fails lint.
CYCLO_WARN := 11
CYCLO_FAIL := 15

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Where the program goes, and more flags for the linker.
BINARY := bin/millwright
LDFLAGS :=
.PHONY: build
build: ## Build bin/millwright
	go build -ldflags '-X main.version=$(VERSION) $(LDFLAGS)' -o '$(BINARY)' ./cmd/millwright

.PHONY: controlplane
controlplane: ## Build the Kubernetes control plane that local mode and tests start (cached)
	@hack/controlplane.sh

.PHONY: qemu
qemu: ## Install QEMU from the distribution, which some tests start (as root; done once)
	@hack/install-qemu.sh

.PHONY: containerd
containerd: ## Install containerd, runc and CNI plug-ins from the distribution, for tests of Pods (as root; done once)
	@hack/install-containerd.sh

.PHONY: grpc-python
grpc-python: ## Install Python's gRPC from the distribution, for the test of a driver in Python (as root; done once)
	@hack/install-grpc-python.sh

.PHONY: guest
guest: ## Build the small guest that demo and tests boot (cached; fetches a kernel from the distribution)
	@hack/guest.sh

.PHONY: guest-full
guest-full: ## Build the full guest, whose nodes run Pods (cached; fetches packages from the distribution; minutes)
	@hack/guest-full.sh

.PHONY: guest-kubeadm
guest-kubeadm: ## Build the full guest with kubeadm and the images of a control plane (cached; minutes)
	@hack/guest-full.sh kubeadm

# The demo's folder and port numbers can be set by flags: make demo DEMO_FLAGS="--dir DIR"
DEMO_FLAGS ?=
.PHONY: demo
demo: controlplane qemu guest build ## Show three virtual machines become nodes (DEMO_EXIT=1: check, clean up and end)
	@exec bin/millwright demo $(if $(filter-out 0,$(DEMO_EXIT)),--exit) $(DEMO_FLAGS)

.PHONY: demo-full
demo-full: controlplane qemu guest-full build ## Replace three nodes that run Pods while requests are sent to them; none may fail (DEMO_EXIT=1; minutes)
	@exec bin/millwright demo --guest full $(if $(filter-out 0,$(DEMO_EXIT)),--exit) $(DEMO_FLAGS)

.PHONY: recording
recording: controlplane qemu guest build ## Record the demo for the README, as docs/demo.svg
	@hack/recording.sh docs/demo.svg

.PHONY: capi
capi: ## Build the core of Cluster API, the newest version, that tests run (cached)
	@hack/capi.sh $(lastword $(CAPI_VERSIONS))

# The flow of make test and make test-all: API servers, etcd and the linker need an eighth less with GOGC=400, and more memory.
define run_tests
	@export GOGC=400; eval "$$(hack/test-inputs.sh)"; results=$$(mktemp); \
	trap 'echo "the slowest tests:"; $(gotestsum) tool slowest --num 10 --jsonfile "$$results"; \
		$(if $(RECORD),hack/test-list.sh record $(TIER) "$$results";) rm -f "$$results"' EXIT; \
	{ $(call test_all,-json $(call kept,$$programs),-json $(call kept,$$programs-$$MILLWRIGHT_SOURCES)) } | \
		$(gotestsum) --format $(if $(filter -v,$(TESTFLAGS)),standard-verbose,standard-quiet) --jsonfile "$$results" --raw-command -- cat

endef

.PHONY: test
test: controlplane capi qemu containerd guest ## Run the tests that every change has to pass, if their results may have changed, and list the slowest
	$(run_tests)

.PHONY: test-all
test-all: export MILLWRIGHT_TIER := all
test-all: TIER := all
test-all: controlplane capi qemu containerd grpc-python guest ## Run these, and those that take longer: all real parts, a fixed part of the explorations, both versions of Cluster API
	$(run_tests)
	@$(MAKE) --no-print-directory test-capi CAPI_VERSIONS='$(filter-out $(lastword $(CAPI_VERSIONS)),$(CAPI_VERSIONS))'

.PHONY: test-list
test-list: ## List how many tests of each package make test and make test-all run, and what they took when that was recorded (RECORD=1)
	@hack/test-list.sh

.PHONY: test-unit
test-unit: ## Run the tests that need neither control plane nor QEMU (go test -short)
	@$(call test_all,-short,-short)

.PHONY: test-capi
test-capi: export MILLWRIGHT_TIER := all
test-capi: controlplane qemu guest ## Run the tests against Cluster API with every version of its core
	@for version in $(CAPI_VERSIONS); do \
		hack/capi.sh $$version; \
		echo "go test ./test/suites/capi ./test/suites/release ($$version)"; \
		MILLWRIGHT_CAPI=$$version go test -count=1 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./test/suites/capi ./test/suites/release; \
	done

# The driver, sim or vm, that the integration suite runs with in local mode. With CONTROL_KUBECONFIG it runs
# at those clusters: docs/mcm-providers.md has all variables.
DRIVER ?= sim
FOCUS ?=
.PHONY: test-integration
test-integration: export DRIVER := $(DRIVER)
test-integration: export FOCUS := $(FOCUS)
test-integration: controlplane $(if $(filter vm,$(DRIVER)),qemu guest) build ## Run MCM's integration suite (DRIVER=sim or vm; CONTROL_KUBECONFIG=FILE for clusters of yours)
	@hack/test-integration.sh

.PHONY: test-e2e
test-e2e: controlplane qemu guest-full guest-kubeadm ## Run the stories with nodes that run Pods, each a virtual machine (half an hour; RUN=REGEXP)
	MILLWRIGHT_TIER=all MILLWRIGHT_E2E=1 go test -count=1 -timeout 3h -run '$(RUN)' -v $(TESTFLAGS) ./test/suites/e2e

.PHONY: crash
crash: controlplane ## Kill the manager at every point of every scenario, and say how far it is (one to two hours; interrupted, it continues with the same code; make test-all does a part)
	go test -c -o bin/crash.test ./test/suites/crash
	cd test/suites/crash && MILLWRIGHT_TIER=exhaustive MILLWRIGHT_SURVIVED=../../../bin/crash.survived ../../../bin/crash.test -test.timeout 6h

SOAK ?= 30m
.PHONY: soak
soak: controlplane ## Do random operations amid random faults (SOAK=30m)
	MILLWRIGHT_TIER=all MILLWRIGHT_SOAK=$(SOAK) go test -count=1 -timeout 24h -run 'TestSoak$$' -v ./test/suites/crash

# Tests that play a fault say so by the attribute "fault". FAULTS names packages, and RUN tests, to play
# a part: the rows of other tests stay as they are. make reliability FAULTS=./test/suites/crash RUN=TestSoak
FAULTS ?=
RUN ?= .
FAULT_TESTS = $$(grep -rl 't.Attr("fault"' --include=*_test.go . | xargs -n1 dirname | sort -u)
.PHONY: reliability
reliability: controlplane qemu guest ## Play all faults, and write their table into docs/contributing/reliability.md (more than an hour; SOAK=30m, FAULTS=PACKAGES, RUN=REGEXP)
	@go build -o bin/reliability ./hack/reliability
	MILLWRIGHT_TIER=exhaustive MILLWRIGHT_SOAK=$(SOAK) go test -json -count=1 -p 1 -timeout 24h -run '$(RUN)' \
		$(or $(FAULTS),$(FAULT_TESTS)) | bin/reliability $(if $(FAULTS)$(filter-out .,$(RUN)),-part) docs/contributing/reliability.md

# Packages whose conditions decide what is created, changed and deleted.
MUTATE ?= ./internal/pool/... ./internal/lifecycle/drain ./internal/lifecycle/instance ./internal/lifecycle/ownership \
	./internal/lifecycle/timeouts ./internal/controllers/virtualmachine/authority ./internal/vm/hypervisor/handover
.PHONY: mutate
mutate: ## Report conditions that no unit test guards, by changing each of them (half an hour; MUTATE=./PACKAGE)
	@go run ./hack/mutate $$(go list -f '{{.Dir}}' $(MUTATE) | sed 's,^$(CURDIR),.,')

# How long each fuzz test runs, and which (a regular expression of PACKAGE.FuzzXxx):
# make fuzz FUZZTIME=1m FUZZ=qmp
FUZZTIME ?= 10m
FUZZ ?=
.PHONY: fuzz
fuzz: ## Search for inputs that break what reads bytes from outside (FUZZTIME=10m for each, FUZZ=REGEXP)
	@hack/fuzz.sh '$(FUZZTIME)' '$(FUZZ)' $(CODE_MODULES)

# How many Machines are measured, where the result goes as JSON (nowhere by default), and
# other flags: make bench BENCH_FLAGS=--help
BENCH_MACHINES ?= 100
BENCH_JSON ?=
BENCH_FLAGS ?=
.PHONY: bench
bench: controlplane build ## Measure what the manager costs: requests, time, CPU, memory (BENCH_MACHINES=100 BENCH_JSON=FILE)
	@go build -o bin/bench ./bench
	@exec bin/bench --machines $(BENCH_MACHINES) $(if $(BENCH_JSON),--json '$(BENCH_JSON)') $(BENCH_FLAGS)

# TestManyVMs in make test-all has fewer VMs.
VMS ?= 1000
.PHONY: bench-vms
bench-vms: controlplane ## Measure what many simulated VMs cost: writes, time, CPU (VMS=1000)
	MILLWRIGHT_TIER=all MILLWRIGHT_VMS=$(VMS) go test -count=1 -timeout 60m -run 'TestManyVMs$$' -v ./internal/controllers/virtualmachine

# These tests have one pair in make test-all, and no budgets.
PAIRS ?= 5
.PHONY: bench-vm
bench-vm: ## Measure start and live migration against QEMU alone, in turns: time, and how long the guest stands still (PAIRS=5)
	@uname -srm; grep -m1 'model name' /proc/cpuinfo || true; nproc; $(or $(QEMU),qemu-system-x86_64) --version | head -1; cat /proc/loadavg
	MILLWRIGHT_TIER=all MILLWRIGHT_PAIRS=$(PAIRS) go test -count=1 -timeout 60m -run 'AgainstBareQEMU$$' -v ./internal/vm/hypervisor
	@cat /proc/loadavg

ROUNDS ?= 5
.PHONY: bench-network
bench-network: qemu guest ## Measure the network between two guests against QEMU's user-mode network and tap devices, in turns (as root; ROUNDS=5)
	@uname -srm; grep -m1 'model name' /proc/cpuinfo || true; nproc; $(or $(QEMU),qemu-system-x86_64) --version | head -1; cat /proc/loadavg
	MILLWRIGHT_TIER=all MILLWRIGHT_ROUNDS=$(ROUNDS) go test -count=1 -timeout 60m -run 'TestNetworks$$' -v ./test/suites/guest
	@cat /proc/loadavg

# The full guest is compared with QEMU alone.
GUEST ?= small
GUESTS ?= 3
.PHONY: bench-guests
bench-guests: controlplane qemu guest$(if $(filter full,$(GUEST)),-full) build ## Measure guests: time until their nodes are Ready, memory (GUEST=full GUESTS=3 PAIRS=5)
	@hack/bench-guests.sh $(GUEST) $(GUESTS)
	$(if $(filter full,$(GUEST)),MILLWRIGHT_TIER=all MILLWRIGHT_E2E=1 MILLWRIGHT_PAIRS=$(PAIRS) go test -count=1 -timeout 3h -run 'AgainstBareQEMU$$' -v ./test/suites/e2e)

.PHONY: bench-overhead
bench-overhead: controlplane qemu guest$(if $(filter full,$(GUEST)),-full) build ## Measure what the Pod of a hypervisor takes beside its idle guest: memory, processor (GUEST=full)
	@hack/bench-guests.sh $(GUEST) 1 60

# The repository of the manager's container image, whose tag is the version.
RELEASE_IMAGE ?= millwright-dev/millwright
.PHONY: release
release: ## Write what clusterctl installs the provider from, and bills of materials (VERSION=v0.1.0 RELEASE_IMAGE=REPOSITORY)
	@hack/release.sh bin/release '$(VERSION)' '$(RELEASE_IMAGE)' $(or $(IMAGE_PLATFORMS),linux/$(shell go env GOHOSTARCH))

# Platforms that the image is for: linux/amd64 and linux/arm64; by default that of this
# machine. The first build for another one takes minutes. Bills of materials are for the same.
IMAGE_PLATFORMS ?=
.PHONY: image
image: ## Build that image without a container engine (as release; IMAGE_PLATFORMS="linux/amd64 linux/arm64" IMAGE_PUSH=1)
	@hack/image.sh $(if $(filter-out 0,$(IMAGE_PUSH)),--push) bin/image '$(VERSION)' '$(RELEASE_IMAGE)' $(IMAGE_PLATFORMS)

# The repository of the image of hypervisors, whose tag is the version too.
RELEASE_HYPERVISOR_IMAGE ?= millwright-dev/millwright-hypervisor
.PHONY: hypervisor-image
hypervisor-image: ## Build the image of hypervisors, with QEMU from Debian's packages, without a container engine (cached; IMAGE_PUSH=1)
	@hack/image.sh --hypervisor $(if $(filter-out 0,$(IMAGE_PUSH)),--push) bin/hypervisor-image '$(VERSION)' '$(RELEASE_HYPERVISOR_IMAGE)'

.PHONY: generate
generate: ## Write deep copies, CRDs, typed clients and aliases from the API types, Go from the protocols, and copies of manifests
	$(call tool,api) controller-gen object paths=./...
	$(call tool,api) controller-gen crd:generateEmbeddedObjectMeta=true paths=./infrastructure/... paths=./machine/v1alpha1 paths=./vm/... \
		output:crd:dir=$(CURDIR)/config/crd
	$(call tool,api) controller-gen crd paths=./machine/legacy output:crd:dir=$(CURDIR)/config/crd/legacy
	hack/quantities.sh config/crd/*.yaml config/crd/legacy/*.yaml
	$(call tool,.) controller-gen object paths=./internal/controllers/capi/core
	hack/clients.sh
	$(call tool,proto) buf generate
	go run ./hack/aliases api/machine/v1alpha1 github.com/millwright-dev/millwright/api/machine/v1alpha1 \
		> compat/mcm/pkg/apis/machine/v1alpha1/zz_generated.aliases.go
	cp config/crd/machine.sapcloud.io_*.yaml config/crd/vm.metropolis.monogon.dev_*.yaml charts/millwright/crds/
	cp config/crd/machine.sapcloud.io_*.yaml compat/mcm/kubernetes/crds/
	cp $(patsubst %,config/rbac/%-role.yaml,control machine-controller machine-controller-manager machine-controller-manager-target target \
		vm-controller vm-leader vm-subresources vm-console load-balancer load-balancer-leader) \
		config/rbac/target-role-sim.yaml charts/millwright/files/rbac/
	cp config/policy/machines.yaml config/policy/hosts.yaml charts/millwright/files/policy/

.PHONY: tidy
tidy: ## Bring go.mod and go.sum of every module in order
	@for module in $(MODULES); do echo "go mod tidy ($$module)"; go -C "$$module" mod tidy; done

.PHONY: fmt
fmt: ## Format all Go code and protocols
	gofmt -w .
	$(call tool,proto) buf format -w

.PHONY: lint
lint: ## Check format, vet, staticcheck, protocols, complexity, terms, doc comments, and what the tree must not contain
	@echo 'gofmt'; files=$$(gofmt -l .); [[ -z "$$files" ]] || { echo "not formatted, run make fmt:"; echo "$$files"; exit 1; }
	@for module in $(CODE_MODULES); do echo "go vet ($$module)"; go -C "$$module" vet ./...; done
	@for module in $(CODE_MODULES); do \
		echo "staticcheck ($$module)"; $(call tool,"$$module") staticcheck ./...; \
	done
	@echo 'buf (proto)'; $(call tool,proto) buf lint
	@$(call tool,proto) buf breaking --path metropolis/vm --against metropolis/vm/testdata/origin.txtpb
	@$(call tool,proto) buf breaking --path driver --against driver/testdata/released.txtpb
	@hack/complexity.sh $(CYCLO_WARN) $(CYCLO_FAIL)
	@hack/subjects.sh
	@hack/standalone.sh
	go test -count=1 ./test/suites/language ./test/suites/comments

.PHONY: layers
layers: ## Check which package imports which
	go test -count=1 ./internal/layers

.PHONY: vulncheck
vulncheck: ## Report known vulnerabilities in what the programs call (needs the database vuln.go.dev)
	@hack/vulncheck.sh $(CODE_MODULES)

.PHONY: verify
verify: ## Everything but the tests: generated files, go.mod files, format, linters, layers
	@hack/verify.sh

.PHONY: clean
clean: ## Remove built programs from the checkout (the control plane's cache stays)
	rm -rf bin
