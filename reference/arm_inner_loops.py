#!/usr/bin/env python3
"""How many instructions the inner loops of the ARM multipliers take, beside the products themselves.

    python3 reference/arm_inner_loops.py > results/arm-inner-loops.json

Builds the example int_kernel_speed for ARM in release mode, disassembles it, and takes from each multiplier's functions
the innermost loop with the most products: that of a full tile. Where QEMU loads plugins it also counts what is executed
during one run of the example: dot products, and all instructions of the blocks they are in.
Emulation says nothing about speed; counts of instructions do not depend on the machine.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "aarch64-unknown-linux-gnu"
BUILD = ["build", "--locked", "--release", "-p", "qbert-kernels", "--example", "int_kernel_speed"]
# Multiplier: its product, multiply-accumulates of one, and a CPU of QEMU on which it is the best multiplier.
MULTIPLIERS = {
    "neon-dotprod": ("sdot", 16, "neoverse-n1"),
    "neon-i8mm": ("usmmla", 32, "max"),
}
LAYER = ['"linear"', '"kernels":"neon', '"tokens":384,"inputs":384,"neurons":384', '"bits":2', '"codes"', '"threads":1']


def functions(program):
    """Name and instructions (address, mnemonic, operands) of each function."""
    command = ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", str(program)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    name, code = None, []
    for line in listing.splitlines():
        if start := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            yield name, code
            name, code = start[1], []
        elif found := re.match(r"\s*([0-9a-f]+):\t(\S+)\s*(.*)", line):
            code.append((int(found[1], 16), found[2], found[3]))
    yield name, code


def innermost_loops(code):
    """Runs of instructions from the target of a backward branch to the branch, without another branch inside."""
    places = {address: index for index, (address, _, _) in enumerate(code)}
    for end, (address, mnemonic, operands) in enumerate(code):
        target = re.search(r"\b([0-9a-f]+) <", operands)
        if not target or not re.match(r"(b\.|cbn?z|tbn?z)", mnemonic) or int(target[1], 16) > address:
            continue
        body = code[places[int(target[1], 16)] : end + 1]
        if not any(re.match(r"(b$|b\.|bl|br|cbn?z|tbn?z|ret)", other) for _, other, _ in body[:-1]):
            yield body


def count(program, product, products):
    loops = [
        body for _, code in functions(program) for body in innermost_loops(code) if any(i[1] == product for i in body)
    ]
    loop = max(loops, key=lambda body: sum(i[1] == product for i in body))
    dots = sum(i[1] == product for i in loop)
    mnemonics = [i[1] for i in loop if i[1] != product]
    return {
        "product": product,
        "products": dots,
        "instructions": len(loop),
        "others": {name: mnemonics.count(name) for name in sorted(set(mnemonics))},
        "multiply_accumulates": dots * products,
        "instructions_per_multiply_accumulate": len(loop) / (dots * products),
        "instructions_per_product": round(len(loop) / dots, 4),
    }


def executed(program, product, cpu, plugin):
    command = ["qemu-aarch64", "-cpu", cpu]
    command += ["-d", "plugin", "-plugin", str(plugin), str(program), *LAYER]
    result = subprocess.run(command, capture_output=True, text=True)
    counts = re.search(r"\{.executed.:.*\}", result.stderr)
    if result.returncode != 0 or not counts:
        print(f"not counted on {cpu}: {result.stderr.strip()[-200:]}", file=sys.stderr)
        return None
    counts = json.loads(counts[0])
    return {
        "cpu": cpu,
        "products": counts[product],
        "instructions_of_blocks_with_products": counts["in_blocks_with_products"],
        "instructions_per_product": round(counts["in_blocks_with_products"] / counts[product], 4),
        "all_instructions_of_the_process": counts["executed"],
    }


def main():
    subprocess.run(["reference/arm.sh", *BUILD], cwd=ROOT, check=True, stdout=sys.stderr)
    directory = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "arm" / TARGET
    program = directory / "release" / "examples" / "int_kernel_speed"
    compiler = re.search(rb"rustc version [^\0)]*\)", program.read_bytes())
    with tempfile.TemporaryDirectory() as scratch:
        plugin = Path(scratch) / "instructions.so"
        source = ROOT / "reference" / "arm_instructions.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", plugin, source], check=True)
        loops = {}
        for name, (product, products, cpu) in MULTIPLIERS.items():
            loops[name] = count(program, product, products)
            loops[name]["executed"] = executed(program, product, cpu, plugin)
    report = {
        "what": "instructions of the inner loops of the ARM multipliers, full tiles of 6 tokens and 16 neurons; "
        "'executed' is counted under emulation over whole runs of a linear layer of 384 tokens, 384 to 384, 2 bits",
        "command": "python3 reference/arm_inner_loops.py > results/arm-inner-loops.json",
        "compiler": compiler[0].decode() if compiler else None,
        "loops": loops,
    }
    print(json.dumps(report, indent=1))


main()
