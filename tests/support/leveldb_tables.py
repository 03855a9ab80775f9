"""CRC-32C by its definition, bit by bit; and LevelDB's tables with it."""

from __future__ import annotations

POLYNOMIAL = 0x82F63B78
MAGIC = 0xDB4775248B80FB57


def crc32c_by_bits(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (POLYNOMIAL * (state & 1))
    return state ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c_by_bits(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def entry(shared: int, key: bytes, value: bytes) -> bytes:
    return varint(shared) + varint(len(key)) + varint(len(value)) + key + value


def block(*entries: bytes, compression: int = 0, restarts: int = 0, said: int | None = None) -> bytes:
    """A block and its trailer. said: the number of restarts that it gives, if another."""
    number = restarts if said is None else said
    content = b"".join(entries) + bytes(4 * restarts) + number.to_bytes(4, "little") + bytes([compression])
    return content + masked(content)


def table(*blocks: bytes, places: list[tuple[int, int]] | None = None) -> bytes:
    """A table of such blocks. places: what the index says of them, by default what is so."""
    if places is None:
        begins = [sum(map(len, blocks[:at])) for at in range(len(blocks))]
        places = [(begin, len(part) - 5) for begin, part in zip(begins, blocks, strict=True)]
    data = b"".join(blocks)
    handles = [varint(offset) + varint(size) for offset, size in places]
    index = block(*(entry(0, bytes([at + 1]), handle) for at, handle in enumerate(handles)))
    meta = block()
    footer = varint(len(data)) + varint(len(meta) - 5) + varint(len(data + meta)) + varint(len(index) - 5)
    return data + meta + index + footer.ljust(40, b"\0") + MAGIC.to_bytes(8, "little")
