"""
Trains a contextual embedding model, or a biencoder, on pairs of query and document.

    accelerate launch examples/train.py --data pairs.jsonl --output_dir model --mini_batch_size 64
    accelerate launch --cpu --num_processes 2 examples/train.py --output_dir model --gather_across_devices
    accelerate launch --config_file examples/accelerate_configs/multi_gpu.yaml examples/train.py \
        examples/recipes/cde_small_supervised.yaml --output_dir cde-small

`--help` shows all arguments, grouped by what they control; `--resume_from_checkpoint auto` goes on where a run ended.
The same as `cde-hf train`.
"""

from cde_hf import run_training
from cde_hf.launching import relaunch_on_cpus


if __name__ == "__main__":
    relaunch_on_cpus()
    run_training()
