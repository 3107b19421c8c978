#!/bin/bash
# Prints the path of the pinned cargo-deny, building it (once a version, outside the tree) where it is missing.
set -euo pipefail
version=0.20.2
root=${XDG_CACHE_HOME:-$HOME/.cache}/sidewatch/cargo-deny
mkdir -p "$root"
exec 9>"$root/lock"
flock 9
if [ ! -x "$root/$version/bin/cargo-deny" ]; then
  echo "building cargo-deny $version into $root/$version (a few minutes, once)" >&2
  rm -rf "$root/$version.part"
  # Its own target folder: the tree's would be filled with another feature set of the same packages.
  env -u CARGO_TARGET_DIR -u RUSTFLAGS CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    cargo install --quiet --locked --version "$version" --root "$root/$version.part" --target-dir "$root/$version.target" cargo-deny >&2
  rm -rf "${root:?}/$version" "$root/$version.target"
  mv "$root/$version.part" "$root/$version"
fi
echo "$root/$version/bin/cargo-deny"
