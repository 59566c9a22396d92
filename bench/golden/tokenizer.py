"""Writes model/tokenizer/testdata: small tokenizers with the pre-tokenizer
configurations of public ones, and what the `tokenizers` package gives for them.

    python bench/golden/tokenizer.py model/tokenizer/testdata

The vocabularies are trained on the text below, because what is compared is the
algorithm and not a vocabulary. Written with tokenizers 0.23.3.
"""

import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN2 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
O200K = r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
DEEPSEEK = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def split(pattern, behavior="isolated"):
    return pre_tokenizers.Split(Regex(pattern), behavior, False)


def bytes_only():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


CONFIGS = {
    "gpt2": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=False), special=["<|endoftext|>"]),
    "prefix": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=True)]), special=["<s>"]),
    "qwen2": dict(
        pre=pre_tokenizers.Sequence([split(QWEN2), bytes_only()]),
        norm=normalizers.NFC(),
        special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        plain=[AddedToken("<tool_call>", normalized=False), AddedToken("Café", normalized=True)],
    ),
    "llama3": dict(
        pre=pre_tokenizers.Sequence([split(LLAMA3), bytes_only()]),
        special=["<|begin_of_text|>", "<|eot_id|>"],
        bos="<|begin_of_text|>",
        ignore_merges=True,
    ),
    "deepseek": dict(
        pre=pre_tokenizers.Sequence([split(p) for p in DEEPSEEK] + [bytes_only()]),
        norm=normalizers.Sequence([]),
        special=["<｜begin▁of▁sentence｜>"],
        plain=[AddedToken("<think>", single_word=True, normalized=False), AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)],
        bos="<｜begin▁of▁sentence｜>",
    ),
    "o200k": dict(pre=pre_tokenizers.Sequence([split(O200K), bytes_only()]), special=["<|end|>"]),
    "merged": dict(
        pre=pre_tokenizers.Sequence(
            [split(r"\p{Lu}", "merged_with_next"), split(r"[.,]", "merged_with_previous"), split(r"[ab]", "contiguous"), split(r"-", "removed"), bytes_only()]
        ),
        special=["<s>"],
    ),
}

# WordPiece, as BERT uncased and cased; the third keeps accents and has another prefix.
BERT = {
    "bert": dict(norm=normalizers.BertNormalizer(), prefix="##"),
    "bert-cased": dict(norm=normalizers.BertNormalizer(lowercase=False), prefix="##"),
    "bert-plain": dict(norm=normalizers.Sequence([normalizers.NFKC(), normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False)]), prefix="@@", max=20),
}

CORPUS = [
    "The bill of lading names the shipper, the consignee and the vessel. It's what they've signed; we'll see, I'd say.",
    "Gross weight: 18,420.5 kg; 1234567 cartons, container MSKU-702114/3, port of loading Rotterdam, port of discharge Santos.",
    '{"shipper": "Acme GmbH", "weight_kg": 18420, "codes": ["A1", "B22"]}\n\n\tvalue = dict["key"]\r\nreturn None',
    "Überführung der Fracht nach Zürich. Le café de l'île coûte 3 €. ¿Dónde está la mañana? Это накладная. これは船荷証券です。提单号码一二三。 안녕하세요",
    "COMMODITY HS 0901.21 Coffee, roasted; not decaffeinated. The quick brown fox jumps over the lazy dog 0123456789.",
]

TEXTS = CORPUS + [
    "",
    " ",
    "  leading and trailing   ",
    "a\n\n\n  b\r\n\tc \n",
    "don't DON'T we'LL it'S I'm",
    "x" * 40 + " " * 9 + "1234567890" * 3,
    "e\u0301a\u030a nfc Cafe\u0301 Caf\u00e9 ﬁ ² ½ Ⅳ ٣",
    "emoji 🚢🏽‍✈️ flags 🇧🇷 and \U0001d54f; zero\u200bwidth\u00a0nbsp\u2028line\u0085next",
    "<|im_start|>user\nhello<|im_end|>\n<|endoftext|><s>",
    "<|begin_of_text|>x<|eot_id|><|begin_of",
    "a <think> b x<think>y <think>z  <mask>  end <mask><mask> _<think>",
    "<tool_call>{}</tool_call><tool_call",
    "mixedCASEWords HTTPServer aAbB..,,--ab-ba Ab,b.Aa",
    "\x00\x01\x7f control \ufffd bytes",
    "ʼn ǅ ʰ ा हिन्दी עברית العربية ไทย",
    "!!!???...///\n/\n",
]


def build(c):
    t = Tokenizer(models.BPE(ignore_merges=c.get("ignore_merges", False)))
    t.pre_tokenizer = c["pre"]
    if "norm" in c:
        t.normalizer = c["norm"]
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False),
    )
    t.add_special_tokens(c["special"])
    t.add_tokens(c.get("plain", []))
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    if "bos" in c:
        t.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single=f"{c['bos']} $A", pair=f"{c['bos']} $A {c['bos']} $B", special_tokens=[(c["bos"], t.token_to_id(c["bos"]))]),
            ]
        )
    return t


def build_bert(c):
    """A vocabulary of all characters of the corpus, their continuations, and the
    beginnings and ends of its words."""
    words = [w for line in CORPUS for w, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(c["norm"].normalize_str(line))]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = {ch for w in words for ch in w} | {c["prefix"] + ch for w in words for ch in w}
    pieces |= {w[:n] for w in words for n in (2, 3, 5) if len(w) >= n} | {c["prefix"] + w[-n:] for w in words for n in (2, 3) if len(w) > n}
    vocab = {t: i for i, t in enumerate(specials + sorted(pieces - set(specials)))}
    t = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=c["prefix"], max_input_chars_per_word=c.get("max", 100)))
    t.normalizer, t.pre_tokenizer = c["norm"], pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(prefix=c["prefix"], cleanup=c["prefix"] == "##")
    t.add_special_tokens(specials)
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return t


def pairs(t):
    """Pairs of texts, cut to limits as transformers cuts them."""
    out = []
    for i, limit in enumerate([0, 0, 16, 9, 8, 7, 5, 4, 3, 64, 65, 30, 31, 32]):
        a, b = TEXTS[i * 3 % len(TEXTS)], TEXTS[(i * 5 + 1) % len(TEXTS)]
        if limit:
            t.enable_truncation(limit)
        e, one = t.encode(a, b), t.encode(a)
        out.append({"first": a, "second": b, "limit": limit, "ids": e.ids, "types": e.type_ids, "single": one.ids})
        t.no_truncation()
    return out


def main(out):
    golden = {}
    for name, c in (CONFIGS | BERT).items():
        t = build_bert(c) if name in BERT else build(c)
        text = json.loads(t.to_str())
        (out / f"{name}.json").write_text(json.dumps(text, ensure_ascii=False, separators=(",", ":")) + "\n")
        rng = random.Random(name)
        # Random ids are mostly not UTF-8, which is where decoders differ.
        loose = [[rng.randrange(t.get_vocab_size()) for _ in range(rng.randrange(1, 24))] for _ in range(40)]
        golden[name] = {
            "encode": [{"text": s, "ids": t.encode(s, add_special_tokens=False).ids, "special": t.encode(s).ids} for s in TEXTS],
            "decode": [{"ids": ids, "text": t.decode(ids, skip_special_tokens=False), "plain": t.decode(ids)} for ids in loose],
        }
        if name in BERT:
            golden[name]["pairs"] = pairs(t)
    (out / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
