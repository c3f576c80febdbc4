"""An arena without a file, for rules that are tested without a system."""


class Shelf:
    """Blocks from one piece of memory; `count` of them are there.

    A block that is given back is painted over: whoever reads it later sees that.
    """

    PAINT = 0xEE

    def __init__(self, block: int, count: int = 1000) -> None:
        self.block = block
        self.memory = bytearray(block * count)
        self.places = list(range(0, len(self.memory), block))[::-1]
        self.out: dict[int, int] = {}
        """Place of each block in use, and the sequence that it was taken for."""
        self.address: dict[str, int] | None = None

    def take(self, sequence: int) -> tuple[memoryview, int] | None:
        if not self.places:
            return None
        place = self.places.pop()
        self.out[place] = sequence
        self.address = {"pid": 1, "fd": 2, "device": 3, "inode": 4}
        return memoryview(self.memory)[place : place + self.block], place

    def give_back(self, place: int) -> None:
        del self.out[place]
        self.memory[place : place + self.block] = bytes([self.PAINT]) * self.block
        self.places.append(place)

    def copy(self, place: int, length: int) -> bytes:
        """What a client that has mapped it reads."""
        return bytes(self.memory[place : place + length])
