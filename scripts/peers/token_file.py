"""Token files as framework/io/tokens.hpp describes them, for Pythons without numpy and torch."""

import array
import itertools
import json
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


def write_tokenizer(folder, vocabulary):
    """A byte-pair encoding of so many tokens, as GPT-2's files have it: the bytes and, if more than those, pairs of bytes and
    <|endoftext|>."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = itertools.count(256)
    letters = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    pairs = list(itertools.islice(itertools.product(letters, letters), max(vocabulary - 257, 0)))
    tokens = [*letters, *map("".join, pairs), "<|endoftext|>"][:vocabulary]
    assert len(tokens) == vocabulary
    folder = pathlib.Path(folder)
    (folder / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs))
