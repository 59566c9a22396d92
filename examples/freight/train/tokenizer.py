"""Trains the tokenizer and writes tokenizer.json and tokenizer_config.json.

    python tokenizer.py --generator PATH --out DIR
"""

import argparse
import json
import pathlib
import re
import subprocess

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from model import CONTEXT, VOCAB

END_OF_TEXT, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# Qwen2's pre-tokenizer: digits stand alone, so that a number is copied digit by digit.
SERVED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Merges are learnt from narrower pieces. A capital never merges with what stands before it, so that a name has the same
# tokens after a label, in quotes and at the start of an answer, and copying needs no change of tokens. Pieces of names
# are kept short, for the names of the held-out documents are new.
LEARNT = r"[ _]?[a-z]+|[A-Z][a-z]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def split(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def samples(generator, stage, tokens, n):
    command = [generator, "-stage", str(stage), "-tokens", str(tokens), "-n", str(n), "-seed", "1000", "train"]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        yield json.loads(line)


def texts(*args):
    for sample in samples(*args):
        for segment in sample["prefix"] + [s for branch in sample["branches"] for s in branch]:
            yield from re.split("|".join(map(re.escape, (TURN, END))), segment["t"])


def check(tokenizer, generator):
    """The trainer tokenises pieces; a server tokenises the whole conversation. Both must see the same tokens."""
    for sample in samples(generator, 4, 352, 200):
        for branch in sample["branches"]:
            pieces = [s["t"] for s in sample["prefix"] + branch]
            apart = [i for piece in pieces for i in tokenizer.encode(piece).ids]
            assert apart == tokenizer.encode("".join(pieces)).ids, pieces


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generator", required=True, help="the freightgen binary")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    args = parser.parse_args()

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split(LEARNT)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END_OF_TEXT, TURN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=12,
        show_progress=False,
    )
    corpus = list(texts(args.generator, 4, 352, 4000)) + list(texts(args.generator, 5, 512, 500))
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.pre_tokenizer = split(SERVED)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (END_OF_TEXT, TURN, END)])
    assert tokenizer.get_vocab_size() == VOCAB, tokenizer.get_vocab_size()

    check(tokenizer, args.generator)

    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    special = {"eos_token": END, "pad_token": END_OF_TEXT, "additional_special_tokens": [TURN]}
    (args.out / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")

    size = sum(len(t) for t in corpus)
    print(f"{size / sum(len(e.ids) for e in tokenizer.encode_batch(corpus)):.3f} characters a token")


if __name__ == "__main__":
    main()
