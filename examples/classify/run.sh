#!/bin/sh
# Runs every stage on a table with three classes; README.md explains the data.
set -eu
cd "$(dirname "$0")"
qbert=${QBERT:-cargo run --release --quiet --manifest-path ../../Cargo.toml --}
out=${OUT:-run}

$qbert run --model ../tiny-bert --task classify --text note --label condition \
  --train train.tsv --dev dev.tsv --max-len 64 --epochs 8 --lr 2e-3 --batch 8 --qat-epochs 4 --qat-lr 1e-3 \
  --runs 4 --max-examples 32 --out "$out"

$qbert predict "$out/model.qbert" "the path to the lake is frozen" "deep mud up to the chapel"
