/* Writes down, in order, what a process does to files below RECORD_DIRECTORY, to the file RECORD_LOG; for LD_PRELOAD.
 *
 *   u32 size | u8 what | u64 file | u64 number | path or data            (size: of all behind it)
 *
 * A write is recorded when it has been done, a sync when it begins and when it has ended well: so what is recorded before the
 * beginning of a sync was covered by it. Files are known by their inodes, directories by their paths. tests/journal/power_cut.py
 * reads it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME_FROM, RENAME_TO, UNLINK, MKDIR, MARK };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const char *below;
static int log_fd = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("RECORD_LOG");
    below = getenv("RECORD_DIRECTORY");
    if (below && path) log_fd = REAL(open64)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) abort();
}

static void put(uint8_t what, uint64_t file, uint64_t number, const void *data, size_t size) {
    uint32_t total = 17 + (uint32_t)size;
    struct iovec parts[] = {{&total, 4}, {&what, 1}, {&file, 8}, {&number, 8}, {(void *)data, size}};
    int before = errno;
    pthread_mutex_lock(&mutex);
    if (writev(log_fd, parts, 5) != 4 + (ssize_t)total) abort();
    pthread_mutex_unlock(&mutex);
    errno = before;
}

static int is_below(const char *path) { return log_fd >= 0 && strncmp(path, below, strlen(below)) == 0; }

/* The inode behind a descriptor, and its path; 0 if it is none of ours. */
static uint64_t file_of(int fd, char *path) {
    char link[64];
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX);
    path[size < 0 ? 0 : size] = 0;
    return size > 0 && is_below(path) && fstat(fd, &status) == 0 ? status.st_ino : 0;
}

/* From Python: something that a reader of the record has to know happened now. */
void record_mark(uint64_t kind, uint64_t number) { put(MARK, kind, number, "", 0); }

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = flags & O_CREAT ? va_arg(rest, int) : 0;
    va_end(rest);
    int fd = REAL(open64)(path, flags, mode);
    char real_path[PATH_MAX + 1];
    uint64_t file;
    if (fd >= 0 && flags & O_CREAT && (file = file_of(fd, real_path))) put(CREATE, file, 0, real_path, strlen(real_path));
    return fd;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    char path[PATH_MAX + 1];
    ssize_t done = REAL(pwrite64)(fd, data, size, offset);
    uint64_t file = done > 0 ? file_of(fd, path) : 0;
    if (file) put(WRITE, file, (uint64_t)offset, data, (size_t)done);
    return done;
}

int ftruncate64(int fd, off64_t size) {
    char path[PATH_MAX + 1];
    int done = REAL(ftruncate64)(fd, size);
    uint64_t file = done == 0 ? file_of(fd, path) : 0;
    if (file) put(TRUNCATE, file, (uint64_t)size, "", 0);
    return done;
}

static int sync_with(int (*real)(int), int fd) {
    static uint64_t syncs;
    char path[PATH_MAX + 1];
    uint64_t file = file_of(fd, path), number = file ? __atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST) : 0;
    if (file) put(SYNC_BEGIN, file, number, path, strlen(path));
    int done = real(fd);
    if (file && done == 0) put(SYNC_END, file, number, path, strlen(path));
    return done;
}

int fdatasync(int fd) { return sync_with(REAL(fdatasync), fd); }

int fsync(int fd) { return sync_with(REAL(fsync), fd); }

int rename(const char *from, const char *to) {
    int done = REAL(rename)(from, to);
    if (done == 0 && is_below(to)) {
        put(RENAME_FROM, 0, 0, from, strlen(from));
        put(RENAME_TO, 0, 0, to, strlen(to));
    }
    return done;
}

int unlink(const char *path) {
    int done = REAL(unlink)(path);
    if (done == 0 && is_below(path)) put(UNLINK, 0, 0, path, strlen(path));
    return done;
}

int mkdir(const char *path, mode_t mode) {
    int done = REAL(mkdir)(path, mode);
    if (done == 0 && is_below(path)) put(MKDIR, 0, 0, path, strlen(path));
    return done;
}
