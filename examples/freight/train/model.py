"""The freight model in PyTorch: a Llama small enough to train on two CPU cores.

The arithmetic is that of transformers' LlamaForCausalLM; export.py writes the weights under its names.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

# Every width is a multiple of 128, the group size of grouped quantisation.
DIM, LAYERS, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 4, 256, 8, 2, 32, 1024
EPS, THETA, CONTEXT = 1e-5, 10000.0, 2048


def rope_table(n):
    freq = THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angle = torch.outer(torch.arange(n).float(), freq)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    half = HEAD_DIM // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return F.rms_norm(x, (DIM,), self.weight, EPS)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        # Query, key and value are one product, gate and up another: wide products are what a CPU is good at.
        self.qkv = nn.Linear(DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, DIM, bias=False)
        self.gate_up = nn.Linear(DIM, 2 * FFN, bias=False)
        self.down = nn.Linear(FFN, DIM, bias=False)

    def forward(self, x, cos, sin, mask, cache):
        b, t, _ = x.shape
        y = self.qkv(self.norm1(x)).view(b, t, HEADS + 2 * KV_HEADS, HEAD_DIM)
        qk = rotate(y[:, :, : HEADS + KV_HEADS], cos, sin)
        q = qk[:, :, :HEADS].transpose(1, 2)
        k = qk[:, :, HEADS:].transpose(1, 2)
        v = y[:, :, HEADS + KV_HEADS :].transpose(1, 2)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        share = HEADS // KV_HEADS
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, HEADS * HEAD_DIM))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        cos, sin = rope_table(CONTEXT)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        nn.init.normal_(self.embed.weight, std=0.05)
        for block in self.blocks:
            for linear in (block.qkv, block.gate_up):
                nn.init.normal_(linear.weight, std=DIM**-0.5)
            # Every block starts by adding nothing: random additions would drown the small embeddings.
            for linear in (block.out, block.down):
                nn.init.zeros_(linear.weight)
        self.look_back()

    @torch.no_grad()
    def look_back(self):
        """Starts the first two heads as ones that look one and two tokens back.

        Induction needs such heads before it has any use for them, which is why it comes late from random weights. A
        direction that all embeddings share stands for the bias that Llama's projections lack: it gives the key a
        constant, and the query the same one turned by the distance. The shared direction changes no probability.
        """
        common = torch.randn(DIM)
        common /= common.norm()
        size = self.embed.weight.norm(dim=1).mean()
        self.embed.weight += size * common
        along = math.sqrt(DIM / 2)  # of a normalised embedding
        # The fastest eight of the 16 frequencies tell neighbours apart.
        key = torch.zeros(HEAD_DIM)
        key[: HEAD_DIM // 4] = 1
        qkv = self.blocks[0].qkv.weight
        strength = 3.0
        at = HEADS * HEAD_DIM
        qkv[at : at + HEAD_DIM] = 0.1 * qkv[at : at + HEAD_DIM] + strength / along * torch.outer(key, common)
        for head, back in enumerate((1, 2)):
            query = rotate(key, *(t[back] for t in (self.cos, -self.sin)))
            rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            qkv[rows] = 0.1 * qkv[rows] + strength / along * torch.outer(query, common)

    def forward(self, ids, positions, mask, caches=None):
        """Gives hidden states. mask is True (or 0) where a row may look; caches is a list of one list a layer."""
        x = self.embed(ids)
        cos, sin = self.cos[positions].unsqueeze(2), self.sin[positions].unsqueeze(2)
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin, mask, None if caches is None else caches[i])
        return self.norm(x)

    def logits(self, hidden):
        return hidden @ self.embed.weight.t()
