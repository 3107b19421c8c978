#!/bin/bash
# Prints a folder that holds etcd and kube-apiserver, building them where they are missing.
#
# Order: $KUBEBUILDER_ASSETS, the cache outside the tree (keyed by everything that shapes the
# binary), a build under a lock into a temporary folder that is then renamed, so that an
# interrupted build leaves nothing that looks finished.
set -euo pipefail
cd "$(dirname "$0")"
if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  for program in etcd kube-apiserver; do
    [ -x "$KUBEBUILDER_ASSETS/$program" ] || { echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS: $program is missing" >&2; exit 1; }
  done
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi
key=$({ go version; cat go.mod go.sum build.sh ./*.go; } | sha256sum | cut -c1-16)
root=${XDG_CACHE_HOME:-$HOME/.cache}/sidewatch/apiserver
mkdir -p "$root"
exec 9>"$root/lock"
flock 9
if [ ! -x "$root/$key/sidewatch-apiserver" ]; then
  echo "building kube-apiserver into $root/$key (6 to 16 minutes, once)" >&2
  rm -rf "$root/$key.part"
  ./build.sh "$root/$key.part" >&2
  rm -rf "${root:?}/$key"
  mv "$root/$key.part" "$root/$key"
fi
echo "$root/$key"
