# k8s-1m: `make up` brings up a cluster, `make test` runs all tests. See README.md.

NAME      ?= k1m
NODES     ?= 1000
STORE     ?= mem_etcd
# Flags of `k1m up`, such as "--apiservers 3 --gateway".
K1M_FLAGS ?=
KILLS     ?= 2000
MEMBERS   ?= 3
FAULTS    ?= 100
CLUSTERS  ?= 200
WORLDS    ?= 20
REQUESTS  ?= 5000
RENEWALS  ?= 100000
IDLE      ?= 5m
FUZZTIME  ?= 60s
SEEDS     ?= 100000
BENCH_FLAGS ?=
NETWORK_NODES ?= 200
NETWORK_PODS  ?= 5
# Flags of `k1m network lab`.
LAB_FLAGS ?=
# Programs of `make images`; all if empty.
PROGRAMS  ?=

# KUBERNETES: programs of a cluster. PEERS: programs that only comparisons and tests need. OWN: programs
# of this repository.
KUBERNETES := kube-apiserver kube-controller-manager kube-scheduler kubectl
PEERS      := etcd etcdctl etcdutl
RUST       := mem_etcd etcd-bench etcd-proxy node-sim kube-gateway
# Plugins of the network lab, and their packages.
CNI          := bridge host-local
CNI_PACKAGES := main/bridge ipam/host-local
OWN        := $(RUST) k1m dist-scheduler warm-controller-manager network-agent network-gateway

# TestKill runs CRASH_ROUNDS rounds in each of CRASH_MODES combinations of WAL modes. About one round in
# ten ends with a clean shutdown, all others with a kill. 20 more rounds per combination make sure that
# there are at least KILLS kills in total.
CRASH_MODES := 8
CRASH_ROUNDS = $$(($(KILLS) * 10 / 9 / $(CRASH_MODES) + 20))

.DEFAULT_GOAL := help
.PHONY: help build up down test check bench bench-cluster bench-network bench-proxy bench-scheduler-perf bench-store chart conformance conformance-proxied controller-manager controller-manager-upstream crash crash-cluster dist dist-test etcd-upstream faults fuzz gateway gateway-faults gateway-upstream go-programs hostile images images-test kubeadm machines network network-lab node-path node-requests node-sim oracle rust-programs simulate simulate-replicas store-faults upstream FORCE clean tools

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' Makefile

build: rust-programs $(addprefix bin/,$(OWN) $(KUBERNETES) kwok $(PEERS) kubemark) ## Build all binaries into bin/, including Kubernetes, kwok and etcd

# Programs that a cluster with these flags does not need. With 10,000 nodes and more, `k1m up` uses both (its profiles).
UP_FLAGS := $(K1M_FLAGS) $(shell [ $(NODES) -ge 10000 ] && echo --gateway node-sim)
UNUSED := network-agent network-gateway $(if $(findstring --gateway,$(UP_FLAGS)),,kube-gateway) $(if $(findstring node-sim,$(UP_FLAGS)),,node-sim) \
  $(if $(findstring warm,$(UP_FLAGS)),,warm-controller-manager)

up: $(addprefix bin/,$(filter-out $(UNUSED),$(OWN)) $(KUBERNETES) kwok) $(if $(filter etcd,$(STORE)),bin/etcd) ## Bring up a cluster: NAME=k1m NODES=1000 STORE=mem_etcd|etcd
	@bin/k1m up --name $(NAME) --nodes $(NODES) --store $(STORE) $(K1M_FLAGS)

down: bin/k1m ## Stop a cluster and remove its files: NAME=k1m
	@bin/k1m down $(if $(filter-out k1m,$(NAME)),--name $(NAME))

# The environment variable E2E_STANDBY_NODES sets the number of nodes in the end-to-end test of the
# standby scheduler, for example 5000.
# test/run.sh builds the programs: those in Go beside those in Rust.
test: export RUST_PROFILE := checked
test: tools ## Run all tests; the last lines are the time of each stage and the number of passed, failed and skipped tests
	@test/run.sh

