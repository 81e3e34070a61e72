"""The losses of pairs that sentence-transformers computes for the vectors in the tests of `qbert_train::ops::pairs`.

    pip install torch sentence-transformers && python3 reference/metrics/pair_losses.py

CoSENTLoss for pairs with scores; MultipleNegativesRankingLoss for pairs without, the mean of both directions.
"""

import torch
from sentence_transformers import losses

WIDTH = 5
VECTORS = torch.tensor([((seed * 37 % 101) / 101 - 0.5) * 2 for seed in range(6 * WIDTH)], dtype=torch.float64).reshape(6, WIDTH)
SCORES = torch.tensor([0.5, 4.0, 2.0], dtype=torch.float64)


class Fixed(torch.nn.Module):
    """A model whose answer is what it is given."""

    def forward(self, features):
        return features


def main():
    first, second = VECTORS[0::2], VECTORS[1::2]
    given = lambda *sides: [{"sentence_embedding": side} for side in sides]
    print("CoSENT", losses.CoSENTLoss(Fixed())(given(first, second), SCORES).item())
    ranking = losses.MultipleNegativesRankingLoss(Fixed())
    print("partners", (ranking(given(first, second), None) + ranking(given(second, first), None)).item() / 2)


if __name__ == "__main__":
    main()
