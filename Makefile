# k8s-1m: `make up` for a cluster, `make test` for every test. See README.md.

NAME      ?= k1m
NODES     ?= 1000
STORE     ?= mem_etcd
K1M_FLAGS ?=
KILLS     ?= 2000
FAULTS    ?= 100
CLUSTERS  ?= 200
FUZZTIME  ?= 60s
BENCH_FLAGS ?=

# What a cluster needs, and what only comparisons and tests need.
KUBERNETES := kube-apiserver kube-controller-manager kube-scheduler kubectl
PEERS      := etcd etcdctl etcdutl
OWN        := mem_etcd etcd-bench etcd-proxy k1m dist-scheduler

# TestKill does it in so many modes, and ends in good order one time in ten.
CRASH_MODES := 8
CRASH_ROUNDS = $$(($(KILLS) * 10 / 9 / $(CRASH_MODES) + 20))

.DEFAULT_GOAL := help
.PHONY: help build up down test check bench bench-store bench-proxy bench-scheduler-perf conformance conformance-proxied crash faults fuzz hostile oracle upstream clean tools FORCE

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' Makefile

build: $(addprefix bin/,$(OWN) $(KUBERNETES) kwok $(PEERS) kubemark) ## Build every binary, peers included, into bin/

up: $(addprefix bin/,$(OWN) $(KUBERNETES) kwok) $(if $(filter etcd,$(STORE)),bin/etcd) ## Bring up a cluster: NAME=k1m NODES=1000 STORE=mem_etcd|etcd
	@bin/k1m up --name $(NAME) --nodes $(NODES) --store $(STORE) $(K1M_FLAGS)

down: bin/k1m ## Take the cluster down: NAME=k1m
	@bin/k1m down $(if $(filter-out k1m,$(NAME)),--name $(NAME))

# E2E_STANDBY_NODES=5000 gives the test of a standby scheduler a larger cluster.
test: build bin/h2spec ## Run every test; the last line says what passed and failed
	@test/run.sh

check: tools ## Check format and lints, in under a minute
	@build/check.sh

hostile: bin/mem_etcd bin/etcd ## Hostile clients in full size: a million watches, ten thousand connections, garbage
	@HOSTILE=full go test -count=1 -timeout 20m -v -run 'TestHostile' ./test/store

conformance: bin/mem_etcd ## Run Kubernetes' own storage suites against mem_etcd
	@test/conformance/run.sh

conformance-proxied: bin/mem_etcd bin/etcd-proxy ## Run Kubernetes' storage suites and API test packages through etcd-proxy, and report what they ask
	@test/conformance/recorded.sh

upstream: bin/mem_etcd ## Run Kubernetes' own scheduler tests with our search in place
	@test/upstream/run.sh

crash: bin/mem_etcd ## Kill mem_etcd under load, in every mode: KILLS=2000
	@CRASH_ROUNDS=$(CRASH_ROUNDS) \
		go test -v -count=1 -run 'TestKill$$' -timeout 6h ./test/store

faults: bin/mem_etcd bin/k1m bin/dist-scheduler bin/kube-apiserver bin/kwok ## Accidents of schedulers that share a cluster, under load: FAULTS=100
	@FAULTS=$(FAULTS) go test -v -count=1 -run 'TestReplicaFaults$$' -timeout 6h ./test/e2e

fuzz: tools ## Hostile bytes and files for all that reads such, each for so long: FUZZTIME=60s
	@build/fuzz.sh $(FUZZTIME)

oracle: ## Hold 60,000 decisions of dist-scheduler against kube-scheduler's plugins: CLUSTERS=200
	@go test -count=1 -timeout 2h -v -run 'Oracle' ./internal/scheduler/attach -oracle.clusters $(CLUSTERS)

bench-store: bin/mem_etcd bin/etcd-bench bin/etcd bin/etcd-benchmark ## Measure mem_etcd beside etcd, twelve minutes: BENCH_FLAGS="-only put,watch"
	@go run ./test/bench $(BENCH_FLAGS)

# Everything in a short form; fails where a ratio to the stock component got worse.
bench: BENCH_FLAGS := -quick
bench: bench-store bin/k1m bin/dist-scheduler $(addprefix bin/,$(KUBERNETES) kwok kubemark) ## All experiments in a short form, held against stored ratios: under twenty minutes
	@bin/k1m bench all --compare experiments/short-ratios.json

bench-proxy: bin/mem_etcd bin/etcd-bench bin/etcd-proxy ## Measure what etcd-proxy costs, a minute: BENCH_FLAGS="-total 20000"
	@go run ./test/proxybench $(BENCH_FLAGS)

bench-scheduler-perf: bin/mem_etcd ## Run Kubernetes' scheduler_perf with our search and with upstream's: BENCH_FLAGS="-run TopologySpreading"
	@go run ./test/schedperf $(BENCH_FLAGS)

clean: ## Remove what was built; caches of Go and Cargo stay
	@rm -rf bin target results

tools:
	@build/tools.sh

bin/mem_etcd bin/etcd-bench bin/etcd-proxy: tools FORCE
	@build/cargo.sh $(@F)

bin/etcd-benchmark: tools/etcd-benchmark/go.mod tools/etcd-benchmark/go.sum | tools
	@echo "==> Building etcd's own benchmark"
	@go build -C tools/etcd-benchmark -o ../../$@ go.etcd.io/etcd/v3/tools/benchmark

bin/k1m: tools FORCE
	@mkdir -p bin
	@go build -ldflags "-X main.version=$$(build/version.sh)" -o $@ ./cmd/k1m

# As Kubernetes' programs are: it has to know their version.
bin/dist-scheduler: tools FORCE
	@build/go.sh dist-scheduler ./cmd/dist-scheduler

# go.mod pins these; all that Kubernetes needs is compiled in one go.
$(addprefix bin/,$(KUBERNETES)) &: go.mod go.sum | tools
	@build/go.sh Kubernetes $(addprefix k8s.io/kubernetes/cmd/,$(KUBERNETES))

# Hollow kubelets, for one of the experiments.
bin/kubemark: go.mod go.sum | tools
	@build/go.sh "hollow kubelets" k8s.io/kubernetes/cmd/kubemark

bin/kwok: go.mod go.sum | tools
	@build/go.sh kwok sigs.k8s.io/kwok/cmd/kwok

# A module of its own: its dependencies are old.
bin/h2spec: tools/h2spec/go.mod | tools
	@cd tools/h2spec && go build -o ../../bin/h2spec github.com/summerwind/h2spec/cmd/h2spec

$(addprefix bin/,$(PEERS)) &: go.mod go.sum | tools
	@build/go.sh etcd go.etcd.io/etcd/server/v3 go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3
	@mv bin/server bin/etcd
