// A plugin for QEMU that counts executed instructions: all of them, the dot products (sdot, usmmla), and those of the
// translated blocks that hold dot products, which are the inner loops. reference/arm_inner_loops.py builds and uses it.
//
// The declarations are those parts of QEMU's plugin interface (version 1) that it needs; Debian does not package the
// header. Counts of several threads would be mixed up; run one thread.
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t plugin_id;
struct block;
struct instruction;
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t);
extern const void *qemu_plugin_insn_data(const struct instruction *);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, void (*)(unsigned, void *), int flags, void *);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern void qemu_plugin_outs(const char *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

struct counts {
    uint64_t all, sdot, usmmla;
};
static struct counts executed;
static uint64_t in_loops;

static void execute(unsigned cpu, void *data) {
    const struct counts *block = data;
    (void)cpu;
    executed.all += block->all;
    executed.sdot += block->sdot;
    executed.usmmla += block->usmmla;
    if (block->sdot + block->usmmla > 0) in_loops += block->all;
}

static void translate(plugin_id id, struct block *block) {
    struct counts *counts = calloc(1, sizeof *counts);
    (void)id;
    if (!counts) abort();
    counts->all = qemu_plugin_tb_n_insns(block);
    for (size_t i = 0; i < counts->all; i++) {
        uint32_t code = *(const uint32_t *)qemu_plugin_insn_data(qemu_plugin_tb_get_insn(block, i));
        // sdot by element and by vector, usmmla: 128-bit forms.
        counts->sdot += (code & 0xffc0f400) == 0x4f80e000 || (code & 0xffe0fc00) == 0x4e809400;
        counts->usmmla += (code & 0xffe0fc00) == 0x4e80ac00;
    }
    qemu_plugin_register_vcpu_tb_exec_cb(block, execute, 0, counts);
}

static void report(plugin_id id, void *data) {
    char line[200];
    (void)id, (void)data;
    snprintf(line, sizeof line,
             "{\"executed\":%" PRIu64 ",\"sdot\":%" PRIu64 ",\"usmmla\":%" PRIu64 ",\"in_blocks_with_products\":%" PRIu64 "}\n",
             executed.all, executed.sdot, executed.usmmla, in_loops);
    qemu_plugin_outs(line);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_atexit_cb(id, report, NULL);
    return 0;
}
