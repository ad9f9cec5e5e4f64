/* A disk that fails on demand, for LD_PRELOAD: the calls by which a journal is written, and `disk_fault` to say what they shall do.
 *
 * disk_fault(call, error, after, times): after `after` more calls of this kind, `times` of them fail with errno `error`; if it is
 * 0, a write takes only half of what it is given. disk_room(bytes): writes fail with ENOSPC once so many bytes were written.
 *
 * With DISK_FAULTS in the environment, all this stands in that file, shared by all processes that have it, for whoever writes into it
 * from outside (tests/journal/faulty_disk.py); only files below DISK_FAULTS_BELOW are struck.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE, SYNC, OPEN, CALLS };

struct faults {
    struct { long error, after, times; } calls[CALLS];
    long room;                         /* bytes; -1: no limit */
    long delay_us;                     /* of each write */
};
static struct faults own = {.room = -1}, *disk = &own;
static const char *below;

__attribute__((constructor)) static void share(void) {
    const char *path = getenv("DISK_FAULTS");
    if (!path) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *shared = mmap(0, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED) disk = shared;
    close(fd);
    below = getenv("DISK_FAULTS_BELOW");
}

static int is_below(const char *path) { return !below || strncmp(path, below, strlen(below)) == 0; }

static int is_struck(int fd) {
    char link[64], path[4096];
    if (!below) return 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

void disk_fault(int call, int error, long after, long times) {
    disk->calls[call].error = error;
    disk->calls[call].after = after;
    disk->calls[call].times = times;
}

void disk_room(long bytes) { disk->room = bytes; }

/* -1: go on; else the errno to fail with, 0 for half a write */
static int struck(int call) {
    if (disk->calls[call].times <= 0) return -1;
    if (disk->calls[call].after > 0) { disk->calls[call].after--; return -1; }
    disk->calls[call].times--;
    return disk->calls[call].error;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite");
    if (!is_struck(fd)) return next(fd, data, size, offset);
    if (disk->delay_us) usleep(disk->delay_us);
    int error = struck(WRITE);
    if (error > 0) { errno = error; return -1; }
    if (error == 0 && size > 1) size /= 2;
    if (disk->room == 0) { errno = ENOSPC; return -1; }
    if (disk->room > 0 && (long)size > disk->room) size = disk->room;
    ssize_t written = next(fd, data, size, offset);
    if (disk->room > 0 && written > 0) disk->room -= written;
    return written;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }

int fdatasync(int fd) {
    static int (*next)(int);
    if (!next) next = dlsym(RTLD_NEXT, "fdatasync");
    int error = is_struck(fd) ? struck(SYNC) : -1;
    if (error > 0) { errno = error; return -1; }
    return next(fd);
}

static int opens(const char *path, int flags, mode_t mode) {
    static int (*next)(const char *, int, ...);
    if (!next) next = dlsym(RTLD_NEXT, "open64");
    size_t size = strlen(path);
    if (flags & O_CREAT && size > 4 && is_below(path) && strcmp(path + size - 4, ".sbj") == 0) {
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
