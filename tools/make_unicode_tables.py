"""Writes src/text/unicode_tables.cpp: which characters are letters, numbers and white space.

Categories come from the package `unicodedata2`, version 16.x (Python's own `unicodedata` follows
whatever Unicode the interpreter was built with). White space is the property White_Space of
PropList.txt, listed below because `str.isspace` is another set (it has U+001C..U+001F).

    python -m venv /tmp/unicode && /tmp/unicode/bin/pip install 'unicodedata2==16.*'
    /tmp/unicode/bin/python tools/make_unicode_tables.py
"""

import pathlib
import sys

import unicodedata2

OTHER, LETTER, NUMBER, SPACE = range(4)  # as CharClass in src/text/unicode.h
BLOCK = 128  # characters a block, two bits each
WHITE_SPACE = {
    *range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
    0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
}


def char_class(code_point):
    if code_point in WHITE_SPACE:
        return SPACE
    category = unicodedata2.category(chr(code_point))
    return {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)


def packed_blocks():
    """The classes of all characters, cut after the last block that is not all OTHER."""
    blocks = []
    for start in range(0, 0x110000, BLOCK):
        packed = bytearray(BLOCK // 4)
        for i in range(BLOCK):
            packed[i // 4] |= char_class(start + i) << (2 * (i % 4))
        blocks.append(bytes(packed))
    while not any(blocks[-1]):
        blocks.pop()
    return blocks


def rows(numbers, width):
    for i in range(0, len(numbers), width):
        yield "    " + ", ".join(str(n) for n in numbers[i : i + width]) + ",\n"


def main():
    if not unicodedata2.unidata_version.startswith("16."):
        version = unicodedata2.unidata_version
        sys.exit(f"unicodedata2 has Unicode {version}; install unicodedata2==16.*")
    blocks = packed_blocks()
    unique = sorted(set(blocks), key=blocks.index)
    assert len(unique) <= 256
    index = [unique.index(block) for block in blocks]
    out = pathlib.Path(__file__).parents[1] / "src/text/unicode_tables.cpp"
    with out.open("w") as file:
        file.write("// Character classes of Unicode ")
        file.write(f"{unicodedata2.unidata_version}, two stages: see unicode.h.\n")
        file.write("// Written by tools/make_unicode_tables.py; do not edit.\n")
        file.write('// clang-format off\n#include "text/unicode.h"\n\nnamespace laplace {\n\n')
        file.write("const std::array<uint8_t, kUnicodeBlocks> kUnicodeBlockOf = {\n")
        file.writelines(rows(index, 19))
        file.write("};\n\n")
        file.write("const std::array<std::array<uint8_t, 32>, ")
        file.write("kUnicodeDistinctBlocks> kUnicodeBlock = {{\n")
        for block in unique:
            file.write("   {\n")
            file.writelines(rows(block, 16))
            file.write("   },\n")
        file.write("}};\n\n}  // namespace laplace\n")
    print(f"{out}: {len(blocks)} blocks, {len(unique)} distinct (constants of src/text/unicode.h)")


if __name__ == "__main__":
    main()
