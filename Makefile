# Targets for developers and for continuous integration; "make help" lists them. Requirements: Go, git, bash and GNU
# make. QEMU, containerd and the guest's kernel come from the distribution; everything else is built from Go
# modules.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# Commands must behave the same everywhere, so GOFLAGS and go.work of the environment are ignored. The go command
# does not query version control, because that fails for a user who does not own the checkout; the target build
# links the version in.
export GOFLAGS := -buildvcs=false -trimpath
export GOWORK := off
# Everything is compiled as for releases, so that common packages of tests, linters, programs and images are
# compiled only once.
export CGO_ENABLED := 0

# The versions of Cluster API that the tests run against, in ascending order.
CAPI_VERSIONS := v1.7.1 v1.13.6 v1.14.2

# Every Go module of the repository.
MODULES := . api client compat/mcm controlplane examples/mcm-provider examples/provider guest/full/programs hack/image hack/site test/suites/chart test/suites/monitoring test/suites/ui/oauth2-proxy tools $(CAPI_VERSIONS:%=test/suites/capi/%)
# Modules whose tests run and that the linters check. controlplane and guest/full/programs are left out: they
# contain only small main packages on top of Kubernetes and containerd, and building them checks them.
CODE_MODULES := . api client compat/mcm examples/mcm-provider examples/provider hack/image hack/site test/suites/chart test/suites/monitoring

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# Go tools run in the module that they work on, but are built from the versions that tools/go.mod pins. Use: $(call
# tool,DIRECTORY) NAME ARGUMENTS
tool = go -C $(1) tool -modfile=$(CURDIR)/tools/go.mod
gotestsum = $(call tool,.) gotestsum

# Packages of the root module to test (default: all packages of all modules), and additional flags for go test: make
# test-unit PKG=./internal/flow/... TESTFLAGS=-v
PKG ?= ./...
test_modules = $(if $(filter ./...,$(PKG)),$(CODE_MODULES),.)
TESTFLAGS ?=
# Stops hanging tests. On a slow machine, a package takes over twenty minutes.
TEST_TIMEOUT ?= 60m
# Number of packages that are tested concurrently. With three, two processors are busy 90% of the time. With four on
# slow processors, a control plane takes a minute to start, and tests exceed their limits.
TEST_PARALLEL ?= 3
# Tests to run: "test" runs those that hack/test-list.sh finds. The other tests call tier.All and run in "make
# test-all". Packages that took longest start first, so that none of them runs alone at the end.
TIER ?= test
packages = $(if $(filter ./...,$(PKG)),$$(hack/test-list.sh packages $(TIER)),$(PKG))
# RECORD=1 writes the durations of packages to hack/test-times.tsv, for make test-list.
RECORD ?=
# Test binaries without debug information and symbols link in half the time; traces of panics do not need them. make
# verify runs the vet checks of go test.
gotest = go test -p $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) -vet=off -ldflags=-s
# Use: $(call test_module,MODULE,FLAGS,PACKAGES)
test_module = (cd $(1) && $(gotest) $(2) $(TESTFLAGS) $(3))
# Use: $(call test_all,FLAGS OF THE ROOT MODULE,FLAGS OF THE SMALL MODULES). The small modules are tested
# concurrently with the root module, and their results are shown after it.
test_all = failed=; small=$$(mktemp); \
	(failed=; $(foreach module,$(filter-out .,$(test_modules)),$(call test_module,$(module),-p 1 $(2),./...) || failed=yes;) \
	[[ -z "$$failed" ]]) >"$$small" & \
	$(call test_module,.,$(1),$(packages)) || failed=yes; \
	wait $$! || failed=yes; cat "$$small"; rm -f "$$small"; [[ -z "$$failed" ]];
# go test caches results by flags, including -skip. These flags skip nothing, but contain the installed software
# and, for the small modules, all files, because go test does not see files outside a module; see
# hack/test-inputs.sh. Tests that PKG names, or that run with their own flag -skip, are not cached.
kept = $(if $(filter-out ./...,$(PKG))$(findstring -skip,$(TESTFLAGS)),-count=1,-skip="^inputs-$(1)$$")

# Cyclomatic complexity above which a function is reported, and above which lint fails.
CYCLO_WARN := 11
CYCLO_FAIL := 15

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Path of the program, and additional flags for the linker.
BINARY := bin/millwright
LDFLAGS :=
.PHONY: build
build: ## Build bin/millwright
	go build -ldflags '-X main.version=$(VERSION) $(LDFLAGS)' -o '$(BINARY)' ./cmd/millwright

