"""Small models of many kinds, as people write them for torch: each takes tensors by name and returns a loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as tnn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

Loss = dict[str, Tensor]


class Recommender(tnn.Module):
    """DLRM: bags of embeddings, pairwise products, click probability."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = tnn.ModuleList([tnn.EmbeddingBag(11, 8, mode="sum"), tnn.EmbeddingBag(13, 8, mode="mean")])
        self.bottom, self.top = tnn.Linear(5, 8), tnn.Sequential(tnn.Linear(11, 6), tnn.ReLU(), tnn.Linear(6, 1))

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor, clicked: Tensor) -> Loss:
        below = self.bottom(dense).relu()
        rows = torch.stack([below, *(table(one, offsets) for table, one in zip(self.tables, ids, strict=True))], 1)
        i, j = torch.tril_indices(3, 3, -1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, i, j]
        scores = self.top(torch.cat([below, pairs], 1))[:, 0]
        return {"loss": F.binary_cross_entropy_with_logits(scores, clicked)}


class UNet(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = tnn.Sequential(tnn.Conv2d(3, 8, 3, padding=1), tnn.GroupNorm(2, 8), tnn.SiLU())
        self.down = tnn.Sequential(tnn.Conv2d(8, 12, 3, stride=2, padding=1), tnn.BatchNorm2d(12), tnn.ReLU(True))
        self.up, self.out = tnn.ConvTranspose2d(12, 8, 2, stride=2), tnn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor, target: Tensor) -> Loss:
        wide = self.first(x)
        low = self.down(wide)
        low = low + F.interpolate(F.avg_pool2d(low, 2), scale_factor=2, mode="bilinear")
        return {"loss": F.mse_loss(self.out(torch.cat([wide, self.up(low)], 1)), target)}


class GraphAttention(tnn.Module):
    """Messages along edges, weighted by a softmax over those that arrive at a node."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.message, self.score, self.out = (
            tnn.Linear(5, 8), tnn.Linear(8, 8), tnn.Linear(16, 1), tnn.Linear(8, 3),
        )  # fmt: skip

    def forward(self, x: Tensor, source: Tensor, target: Tensor, kinds: Tensor) -> Loss:
        h = self.into(x).relu()
        score = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)), 0.2)[:, 0]
        most = torch.full((x.shape[0],), -1e9).scatter_reduce(0, target, score, "amax")
        weight = (score - most[target]).exp()
        weight = weight / torch.zeros(x.shape[0]).index_add(0, target, weight)[target]
        got = self.message(h)[source] * weight[:, None]
        h = h + torch.zeros_like(h).scatter_add(0, target[:, None].expand(-1, 8), got)
        return {"loss": F.cross_entropy(self.out(h), kinds)}


class Quantized(tnn.Module):
    """VQ-VAE whose code book is a running mean, in buffers; straight through to the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = tnn.Linear(6, 4), tnn.Linear(4, 6)
        self.register_buffer("code", torch.randn(9, 4))
        self.register_buffer("size", torch.ones(9))
        self.register_buffer("mean", self.get_buffer("code").clone())

    def forward(self, x: Tensor) -> Loss:
        z = self.encode(x)
        near = F.one_hot(torch.cdist(z, self.get_buffer("code")).argmin(-1), 9).type(z.dtype)
        q = near @ self.get_buffer("code")
        with torch.no_grad():
            self.size.mul_(0.9).add_(near.sum(0), alpha=0.1)
            self.mean.mul_(0.9).add_(near.t() @ z, alpha=0.1)
            self.get_buffer("code").copy_(self.mean / self.size[:, None])
        committed = F.mse_loss(z, q.detach())
        return {"loss": F.mse_loss(self.decode(z + (q - z).detach()), x) + 0.25 * committed}


