"""Puts every command line of an adapter through the engine's own parser.

    go test ./serving/engine -run TestFlags -argvs DIR
    python bench/engines/parse.py DIR/vllm-0.32.0.json         # with vLLM installed
    python bench/engines/parse.py DIR/sglang-0.5.23.json       # with SGLang importable
    python bench/engines/parse.py DIR/llamacpp-11434.0.0.json llama-server
"""

import argparse
import json
import pathlib
import subprocess
import sys


def vllm(argv):
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    # A model that is there: the parser reads its configuration.
    make_arg_parser(FlexibleArgumentParser()).parse_args(["examples/freight/weights", *argv[3:]])


def sglang(argv):
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    parser.parse_args(argv[3:])


def llamacpp(argv):
    # It reads its arguments in order, and ends at the last.
    if subprocess.run([sys.argv[2], *argv[1:], "--version"], capture_output=True).returncode:
        raise SystemExit(1)


def main(file):
    kind, refused = file.name.split("-")[0], 0
    lines = json.loads(file.read_text())
    for option, argv in lines.items():
        try:
            {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp}[kind](argv)
        except SystemExit:
            refused += 1
            print("FAIL", file.stem, option, *argv)
    print("ok  " if not refused else "FAIL", f"{file.stem}: its parser takes {len(lines) - refused} of {len(lines)} command lines")
    return refused > 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