.PHONY: controlplane
controlplane: ## Build the Kubernetes control plane that local mode and tests start (cached)
	@hack/controlplane.sh

.PHONY: qemu
qemu: ## Install QEMU from the distribution for tests (as root; once)
	@hack/install-qemu.sh

.PHONY: containerd
containerd: ## Install containerd, runc and CNI plugins from the distribution for tests of Pods (as root; once)
	@hack/install-containerd.sh

.PHONY: chromium
chromium: ## Install Chromium from the distribution for tests of the page of millwright ui (as root; once)
	@hack/install-chromium.sh

.PHONY: grpc-python
grpc-python: ## Install gRPC for Python from the distribution for the test of a Python driver (as root; once)
	@hack/install-grpc-python.sh

.PHONY: cloud-init
cloud-init: ## Install cloud-init from the distribution, but disabled, for the test of guests' network configuration (as root; once)
	@hack/install-cloud-init.sh

.PHONY: prometheus
prometheus: ## Install Prometheus from the distribution for the test of the dashboard (as root; once)
	@hack/install-prometheus.sh

.PHONY: nginx
nginx: ## Install the distribution's nginx, for tests of the page of millwright ui behind it (as root; once)
	@hack/install-nginx.sh

.PHONY: guest
guest: ## Build the small guest for the demo and tests (cached; downloads a kernel from the distribution)
	@hack/guest.sh

.PHONY: guest-full
guest-full: ## Build the full guest, whose nodes run Pods (cached; downloads packages from the distribution; minutes)
	@hack/guest-full.sh

.PHONY: guest-kubeadm
guest-kubeadm: ## Build the full guest with kubeadm and the images of a control plane (cached; minutes)
	@hack/guest-full.sh kubeadm

.PHONY: own-image
own-image: ## Build the image of examples/own-image with the kubelet of the control plane (cached; downloads packages from the distribution; minutes)
	@hack/own-image.sh

# Flags set the demo's directory and ports: make demo DEMO_FLAGS="--dir DIR"
DEMO_FLAGS ?=
.PHONY: demo
demo: controlplane qemu guest build ## Show how three virtual machines become nodes (DEMO_EXIT=1: check, clean up and exit)
	@exec bin/millwright demo $(if $(filter-out 0,$(DEMO_EXIT)),--exit) $(DEMO_FLAGS)

.PHONY: demo-full
demo-full: controlplane qemu guest-full build ## Replace three nodes while clients send requests to their Pods; no request may fail (DEMO_EXIT=1; minutes)
	@exec bin/millwright demo --guest full $(if $(filter-out 0,$(DEMO_EXIT)),--exit) $(DEMO_FLAGS)

.PHONY: recording
recording: controlplane qemu guest build ## Record the demo for the README, as docs/demo.svg
	@hack/recording.sh docs/demo.svg

.PHONY: capi
capi: ## Build the newest version of Cluster API's core for tests (cached)
	@hack/capi.sh $(lastword $(CAPI_VERSIONS))

# The recipe of make test and make test-all. With GOGC=400, API servers, etcd and the linker need 12% less CPU time
# and more memory.
define run_tests
	@export GOGC=400; eval "$$(hack/test-inputs.sh)"; results=$$(mktemp); \
	trap 'echo "the slowest tests:"; $(gotestsum) tool slowest --num 10 --jsonfile "$$results"; \
		$(if $(RECORD),hack/test-list.sh record $(TIER) "$$results";) rm -f "$$results"' EXIT; \
	{ $(call test_all,-json $(call kept,$$programs),-json $(call kept,$$programs-$$MILLWRIGHT_SOURCES)) } | \
		$(gotestsum) --format $(if $(filter -v,$(TESTFLAGS)),standard-verbose,standard-quiet) --jsonfile "$$results" --raw-command -- cat

endef

.PHONY: test
test: controlplane capi qemu containerd guest ## Run the tests that every change must pass, unless their results are cached, and list the slowest
	$(run_tests)

.PHONY: test-all
test-all: ## Run all tests: those of make test, all tests with real components, a fixed sample of explorations, the oldest and newest Cluster API
	@failed=; $(MAKE) --no-print-directory test-all-latest || failed=yes; \
	$(MAKE) --no-print-directory test-capi CAPI_VERSIONS=$(firstword $(CAPI_VERSIONS)) || failed=yes; \
	[[ -z "$$failed" ]]

