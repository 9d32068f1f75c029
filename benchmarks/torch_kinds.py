"""Models that are no transformers, as people write them for torch, of sizes at which splitting is worth a thought."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as tnn

Loss = dict[str, Tensor]
BATCH = 64


class Recommender(tnn.Module):
    """DLRM (Naumov et al. 2019): tables of embeddings, pairwise products, click probability."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = tnn.ModuleList([tnn.Embedding(size, 64) for size in (8192, 4096, 16384, 2048)])
        self.bottom = tnn.Sequential(tnn.Linear(16, 256), tnn.ReLU(), tnn.Linear(256, 64), tnn.ReLU())
        self.top = tnn.Sequential(tnn.Linear(64 + 25, 256), tnn.ReLU(), tnn.Linear(256, 1))

    def forward(self, dense: Tensor, ids: Tensor, clicked: Tensor) -> Loss:
        below = self.bottom(dense)
        rows = torch.stack([below, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        scores = self.top(torch.cat([below, pairs], 1))[:, 0]
        return {"loss": F.binary_cross_entropy_with_logits(scores, clicked)}


class UNet(tnn.Module):
    """A denoiser of images with one level (Ronneberger et al. 2015; Ho et al. 2020), attention at the bottom."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.time = tnn.Sequential(tnn.Linear(32, 2 * width), tnn.SiLU(), tnn.Linear(2 * width, 2 * width))
        self.first = tnn.Sequential(tnn.Conv2d(3, width, 3, padding=1), tnn.GroupNorm(4, width), tnn.SiLU())
        self.down = tnn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm, self.attend = tnn.GroupNorm(4, 2 * width), tnn.Linear(2 * width, 6 * width)
        self.back = tnn.Linear(2 * width, 2 * width)
        self.up, self.out = tnn.ConvTranspose2d(2 * width, width, 2, stride=2), tnn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, noise: Tensor) -> Loss:
        wide = self.first(x)
        low = self.down(wide) + self.time(time)[:, :, None, None]
        tokens = self.norm(low).flatten(2).transpose(1, 2)
        query, key, value = self.attend(tokens).chunk(3, -1)
        mixed = self.back(F.scaled_dot_product_attention(query, key, value))
        low = low + mixed.transpose(1, 2).reshape(low.shape)
        return {"loss": F.mse_loss(self.out(torch.cat([wide, self.up(low)], 1)), noise)}


class GraphNetwork(tnn.Module):
    """Messages along edges, added up where they arrive (Gilmer et al. 2017)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.into = tnn.Linear(32, width)
        self.messages = tnn.ModuleList([tnn.Linear(2 * width, width) for _ in range(2)])
        self.updates = tnn.ModuleList([tnn.Linear(2 * width, width) for _ in range(2)])
        self.out = tnn.Linear(width, 16)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, kinds: Tensor) -> Loss:
        h = self.into(x).relu()
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([h[source], h[target]], -1)).relu()
            got = torch.zeros_like(h).index_add(0, target, sent)
            h = h + update(torch.cat([h, got], -1)).relu()
        return {"loss": F.cross_entropy(self.out(h), kinds)}