# Programs in Go that `make test` needs. Its stages deploy and network build a few more.
go-programs: $(addprefix bin/,$(filter-out $(RUST),$(OWN)) $(KUBERNETES) kwok $(PEERS) h2spec)

check: $(addprefix bin/,$(OWN)) ## Check format, lints, import cycles, and links and commands in documents
	@build/check.sh

hostile: bin/mem_etcd bin/etcd ## Test mem_etcd with hostile clients: 1,000,000 watches, 10,000 connections, invalid input
	@HOSTILE=full go test -count=1 -timeout 20m -v -run 'TestHostile' ./test/store

GATEWAY_TEST := $(addprefix bin/,kube-gateway mem_etcd k1m $(KUBERNETES) kwok h2spec)

gateway: $(GATEWAY_TEST) ## Test kube-gateway with real API servers, hostile clients and 10,000 connections: REQUESTS=5000
	@GATEWAY_REQUESTS=$(REQUESTS) GATEWAY_SEED=random GATEWAY_CONNECTIONS=10000 go test -v -count=1 -timeout 1h ./test/gateway

gateway-faults: $(GATEWAY_TEST) ## Inject faults into API servers, their network and kube-gateway under load: FAULTS=100
	@GATEWAY_FAULTS=$(FAULTS) go test -v -count=1 -run 'TestGateway$$/faults' -timeout 6h ./test/gateway

node-path: $(GATEWAY_TEST) ## Compare renewals of Leases that kube-gateway serves with those of kube-apiserver: RENEWALS=100000
	@NODE_PATH_RENEWALS=$(RENEWALS) NODE_PATH_SEED=random NODE_PATH_ETCD=1 go test -v -count=1 -timeout 3h ./test/node-path/...

node-sim: $(addprefix bin/,node-sim mem_etcd k1m $(KUBERNETES) kwok) ## Test node-sim with a real cluster: nodes, pods and faults, with shared and with own connections
	@go test -v -count=1 -timeout 20m ./test/node-sim

node-requests: $(addprefix bin/,node-sim mem_etcd k1m $(KUBERNETES) kwok kubemark) ## Compare the requests of node-sim with those of hollow kubelets: IDLE=5m OUT=FILE
	@NODE_REQUESTS_IDLE=$(IDLE) NODE_REQUESTS_OUT=$(if $(OUT),$(abspath $(OUT))) go test -v -count=1 -timeout 1h ./test/node-sim/recording

controller-manager: $(addprefix bin/,warm-controller-manager mem_etcd k1m $(KUBERNETES) kwok) ## Test warm-controller-manager beside kube-controller-manager: leaders that are stopped under load, flags, pages
	@go test -v -count=1 -timeout 1h ./test/controller-manager

etcd-upstream: bin/mem_etcd $(addprefix bin/,$(PEERS)) ## Run etcd's own tests against mem_etcd, in clusters with one and more members
	@test/etcd-upstream/run.sh

controller-manager-upstream: bin/mem_etcd ## Run Kubernetes' integration tests of controllers with warm-controller-manager and with warm informers (an hour)
	@test/controller-manager/upstream.sh

gateway-upstream: bin/mem_etcd bin/kube-gateway ## Run Kubernetes' integration tests of the API server through kube-gateway (an hour; NODE_PATH=1: those with nodes, with the node path on)
	@test/gateway-upstream/run.sh

NETWORK := bin/network-agent bin/network-gateway $(addprefix bin/cni/,$(CNI))

network: $(NETWORK) ## Test the IPv6-only network on the wire with 200 nodes of 5 pods (as root): NETWORK_NODES=200 NETWORK_PODS=5
	@NETWORK_NODES=$(NETWORK_NODES) NETWORK_PODS=$(NETWORK_PODS) go test -v -count=1 -timeout 1h ./test/network/...

network-lab: bin/k1m $(NETWORK) ## Build a lab of the IPv6-only network in network namespaces (as root): LAB_FLAGS="--nodes 5 --mode on-link"
	@bin/k1m network lab $(LAB_FLAGS)

