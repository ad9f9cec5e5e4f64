/* A disk that fails on demand, for LD_PRELOAD: the calls by which a journal is written, and `disk_fault` to say what they shall do.
 *
 * disk_fault(call, error, after, times): after `after` more calls of this kind, `times` of them fail with errno `error`; if it is
 * 0, a write takes only half of what it is given. disk_room(bytes): writes fail with ENOSPC once so many bytes were written.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE, SYNC, OPEN, CALLS };

static struct { int error; long after, times; } faults[CALLS];
static long room = -1;

void disk_fault(int call, int error, long after, long times) {
    faults[call].error = error;
    faults[call].after = after;
    faults[call].times = times;
}

void disk_room(long bytes) { room = bytes; }

/* -1: go on; else the errno to fail with, 0 for half a write */
static int struck(int call) {
    if (faults[call].times <= 0) return -1;
    if (faults[call].after > 0) { faults[call].after--; return -1; }
    faults[call].times--;
    return faults[call].error;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite");
    int error = struck(WRITE);
    if (error > 0) { errno = error; return -1; }
    if (error == 0 && size > 1) size /= 2;
    if (room == 0) { errno = ENOSPC; return -1; }
    if (room > 0 && (long)size > room) size = room;
    ssize_t written = next(fd, data, size, offset);
    if (room > 0 && written > 0) room -= written;
    return written;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }

int fdatasync(int fd) {
    static int (*next)(int);
    if (!next) next = dlsym(RTLD_NEXT, "fdatasync");
    int error = struck(SYNC);
    if (error > 0) { errno = error; return -1; }
    return next(fd);
}

static int opens(const char *path, int flags, mode_t mode) {
    static int (*next)(const char *, int, ...);
    if (!next) next = dlsym(RTLD_NEXT, "open64");
    size_t size = strlen(path);
    if (flags & O_CREAT && size > 4 && strcmp(path + size - 4, ".sbj") == 0) {
        int error = struck(OPEN);
        if (error > 0) { errno = error; return -1; }
    }
    return next(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return opens(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return opens(path, flags, mode);
}
