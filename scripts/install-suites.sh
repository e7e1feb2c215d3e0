#!/usr/bin/env bash
# Installs the outside programs of `make suites` and `make bench`, where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
for pair in fio:fio sqlite3:sqlite3 git:git gcc:gcc make:make rclone:rclone; do
  command -v "${pair%%:*}" >/dev/null || packages+=("${pair##*:}")
done
[ "${#packages[@]}" -eq 0 ] || ./scripts/install.sh --apt "${packages[@]}"
cargo=$(./scripts/install.sh --cargo)
for crate in fsx pjdfstest; do
  if [ ! -x ".venv/suites/bin/$crate" ]; then
    echo "install: $crate" >&2
    "$cargo" install -q --root .venv/suites "$crate" >&2
  fi
done
