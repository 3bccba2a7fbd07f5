#!/bin/sh
# Arguments: threads, memory (MB), minutes, GPUs, job script. Prints the job's id. For Slurm:
exec sbatch --parsable --no-requeue -N 1 -c "$1" --mem "$2" -t "$3" --gpus "$4" -o .snakemake/cluster-%j.log "$5"
