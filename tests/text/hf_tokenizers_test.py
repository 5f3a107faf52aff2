"""Checks our tokenizer.json, ids and training against Hugging Face's library `tokenizers`.

    python hf_tokenizers_test.py PROGRAM DIRECTORY

PROGRAM is the `laplace` program, DIRECTORY a place for files. Trains a tokenizer on mixed text,
loads it in Python, and compares ids of another megabyte of mixed text, and the merges with those of
Hugging Face's own trainer. Exits 0 when all are equal.
"""

import json
import pathlib
import random
import subprocess
import sys
import unicodedata

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

VOCAB_SIZE = 2000
END_OF_TEXT = "<|endoftext|>"

# The mixed text has characters of Unicode 3.2 only: the library's regular expressions may know
# another Unicode than our 16. (tokenizers 0.23.3 agrees on every character; `check_classes` lists
# those that differ in the version that is installed.)
OLD = unicodedata.ucd_3_2_0

ENGLISH = """The state of the model has a fixed size, so a long text costs as much as a short one.
It's what we'd call "recurrent": don't keep every key and value, keep their sum. They've said that
I'm wrong; we'll see. WE'LL SEE, he'd shout, and o'clock isn't 'tis. A well-known, e-mail-like
thing.
"""
CODE = """int main(int argc, char** argv) {
    for (size_t i = 0; i < 1024; ++i) {
\t\tsum += values[i] * 0x7F + 3.14e-10;  // it's ok
    }
}
def f(x):
    return {"a": [1, 2, x['b']], 'c': None}

"""
OTHERS = [
    "Größe naïve façade Ærøskøbing Łódź",
    "Русский текст и ещё немного",
    "Ελληνικά γράμματα",
    "中文文本没有空格，日本語のテキスト、한국어 문장",
    "हिन्दी में लिखा हुआ पाठ",
    "العربية نص قصير עברית",
    "ไทยไม่มีช่องว่าง",
    "e\u0301a\u0308o\u0302\u0303 n\u0303",  # combining marks
    "😀😃 👩‍👩‍👧 🏳️‍🌈 ❤️ 👍🏽",
    "½ ² Ⅷ ① ٣٤٥ १२३ 一二三",
    "“quotes” – dashes — … • ™ €100 £5",
    "a\u00a0b\u2009c\u3000d\u2028e\u0085f\u200bg",  # white space, and what only looks like it
]
WHITE = [" ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000"]
WHITE += ["\n" * 9, " " * 31]


def old_characters():
    """All characters of Unicode 3.2 but surrogates and private use."""
    return [
        chr(c)
        for c in range(0x110000)
        if OLD.category(chr(c)) not in ("Cn", "Cs", "Co") and not 0xAC00 <= c < 0xD700
    ]


def mixed_text(seed, size):
    rng = random.Random(seed)
    characters = old_characters()
    parts, length = [], 0
    while length < size:
        kind = rng.randrange(6)
        if kind == 0:
            words = ENGLISH.split(" ")
            part = " ".join(rng.choice(words) for _ in range(20))
        elif kind == 1:
            start = rng.randrange(len(CODE))
            part = CODE[start : start + 60]
        elif kind == 2:
            part = rng.choice(OTHERS)
        elif kind == 3:
            part = str(rng.randrange(10 ** rng.randrange(1, 30)))
        elif kind == 4:
            part = "".join(rng.choice(characters) for _ in range(8))
        else:
            part = rng.choice(WHITE) * rng.randrange(1, 4)
        part += rng.choice(["", " ", "\n"])
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)


def our_ids(program, directory, text, *flags):
    path = directory / "text.txt"
    path.write_bytes(text.encode())
    command = [program, "tokenizer", "encode", "--tokenizer", directory, "--json", *flags, path]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    return [json.loads(line) for line in lines]


