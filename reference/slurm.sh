#!/usr/bin/env bash
# Runs the examples for Slurm on a cluster of this one machine, and compares what they make with one process without Slurm.
#
#   reference/slurm.sh QBERT [QBERT_WITH_MPI]
#
# Needs root, slurm-wlm and munge (Debian's packages), whose daemons it starts for itself and stops again.
set -euo pipefail
cd "$(dirname "$0")/.."
export QBERT=$(realpath "$1")
with_mpi=${2:+$(realpath "$2")}
home=$(mktemp -d)
examples=$PWD/examples
host=$(hostname -s)

stop() {
  for pid in $(cat "$home"/*.pid 2>/dev/null); do kill "$pid" 2>/dev/null || true; done
  sleep 1
  rm -rf "$home"
}
trap stop EXIT

# The daemons' own directories. munged wants its key for itself alone.
mkdir "$home/state" "$home/spool" "$home/munge"
dd if=/dev/urandom of="$home/munge/key" bs=128 count=1 status=none
chmod 755 "$home"
chown -R munge:munge "$home/munge"
chmod 755 "$home/munge"
chmod 400 "$home/munge/key"
runuser -u munge -- munged --key-file="$home/munge/key" --socket="$home/munge/socket" --pid-file="$home/munge/munged.pid" \
  --log-file="$home/munge/log" --seed-file="$home/munge/seed" --force
cp "$home/munge/munged.pid" "$home/munged.pid"
cat >"$home/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$home/munge/socket
CredType=cred/munge
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.pid
SlurmctldLogFile=$home/slurmctld.log
SlurmdLogFile=$home/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$home/slurm.conf
slurmctld
slurmd
for _ in $(seq 60); do
  sinfo --noheader --format %T 2>/dev/null | grep -q idle && break
  sleep 0.5
done
sinfo

wait_for() {
  while squeue --noheader 2>/dev/null | grep -q .; do sleep 0.5; done
}

cd "$home"
echo "+ a model to work on"
data=$examples/classify
"$QBERT" finetune --model "$examples/tiny-bert" --task classify --text note --label condition --train "$data/train.tsv" \
  --dev "$data/dev.tsv" --epochs 4 --lr 2e-3 --batch 8 --out tuned -q >/dev/null
# Under the names that the examples expect.
for part in train dev; do sed '1s/note/text/; 1s/condition/label/' "$data/$part.tsv" >"$part.tsv"; done

echo "+ an analysis as an array job of three parts"
export MODEL=$home/tuned DATA=$home/train.tsv ANALYSIS=$home/analysis TASK=classify RUNS=2 EXAMPLES=16
parts=$(sbatch --parsable --cpus-per-task=1 --array=1-3 "$examples/cluster/analyze.sbatch")
sbatch --dependency="afterok:$parts" --cpus-per-task=1 --array=0 "$examples/cluster/analyze.sbatch"
wait_for
"$QBERT" analyze --model tuned --task classify --data train.tsv --runs 2 --max-examples 16 --out alone -q >/dev/null
cmp alone/sensitivity.json analysis/sensitivity.json

if [ -n "$with_mpi" ]; then
  echo "+ a training with mpirun"
  "$QBERT" plan --model tuned --bits 2,3 --sensitivity alone/sensitivity.json --high 1 --out plan.toml -q >/dev/null
  export PLAN=$home/plan.toml TRAIN=$home/train.tsv DEV=$home/dev.tsv SMALL=$home/small QBERT=$with_mpi
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  sbatch --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 "$examples/cluster/train.sbatch"
  wait_for
  "$QBERT" quantize --model tuned --plan plan.toml --task classify --train train.tsv --dev dev.tsv --epochs 1 --out alone-small -q >/dev/null
  for file in train.jsonl model.safetensors ranges.safetensors activations.json; do cmp "alone-small/$file" "small/$file"; done
fi
echo "Slurm: the same bytes as one process"
