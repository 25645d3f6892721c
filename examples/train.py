r"""
Trains a contextual embedding model, or a biencoder, on pairs of query and document.

    python examples/train.py --data pairs.jsonl --output_dir model --mini_batch_size 64
    torchrun --nproc_per_node 2 examples/train.py --data pairs.jsonl --output_dir model --gather_across_devices
    accelerate launch --config_file examples/accelerate_configs/multi_gpu.yaml examples/train.py \
        examples/recipes/cde_small_supervised.yaml --output_dir cde-small

`--help` lists all arguments, grouped by what they control. `--resume_from_checkpoint auto` resumes a run.
`cde-hf train` does the same.
"""

from cde_hf import run_training


if __name__ == "__main__":
    run_training()
