# SPDX-License-Identifier: Apache-2.0
# Short names for the usual jobs. Each one does the set-up that it needs by itself.
PRESET ?= default
JOBS ?= $(shell nproc)
BUILD := $(if $(filter default,$(PRESET)),build,build-$(PRESET))

.PHONY: help setup ready build demo test test-torch test-vllm nightly mutants semantic-mutants semantic-sample faults \
  assembly fuzz coverage forms docs bench bundle wheel format check check-nvrtc install clean
help:
	@echo "make setup   installs the packages that are missing, with apt-get; nothing else does"
	@echo "make demo    build the program, then one expert layer on this machine's GPU or on the simulator"
	@echo "make test    build, then all tests (ARGS='-R suite' to choose some; PRESET=asan or tsan for the sanitizers)"
	@echo "make test-torch fetches torch and transformers (5.6 GB), then runs the tests of what Moxie is in them"
	@echo "make test-vllm  fetches vLLM and what its experts need (6.9 GB), then runs the tests of the plugin"
	@echo "make nightly all tests with what CI leaves out, published products at full size, all mutants: hours"
	@echo "make mutants removes the synchronization of the kernels piece by piece: does the simulator notice?"
	@echo "make semantic-mutants changes what is computed line by line: is it noticed? hours; semantic-sample: minutes"
	@echo "make faults plants known faults in what is computed: does the test that must notice each of them fail?"
	@echo "make assembly assembles every kernel that plans for sm_100a return over a grid of problems: nothing may spill"
	@echo "make fuzz    SECONDS=60 of coverage-guided fuzzing of the PTX parser, decoders and images; needs clang"
	@echo "make coverage runs the tests and lists which lines and which instruction forms of the simulator they executed"
	@echo "make forms   tries every form of the syntax tables on ptxas and on the simulator: which does one alone take?"
	@echo "make docs    the API reference, build/docs/html/index.html; what the public headers leave unsaid is an error"
	@echo "make build   the library, the program build/bin/moxie, the simulator and the tests"
	@echo "make install the library, the program and the simulator; cmake --install build --prefix FOLDER: elsewhere"
	@echo "make check-nvrtc what every NVRTC since 12.8 makes of the kernels: registers, spills, size"
	@echo "make bench   build, then the benchmarks"
	@echo "make bundle  build-bundle/moxie.tar.gz for scripts/gpu-check on a machine without packages or network"
	@echo "make wheel   build/python/dist/moxie-*.whl, the Python package of what is built: docs/python.md"
	@echo "make format  lays the sources out with clang-format; make check only looks: layout, lint, links, rooms, tidy"

setup:
	@scripts/setup --install

# Everything else only looks, and says what is missing.
ready:
	@scripts/setup

$(BUILD)/CMakeCache.txt: CMakeLists.txt CMakePresets.json | ready
	cmake --preset $(PRESET)

build: ready $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS)

# What the demo needs, not the tests.
demo: ready $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS) --target moxie_program
	$(BUILD)/bin/moxie demo

# With PRESET=asan: what LeakSanitizer takes for the thread-local storage of a library loaded later is now and then no
# memory at all, which ends it. So it is not to look there.
test: export ASAN_OPTIONS := $(ASAN_OPTIONS):intercept_tls_get_addr=0
# With PRESET=tsan: NVRTC has not been compiled for it, so its locks are not seen.
test: export TSAN_OPTIONS := $(TSAN_OPTIONS):suppressions=$(CURDIR)/tests/support/tsan.txt
test: build
	@scripts/setup --test-tools
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS) $(ARGS)

# In an environment with torch and transformers, which pip makes in the build folder.
test-torch: ready $(BUILD)/CMakeCache.txt
	@scripts/setup --test-tools
	cmake --build $(BUILD) -j $(JOBS) --target moxie_c moxie_sim moxie_program
	scripts/test-torch $(BUILD) $(ARGS)

# In an environment with vLLM, which pip makes in the build folder.
test-vllm: ready $(BUILD)/CMakeCache.txt
	@scripts/setup --test-tools
	cmake --build $(BUILD) -j $(JOBS) --target moxie_c moxie_sim moxie_program
	scripts/test-vllm $(BUILD) $(ARGS)

