r"""
Trains a contextual embedding model, or a biencoder, on pairs of query and document.

    python examples/train.py --data pairs.jsonl --output-dir model --mini-batch-size 64
    torchrun --nproc_per_node 2 examples/train.py --data pairs.jsonl --output-dir model --gather-across-devices
    accelerate launch --config_file examples/accelerate_configs/multi_gpu.yaml examples/train.py \
        examples/recipes/cde_small_supervised.yaml --output-dir cde-small

`--help` shows the arguments that matter first, `--help-all` all of them. `--resume-from-checkpoint auto` resumes a
run. `cde-hf train` does the same.
"""

from cde_hf import run_training


if __name__ == "__main__":
    run_training()