bench-network: bin/k1m $(NETWORK) ## Measure the IPv6-only network (as root, 5 minutes): BENCH_FLAGS="--only throughput"
	@bin/k1m bench network $(BENCH_FLAGS)

chart: $(addprefix bin/,$(OWN) $(KUBERNETES) kwok etcdctl helm kubeconform) ## Test the Helm chart: what it renders, and what its pods run in a real cluster (10 minutes, as root)
	@CHART=full go test -v -count=1 -timeout 1h -skip TestKubeadm ./test/deploy

kubeadm: $(addprefix bin/,mem_etcd k1m dist-scheduler kube-apiserver kube-scheduler etcd etcdctl etcdutl kubeadm) ## Run the guide for control planes of kubeadm, and compare all objects (5 minutes, as root)
	@CHART=full go test -v -count=1 -timeout 1h -run TestKubeadm ./test/deploy

# Each machine is a systemd in namespaces of its own. The first build of the static programs takes 15 minutes.
machines: $(addprefix bin/,tofu tflint kubeadm helm etcdctl $(KUBERNETES)) dist images target/machine-root/made ## Test the Terraform modules and the user data: machines, with a real node that runs the chart's pods (10 minutes, as root, with debootstrap)
	@MACHINES=full DIST=$(CURDIR)/target/dist IMAGES=$(CURDIR)/target/images go test -v -count=1 -timeout 1h ./test/machines

target/machine-root/made:
	@test/machines/root.sh target/machine-root

conformance: bin/mem_etcd ## Run Kubernetes' storage test suites against mem_etcd; STORE_MEMBERS=3: against clusters of three members
	@test/conformance/run.sh

conformance-proxied: bin/mem_etcd bin/etcd-proxy ## Run Kubernetes' storage test suites and API test packages through etcd-proxy, and report their requests
	@test/conformance/recorded.sh

upstream: bin/mem_etcd ## Run Kubernetes' scheduler tests with dist-scheduler's node search
	@test/upstream/run.sh

crash: bin/mem_etcd ## Kill mem_etcd under load in all WAL modes: KILLS=2000
	@CRASH_ROUNDS=$(CRASH_ROUNDS) \
		go test -v -count=1 -run 'TestKill$$' -timeout 6h ./test/store

crash-cluster: bin/mem_etcd bin/etcd ## Inject faults into the members of a replicated store under load: KILLS=2000 MEMBERS=3 STORE=mem_etcd|etcd REPLICATION_LOG=memory|buffered|fsync
	@KILLS=$(KILLS) MEMBERS=$(MEMBERS) STORE=$(STORE) REPLICATION_LOG=$(REPLICATION_LOG) \
		go test -v -count=1 -run 'TestFaults$$|TestFullDisk$$|TestMajorityLost$$|TestPartition$$' -timeout 12h ./test/store-cluster

faults: bin/mem_etcd bin/k1m bin/dist-scheduler bin/kube-apiserver bin/kwok ## Inject faults into scheduler replicas under load: FAULTS=100
	@FAULTS=$(FAULTS) go test -v -count=1 -run 'TestReplicaFaults$$|TestSuspendedLeader$$' -timeout 6h ./test/e2e

# The run goes on until the API server has compared its caches with the store, which takes at least five minutes.
store-faults: $(addprefix bin/,k1m mem_etcd dist-scheduler kube-gateway node-sim $(KUBERNETES) kwok) ## Kill, cut off and replace members of a cluster's mem_etcd, and kill its leader every 30 s while pods come and go: FAULTS=100
	@STORE_FAULTS=$(FAULTS) go test -v -count=1 -run 'TestStoreFaults$$|TestStoreMembers$$/^mem_etcd$$' -timeout 6h ./test/e2e

fuzz: tools ## Fuzz the code that reads untrusted bytes; duration per fuzz target: FUZZTIME=60s
	@build/fuzz.sh $(FUZZTIME)