class Recurrent(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = tnn.Embedding(1024, 128), tnn.GRU(128, 256, batch_first=True)
        self.out = tnn.Linear(256, 1024)

    def forward(self, ids: Tensor) -> Loss:
        return {"loss": F.cross_entropy(self.out(self.gru(self.embed(ids))[0]).flatten(0, 1), ids.flatten())}


class Experts(tnn.Module):
    """All experts on all tokens, weighted by one-hot gates (Shazeer et al. 2017), with a loss that balances load."""

    def __init__(self, width: int = 128, experts: int = 8) -> None:
        super().__init__()
        self.gate, self.experts = tnn.Linear(width, experts), experts
        self.up = tnn.Parameter(torch.zeros(experts, width, 4 * width))
        self.down = tnn.Parameter(torch.zeros(experts, 4 * width, width))

    def forward(self, x: Tensor, target: Tensor) -> Loss:
        shares = self.gate(x).softmax(-1)
        best, which = shares.topk(2, -1)
        gates = torch.zeros_like(shares).scatter(-1, which, best / best.sum(-1, keepdim=True))
        found = torch.einsum("tef,efd,te->td", torch.einsum("td,edf->tef", x, self.up).relu(), self.down, gates)
        load = F.one_hot(which, self.experts).float().mean((0, 1))
        return {"loss": F.mse_loss(found, target) + 0.04 * (load * shares.mean(0)).sum()}


class Capacity(tnn.Module):
    """Tokens in buckets of one size per expert, filled and emptied by one-hot products (GShard, Switch)."""

    def __init__(self, width: int = 128, experts: int = 8, capacity: int = 16) -> None:
        super().__init__()
        self.gate, self.experts, self.capacity = tnn.Linear(width, experts), experts, capacity
        self.up = tnn.Parameter(torch.zeros(experts, width, 4 * width))
        self.down = tnn.Parameter(torch.zeros(experts, 4 * width, width))

    def forward(self, x: Tensor, target: Tensor) -> Loss:
        shares = self.gate(x).softmax(-1)
        best, which = shares.max(-1)
        chosen = F.one_hot(which, self.experts)
        place = (chosen.cumsum(1) - 1) * chosen
        fits = (place < self.capacity) & (chosen > 0)
        seat = F.one_hot(place.clamp(max=self.capacity - 1), self.capacity).float() * fits[..., None].float()
        buckets = torch.einsum("gsec,gsd->egcd", seat, x)
        made = torch.einsum("egcf,efd->egcd", torch.einsum("egcd,edf->egcf", buckets, self.up).relu(), self.down)
        found = torch.einsum("gsec,egcd->gsd", seat * best[..., None, None], made)
        return {"loss": F.mse_loss(found, target)}


class Towers(tnn.Module):
    """Pairs that belong together (Radford et al. 2021), each against all others of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left = tnn.Sequential(tnn.Linear(512, 1024), tnn.GELU(), tnn.Linear(1024, 128))
        self.right = tnn.Sequential(tnn.Linear(256, 1024), tnn.GELU(), tnn.Linear(1024, 128))
        self.scale = tnn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Loss:
        left, right = F.normalize(self.left(x), dim=-1), F.normalize(self.right(y), dim=-1)
        scores, own = left @ right.t() * self.scale.exp(), torch.arange(x.shape[0], device=x.device)
        return {"loss": (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2}


class Radiance(tnn.Module):
    """NeRF (Mildenhall et al. 2020): positions as waves, densities accumulated along a ray."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tnn.Sequential(tnn.Linear(60, 256), tnn.ReLU(), tnn.Linear(256, 256), tnn.ReLU(), tnn.Linear(256, 4))

    def forward(self, x: Tensor, color: Tensor) -> Loss:
        waves = (x[..., None] * 2.0 ** torch.arange(10, device=x.device)).flatten(-2)
        found = self.net(torch.cat([waves.sin(), waves.cos()], -1))
        stopped = 1 - torch.exp(-F.relu(found[..., 3]))
        left = torch.cumprod(torch.cat([torch.ones_like(stopped[:, :1]), 1 - stopped + 1e-10], -1), -1)[:, :-1]
        return {"loss": F.mse_loss(((stopped * left)[..., None] * found[..., :3].sigmoid()).sum(1), color)}


def _ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def _floats(*shape: int) -> Tensor:
    return torch.zeros(shape)


def _graph() -> dict[str, Tensor]:
    return {"x": _floats(512, 32), "source": _ids(4096), "target": _ids(4096), "kinds": _ids(512)}


KINDS: dict[str, Any] = {
    "recommender": lambda: (
        Recommender(),
        {"dense": _floats(1024, 16), "ids": _ids(1024, 4), "clicked": _floats(1024)},
    ),
    "diffusion unet": lambda: (
        UNet(),
        {"x": _floats(BATCH, 3, 32, 32), "time": _floats(BATCH, 32), "noise": _floats(BATCH, 3, 32, 32)},
    ),
    "graph network": lambda: (GraphNetwork(), _graph()),
    "recurrent": lambda: (Recurrent(), {"ids": _ids(BATCH, 8)}),
    "experts by einsum": lambda: (Experts(), {"x": _floats(1024, 128), "target": _floats(1024, 128)}),
    "capacity buckets": lambda: (Capacity(), {"x": _floats(BATCH, 64, 128), "target": _floats(BATCH, 64, 128)}),
    "two towers": lambda: (Towers(), {"x": _floats(512, 512), "y": _floats(512, 256)}),
    "radiance field": lambda: (Radiance(), {"x": _floats(1024, 16, 3), "color": _floats(1024, 3)}),
}
"""Each makes a module and its arguments by name."""
