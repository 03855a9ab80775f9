"""PyTorch's files checked before torch opens them: the archive, the pickle in it, and the bytes of each storage.

Since PyTorch 1.6 a file is a ZIP archive of uncompressed records: data.pkl, and data/<key> for each storage. Before,
it was five pickles one after another (three headers, the content, the keys) and then the storages.
"""

from __future__ import annotations

import io
import mmap
import zipfile
from pathlib import Path

from mlxgen.weights.sources.pickle_check import DAMAGED, MOST_BYTES, PickleRefused, check_pickle

MOST_RECORDS = 50_000
RECORD_BYTES = 46  # the least that one record takes in the archive's directory
LOCAL_HEADER_BYTES = 30


def check_archive(file: Path) -> frozenset[str]:
    """Refuse an archive whose records are compressed, overlap, or hold less than its tensors say.

    Returns the names of the classes whose objects are plain fields, see `Checked`. Raises PickleRefused,
    zipfile.BadZipFile, and OSError.
    """
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        _check_directory(stream, size)
        with zipfile.ZipFile(stream) as archive:
            records = sorted(archive.infolist(), key=lambda record: record.header_offset)
            if not records:
                raise PickleRefused(DAMAGED)
            root = archive.infolist()[0].filename.partition("/")[0]
        sizes = {record.filename: record.file_size for record in records}
        if f"{root}/constants.pkl" in sizes:
            raise PickleRefused("is a TorchScript program, not a file of weights; save the model's state dict instead")
        if any(record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1 for record in records):
            raise PickleRefused("has compressed records, which PyTorch does not write")
        ends = [r.header_offset + LOCAL_HEADER_BYTES + len(r.filename.encode()) + r.file_size for r in records]
        begins = [record.header_offset for record in records[1:]] + [size]
        if len(sizes) < len(records) or any(end > begin for end, begin in zip(ends, begins, strict=True)):
            raise PickleRefused("has records that overlap")
        content = next((record for record in records if record.filename == f"{root}/data.pkl"), None)
        if content is None or content.file_size > MOST_BYTES:
            raise PickleRefused(DAMAGED)
        stream.seek(content.header_offset)
        header = stream.read(LOCAL_HEADER_BYTES)
        stream.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), io.SEEK_CUR)
        checked = check_pickle(io.BytesIO(stream.read(content.file_size)))
    for key, n_bytes in checked.storages.items():
        held = sizes.get(f"{root}/data/{key}", 0)
        if held < n_bytes:
            raise PickleRefused(f"record {key[:20]} holds {held:,} bytes, and its tensors take {n_bytes:,}")
    return checked.classes


def check_pickles(file: Path) -> frozenset[str]:
    """Check a file of PyTorch before 1.6. Returns the same as `check_archive`. Raises PickleRefused, and OSError."""
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        if not size:
            raise PickleRefused(DAMAGED)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            needed = 0
            classes: frozenset[str] = frozenset()
            for _ in range(5):
                checked = check_pickle(mapped)  # type: ignore[arg-type]  # it reads as a file
                needed += sum(checked.storages.values())
                classes |= checked.classes
                if mapped.tell() + needed > size:
                    raise PickleRefused(f"cut off: its tensors take {needed:,} bytes")
            return classes


def _check_directory(stream: io.BufferedReader, size: int) -> None:
    """Refuse a directory of far too many records before it is read."""
    stream.seek(max(0, size - (1 << 16) - 22))
    tail = stream.read()
    at = tail.rfind(b"PK\5\6")
    listed = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
    wide = tail.rfind(b"PK\6\6")  # of a large archive, whose numbers have eight bytes
    if listed == 0xFFFFFFFF or wide >= 0:
        listed = int.from_bytes(tail[wide + 40 : wide + 48], "little")
    if listed > MOST_RECORDS * 4 * RECORD_BYTES:
        raise PickleRefused("has too many records")