class Recurrent(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = tnn.Embedding(11, 6, padding_idx=0)
        self.lstm, self.gru = tnn.LSTM(6, 5, bidirectional=True, batch_first=True), tnn.GRU(10, 7, batch_first=True)
        self.out = tnn.Linear(7, 11)

    def forward(self, ids: Tensor) -> Loss:
        h, _ = self.gru(self.lstm(self.embed(ids))[0])
        return {"loss": F.cross_entropy(self.out(h).flatten(0, 1), ids.flatten())}


class Experts(tnn.Module):
    """A mixture of experts by hand, with a loss that balances their load."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = tnn.Linear(6, 4)
        self.up, self.down = tnn.Parameter(torch.randn(4, 6, 10) * 0.3), tnn.Parameter(torch.randn(4, 10, 6) * 0.3)

    def forward(self, x: Tensor, target: Tensor) -> Loss:
        shares = self.gate(x).softmax(-1)
        best, which = shares.topk(2, -1)
        gates = torch.zeros_like(shares).scatter(-1, which, best / best.sum(-1, keepdim=True))
        found = torch.einsum("tef,efd,te->td", torch.einsum("td,edf->tef", x, self.up).relu(), self.down, gates)
        load = F.one_hot(which, 4).float().mean((0, 1))
        return {"loss": F.mse_loss(found, target) + 0.04 * (load * shares.mean(0)).sum()}


class Normalized(tnn.Module):
    """Weights that are normalized anew in each step; the spectral norm keeps vectors of its power iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = weight_norm(tnn.Linear(6, 8)), spectral_norm(tnn.Linear(8, 5))
        self.last = tnn.Conv1d(5, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Loss:
        return {"loss": self.last(self.second(self.first(x).tanh()).transpose(1, 2)).square().mean()}


class Radiance(tnn.Module):
    """NeRF: positions as waves, densities accumulated along a ray."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tnn.Sequential(tnn.Linear(30, 16), tnn.ReLU(), tnn.Linear(16, 4))

    def forward(self, x: Tensor, color: Tensor) -> Loss:
        waves = (x[..., None] * 2.0 ** torch.arange(5)).flatten(-2)
        found = self.net(torch.cat([waves.sin(), waves.cos()], -1))
        stopped = 1 - torch.exp(-F.relu(found[..., 3]))
        left = torch.cumprod(torch.cat([torch.ones_like(stopped[:, :1]), 1 - stopped + 1e-10], -1), -1)[:, :-1]
        return {"loss": F.mse_loss(((stopped * left)[..., None] * found[..., :3].sigmoid()).sum(1), color)}


class Spectral(tnn.Module):
    """FNet: words mixed by the real part of a Fourier transform, and a filter learned in the spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = tnn.Embedding(11, 8), tnn.LayerNorm(8)
        self.filter = tnn.Parameter(torch.randn(3, 8, 2))

    def forward(self, ids: Tensor) -> Loss:
        x = self.embed(ids)
        x = self.norm(x + torch.fft.fft2(x).real)
        wave = torch.fft.rfft(x, dim=1) * torch.view_as_complex(self.filter)
        return {"loss": torch.fft.irfft(wave, n=5, dim=1).square().mean() + wave.imag.abs().mean()}


class Actor(tnn.Module):
    """Soft actor critic: a squashed policy, and a temperature that is a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = tnn.Linear(5, 2), tnn.Linear(6, 1)
        self.temperature = tnn.Parameter(torch.zeros(()))

    def forward(self, seen: Tensor, noise: Tensor) -> Loss:
        mean, scale = self.policy(seen).chunk(2, -1)
        action = torch.tanh(mean + scale.clamp(-5, 2).exp() * noise)
        likely = (-0.5 * noise**2 - scale - torch.log(1 - action**2 + 1e-6)).sum(-1)
        value = self.value(torch.cat([seen, action], -1))[:, 0]
        alpha = self.temperature.exp()
        return {"loss": (alpha.detach() * likely - value).mean() - (alpha * (likely.detach() - 1)).mean()}


class Labels(tnn.Module):
    """A chain of labels (CRF): the sum over all paths, less the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.emit, self.step = tnn.Linear(5, 4), tnn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor, labels: Tensor) -> Loss:
        emitted = self.emit(x)
        paths = emitted[:, 0]
        for i in range(1, x.shape[1]):
            paths = torch.logsumexp(paths[:, :, None] + self.step, 1) + emitted[:, i]
        right = emitted.gather(-1, labels[..., None]).sum((1, 2)) + self.step[labels[:, :-1], labels[:, 1:]].sum(1)
        return {"loss": (torch.logsumexp(paths, -1) - right).mean()}


class Contrast(tnn.Module):
    """Pairs that belong together (CLIP), against a target network that is not trained (BYOL)."""

    def __init__(self) -> None:
        super().__init__()
        self.left = tnn.Sequential(tnn.Linear(6, 8), tnn.BatchNorm1d(8), tnn.ReLU(), tnn.Linear(8, 4))
        self.right, self.target = tnn.Linear(6, 4), tnn.Linear(6, 4).requires_grad_(False)
        self.scale = tnn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor, y: Tensor) -> Loss:
        left, right = F.normalize(self.left(x), dim=-1), F.normalize(self.right(y), dim=-1)
        scores, own = left @ right.t() * self.scale.exp(), torch.arange(x.shape[0])
        with torch.no_grad():
            target = self.target(y)
        both = F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)
        return {"loss": both / 2 - F.cosine_similarity(left, target).mean()}


class Masked(tnn.Module):
    """torch's own encoder and decoder under a causal mask, which it would look into for a faster kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.both = tnn.Transformer(12, 3, 1, 1, 20, 0.0, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Loss:
        mask = tnn.Transformer.generate_square_subsequent_mask(y.shape[1])
        return {"loss": self.both(x, y, tgt_mask=mask).square().mean()}


def _ids(most: int, *shape: int) -> Tensor:
    return torch.randint(1, most, shape)


KINDS = {
    "recommender": (Recommender, lambda: {
        "dense": torch.randn(4, 5), "ids": _ids(11, 2, 9), "offsets": torch.tensor([0, 2, 5, 6]),
        "clicked": torch.rand(4),
    }),
    "unet": (UNet, lambda: {"x": torch.randn(2, 3, 8, 8), "target": torch.randn(2, 3, 8, 8)}),
    "graph attention": (GraphAttention, lambda: {
        "x": torch.randn(7, 5), "source": _ids(7, 15), "target": torch.cat([torch.arange(7), _ids(7, 8)]),
        "kinds": _ids(3, 7),
    }),
    "vector quantization": (Quantized, lambda: {"x": torch.randn(8, 6)}),
    "recurrent": (Recurrent, lambda: {"ids": _ids(11, 3, 5)}),
    "experts": (Experts, lambda: {"x": torch.randn(7, 6), "target": torch.randn(7, 6)}),
    "normalized weights": (Normalized, lambda: {"x": torch.randn(2, 7, 6)}),
    "radiance field": (Radiance, lambda: {"x": torch.randn(3, 7, 3), "color": torch.randn(3, 3)}),
    "spectral": (Spectral, lambda: {"ids": _ids(11, 3, 5)}),
    "actor critic": (Actor, lambda: {"seen": torch.randn(4, 5), "noise": torch.randn(4, 1)}),
    "labels": (Labels, lambda: {"x": torch.randn(3, 6, 5), "labels": _ids(4, 3, 6)}),
    "contrast": (Contrast, lambda: {"x": torch.randn(5, 6), "y": torch.randn(5, 6)}),
    "masked": (Masked, lambda: {"x": torch.randn(4, 7, 12), "y": torch.randn(4, 5, 12)}),
}  # fmt: skip
