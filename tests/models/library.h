/* The functions of a compiled library instead of those that a test was compiled with, for programs of any system. */

#include <stdio.h>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>

static void *opened(const char *path) { return LoadLibraryA(path); }
static void *function_of(void *library, const char *name) { return (void *)GetProcAddress(library, name); }
#else
#include <dlfcn.h>

static void *opened(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
static void *function_of(void *library, const char *name) { return dlsym(library, name); }
#endif

#define EACH_FUNCTION(DO) DO(read_tokens) DO(apply_group) DO(packed_bytes) DO(pack_rows) DO(unpack_rows)
#define DECLARE(name) static __typeof__(name) *its_##name;
EACH_FUNCTION(DECLARE)

/* takes the functions of a library, or prints what it says of the processor */
static void load(const char *path) {
    void *library = opened(path);
    if (!library) exit(5);
    const char *(*flags)(void) = function_of(library, "processor_flags");
    if (flags) {
        puts(flags());
        exit(0);
    }
#define TAKE(name) if (!(its_##name = function_of(library, #name))) exit(6);
    EACH_FUNCTION(TAKE)
}
#define read_tokens its_read_tokens
#define apply_group its_apply_group
#define packed_bytes its_packed_bytes
#define pack_rows its_pack_rows
#define unpack_rows its_unpack_rows

#ifdef _WIN32
int main(int count, char **arguments);
int _configure_narrow_argv(int mode);

void __main(void) {} /* called first of all */

/* where a program begins that is linked without what MinGW has of its own */
void mainCRTStartup(void) {
    _configure_narrow_argv(1);
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
    exit(main(*__p___argc(), *__p___argv()));
}
#endif
