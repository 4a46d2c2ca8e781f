"""Token files as framework/io/tokens.hpp describes them, for Pythons without numpy and torch."""

import array
import pathlib
import struct
import sys
import zlib

HEADER = struct.Struct("<8sIIQII")  # magic, version, bytes per token, tokens, vocabulary, CRC-32 of the ids
MAGIC = b"\x89tegtok\n"


def type_of(vocabulary):
    """array's code of the type of an id."""
    return "H" if vocabulary <= 1 << 16 else "I"


def write(path, ids, vocabulary):
    ids = array.array(type_of(vocabulary), ids)
    if sys.byteorder == "big":
        ids.byteswap()
    raw = ids.tobytes()
    header = HEADER.pack(MAGIC, 1, ids.itemsize, len(ids), vocabulary, zlib.crc32(raw))
    pathlib.Path(path).write_bytes(header + raw)


def read(path):
    """The ids, an array, and the vocabulary."""
    raw = pathlib.Path(path).read_bytes()
    magic, version, size, tokens, vocabulary, checksum = HEADER.unpack_from(raw)
    ids = array.array(type_of(vocabulary), raw[HEADER.size:])
    if (magic, version, size, tokens) != (MAGIC, 1, ids.itemsize, len(ids)) or checksum != zlib.crc32(raw[HEADER.size:]):
        raise ValueError(f"{path}: not a valid token file")
    if sys.byteorder == "big":
        ids.byteswap()
    return ids, vocabulary
