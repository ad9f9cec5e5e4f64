# The few verbs of this project; CI calls the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where bytecode is not to be written, every start of a broker compiles what it imports: half a second of its own.
unexport PYTHONDONTWRITEBYTECODE
# Of a run of the tests, which wait a good deal: files are shared out among them.
PROCESSES ?= 2
# Statements of MQTT whose tests ran, and how those ended.
STATEMENTS := build/statements.json
CLANG ?= clang
SANITIZED := $(CURDIR)/$(BIN)/python -m fuzz.sanitizers
SOURCES := $(shell find shardbroker acceptor shm perf -name '*.py[x]' -o -name '*.pxd') pyproject.toml setup.py

.PHONY: always downloads in-time packages packages-to-serve packages-to-fuzz install tools spark serve test test-bridges test-cluster \
    test-databases test-deploy test-kills test-pages test-releases test-spark examples conformance lint types fuzz asan sim torture torture-sinks torture-cluster acceptance-sinks soak partitions debug docs proto wheel release deb clean

install: $(VENV)/.installed

# Only what has changed is compiled. pip, which would compile everything again, finds it done.
$(VENV)/.compiled: $(SOURCES) | packages-to-serve
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip "setuptools>=80" "Cython>=3.3,<3.4"
	$(BIN)/python setup.py -q build_ext --inplace
	touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.compiled
	@echo "installing the broker's requirements"
	SHARDBROKER_COMPILED=1 $(BIN)/pip install --quiet --no-build-isolation --editable ".[dashboard,auth,redis,postgresql,mysql,mongodb,cassandra,dynamodb,s3,kafka,pulsar,exhook,cluster,rules,opentelemetry]"
	touch $@

# System packages of all verbs; the others install theirs by themselves where they may (see the script).
packages:
	@PYTHON="$(PYTHON)" scripts/packages test

packages-to-serve:
	@PYTHON="$(PYTHON)" scripts/packages serve

packages-to-fuzz:
	@PYTHON="$(PYTHON)" CLANG="$(CLANG)" scripts/packages fuzz

# All of that and what tests and builds need; compiled once for both. LDAP is left out where OpenLDAP's headers are not.
tools: $(VENV)/.tools

$(VENV)/.left-out: always
	@PYTHON="$(PYTHON)" scripts/packages tools $@

$(VENV)/.tools: pyproject.toml $(VENV)/.left-out | $(VENV)/.compiled
	@echo "installing requirements of the broker, its tests and its builds"
	SHARDBROKER_COMPILED=1 $(BIN)/pip install --quiet --no-build-isolation --editable ".[test,dev$$(grep -q ^ldap: $(VENV)/.left-out || echo ,ldap)]"
	touch $(VENV)/.installed $@

# Spark, and the package that reads journals with it; needs Java 17.
spark: $(VENV)/.spark