# The last test is slow, because it waits until real processes agree on what there is.
oracle: $(addprefix bin/,$(OWN) $(KUBERNETES) kwok) ## Compare decisions of dist-scheduler with those of kube-scheduler's plugins: 60,000 in memory (CLUSTERS=200), 2,400 in real clusters (WORLDS=20)
	@status=0; \
	go test -count=1 -timeout 2h -v -run 'Oracle' ./internal/scheduler/attach -oracle.clusters $(CLUSTERS) || status=1; \
	go test -race -count=1 -timeout 2h -v -run 'TestOracle$$' ./internal/scheduler/replica -oracle.worlds $(CLUSTERS) -oracle.decisions 100 || status=1; \
	ORACLE_SEED=$${ORACLE_SEED:-random} ORACLE_WORLDS=$(WORLDS) ORACLE_DECISIONS=60 go test -count=1 -timeout 4h -v ./test/oracle || status=1; \
	exit $$status

simulate: tools ## Run simulated clusters with faults against the consensus crate: SEEDS=100000
	@SIMULATE_SEEDS=$(SEEDS) cargo test --release --locked -p consensus -- --nocapture clusters_with_faults

simulate-replicas: tools ## Run simulated groups of scheduler replicas with faults: SEEDS=100000
	@SIMULATE_SEEDS=$(SEEDS) go test -count=1 -timeout 12h -v -run 'TestReplicasWithFaultsKeepTheirPromises$$' ./internal/scheduler/replica/core

bench-store: bin/mem_etcd bin/etcd-bench bin/etcd bin/etcd-benchmark ## Measure mem_etcd and etcd and compare the results (12 minutes): BENCH_FLAGS="-only put,watch"
	@go run ./test/bench $(BENCH_FLAGS)

bench-cluster: bin/mem_etcd bin/etcd-bench bin/etcd bin/k1m ## Measure stores of three members: CPU of a put, and writes after the loss of a leader (15 minutes): BENCH_FLAGS="--parts kill"
	@bin/k1m bench store-cluster $(BENCH_FLAGS)

# Fails if the ratio of a result to that of the stock component is worse than the stored ratio.
bench: BENCH_FLAGS := -quick
bench: bench-store bin/k1m bin/dist-scheduler bin/kube-gateway $(NETWORK) $(addprefix bin/,$(KUBERNETES) kwok kubemark) ## Run short versions of all experiments and compare their results with stored ratios (under 20 minutes)
	@bin/k1m bench all --compare experiments/short-ratios.json

bench-proxy: bin/mem_etcd bin/etcd-bench bin/etcd-proxy ## Measure the latency added by etcd-proxy (1 minute): BENCH_FLAGS="-total 20000"
	@go run ./test/proxybench $(BENCH_FLAGS)

bench-scheduler-perf: bin/mem_etcd ## Run Kubernetes' scheduler_perf with and without dist-scheduler's node search: BENCH_FLAGS="-run TopologySpreading"
	@go run ./test/schedperf $(BENCH_FLAGS)

images: tools ## Build container images into target/images, without a daemon (15 minutes the first time): PROGRAMS="mem_etcd" builds only some
	@build/release.sh images $(PROGRAMS)

images-test: images ## Run each program in its image (needs root): PROGRAMS="mem_etcd"
	@PROGRAMS="$(PROGRAMS)" IMAGES=$(CURDIR)/target/images go test -v -count=1 ./tools/images

dist: tools bin/nfpm ## Build archives, Debian packages and an SBOM into target/dist
	@build/release.sh dist

dist-test: dist ## Check the files of `make dist`
	@DIST=$(CURDIR)/target/dist go test -v -count=1 ./tools/dist

clean: ## Remove build and result folders; keeps the caches of Go and Cargo
	@rm -rf bin target results

tools:
	@build/tools.sh

# One call builds all of them faster than a call for each.
rust-programs: tools
	@build/cargo.sh $(RUST)

$(addprefix bin/,$(RUST)): tools FORCE
	@build/cargo.sh $(@F)

