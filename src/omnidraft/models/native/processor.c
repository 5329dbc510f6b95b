/* What this processor has of all that objects of step.c are compiled for; this file is compiled for any processor. */

#include <stdint.h>
#include <string.h>

#include "system.h"

static void add_flag(char *flags, const char *name) {
    if (*flags) strcat(flags, " ");
    strcat(flags, name);
}

#if defined(__x86_64__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };

static const struct {
    const char *name;
    uint32_t leaf, branch, word, bit;
} FLAGS[] = {
    {"fma", 1, 0, ECX, 12}, {"movbe", 1, 0, ECX, 22}, {"avx", 1, 0, ECX, 28}, {"f16c", 1, 0, ECX, 29},
    {"bmi1", 7, 0, EBX, 3}, {"avx2", 7, 0, EBX, 5}, {"bmi2", 7, 0, EBX, 8}, {"avx512f", 7, 0, EBX, 16},
    {"avx512dq", 7, 0, EBX, 17}, {"avx512cd", 7, 0, EBX, 28}, {"avx512bw", 7, 0, EBX, 30}, {"avx512vl", 7, 0, EBX, 31},
    {"avx512_vnni", 7, 0, ECX, 11}, {"avx_vnni", 7, 1, EAX, 4}, {"abm", 0x80000001, 0, ECX, 5},
};

/* the registers that the system keeps for a process that does not run: bits 1 and 2 for AVX, 5 to 7 beside them for
   AVX-512; 0 where it does not say */
static uint32_t kept_registers(void) {
    uint32_t words[4], low, high;
    if (!__get_cpuid(1, words, words + 1, words + 2, words + 3) || !(words[ECX] >> 27 & 1)) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void add_flags(char *flags) {
    uint32_t kept = kept_registers(), words[4];
    if ((kept & 0x06) != 0x06) return; /* all that is asked for here is used along with AVX */
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        if (!__get_cpuid_count(FLAGS[i].leaf, FLAGS[i].branch, words, words + 1, words + 2, words + 3)) continue;
        if (!strncmp(FLAGS[i].name, "avx512", 6) && (kept & 0xe6) != 0xe6) continue;
        if (words[FLAGS[i].word] >> FLAGS[i].bit & 1) add_flag(flags, FLAGS[i].name);
    }
}
#elif defined(__aarch64__)
#if defined(_WIN32)
static int has_dots(void) { return IsProcessorFeaturePresent(43); }
static int has_matrices(void) { return IsProcessorFeaturePresent(66); }
#elif defined(__APPLE__)
#include <sys/sysctl.h>

static int has_dots(void) { return 1; } /* as all of these processors that macOS runs on; early ones do not say so */
static int has_matrices(void) {
    int has = 0;
    size_t size = sizeof has;
    return !sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) && has;
}
#else
#include <sys/auxv.h>

static int has_dots(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
static int has_matrices(void) { return getauxval(AT_HWCAP2) >> 13 & 1; }
#endif

static void add_flags(char *flags) {
    add_flag(flags, "asimd");
    if (has_dots()) add_flag(flags, "asimddp");
    if (has_matrices()) add_flag(flags, "i8mm");
}
#else
static void add_flags(char *flags) { (void)flags; }
#endif

/* names, as Linux has them, with blanks between */
EXPORT const char *processor_flags(void) {
    static char flags[256];
    *flags = 0;
    add_flags(flags);
    return flags;
}