# The programs themselves: ctest's list and time limits are those of CI.
nightly: build
	@scripts/setup --test-tools
	@status=0; export MOXIE_TEST_ALL=1 MOXIE_CACHE_DIR=$(CURDIR)/$(BUILD)/test-cache; \
	for program in unit sim devices hopper blackwell ranks cli; do \
	  $(BUILD)/bin/test_$$program --gtest_brief=1 --gtest_filter='-*FullSize*' || status=$$?; \
	done; \
	MOXIE_SIM_SMS=148 $(BUILD)/bin/test_blackwell --gtest_filter='*FullSize*' || status=$$?; \
	$(MAKE) mutants || status=$$?; \
	$(MAKE) semantic-mutants || status=$$?; \
	exit $$status

mutants: build
	@status=0; for arch in sm_90a sm_100a; do \
	  MOXIE_CACHE_DIR=$(BUILD)/test-cache $(BUILD)/bin/mutants --arch $$arch $(ARGS) || status=$$?; \
	done; exit $$status

# Both in a copy of the checkout with a build folder of its own.
semantic-mutants: ready
	@scripts/setup --mutant-tools
	scripts/semantic-mutants --folder build-semantic --jobs $(JOBS) $(ARGS)

# What CI tries, in views of the checkout's own build folder.
semantic-sample: build
	@scripts/setup --mutant-tools
	scripts/semantic-mutants --here --sample 60 --seconds 90 --jobs $(JOBS) $(ARGS)

faults: ready
	scripts/plant-faults --folder build-semantic --jobs $(JOBS) $(ARGS)

assembly: build
	$(BUILD)/bin/assembly --jobs $(JOBS) --results $(BUILD)/assembly.txt $(ARGS)

fuzz: ready $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS) --target test_sim
	cmake --preset fuzz
	cmake --build build-fuzz -j $(JOBS) --target ptx_fuzz image_fuzz
	scripts/fuzz $(or $(SECONDS),60)

# The lines of library, simulator and program, and the forms of PTX instructions, that the tests (ARGS chooses) execute.
coverage:
	@scripts/setup --coverage-tools
	@scripts/setup --test-tools
	cmake --preset coverage
	cmake --build build-coverage -j $(JOBS)
	find build-coverage -name '*.gcda' -delete
	rm -f build-coverage/forms.txt
	MOXIE_SIM_COVERAGE=$(CURDIR)/build-coverage/forms.txt \
	  ctest --test-dir build-coverage --output-on-failure -j $(JOBS) $(ARGS)
	gcovr -r . -f include/ -f src/ -f sim/ -f cli/ -f reference/ -f bench/timing/ --exclude-unreachable-branches \
	  -j $(JOBS) --print-summary --txt build-coverage/lines.txt build-coverage
	build-coverage/bin/sim_coverage build-coverage/forms.txt --forms
	@echo "make coverage: lines of each file are in build-coverage/lines.txt"

# Minutes for each architecture.
forms: ready $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS) --target ptx_forms
	@status=0; for arch in sm_90a sm_100a; do $(BUILD)/bin/ptx_forms --arch $$arch $(ARGS) || status=$$?; done; \
	exit $$status

docs:
	@scripts/setup --docs-tools
	@mkdir -p build/docs
	doxygen docs/Doxyfile
	@echo "make docs: build/docs/html/index.html"

bench: ready $(BUILD)/CMakeCache.txt
	@scripts/setup --bench-tools
	cmake --preset $(PRESET) -DMOXIE_BENCH=ON
	cmake --build $(BUILD) -j $(JOBS)
	$(BUILD)/bin/bench_host
	$(BUILD)/bin/bench_simulator
	$(BUILD)/bin/moxie bench

bundle:
	$(MAKE) build PRESET=bundle
	scripts/bundle

wheel: ready $(BUILD)/CMakeCache.txt
	@scripts/setup --test-tools
	cmake --build $(BUILD) -j $(JOBS) --target moxie_c moxie_sim moxie_program
	scripts/wheel $(BUILD)

format:
	@scripts/setup --check-tools
	scripts/check-format --fix

check:
	@scripts/setup --check-tools
	scripts/check-format
	scripts/check-license
	scripts/check-python
	scripts/check-links
	scripts/plant-faults --places
	scripts/check-includes
	scripts/check-tidy

install: ready $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS) --target moxie moxie_c moxie_sim moxie_sim_runtime moxie_program
	cmake --install $(BUILD)

check-nvrtc: ready $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS) --target nvrtc_registers
	scripts/check-nvrtc --build $(BUILD) $(ARGS)

clean:
	rm -rf build build-semantic build-asan build-tsan build-coverage build-fuzz build-bundle build-tidy
