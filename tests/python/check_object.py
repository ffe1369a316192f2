#!/usr/bin/env python3
"""Reads cold objects with pyarrow and says what is in them, so that a test can compare.

Usage: check_object.py FILE...

Prints one line of JSON a file: rows, entry_ids_contiguous, first, last, rows_without_payload, payload_sha256 (over each
payload followed by a line feed, in file order), columns, metadata_keys. Exits with 1 and a sentence on a file that is not
readable or has not the columns of an object, with 2 on wrong usage.
"""

import hashlib
import json
import sys

try:
    import pyarrow
    import pyarrow.parquet as parquet
except ImportError as error:
    sys.exit(f"check_object: pyarrow is missing ({error}); install tests/python/requirements.txt")

ROWS_AT_ONCE = 1024
COLUMNS = ("ledger_id", "entry_id", "last_confirmed", "ledger_length", "digest", "crc32c", "payload")


class BadObject(Exception):
    """What is wrong with a file, as a sentence."""


def check(path: str) -> dict:
    # Every page of every column is decoded. The checksums are not compared: pyarrow does not know them, our own readers do.
    with parquet.ParquetFile(path, memory_map=False) as file:
        columns = file.schema_arrow.names
        missing = [name for name in COLUMNS if name not in columns]
        if missing:
            raise BadObject(f"it has no column {', '.join(missing)}")
        metadata = file.metadata.metadata or {}
        rows = 0
        without_payload = 0
        first = last = None
        contiguous = True
        digest = hashlib.sha256()
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            for entry in batch.column("entry_id").to_pylist():
                contiguous = contiguous and (last is None or entry == last + 1)
                first = entry if first is None else first
                last = entry
            for payload in batch.column("payload"):
                value = payload.as_py()
                if value is None:
                    without_payload += 1
                    continue
                digest.update(value)
                digest.update(b"\n")
            rows += batch.num_rows
        if rows != file.metadata.num_rows:
            raise BadObject(f"its footer promises {file.metadata.num_rows} rows, it has {rows}")
    return {
        "rows": rows,
        "entry_ids_contiguous": contiguous,
        "first": first,
        "last": last,
        "rows_without_payload": without_payload,
        "payload_sha256": digest.hexdigest(),
        "columns": columns,
        "metadata_keys": sorted(key.decode("utf-8", "replace") for key in metadata),
    }


def main(paths: list[str]) -> int:
    if not paths:
        print("usage: check_object.py FILE...", file=sys.stderr)
        return 2
    for path in paths:
        try:
            print(json.dumps(check(path)), flush=True)
        except (BadObject, OSError, ValueError, pyarrow.ArrowException) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(f"check_object: {path} is not a readable object: {reason}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