# test-all with only the newest version of Cluster API.
.PHONY: test-all-latest
test-all-latest: export MILLWRIGHT_TIER := all
test-all-latest: TIER := all
test-all-latest: controlplane capi qemu containerd chromium grpc-python cloud-init prometheus nginx guest
	$(run_tests)

.PHONY: test-list
test-list: ## List the number of tests per package in make test and make test-all, and their recorded durations (RECORD=1)
	@hack/test-list.sh

.PHONY: test-unit
test-unit: ## Run the tests that need neither a control plane nor QEMU (go test -short)
	@$(call test_all,-short,-short)

.PHONY: test-capi
test-capi: export MILLWRIGHT_TIER := all
test-capi: controlplane qemu guest ## Run the tests of Cluster API with every version of its core
	@for version in $(CAPI_VERSIONS); do \
		hack/capi.sh $$version; \
		echo "go test ./test/suites/capi ./test/suites/release ($$version)"; \
		MILLWRIGHT_CAPI=$$version go test -count=1 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./test/suites/capi ./test/suites/release; \
	done

# The driver for the integration suite in local mode: sim or vm. With CONTROL_KUBECONFIG, the suite uses those
# clusters instead: docs/drivers/mcm-providers.md documents all variables.
DRIVER ?= sim
FOCUS ?=
.PHONY: test-integration
test-integration: export DRIVER := $(DRIVER)
test-integration: export FOCUS := $(FOCUS)
test-integration: controlplane $(if $(filter vm,$(DRIVER)),qemu guest) build ## Run MCM's integration suite (DRIVER=sim or vm; CONTROL_KUBECONFIG=FILE for other clusters)
	@hack/test-integration.sh

# MCM's variables of "make start". MCM's integration suite sets them when dev/mcm of a provider is a link to this
# checkout. START_FLAGS are additional flags.
LEADER_ELECT ?= true
MACHINE_SAFETY_OVERSHOOTING_PERIOD ?= 1m
START_FLAGS ?=
start_target = $(or $(TARGET_KUBECONFIG),dev/target-kubeconfig.yaml)
.PHONY: start
start: build ## Run machine-controller-manager, as MCM's make start (TARGET_KUBECONFIG=FILE CONTROL_KUBECONFIG=FILE CONTROL_NAMESPACE=NAMESPACE)
	@exec '$(BINARY)' machine-controller-manager --control-kubeconfig='$(or $(CONTROL_KUBECONFIG),$(start_target))' \
		--target-kubeconfig='$(start_target)' --namespace='$(or $(CONTROL_NAMESPACE),default)' --safety-up=2 --safety-down=1 \
		--machine-safety-overshooting-period='$(MACHINE_SAFETY_OVERSHOOTING_PERIOD)' --leader-elect='$(LEADER_ELECT)' --v=3 $(START_FLAGS)

.PHONY: test-e2e
test-e2e: controlplane qemu guest-full guest-kubeadm own-image ## Run end-to-end tests with virtual machines as nodes that run Pods (half an hour; RUN=REGEXP)
	MILLWRIGHT_TIER=all MILLWRIGHT_E2E=1 go test -count=1 -timeout 3h -run '$(RUN)' -v $(TESTFLAGS) ./test/suites/e2e

.PHONY: test-own-image
test-own-image: controlplane qemu own-image ## Run the end-to-end test of examples/own-image: machines with its image become nodes by BIOS and UEFI (minutes)
	MILLWRIGHT_TIER=all MILLWRIGHT_E2E=1 go test -count=1 -timeout 3h -run 'TestOwnImage' -v $(TESTFLAGS) ./test/suites/e2e

.PHONY: crash
crash: controlplane ## Kill the manager at every crash point of every scenario and report progress (one to two hours; resumes with the same code; make test-all runs a sample)
	go test -c -o bin/crash.test ./test/suites/crash
	cd test/suites/crash && MILLWRIGHT_TIER=exhaustive MILLWRIGHT_SURVIVED=../../../bin/crash.survived ../../../bin/crash.test -test.timeout 6h
	MILLWRIGHT_TIER=exhaustive go test -count=1 -timeout 3h -run 'TestFleet_ReplicaIsKilledAtWrites' -v ./test/suites/fleet

