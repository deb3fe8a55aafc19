#!/bin/sh
# The way of somebody new: a fresh clone of what is committed here, set-up, training, and a page to look at. It says how
# many minutes each took and fails where the page is missing. Other caches than pip's are not used.
#
# scripts/stranger.sh [OVERRIDE ...]     make stranger ARGS="run.max_steps=10"
set -eu
unset MAKEFLAGS MFLAGS
source=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export AGENTGRPO_CACHE="$folder/cache"

began=$(date +%s)
minutes() { # of what has ended now
  now=$(date +%s)
  echo "stranger: $1 after $(((now - began) / 60)):$(printf %02d $(((now - began) % 60))) minutes"
}

git clone --quiet "$source" "$folder/agentgrpo"
cd "$folder/agentgrpo"
minutes cloned
make .venv/ready
minutes "set up"
make train ARGS="run.dir=runs/first $*"
minutes trained
.venv/bin/agentgrpo view runs/first
[ -s runs/first/view.html ]
minutes viewed