def byte_characters():
    """GPT-2's alphabet: the character of every byte."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {byte: chr(byte) for byte in itself} | {
        byte: chr(0x100 + i) for i, byte in enumerate(others)
    }


def write_class_tokenizer(directory):
    """A tokenizer in which ids show the class of a character.

    The last byte of any character merges with "a", "1" and "!", which happens only inside a piece:
    after a letter, a number and anything else. White space merges with none of them.
    """
    tokens = json.loads((directory / "tokenizer.json").read_text())
    characters = byte_characters()
    pairs = [(characters[byte], end) for byte in range(0x80, 0xC0) for end in "a1!"]
    vocabulary = [*characters.values(), *(a + b for a, b in pairs), END_OF_TEXT]
    tokens["model"]["vocab"] = {token: i for i, token in enumerate(vocabulary)}
    tokens["model"]["merges"] = [f"{a} {b}" for a, b in pairs]
    tokens["added_tokens"][0]["id"] = len(vocabulary) - 1
    out = directory / "classes"
    out.mkdir(exist_ok=True)
    (out / "tokenizer.json").write_text(json.dumps(tokens))
    return out


def check_classes(program, directory):
    """Compares the class of every character, prints those that differ, and refuses old ones."""
    classes = write_class_tokenizer(directory)
    theirs = Tokenizer.from_file(str(classes / "tokenizer.json"))
    # Planes 4 to 13 are unassigned, 15 and 16 are for private use.
    planes = [*range(0x80, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000)]
    characters = [chr(c) for c in planes]
    probes = [f"{c}a{c}1{c}!" for c in characters]
    ours = our_ids(program, classes, "\n".join(probes), "--lines")
    different = []
    for start in range(0, len(probes), 10000):
        batch = theirs.encode_batch_fast(probes[start : start + 10000])
        for i, encoding in enumerate(batch, start):
            if encoding.ids != ours[i]:
                different.append(characters[i])
    print(f"{len(different)} characters have another class in tokenizers {tokenizers.__version__}")
    for character in different[:20]:
        print(f"  U+{ord(character):04X} {unicodedata.category(character)}")
    old = [f"U+{ord(c):04X}" for c in different if OLD.category(c) != "Cn"]
    check(not old, f"characters of Unicode 3.2 have another class: {old[:10]}")
    check(len(set(map(len, ours))) > 1, "the probes show no classes")


def check(condition, message):
    if not condition:
        sys.exit("FAILED: " + message)


def check_ids(program, directory, theirs):
    text = mixed_text(2, 1_000_000)
    [ours] = our_ids(program, directory, text)
    encoded = theirs.encode(text).ids
    if ours != encoded:
        at = next(i for i, pair in enumerate(zip(ours, encoded)) if pair[0] != pair[1])
        around = theirs.decode(encoded[max(0, at - 5) : at + 5])
        sys.exit(f"FAILED: ids differ at token {at}, in {around!r}")
    check(theirs.decode(encoded) == text, "their decoding is not the text")
    print(f"{len(ours)} ids of {len(text.encode())} bytes are equal")

    # In their library special tokens are found in text unless it is told otherwise.
    text = f"a{END_OF_TEXT}b {END_OF_TEXT}"
    theirs.encode_special_tokens = True
    check([theirs.encode(text).ids] == our_ids(program, directory, text), "special tokens in text")
    theirs.encode_special_tokens = False
    check(theirs.token_to_id(END_OF_TEXT) == VOCAB_SIZE - 1, "the special token's id")
    check(theirs.get_vocab_size() == VOCAB_SIZE, "the vocabulary's size")


def check_training(directory, text):
    """Their trainer, on the same text, finds the same merges, and we open what it saves."""
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs.train_from_iterator([text], trainer)
    saved = json.loads(theirs.to_str())["model"]["merges"]
    pairs = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in saved]
    ours = json.loads((directory / "tokenizer.json").read_text())["model"]["merges"]
    check([tuple(m.split(" ")) for m in ours] == pairs, "the merges of their trainer differ")
    print(f"{len(pairs)} merges of their trainer are equal")
    return theirs


def main():
    program, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    text = mixed_text(1, 1_000_000)
    (directory / "train.txt").write_bytes(text.encode())
    subprocess.run(
        [program, "tokenizer", "train", "--input", directory / "train.txt"]
        + ["--vocab-size", str(VOCAB_SIZE), "--out", directory],
        check=True,
    )
    theirs = Tokenizer.from_file(str(directory / "tokenizer.json"))
    check_classes(program, directory)
    check_ids(program, directory, theirs)

    trained = check_training(directory, text)
    other = directory / "theirs"
    other.mkdir(exist_ok=True)
    trained.save(str(other / "tokenizer.json"))
    text = mixed_text(3, 100_000)
    ids = trained.encode(text).ids
    check(our_ids(program, other, text) == [ids], "ids of their tokenizer.json differ")
    print("ids of their own tokenizer.json are equal")


if __name__ == "__main__":
    main()
