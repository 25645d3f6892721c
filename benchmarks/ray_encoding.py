"""
Processor time of encoding Parquet files on a Ray cluster of this machine, against one process without Ray.

Counts the time of the files alone, not the fixed start of Ray and of the actors. Needs the extra `ray`.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sentence_transformers import SentenceTransformer
from timing import write_header, write_row

from cde_hf import encoding_on_ray, model_path
from cde_hf.data import ParquetCorpus
from cde_hf.encoding import ENCODED_CORPUS, EncodedCorpus, begin


class TimedEncoder(encoding_on_ray._ShardEncoder):
    """Writes the processor time of each file beside its vectors."""

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        start = time.process_time()
        result = super().__call__(item)
        path = self.encoded.paths[item["item"]].with_suffix(".seconds")
        path.write_text(str(time.process_time() - start))
        return result


def read_seconds(folder: Path) -> float:
    return sum(float(path.read_text()) for path in folder.glob("*.seconds"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=8, help="number of files (default: 8)")
    parser.add_argument("--texts", type=int, default=256, help="texts in a file (default: 256)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load_model = partial(SentenceTransformer, str(model_path("minilm")), device="cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(args.files):
            texts = [f"Text {row} of file {number}" + " about the sea and the moon" * 10 for row in range(args.texts)]
            (folder / "corpus").mkdir(exist_ok=True)
            pq.write_table(pa.table({"text": texts}), folder / "corpus" / f"{number}.parquet")
        corpus = ParquetCorpus.open(folder / "corpus")
        with ENCODED_CORPUS.locked(folder / "one"):
            begin(load_model(), corpus, folder / "one", shard_size=8192, seed=0)
            encoder = TimedEncoder(load_model, corpus, folder / "one", 32)
            for number in range(args.files):
                encoder({"item": number})
        encoding_on_ray._ShardEncoder = TimedEncoder
        start = time.perf_counter()
        encoded = encoding_on_ray.encode_on_ray(load_model, corpus, folder / "ray", address="local")
        seconds = time.perf_counter() - start
        same = all(
            path.read_bytes() == other.read_bytes()
            for path, other in zip(encoded.paths, EncodedCorpus(folder / "one", encoded.manifest).paths, strict=True)
        )
        one, ray = read_seconds(folder / "one"), read_seconds(folder / "ray")
    write_header(["files", "texts", "one process s", "actors s", "actors / one process", "Ray in all s", "same bytes"])
    ratio = f"{ray / one:.2f}x"
    write_row([args.files, args.files * args.texts, f"{one:.1f}", f"{ray:.1f}", ratio, f"{seconds:.1f}", same])


if __name__ == "__main__":
    main()
