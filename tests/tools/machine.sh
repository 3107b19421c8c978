#!/bin/bash
# Installs the programs that are missing (Debian, as root), and says what is missing where it cannot.
set -euo pipefail
missing=()
for program in "$@"; do
  command -v "$program" > /dev/null || missing+=("$program")
done
python3 -c 'import ensurepip' 2> /dev/null || missing+=(python3-venv)
for language in cargo go python3; do
  command -v "$language" > /dev/null || { echo "$language is missing: install it first" >&2; exit 1; }
done
[ ${#missing[@]} = 0 ] && exit 0
declare -A package=([flock]=util-linux [cc]="gcc libc6-dev")
packages=()
for program in "${missing[@]}"; do packages+=("${package[$program]:-$program}"); done
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
  echo "missing: ${packages[*]}; install them with the system's package manager" >&2
  exit 1
fi
echo "installing ${packages[*]}" >&2
apt-get update -qq >&2
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ${packages[*]} >&2
