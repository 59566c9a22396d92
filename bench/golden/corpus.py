"""Writes a corpus of awkward texts to model/tokenizer/testdata/corpus.json, with a
checksum of what the `tokenizers` package gives for each text and each tokenizer
that lies beside it.

    python bench/golden/corpus.py model/tokenizer/testdata [TOKENIZER.json...]

Further tokenizers, of public models say, are compared by

    go test ./model/tokenizer -run Corpus -corpus FILE -tokenizers DIR

where DIR holds them as NAME.json and FILE was written with them, by a second
argument and its like. Written with tokenizers 0.23.3.
"""

import json
import pathlib
import random
import sys
import zlib

from tokenizers import Tokenizer

# First and last characters of scripts and blocks, from which texts are drawn.
SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x2AF), (0x2B0, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58A), (0x591, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F),
    (0x980, 0x9FE), (0xB80, 0xBFA), (0xC00, 0xC7F), (0xE01, 0xE5B), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137C), (0x13A0, 0x13FD), (0x1780, 0x17F9),
    (0x1E00, 0x1EFF), (0x1F00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x209C), (0x20A0, 0x20BF), (0x20D0, 0x20F0), (0x2100, 0x218B), (0x2190, 0x21FF), (0x2460, 0x24FF), (0x2500, 0x257F),
    (0x2600, 0x27BF), (0x2C00, 0x2C7F), (0x3000, 0x303F), (0x3041, 0x30FF), (0x3131, 0x318E), (0x3200, 0x32FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE010), (0xF900, 0xFA6D), (0xFB00, 0xFB4F),
    (0xFE00, 0xFE0F), (0xFE20, 0xFE6B), (0xFF01, 0xFFEE), (0x10330, 0x1034A), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6FF),
    (0x1F900, 0x1F9FF), (0x20000, 0x20100), (0xE0020, 0xE007F),
]
PIECES = [
    " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\u2028", "\u0085", "\x0b", "\x1c", "\x00", "\x7f", "\ufffd", "'s", "'LL", "\u2019s", "don't", "I'M", "e\u0301", "A\u030a\u0323",
    "\u1100\u1161\u11a8", "İ", "ẞ", "ß", "ſ", "K", "Å", "ﬁ", "Ǆ", "1", "42", "007", "1,234.5", "½", "٣٤", "१२", "Ⅷ", "²", "MSKU-702114/3", "kg", "USD", "$9.99", "€", "if (x != y) {", "}\n\n", "    return None",
    "foo_bar", "camelCase", "HTTPServer2", "https://a.example/b?c=d&e=%20", "a@b.example", "{\"k\": [1, null]}", "<|im_start|>", "<|endoftext|>", "[CLS]", "[MASK]", "##ing", "<think>", "...", "?!", "——", "「」", "🚢", "👩‍👩‍👧", "🏽", "✈️", "🇧🇷",
    "🥺", "𝔘𝔫𝔦", "中文", "日本語です", "한국어", "עִבְרִית", "العربيّة", "हिन्दी", "ไทย", "Ελληνικά ΣΑΣ", "Ђ", "\U000e0041", "\\xff\\xfe", "\\ud800",
]


def texts(rng):
    out = ["", " ", "\n", "a"]
    for lo, hi in SCRIPTS:
        chars = [chr(c) for c in range(lo, hi + 1)]
        for n in (5, 12, 30):
            out.append("".join(rng.choice(chars) if rng.random() < 0.85 else rng.choice(PIECES) for _ in range(n)))
    for _ in range(260):
        out.append("".join(rng.choice(PIECES) if rng.random() < 0.7 else chr(rng.randint(*rng.choice(SCRIPTS))) for _ in range(rng.randint(2, 24))))
    for n in (2, 3, 7, 50, 130):
        out += [" " * n + "x", "x" + " " * n, "\n" * n, "\t" * n + "y", "1" * n, "a" * n, "é" * n, "!" * n, "中" * n, " \n" * n, "\u0301" * n]
    return out


def checksum(ids):
    return zlib.crc32(",".join(map(str, ids)).encode())


def main(folder, more):
    corpus = texts(random.Random("corpus"))
    out = {"texts": corpus, "sums": {}}
    for path in [p for p in sorted(folder.glob("*.json")) if "model" in json.loads(p.read_text())] + more:
        t = Tokenizer.from_file(str(path))
        t.no_truncation()
        t.no_padding()
        out["sums"][path.stem] = [checksum(t.encode(s).ids) for s in corpus]
    (folder / "corpus.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), [pathlib.Path(p) for p in sys.argv[2:]])