$(VENV)/.spark: $(VENV)/.installed spark/pyproject.toml spark/setup.py $(wildcard spark/pyspark_shardbroker/*.pyx)
	$(BIN)/pip install --quiet --no-build-isolation --editable "./spark[plots,sql]"
	touch $@

serve: install
	$(BIN)/shardbroker serve

# Suites whose system packages are missing and may not be installed are left out by name; with CI set, that is an error.
test: packages tools spark lint types downloads
	$(TESTS) --statements=$(STATEMENTS) $(addprefix --ignore ,tests/spark tests/releases $(CLUSTER) $(KILLED) $(DEPLOY) $(QUEUES) $(DATABASES) $(COSTS) $(PAGES))
	$(BIN)/python -m tests.conformance.coverage $(STATEMENTS)

# Suites that take long have a verb of their own. With UNTIL, seconds since 1970, these begin no test after that time, and say so.
TESTS := $(BIN)/python -m pytest -q -rfEsx -n $(PROCESSES) --durations 40
LONG := $(TESTS) $(if $(UNTIL),--until $(UNTIL))
CLUSTER := tests/cluster
KILLED := tests/torture tests/handoff
DEPLOY := tests/deploy
QUEUES := tests/flows/bridges tests/flows/sources
PAGES := tests/docs/test_examples.py tests/dashboard
COSTS := tests/perf/test_instructions.py
DATABASES := tests/flows/persistence tests/flows/drivers tests/flows/sinks/test_acceptance.py

# Nodes in network namespaces, and the simulation of 23 of them.
test-cluster: packages tools
	$(LONG) $(CLUSTER)

# Processes that are killed, replaced and upgraded under traffic.
test-kills: packages tools
	$(LONG) $(KILLED)

# Installation, packages, wheels and images.
test-deploy: packages tools downloads
	$(LONG) $(DEPLOY)

# Bridges to brokers, and sources: what message queues and the broker say to each other.
test-bridges: packages tools downloads
	$(LONG) $(QUEUES)

# Sinks against each of their servers.
test-databases: packages tools downloads
	$(LONG) $(DATABASES)

# The examples of README and docs, on a machine with a systemd of its own, the dashboard in a browser, and instructions that a message
# costs, by valgrind.
test-pages: packages tools spark downloads
	$(LONG) $(PAGES) $(COSTS)

# This build and earlier ones, which are compiled from the history: some five minutes.
test-releases: packages tools
	$(subst -n $(PROCESSES),,$(TESTS)) tests/releases

# One process: it has a Spark of its own.
test-spark: packages tools spark downloads
	$(subst -n $(PROCESSES),,$(LONG)) tests/spark

# A verb for at most LEFT seconds, as CI runs what it has time for: make in-time LEFT=600 VERB=debug
in-time:
	@if [ $(LEFT) -le 0 ]; then echo "make $(VERB): left out, there is no time"; else \
	    timeout -k 60 -s INT $(LEFT) $(MAKE) $(VERB); status=$$?; \
	    case $$status in 124|137) echo "make $(VERB): left out after $(LEFT) s" ;; *) exit $$status ;; esac; fi

# Servers and clients of the tests that registries have: before the tests, whose limits are not those of a network.
downloads: packages tools
	$(BIN)/python -m tests.downloads

# The examples of README and docs alone, on a machine with a systemd of its own, and how long each command takes.
examples: packages tools spark
	$(BIN)/python -m pytest -q -rP --durations 20 tests/docs

conformance: tools
ifdef BROKER
	$(BIN)/python -m pytest -q tests/conformance --broker $(BROKER)
else
	$(BIN)/python -m pytest -q --statements=$(STATEMENTS) tests/conformance tests/clients tests/edge/test_websocket.py
	$(BIN)/python -m tests.conformance.coverage $(STATEMENTS)
endif

# Each target of fuzz/targets for so long, two at a time, in the build of `make asan`: make fuzz SECONDS=3600 KEEP=--keep
fuzz: build/asan/.built
	cd build/asan && $(CURDIR)/$(BIN)/python -m fuzz.run --seconds $(or $(SECONDS),60) $(KEEP) $(TARGETS)

# A copy that AddressSanitizer and UndefinedBehaviorSanitizer watch is fuzzed and simulated, and a broker of it serves the wire table.
# Two minutes after the build: targets run two at a time. The seed is fixed: a finding is of the change, and `make fuzz` goes further.
asan: SEED := 1
asan: build/asan/.built
	cd build/asan && $(CURDIR)/$(BIN)/python -m fuzz.run --seconds $(or $(SECONDS),15) --seed $(SEED)
	cd build/asan && $(SANITIZED) $(CURDIR)/$(BIN)/python fuzz/fuzz_codec.py --seconds $(or $(SECONDS),10) --seed $(SEED)
	cd build/asan && $(SANITIZED) $(CURDIR)/$(BIN)/python fuzz/fuzz_tls.py --seconds $(or $(SECONDS),10)
	cd build/asan && $(SANITIZED) $(CURDIR)/$(BIN)/python -m tests.sim.simulator --seed 1 --steps 5000 --seconds 10
	cd build/asan && $(SANITIZED) $(CURDIR)/$(BIN)/python -m pytest -q tests/conformance/test_wire_table.py

# The C that Cython has made of the sources for the release is compiled, not made again.
build/asan/.built: $(SOURCES) | packages-to-fuzz tools
	rm -rf build/asan && mkdir -p build/asan
	cp -rp setup.py pyproject.toml README.md LICENSE shardbroker acceptor shm build/asan/
	ln -s ../../fuzz ../../tests build/asan/
	find build/asan/ -name '*.so' -delete
	cd build/asan && CC="$(CLANG)" LDSHARED="$(CLANG) -shared" SHARDBROKER_SANITIZE=1 \
	    $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace >/dev/null
	touch $@

# A copy with bounds checks, None checks and assertions, fuzzed and simulated: what is wrong there is wrong in the release too.
debug: tools
	rm -rf build/debug && mkdir -p build/debug
	cp -r setup.py pyproject.toml README.md LICENSE shardbroker acceptor shm perf tests fuzz build/debug/
	find build/debug -name '*.so' -delete -o -name '*.c' -delete
	cd build/debug && SHARDBROKER_DEBUG=1 $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace >/dev/null 2>&1
	cd build/debug && $(CURDIR)/$(BIN)/python fuzz/fuzz_codec.py --seconds $(or $(SECONDS),60)
	cd build/debug && $(CURDIR)/$(BIN)/python fuzz/fuzz_tls.py --seconds $(or $(SECONDS),60)
	cd build/debug && $(CURDIR)/$(BIN)/python -m tests.sim.simulator --seed 1 --steps 5000 --seconds 10

sim: tools
	$(BIN)/python -m tests.sim.simulator --steps 5000 --seconds $(or $(SECONDS),60)

# Kills processes of a broker under traffic, replaces its workers and upgrades it: make torture KILLS=5000, or SECONDS=3600, and
# TORTURE="--seed 7 --kind worker,replace,upgrade".
torture: tools
	$(BIN)/python -m tests.torture.torture --kills $(or $(KILLS),$(if $(SECONDS),0,2000)) --seconds $(or $(SECONDS),0) $(TORTURE)

# The same up to the rows of a sink, whose server is killed and stopped as well: make torture-sinks SINKS="--type mysql --once --seed 3"
torture-sinks: tools
	$(BIN)/python -m tests.torture.sinks $(SINKS)

# Kills of processes and nodes of a cluster, and cuts between them, as root: make torture-cluster KILLS=5000, or SECONDS=3600
torture-cluster: packages tools
	$(BIN)/python -m tests.cluster.real.torture --kills $(or $(KILLS),$(if $(SECONDS),0,200)) --seconds $(or $(SECONDS),0) $(TORTURE)

# What every sink has to show, in full: 100,000 messages while its server is gone: make acceptance-sinks SINKS="--type redis"
acceptance-sinks: tools
	$(BIN)/python -m tests.flows.sinks.acceptance $(SINKS)

# Two hours of mixed traffic with restarts; says what grew. make soak SECONDS=600
soak: tools
	$(BIN)/python -m tests.soak.soak --seconds $(or $(SECONDS),7200)

# The failure table of docs/design/0011-cluster.md: nodes in network namespaces, with cuts, delays, kills; needs root and /dev/net/tun.
partitions: packages tools
	$(BIN)/python -m pytest -q -rsP tests/cluster/real/failures.py tests/cluster/real/moves.py tests/cluster/real/splits.py \
	tests/cluster/real/core_failures.py

lint: tools
	$(BIN)/ruff check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint $$(git ls-files '*.pyx' '*.pxd')

types: tools spark
	$(BIN)/mypy

# Pages that are made from the code, then all of docs/ as a site in build/site.
docs: tools
	$(BIN)/python -m shardbroker.config.mqtt_pxd > shardbroker/session/mqtt_settings.pxd
	$(BIN)/shardbroker config reference > docs/configuration.md
	$(BIN)/shardbroker ctl reference > docs/ctl.md
	$(BIN)/python -c "from shardbroker.cli import main, reference; print(reference.reference(main.main), end='')" > docs/cli.md
	$(BIN)/python -m shardbroker.api.reference > docs/rest.md
	$(BIN)/python -m shardbroker.hooks.reference > docs/hooks.md
	$(BIN)/python -m shardbroker.rules.reference > docs/rule-events.md
	$(BIN)/python -m shardbroker.management.reference > docs/counters.md
	$(BIN)/zensical build --strict

# Descriptors of gRPC services, those of programs behind hooks and gateways and etcd's; tests compare them with the .proto files.
proto: tools
	cd shardbroker/integrations/exhook && $(CURDIR)/$(BIN)/python -m grpc_tools.protoc -I. --descriptor_set_out=exhook.binpb exhook.proto
	cd shardbroker/gateways/exproto && $(CURDIR)/$(BIN)/python -m grpc_tools.protoc -I. --descriptor_set_out=exproto.binpb exproto.proto
	cd shardbroker/membership && $(CURDIR)/$(BIN)/python -m grpc_tools.protoc -I. --descriptor_set_out=etcd.binpb etcd.proto

# dist/: wheels that run on any Linux with a libc no older than this machine's; cibuildwheel makes those for all Pythons.
wheel: tools
	rm -rf build/wheel
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel . ./spark
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --strip --wheel-dir dist build/wheel/*.whl

# dist/ as a release has it: wheel of this Python, source distribution, bill of materials (CycloneDX), SHA256SUMS.
release: tools
	$(BIN)/python scripts/release.py $(RELEASE)

# dist/*.deb: the broker with all that it needs, for Debian with this machine's Python.
deb: tools
	$(BIN)/python scripts/deb.py

clean:
	rm -rf build dist *.egg-info
	find shardbroker acceptor shm perf spark -name '*.so' -delete -o -name '*.c' -delete
	rm -f $(VENV)/.compiled $(VENV)/.installed $(VENV)/.tools $(VENV)/.left-out