bin/etcd-benchmark: tools/etcd-benchmark/go.mod tools/etcd-benchmark/go.sum | tools
	@echo "==> Building etcd's benchmark"
	@go build -C tools/etcd-benchmark -o ../../$@ go.etcd.io/etcd/v3/tools/benchmark

bin/nfpm: tools/nfpm/go.mod tools/nfpm/go.sum | tools
	@echo "==> Building nfpm"
	@go build -C tools/nfpm -o ../../$@ github.com/goreleaser/nfpm/v2/cmd/nfpm

bin/k1m: tools FORCE
	@mkdir -p bin
	@go build -ldflags "-X main.version=$$(build/version.sh)" -o $@ ./cmd/k1m

# Built with build/go.sh like Kubernetes' programs, because they embed the Kubernetes version.
bin/dist-scheduler bin/warm-controller-manager: tools FORCE
	@build/go.sh $(@F) ./cmd/$(@F)

bin/network-agent bin/network-gateway: tools FORCE
	@mkdir -p bin
	@go build -ldflags "-s -w -X main.version=$$(build/version.sh)" -o $@ ./cmd/$(@F)

# go.mod pins the versions. One `go build` command builds all programs, so shared packages are compiled once.
$(addprefix bin/,$(KUBERNETES)) &: go.mod go.sum | tools
	@build/go.sh Kubernetes $(addprefix k8s.io/kubernetes/cmd/,$(KUBERNETES))

# kubeadm is a program of the operator; kubelet and kube-proxy are for the real node of test/machines.
bin/kubeadm bin/kubelet bin/kube-proxy &: go.mod go.sum | tools
	@build/go.sh "kubeadm, kubelet and kube-proxy" $(addprefix k8s.io/kubernetes/cmd/,kubeadm kubelet kube-proxy)

# kubemark contains the hollow kubelets of `k1m bench kubelet-or-kwok`.
bin/kubemark: go.mod go.sum | tools
	@build/go.sh "hollow kubelets" k8s.io/kubernetes/cmd/kubemark

bin/kwok: go.mod go.sum | tools
	@build/go.sh kwok sigs.k8s.io/kwok/cmd/kwok

# h2spec is in a separate Go module, because its dependencies are old.
bin/h2spec: tools/h2spec/go.mod | tools
	@cd tools/h2spec && go build -o ../../bin/h2spec github.com/summerwind/h2spec/cmd/h2spec

# Helm and kubeconform test the chart. They are in a separate Go module, because this one does not need their dependencies.
bin/helm bin/kubeconform &: tools/helm/go.mod tools/helm/go.sum | tools
	@echo "==> Building helm and kubeconform"
	@cd tools/helm && go build -ldflags "-s -w" -o ../../bin/ helm.sh/helm/v4/cmd/helm github.com/yannh/kubeconform/cmd/kubeconform

# The CNI plugins of the network lab: real plugins, called as a container runtime calls them.
$(addprefix bin/cni/,$(CNI)) &: tools/cni/go.mod tools/cni/go.sum | tools
	@echo "==> Building CNI plugins"
	@cd tools/cni && CGO_ENABLED=0 go build -ldflags "-s -w" -o ../../bin/cni/ $(addprefix github.com/containernetworking/plugins/plugins/,$(CNI_PACKAGES))

# OpenTofu and tflint check the Terraform modules. Each needs its own version of the same library.
bin/tofu: tools/opentofu/go.mod tools/opentofu/go.sum | tools
	@echo "==> Building OpenTofu"
	@go build -C tools/opentofu -ldflags "-s -w" -o ../../$@ github.com/opentofu/opentofu/cmd/tofu

bin/tflint: tools/tflint/go.mod tools/tflint/go.sum | tools
	@echo "==> Building tflint"
	@go build -C tools/tflint -ldflags "-s -w" -o ../../$@ github.com/terraform-linters/tflint

$(addprefix bin/,$(PEERS)) &: go.mod go.sum | tools
	@build/go.sh etcd go.etcd.io/etcd/server/v3 go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3
	@mv bin/server bin/etcd
