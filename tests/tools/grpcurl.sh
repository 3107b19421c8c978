#!/bin/bash
# Prints the path of the pinned grpcurl, building it (once a version, outside the tree) where it is missing.
set -euo pipefail
version=v1.9.4
root=${XDG_CACHE_HOME:-$HOME/.cache}/sidewatch/grpcurl
mkdir -p "$root"
exec 9>"$root/lock"
flock 9
if [ ! -x "$root/$version/grpcurl" ]; then
  echo "building grpcurl $version into $root/$version (a minute, once)" >&2
  rm -rf "$root/$version.part"
  cd /
  GOFLAGS=-mod=mod GOBIN="$root/$version.part" CGO_ENABLED=0 \
    go install -trimpath -ldflags "-s -w -X main.version=$version" "github.com/fullstorydev/grpcurl/cmd/grpcurl@$version" >&2
  rm -rf "${root:?}/$version"
  mv "$root/$version.part" "$root/$version"
fi
echo "$root/$version/grpcurl"
