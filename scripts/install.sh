#!/usr/bin/env bash
# Installs what a target needs into .venv: apt packages, a cargo, Python packages, the built core.
# Does nothing where nothing is missing.
# usage: install.sh [EXTRA ...] | --cargo (print its path) | --apt PACKAGE ... (those not installed)
set -euo pipefail
cd "$(dirname "$0")/.."

APT_PACKAGES=(python3-venv python3-dev fuse3 libfuse3-dev pkg-config gcc git)
RUST_MIN=1.85

step() { echo "install: $*" >&2; }

# Runs a command; its output is shown only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    step "failed: $*"
    return 1
  fi
  rm -f "$log"
}

updated=
apt_install() {
  local run=(env DEBIAN_FRONTEND=noninteractive)
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null; then run=(sudo "${run[@]}"); else
      step "these packages are missing; run as root: apt-get install $*"
      exit 1
    fi
  fi
  step "apt packages: $*"
  [ -n "$updated" ] || quietly "${run[@]}" apt-get update -q
  updated=yes
  quietly "${run[@]}" apt-get install -y -q --no-install-recommends "$@"
}

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

good_cargo() {
  local version
  version=$("$1" --version 2>/dev/null | awk '{print $2}') || return 1
  [ -n "$version" ] && [ "$(printf '%s\n' "$RUST_MIN" "$version" | sort -V | head -n 1)" = "$RUST_MIN" ]
}

find_cargo() {
  local candidate
  for candidate in "$(command -v cargo || true)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
    if [ -n "$candidate" ] && good_cargo "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

python_with() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "install: no Python 3.11 or newer found" >&2
  exit 1
}

if [ "${1:-}" = --cargo ]; then
  find_cargo
  exit
fi

install_missing() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ "${#missing[@]}" -eq 0 ] || apt_install "${missing[@]}"
}

if [ "${1:-}" = --apt ]; then
  shift
  install_missing "$@"
  exit
fi

install_missing "${APT_PACKAGES[@]}"
if ! CARGO=$(find_cargo); then
  apt_install cargo-web
  CARGO=$(find_cargo)
fi
PATH="$(dirname "$CARGO"):$PATH"
export PATH UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=true

if [ ! -x .venv/bin/uv ]; then
  step "virtual environment"
  python=$(python_with)
  "$python" -m venv .venv
  .venv/bin/python -m pip install -q --disable-pip-version-check uv
fi

sources() {
  find setup.cfg pyproject.toml Cargo.toml Cargo.lock storagecache/core -type f -newer "$1" | head -n 1
}

wanted=$(printf '%s\n' "$@" $(cat .venv/.extras 2>/dev/null) | sed '/^$/d' | sort -u | paste -sd, -)
stamp=.venv/.installed
if [ -e "$stamp" ] && [ "$(paste -sd, .venv/.extras)" = "$wanted" ] && [ -z "$(sources "$stamp")" ] &&
  .venv/bin/python -c 'import storagecache._core' 2>/dev/null; then
  exit 0
fi
step "storagecache${wanted:+[$wanted]} into .venv"
touch "$stamp.new" # as of the start: what is edited during the build is built the next time
.venv/bin/uv pip install -q -p .venv/bin/python 'setuptools>=78' 'setuptools-rust>=1.10'
.venv/bin/uv pip install -q -p .venv/bin/python --no-build-isolation-package storagecache -e ".${wanted:+[$wanted]}"
tr , '\n' <<<"$wanted" >.venv/.extras
mv "$stamp.new" "$stamp"
