#!/bin/sh
# Runs every stage on a SQuAD-style file; README.md explains the data.
set -eu
cd "$(dirname "$0")"
qbert=${QBERT:-cargo run --release --quiet --manifest-path ../../Cargo.toml --}
out=${OUT:-run}

$qbert run --model ../tiny-bert --task qa --train train.json --dev dev.json --max-len 96 \
  --epochs 12 --lr 2e-3 --batch 8 --qat-epochs 4 --qat-lr 1e-3 --runs 4 --max-examples 32 --out "$out"

$qbert predict "$out/model.qbert" "When does the ferry Cora leave ?" \
  --context "The ferry Cora leaves Skerry at noon and reaches Kelp Bay at four . A ticket costs two crowns ."
