{% extends "script.sh" %}
{% from "torchrun.jinja" import torchrun with context %}
{% block header %}
#SBATCH --job-name={{ job.name }}
#SBATCH --nodes={{ job.num_nodes }}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={{ job.gpus_per_node }}
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
{# Seconds from Slurm's signal to its time limit. Ranks take 60 of them (--save-within), torchrun some more. #}
#SBATCH --signal=B:TERM@120
{% endblock %}
{% block start %}
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
asked=no status=0 step=
trap 'asked=yes; [ -z "$step" ] || kill -TERM "$step" || true' TERM
{% set task = "exec " ~ torchrun(python, '"$SLURM_NODEID"', '"$MASTER_ADDR"', '"$MASTER_PORT"') ~ ' "$@"' %}
srun --kill-on-bad-exit=1 bash -c {{ task | quote }} - {{ job.words | join_words }} --resume auto &
step=$!
wait "$step" || status=$?
# Until the ranks have saved a checkpoint. They end with 75, and torchrun with 1.
if [ "$asked" = yes ]; then
    status=0
    wait "$step" || status=$?
    if [ "$status" -ne 0 ]; then
        scontrol requeue "$SLURM_JOB_ID" || true  # it continues from the checkpoint
        exit 75
    fi
fi
exit "$status"
{% endblock %}
