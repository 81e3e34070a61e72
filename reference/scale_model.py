#!/usr/bin/env python3
"""The model of docs/guide/scale.md: what a training step costs on N nodes, and how well it uses them.

    python3 reference/scale_model.py              # the tables of the guide
    python3 reference/scale_model.py --step 0.40 --replicated 0.03 --tokens 420 --gbit 1 --latency 1e-3 --nodes 2

Every rank computes T/N of a batch's T tokens. Of a linear layer with `in` inputs and `out` outputs it receives the others' rows of
the inputs and its share of the columns of the outputs' gradients; at the end of the step the others' share of the gradients of all matrices.
"""
import argparse
import math

MODELS = {"MiniLM": dict(layers=6, hidden=384, rest=12.0e6), "BERT-base": dict(layers=12, hidden=768, rest=24.4e6)}


def received(model, tokens, nodes):
    """Bytes that a rank receives in a step."""
    layers, hidden = model["layers"], model["hidden"]
    rows = layers * tokens * hidden * (4 + 12 / nodes) + tokens * hidden
    gradients = 12 * layers * hidden**2
    # Norms: the sums of chunks of 64 rows, and of chunks that two ranks share the rows.
    norms = (2 * layers + 1) * 2 * hidden * (tokens / 64 + 32)
    return 4 * (nodes - 1) / nodes * (rows + gradients + norms)


def calls(model, nodes):
    """Collective operations of a step: each takes log2(N) messages one after the other, at best."""
    return (16 * model["layers"] + 12) * math.ceil(math.log2(nodes)) if nodes > 1 else 0


def seconds(model, tokens, nodes, parallel, replicated, gbit, latency):
    return parallel / nodes + replicated + received(model, tokens, nodes) / (gbit / 8 * 1e9) + calls(model, nodes) * latency


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=float, help="seconds of a step of MiniLM on one node, without what every rank repeats")
    parser.add_argument("--replicated", type=float, default=0.0, help="seconds of what every rank repeats")
    parser.add_argument("--tokens", type=int, default=420)
    parser.add_argument("--gbit", type=float, default=10)
    parser.add_argument("--latency", type=float, default=20e-6)
    parser.add_argument("--nodes", type=int, default=2)
    options = parser.parse_args()
    if options.step:
        model = MODELS["MiniLM"]
        own = (model, options.tokens, options.nodes, options.step, options.replicated, options.gbit, options.latency)
        print(f"{received(*own[:3]) / 1e6:.1f} MB in {calls(model, options.nodes)} messages, {seconds(*own):.3f} s a step")
        return
    flops, memory = 1.5e12, 1.0e11
    print("| model | tokens | network | " + " | ".join(f"{n} nodes" for n in (2, 4, 8, 16, 32, 64)) + " |")
    print("|---|---|---|" + "---|" * 6)
    for name, model in MODELS.items():
        matrices = 12 * model["layers"] * model["hidden"] ** 2
        for tokens in (4096, 65536):
            for gbit, latency in ((10, 20e-6), (100, 2e-6)):
                parallel, replicated = 6 * matrices * tokens / flops, 28 * (matrices + model["rest"]) / memory
                one = parallel + replicated
                cells = []
                for nodes in (2, 4, 8, 16, 32, 64):
                    time = seconds(model, tokens, nodes, parallel, replicated, gbit, latency)
                    cells.append(f"{one / time:.1f}× ({100 * one / time / nodes:.0f} %)")
                print(f"| {name} | {tokens:,} | {gbit} Gbit/s | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