SOAK ?= 30m
.PHONY: soak
soak: controlplane ## Run random operations with random faults, with one manager and then with fleets (SOAK=30m for each)
	MILLWRIGHT_TIER=all MILLWRIGHT_SOAK=$(SOAK) go test -count=1 -timeout 24h -run 'TestSoak$$' -v ./test/suites/crash
	MILLWRIGHT_TIER=all MILLWRIGHT_SOAK=$(SOAK) go test -count=1 -timeout 24h -run 'TestFleet_Soak$$' -v ./test/suites/fleet

# Tests that inject a fault report it with the attribute "fault". FAULTS selects packages and RUN selects tests; the
# rows of all other tests stay unchanged. make reliability FAULTS=./test/suites/crash RUN=TestSoak
FAULTS ?=
RUN ?= .
FAULT_TESTS = $$(grep -rl 't.Attr("fault"' --include=*_test.go . | xargs -n1 dirname | sort -u)
.PHONY: reliability
reliability: controlplane qemu guest ## Inject all faults and write the table in docs/contributing/reliability.md (more than an hour; SOAK=30m, FAULTS=PACKAGES, RUN=REGEXP)
	@go build -o bin/reliability ./hack/reliability
	MILLWRIGHT_TIER=exhaustive MILLWRIGHT_SOAK=$(SOAK) go test -json -count=1 -p 1 -timeout 24h -run '$(RUN)' \
		$(or $(FAULTS),$(FAULT_TESTS)) | bin/reliability $(if $(FAULTS)$(filter-out .,$(RUN)),-part) docs/contributing/reliability.md

# Packages whose conditions determine what is created, changed and deleted.
MUTATE ?= $(addprefix ./internal/pool/,budget counts deletion inplaceupdate liveupdate reserve revision rollout scale) \
	$(addprefix ./internal/lifecycle/,drain instance ownership timeouts) \
	./internal/controllers/virtualmachine/authority ./internal/vm/hypervisor/handover
.PHONY: mutate
mutate: ## Change each condition and report those that no unit test covers (about 3,600 runs of unit tests, hours; MUTATE=./PACKAGE)
	@go run ./hack/mutate $$(go list -f '{{.Dir}}' $(MUTATE) | sed 's,^$(CURDIR),.,')

# A regular expression of attempts, files, packages or tests that selects guards, and additional flags: make guards
# ONLY=firewall GUARDS_FLAGS=-fast
ONLY ?=
GUARDS_FLAGS ?=
.PHONY: guards
guards: controlplane ## Switch each guard of the threat model off and report those that no test notices (an hour; ONLY=REGEXP, GUARDS_FLAGS=-fast)
	@go run ./hack/guards -only '$(ONLY)' $(GUARDS_FLAGS)

# Duration of each fuzz test, and a regular expression of PACKAGE.FuzzXxx that selects tests: make fuzz FUZZTIME=1m
# FUZZ=qmp
FUZZTIME ?= 10m
FUZZ ?=
.PHONY: fuzz
fuzz: ## Run all fuzz tests of parsers for external input (FUZZTIME=10m for each, FUZZ=REGEXP)
	@hack/fuzz.sh '$(FUZZTIME)' '$(FUZZ)' $(CODE_MODULES)

# Number of Machines to measure, the file for the result as JSON (none by default), and additional flags: make bench
# BENCH_FLAGS=--help
BENCH_MACHINES ?= 100
BENCH_JSON ?=
BENCH_FLAGS ?=
.PHONY: bench
bench: controlplane $(if $(filter --api=capi capi,$(BENCH_FLAGS)),capi) build ## Measure the cost of the manager: requests, time, CPU, memory (BENCH_MACHINES=100 BENCH_JSON=FILE BENCH_FLAGS=--help)
	@go build -o bin/bench ./bench
	@exec bin/bench --machines $(BENCH_MACHINES) $(if $(BENCH_JSON),--json '$(BENCH_JSON)') $(BENCH_FLAGS)

# TestManyVMs in make test-all has fewer VMs.
VMS ?= 1000
.PHONY: bench-vms
bench-vms: controlplane ## Measure the cost of many simulated VMs: writes, time, CPU (VMS=1000)
	MILLWRIGHT_TIER=all MILLWRIGHT_VMS=$(VMS) go test -count=1 -timeout 60m -run 'TestManyVMs$$' -v ./internal/controllers/virtualmachine

