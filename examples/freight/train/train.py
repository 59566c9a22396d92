"""Trains the freight model on two CPU cores, one process each.

    python train.py --generator PATH --tokenizer DIR --out DIR [--minutes 58] [--processes 2]

Stages follow the loss, not the clock: repeats of random tokens first (without them the model sits on a plateau that looks
like "too small a model"), then short documents, longer ones, all fields with damaged labels, long contexts. Running it
again with the same --out goes on from the last checkpoint; the minutes count over all runs.
"""

import argparse
import json
import os
import pathlib
import subprocess
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from tokenizers import Tokenizer

from model import DIM, VOCAB, Model

SEED = 20
# Tokens of a step and process, and the rate that a stage tends to. Induction appears after a number of steps rather than
# of tokens, and at a low rate: at 3e-3 it had not appeared after 1,800 steps, at 5e-4 it came within 600.
STEP_TOKENS = {1: 640, 2: 1280, 3: 1280, 4: 2560, 5: 2560}
PEAK = {1: 5e-4, 2: 1.2e-3, 3: 1.2e-3, 4: 1.2e-3, 5: 1.2e-3}
FLOOR, WARMUP, CLIP = 0.05, 100, 1.0
SPECIALS = 3
# The printable ASCII characters follow the special tokens. Most repeats are made of them: each is then seen ten times as
# often as a token of the whole vocabulary, and induction comes sooner.
CHARACTERS = 94
# Stage: room in tokens and the mark that the running answer loss must fall below. Stage 4 ends by time as well.
STAGES = {1: (64, 0.6), 2: (96, 0.35), 3: (192, 0.25), 4: (352, 0.05), 5: (352, None)}
STAGE4_UNTIL = 0.65
LONG = [512, 1024, 2048]
CHECKPOINT_EVERY = 120  # seconds
# Documents and filler are many and hardly predictable: the output head sees one in four of their positions.
SPARSE = 4


class Repeats:
    """Rows of one random string repeated; what is repeated counts."""

    def __init__(self, seed, tokens):
        self.tokens = tokens
        self.r = np.random.default_rng(seed)

    def batch(self, room):
        rows = self.tokens // room
        ids = np.zeros((rows, room), np.int64)
        weights = np.zeros((rows, room), np.float32)
        for i in range(rows):
            n = self.r.integers(6, 25)
            pool = VOCAB if self.r.random() < 0.3 else SPECIALS + CHARACTERS
            ids[i] = np.resize(self.r.integers(SPECIALS, pool, n), room)
            weights[i, n:] = 1
        positions = np.broadcast_to(np.arange(room), (rows, room))
        mask = np.broadcast_to(np.tril(np.ones((room, room), bool)), (rows, room, room))
        return ids, weights, positions, mask


