"""Where data and runs are: pairs, batch plans and cut encoders that runs share, and the folder of each run."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets
from transformers import AutoConfig, AutoModel, AutoTokenizer

from cde_hf import BatchPlan, TfidfSurrogate, load_pairs, model_path, prepare_batch_plan
from cde_hf.saving import save_biencoder

from .config import RunConfig, file_fingerprint, hash_of
from .mining import mine_negatives


@dataclass(frozen=True, eq=False)
class Workspace:
    """
    Where the data is and where runs are kept.

    Args:
        runs (`Path`):
            Folder of the runs, batch plans and cut encoders.
        data (`Path`, *optional*):
            Folder with `train/*.jsonl.gz` and `eval/*`.
        encoders (`tuple[Path, ...]`, *optional*, defaults to `()`):
            Folders of sentence-transformers models, for the experiments that take more than MiniLM.
    """

    runs: Path
    data: Path | None = None
    encoders: tuple[Path, ...] = ()

    @cache  # noqa: B019 (a workspace lives as long as the process)
    def load_pairs(self, domains: tuple[str, ...], pairs_per_domain: int | None) -> tuple[Dataset, str]:
        """The training pairs of some domains, and a hash of their texts."""
        parts = [load_pairs(self.data_folder / "train" / f"{domain}.jsonl.gz") for domain in domains]
        if pairs_per_domain is not None:
            parts = [part.shuffle(seed=0).select(range(min(pairs_per_domain, len(part)))) for part in parts]
        pairs = concatenate_datasets(parts).flatten_indices()
        return pairs, hash_of([pairs[name][:] for name in ("domain", "query", "document")])

    def load_training_pairs(self, config: RunConfig) -> tuple[Dataset, str]:
        """The pairs of a run, with negatives if it has mined ones, and a hash of their texts."""
        if config.mined_negatives == 0:
            return self.load_pairs(config.domains, config.pairs_per_domain)
        return self._load_mined_pairs(config.domains, config.pairs_per_domain, config.mined_negatives)

    @cache  # noqa: B019
    def _load_mined_pairs(
        self, domains: tuple[str, ...], pairs_per_domain: int | None, num_negatives: int
    ) -> tuple[Dataset, str]:
        pairs, fingerprint = self.load_pairs(domains, pairs_per_domain)
        # Of its plan only the vectors matter here, which are the same for all clusters.
        plan = self.load_plan(RunConfig(domains=domains, pairs_per_domain=pairs_per_domain))
        pairs = mine_negatives(pairs, plan, num_negatives)
        return pairs, hash_of([fingerprint, pairs["negatives"][:]])

    @property
    def data_folder(self) -> Path:
        """The folder of the data."""
        if self.data is None or not (self.data / "train").is_dir():
            raise FileNotFoundError(
                f"The experiments need a folder with `train/*.jsonl.gz` and `eval/*`, got {self.data}. Give it by "
                "`--data`."
            )
        return self.data

    def load_plan(self, config: RunConfig) -> BatchPlan:
        """The batch plan, shared by all runs with the same pairs and clusters."""
        pairs, fingerprint = self.load_training_pairs(config)
        return prepare_batch_plan(
            pairs,
            self.runs / "plans" / hash_of([fingerprint, config.cluster_size]),
            surrogate=TfidfSurrogate(),
            cluster_size=config.cluster_size,
        )

    def load_encoder(self, config: RunConfig) -> str:
        """Folder of the encoder that a run begins with: a sentence-transformers model, cut to its first layers."""
        path = model_path(config.backbone)
        if config.layers is None:
            return path
        folder = self.runs / "encoders" / f"{hash_of([path, config.layers])}"
        if not (folder / "modules.json").exists():
            encoder_config = AutoConfig.from_pretrained(path)
            if not 1 <= config.layers <= encoder_config.num_hidden_layers:
                raise ValueError(
                    f"`layers` must be between 1 and the encoder's {encoder_config.num_hidden_layers}, got "
                    f"{config.layers}."
                )
            encoder_config.num_hidden_layers = config.layers
            weights = AutoModel.from_pretrained(path).state_dict()
            encoder = AutoModel.from_config(encoder_config)
            encoder.load_state_dict({name: weights[name] for name in encoder.state_dict()})
            save_biencoder(encoder, AutoTokenizer.from_pretrained(path), folder, max_length=256)
        return str(folder)

    def identify(self, config: RunConfig) -> dict[str, Any]:
        """Everything that a run depends on."""
        _, fingerprint = self.load_training_pairs(config)
        return config.identity(fingerprint, file_fingerprint(Path(self.load_encoder(config)) / "model.safetensors"))

    def run_folder(self, config: RunConfig) -> Path:
        """The folder of a run, trained or not."""
        return self.runs / hash_of(self.identify(config))
