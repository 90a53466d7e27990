#!/usr/bin/env bash
# Creates the environment from requirements.txt and sees that the sandbox is there.
# Called by make; says in one line what it does and what it could not do.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m%s\033[0m\n' "$*"; }

python="${PYTHON:-python3}"
venv="${VENV:-.venv}"

if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
    echo "setup: $("$python" --version 2>&1) is not supported; name a Python 3.11, 3.12 or 3.13: make PYTHON=python3.11 $*" >&2
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "setup: this Python has no venv module; type: sudo apt-get install python3-venv" >&2
    exit 1
fi

say "1/3 environment in $venv ($("$python" --version))"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

say "2/3 packages from requirements.txt (some minutes the first time)"
log="$venv/install.log"
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.txt >"$log" 2>&1 ||
   ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable . >>"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "setup: installing the packages failed; the whole log is in $log" >&2
    exit 1
fi

# Debian packages: bubblewrap isolates what students hand in, Chromium looks at the built pages,
# and PostgreSQL is a gradebook's server for the tests.
apt() {
    if [ "$(id -u)" = 0 ]; then apt-get "$@"; else sudo -n apt-get "$@"; fi
}
install_debian() { # package, what it is for
    say "3/3 installing $1 ($2)"
    if command -v apt-get >/dev/null &&
       { apt install -y -qq "$1" || { apt update -qq && apt install -y -qq "$1"; }; } >>"$log" 2>&1; then
        return
    fi
    echo "setup: could not install $1 ($2); type: sudo apt-get install $1" >&2
}
export DEBIAN_FRONTEND=noninteractive
command -v bwrap >/dev/null || install_debian bubblewrap "grading in a sandbox"
if [ "${CI:-}" = true ] && ! command -v chromium >/dev/null; then
    install_debian chromium "tests that look at the pages"
fi
if [ "${CI:-}" = true ] && ! command -v initdb >/dev/null &&
   ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
    install_debian postgresql "tests of a gradebook on a server"
fi
say "ready"
