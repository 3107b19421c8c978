#!/bin/bash
# Prints the path of a Python that has the packages of requirements.txt, making it (once a set, outside the tree).
set -euo pipefail
cd "$(dirname "$0")"
key=$({ python3 --version; cat requirements.txt; } | sha256sum | cut -c1-16)
root=${XDG_CACHE_HOME:-$HOME/.cache}/sidewatch/python
mkdir -p "$root"
exec 9>"$root/lock"
flock 9
# A virtual environment holds its own path, so it is made in place; the mark at its end says that it is complete.
if [ ! -e "$root/$key/complete" ]; then
  echo "making a Python environment in $root/$key (seconds, once)" >&2
  rm -rf "${root:?}/$key"
  python3 -m venv "$root/$key" >&2
  "$root/$key/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r requirements.txt >&2
  touch "$root/$key/complete"
fi
echo "$root/$key/bin/python"