# In make test-all, these tests run one pair, without budgets.
PAIRS ?= 5
.PHONY: bench-vm
bench-vm: ## Compare start and live migration with QEMU alone, alternating: duration and downtime of the guest (PAIRS=5)
	@uname -srm; grep -m1 'model name' /proc/cpuinfo || true; nproc; $(or $(QEMU),qemu-system-x86_64) --version | head -1; cat /proc/loadavg
	MILLWRIGHT_TIER=all MILLWRIGHT_PAIRS=$(PAIRS) go test -count=1 -timeout 60m -run 'AgainstBareQEMU$$' -v ./internal/vm/hypervisor
	@cat /proc/loadavg

CHURN ?= 10m
.PHONY: bench-ui
bench-ui: chromium ## Measure the memory of a tab with 5,000 machines that are replaced and change (CHURN=10m)
	MILLWRIGHT_TIER=all MILLWRIGHT_CHURN=$(CHURN) go test -count=1 -timeout 24h -run 'TestPage_MemoryOfTabStaysFlat$$' -v ./internal/ui

ROUNDS ?= 5
.PHONY: bench-network
bench-network: qemu guest ## Compare the network between two guests with QEMU's user-mode network and tap devices, alternating (as root; ROUNDS=5)
	@uname -srm; grep -m1 'model name' /proc/cpuinfo || true; nproc; $(or $(QEMU),qemu-system-x86_64) --version | head -1; cat /proc/loadavg
	MILLWRIGHT_TIER=all MILLWRIGHT_ROUNDS=$(ROUNDS) go test -count=1 -timeout 60m -run 'TestGuest_NetworkThroughput$$' -v ./test/suites/guest
	@cat /proc/loadavg

# The full guest is compared with QEMU alone.
GUEST ?= small
GUESTS ?= 3
.PHONY: bench-guests
bench-guests: controlplane qemu guest$(if $(filter full,$(GUEST)),-full) build ## Measure guests: time until their nodes are Ready, and memory (GUEST=full GUESTS=3 PAIRS=5)
	@hack/bench-guests.sh $(GUEST) $(GUESTS)
	$(if $(filter full,$(GUEST)),MILLWRIGHT_TIER=all MILLWRIGHT_E2E=1 MILLWRIGHT_PAIRS=$(PAIRS) go test -count=1 -timeout 3h -run 'AgainstBareQEMU$$' -v ./test/suites/e2e)

.PHONY: bench-overhead
bench-overhead: controlplane qemu guest$(if $(filter full,$(GUEST)),-full) build ## Measure memory and CPU of a hypervisor's Pod in addition to its idle guest (GUEST=full)
	@hack/bench-guests.sh $(GUEST) 1 60

# The repository of the manager's container image. Its tag is the version.
RELEASE_IMAGE ?= millwright-dev/millwright
.PHONY: release
release: ## Write all files of a release page (VERSION=v0.1.0 RELEASE_IMAGE=REPOSITORY SIGNING_KEY=FILE; cached; minutes)
	@hack/release.sh bin/release '$(VERSION)' '$(RELEASE_IMAGE)' '$(RELEASE_HYPERVISOR_IMAGE)'

.PHONY: push
push: ## Push the images and the chart of a release page to the registry of RELEASE_IMAGE (variables of release)
	@hack/push.sh bin/release '$(VERSION)' '$(RELEASE_IMAGE)' '$(RELEASE_HYPERVISOR_IMAGE)'

.PHONY: clusterctl
clusterctl: ## Write only the provider's files for clusterctl, and bills of materials (VERSION=v0.1.0 RELEASE_IMAGE=REPOSITORY)
	@hack/clusterctl.sh bin/clusterctl '$(VERSION)' '$(RELEASE_IMAGE)' $(or $(IMAGE_PLATFORMS),linux/$(shell go env GOHOSTARCH))

# Platforms of the image: linux/amd64 and linux/arm64; the default is that of this machine. The first build for
# another platform takes minutes. Bills of materials are for the same platforms.
IMAGE_PLATFORMS ?=
.PHONY: image
image: ## Build the manager's image without a container engine (variables of release; IMAGE_PLATFORMS="linux/amd64 linux/arm64" IMAGE_PUSH=1)
	@hack/image.sh $(if $(filter-out 0,$(IMAGE_PUSH)),--push) bin/image '$(VERSION)' '$(RELEASE_IMAGE)' $(IMAGE_PLATFORMS)