class Documents:
    """Rows of samples from the generator. A sample is a prefix and branches that each see the prefix and themselves:
    every question is answered as if it were alone, which is how a server is asked."""

    def __init__(self, generator, tokenizer, stage, room, seed):
        self.room = room
        self.tokens = STEP_TOKENS[stage]
        self.tokenizer = tokenizer
        command = [generator, "-stage", str(stage), "-tokens", str(room), "-seed", str(seed), "train"]
        self.lines = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.next = None

    def close(self):
        self.lines.stdout.close()
        self.lines.wait()

    def sample(self):
        s = json.loads(self.lines.stdout.readline())
        parts = [s["prefix"], *s["branches"]]
        encoded = iter(self.tokenizer.encode_batch([p["t"] for part in parts for p in part]))
        out = []
        for part in parts:
            pieces = [(next(encoded).ids, p["w"]) for p in part]
            ids = [i for piece, _ in pieces for i in piece]
            weights = [w for piece, w in pieces for _ in piece]
            out.append((ids, weights))
        return out

    def row(self, ids, weights, positions, owner, branch):
        """Fills one row with as many samples, and of each as many branches, as fit."""
        at, sample = 0, 0
        while True:
            parts = self.next or self.sample()
            self.next = None
            prefix = parts[0]
            size = len(prefix[0])
            if at + size + len(parts[1][0]) > self.room:
                if at > 0:
                    self.next = parts
                    return
                continue  # longer than the room: no row can take it
            sample += 1
            start = at
            for number, (piece, weight) in enumerate(parts):
                n = len(piece)
                if at + n > self.room:
                    continue
                ids[at : at + n] = piece
                weights[at : at + n] = weight
                first = 0 if number == 0 else size
                positions[at : at + n] = np.arange(first, first + n)
                owner[at : at + n] = sample
                branch[at : at + n] = number
                at += n
            if at == start:
                return

    def batch(self, room):
        rows = max(1, self.tokens // room)
        ids = np.zeros((rows, room), np.int64)
        weights = np.zeros((rows, room), np.float32)
        positions = np.zeros((rows, room), np.int64)
        owner = np.zeros((rows, room), np.int64)
        branch = np.zeros((rows, room), np.int64)
        for i in range(rows):
            self.row(ids[i], weights[i], positions[i], owner[i], branch[i])
        mask = owner[:, :, None] == owner[:, None, :]
        mask &= (branch[:, None, :] == 0) | (branch[:, :, None] == branch[:, None, :])
        mask &= np.tril(np.ones((room, room), bool))
        # The first token of a branch is predicted by nobody: the token before it in the row is another branch's.
        starts = np.ones((rows, room), bool)
        starts[:, 1:] = (owner[:, 1:] != owner[:, :-1]) | (branch[:, 1:] != branch[:, :-1])
        weights[starts] = 0
        return ids, weights, positions, mask


def loss_of(model, batch, r):
    ids, weights, positions, mask = batch
    # Position i predicts token i+1.
    weights = weights[:, 1:].copy()
    low = (weights > 0) & (weights < 1)
    weights[low] *= SPARSE * (r.random(int(low.sum())) < 1 / SPARSE)
    where = torch.from_numpy(np.flatnonzero(weights))
    weights = torch.from_numpy(weights).flatten()[where]
    targets = torch.from_numpy(ids[:, 1:].copy()).flatten()[where]
    hidden = model(torch.from_numpy(ids), torch.from_numpy(positions.copy()), torch.from_numpy(mask.copy())[:, None])
    hidden = hidden[:, :-1].reshape(-1, DIM)[where]
    losses = F.cross_entropy(model.logits(hidden), targets, reduction="none")
    answers = losses.detach()[weights == 1].mean()
    return (losses * weights).sum() / weights.sum(), answers


class Progress:
    """What decides stage and rate. It is the same in every process, for it is made of averages over them."""

    def __init__(self):
        self.step, self.stage, self.stage_step, self.stage_start = 0, 1, 0, 0.0
        self.elapsed, self.tokens, self.answers, self.peak = 0.0, 0, None, 0.0

    def observe(self, answers, elapsed, tokens, total):
        self.step += 1
        self.stage_step += 1
        self.peak += (PEAK[self.stage] - self.peak) / WARMUP
        self.elapsed, self.tokens = elapsed, self.tokens + tokens
        self.answers = answers if self.answers is None else 0.97 * self.answers + 0.03 * answers
        mark = STAGES[self.stage][1]
        done = mark is not None and self.stage_step >= 50 and self.answers < mark
        if done or (self.stage == 4 and elapsed > STAGE4_UNTIL * total):
            self.stage, self.stage_step, self.stage_start, self.answers = self.stage + 1, 0, elapsed, None

    def rate(self, total):
        return self.peak * max(FLOOR, 1 - (1 - FLOOR) * self.elapsed / total)

    def room(self, r, total):
        """The room of the next batch. Half of the last stage keeps the short documents alive; the other half grows."""
        if self.stage < 5 or r.random() < 0.5:
            return STAGES[self.stage][0]
        share = (self.elapsed - self.stage_start) / max(1e-9, total - self.stage_start)
        return LONG[int(r.integers(0, min(len(LONG), 1 + int(share * 4))))]


def run(rank, args):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(args.port)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    total = args.minutes * 60
    torch.manual_seed(SEED)
    model, progress = Model(), Progress()
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=PEAK[1], betas=(0.9, 0.95), fused=True,
    )
    saved = args.out / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        progress.__dict__.update(state["progress"])

    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters) + 2)
    at = 0
    for p in parameters:
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    # What is drawn together, the room, must be the same everywhere; what is drawn alone must not.
    shared = np.random.default_rng([SEED, progress.step])
    own = np.random.default_rng([SEED, progress.step, rank + 1])
    seed = SEED + 1000 * rank + 100000 * progress.step
    sources = {}
    start = last = time.monotonic() - progress.elapsed
    last_saved = progress.elapsed
    tokens_logged = progress.tokens
    stage = progress.stage
    while progress.elapsed < total:
        if stage != progress.stage:
            stage = progress.stage
            for s in sources.values():
                if isinstance(s, Documents):
                    s.close()
            sources = {}
            if rank == 0:
                print(f"stage {stage} from step {progress.step}, {progress.elapsed / 60:.1f} min", flush=True)
                save(saved, model, optimiser, progress)
        room = progress.room(shared, total)
        if room not in sources:
            sources[room] = (
                Repeats(seed, STEP_TOKENS[1]) if stage == 1 else Documents(args.generator, tokenizer, stage, room, seed + room)
            )
        flat.zero_()
        loss, answers = loss_of(model, sources[room].batch(room), own)
        loss.backward()
        flat[-2], flat[-1] = answers, time.monotonic() - start
        dist.all_reduce(flat)
        flat /= args.processes
        norm = flat[:-2].norm()
        if norm > CLIP:
            flat[:-2] *= CLIP / norm
        for group in optimiser.param_groups:
            group["lr"] = progress.rate(total)
        optimiser.step()
        progress.observe(flat[-2].item(), flat[-1].item(), args.processes * STEP_TOKENS[stage], total)
        if rank == 0 and (progress.step % 25 == 0 or progress.step < 4):
            now = time.monotonic()
            print(
                f"step {progress.step} stage {stage} room {room} min {progress.elapsed / 60:.2f} "
                f"tokens {progress.tokens / 1e6:.2f}M answers {flat[-2]:.3f} running {progress.answers or 0:.3f} "
                f"loss {loss.item():.3f} norm {norm:.2f} tok/s {(progress.tokens - tokens_logged) / (now - last):.0f}",
                flush=True,
            )
            last, tokens_logged = now, progress.tokens
        if rank == 0 and progress.elapsed - last_saved > CHECKPOINT_EVERY:
            last_saved = progress.elapsed
            save(saved, model, optimiser, progress)
    if rank == 0:
        save(saved, model, optimiser, progress)
        print(f"done: {progress.step} steps, {progress.tokens / 1e6:.1f}M tokens", flush=True)
    dist.destroy_process_group()


def save(path, model, optimiser, progress):
    new = path.with_suffix(".new")
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "progress": progress.__dict__}, new)
    new.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generator", required=True, help="the freightgen binary")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, help="folder with tokenizer.json")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the checkpoint")
    parser.add_argument("--minutes", type=float, default=58)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=29417)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    mp.spawn(run, (args,), nprocs=args.processes)


if __name__ == "__main__":
    main()
