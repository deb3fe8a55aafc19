#!/bin/sh
# The steps of a new user: a fresh clone of the committed state, set-up, training, and a page to look at. The script
# prints the minutes of each step and fails if the page is missing. It uses no cache but pip's.
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