# The repository of the hypervisors' image. Its tag is also the version.
RELEASE_HYPERVISOR_IMAGE ?= millwright-dev/millwright-hypervisor
.PHONY: pictures
pictures: controlplane chromium ## Take the pictures of the documentation in a browser
	@hack/pictures.sh

.PHONY: hypervisor-image
hypervisor-image: ## Build the hypervisors' image, with QEMU from Debian packages, without a container engine (cached; IMAGE_PUSH=1)
	@hack/image.sh --hypervisor $(if $(filter-out 0,$(IMAGE_PUSH)),--push) bin/hypervisor-image '$(VERSION)' '$(RELEASE_HYPERVISOR_IMAGE)'

.PHONY: generate
generate: ## Generate deep copies, CRDs, typed clients and aliases from API types, Go code from protocols, copies of manifests, the page of millwright ui, the references of commands, of the API and of the chart, schemas for editors, and the pages of guards and supported versions
	$(call tool,api) controller-gen object paths=./...
	$(call tool,api) controller-gen crd:generateEmbeddedObjectMeta=true paths=./infrastructure/... paths=./machine/v1alpha1 paths=./vm/... \
		output:crd:dir=$(CURDIR)/config/crd
	$(call tool,api) controller-gen crd paths=./machine/legacy output:crd:dir=$(CURDIR)/config/crd/legacy
	hack/quantities.sh config/crd/*.yaml config/crd/legacy/*.yaml
	$(call tool,.) controller-gen object paths=./internal/controllers/capi/core
	hack/clients.sh
	$(call tool,proto) buf generate
	ui/bundle.sh go tool -modfile=$(CURDIR)/tools/go.mod esbuild
	go run ./hack/aliases api/machine/v1alpha1 github.com/millwright-dev/millwright/api/machine/v1alpha1 \
		> compat/mcm/pkg/apis/machine/v1alpha1/zz_generated.aliases.go
	cp config/crd/machine.sapcloud.io_*.yaml config/crd/vm.metropolis.monogon.dev_*.yaml charts/millwright/crds/
	cp config/crd/machine.sapcloud.io_*.yaml compat/mcm/kubernetes/crds/
	cp $(patsubst %,config/rbac/%-role.yaml,control machine-controller machine-controller-manager machine-controller-manager-target target \
		vm-controller vm-leader vm-subresources vm-console load-balancer load-balancer-leader fleet) \
		config/rbac/target-role-sim.yaml charts/millwright/files/rbac/
	cp config/policy/*.yaml charts/millwright/files/policy/
	go run ./hack/clireference docs/reference/cli
	go run ./hack/apireference docs/reference/api config/schemas
	go run ./hack/chartreference charts/millwright
	go run ./hack/guards -page
	go run ./hack/support docs/reference

MAN := bin/man
.PHONY: man
man: ## Write manual pages of all commands to bin/man (MAN=DIRECTORY; SOURCE_DATE_EPOCH sets their date)
	go run ./hack/clireference -man '$(MAN)'

SITE := bin/site
.PHONY: docs
docs: ## Build the documentation as a site, and check its links (SITE=DIRECTORY; the first build compiles Hugo: minutes)
	@content=$$(mktemp -d); trap 'rm -rf "$$content"' EXIT; \
	go -C hack/site run . prepare '$(CURDIR)/docs' "$$content"; \
	go -C hack/site tool hugo --quiet --noBuildLock --contentDir "$$content" --destination '$(abspath $(SITE))' --cleanDestinationDir; \
	go -C hack/site run . check '$(abspath $(SITE))'

.PHONY: tidy
tidy: ## Run go mod tidy in every module
	@for module in $(MODULES); do echo "go mod tidy ($$module)"; go -C "$$module" mod tidy; done

.PHONY: fmt
fmt: ## Format all Go code and protocols
	gofmt -w .
	$(call tool,proto) buf format -w

.PHONY: lint
lint: ## Check format, vet, staticcheck, protocols, complexity, terms, doc comments, and forbidden content
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
vulncheck: ## Report known vulnerabilities in called code (needs the database vuln.go.dev)
	@hack/vulncheck.sh $(CODE_MODULES)

.PHONY: verify
verify: ## Run all checks except tests: generated files, go.mod files, format, linters, layers
	@hack/verify.sh

.PHONY: clean
clean: ## Remove built programs from the checkout, but not the cache
	rm -rf bin
