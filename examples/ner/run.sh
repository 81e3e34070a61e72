#!/bin/sh
# Runs every stage on CoNLL-style files with custom entity types; README.md explains the data.
set -eu
cd "$(dirname "$0")"
qbert=${QBERT:-cargo run --release --quiet --manifest-path ../../Cargo.toml --}
out=${OUT:-run}

$qbert run --model ../tiny-bert --task ner --train train.conll --dev dev.conll --max-len 64 \
  --epochs 14 --lr 2e-3 --batch 8 --qat-epochs 4 --qat-lr 1e-3 --runs 4 --max-examples 32 --out "$out"

$qbert predict "$out/model.qbert" "A barn owl was seen at Mill Pond ."
