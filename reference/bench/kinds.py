"""Kinds of CPU for the comparison of speed: what the fastest integer product of a CPU is.

One table of docs/results/speed.md and one results file per model belong to a kind, and to the maker of the CPU.
"""

# The feature in /proc/cpuinfo that decides, the name in file names, the name in print; the first that a CPU has counts.
KINDS = [
    ("amx_int8", "amx", "AMX"),
    ("avx512_vnni", "avx512-vnni", "AVX-512 VNNI"),
    ("avx_vnni", "avx-vnni", "AVX-VNNI"),
    ("avx512f", "avx512", "AVX-512"),
    ("avx2", "avx2", "AVX2"),
    ("i8mm", "i8mm", "ARM with i8mm"),
    ("asimddp", "dotprod", "ARM with dot products"),
    ("asimd", "neon", "ARM"),
]
TITLES = [title for _, _, title in KINDS]
OTHER = ("other", "another kind")


def kind_of(features):
    """The names of a CPU's kind, for files and in print."""
    return next(((slug, title) for feature, slug, title in KINDS if feature in features), OTHER)


def maker_of(name):
    """Who made the CPU, as far as its name tells, in lower case for file names."""
    return next((maker for maker in ("amd", "intel", "apple", "ampere", "raspberry") if maker in name.lower()), "cpu")


def cpu_name():
    """What this machine calls its CPU."""
    with open("/proc/cpuinfo", encoding="ascii") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return f"{names[0] if names else 'unknown CPU'}, {len(names)} cores"
