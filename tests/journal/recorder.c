/* Writes down, in order, what a process does to files below RECORD_DIRECTORY, to the file RECORD_LOG; for LD_PRELOAD.
 *
 *   u32 magic | u32 size | u8 what | u64 file | u64 number | path or data            (size: of all behind it)
 *
 * Several processes may write it at once; one that is killed may leave a record unfinished. A write is recorded when it begins, with its
 * bytes, and when it has been done, with how many; a sync when it begins and when it has ended well: so what had been done before the
 * beginning of a sync was covered by it. A write that has begun and was never said to be done is one whose process was killed: it is there
 * or it is not. A write to a descriptor with O_DSYNC is there at once. Files are known by their inodes, directories by their paths.
 * tests/journal/power_cut.py reads it.
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

enum { CREATE = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, MARK, WRITE_SYNCED, WRITE_BEGIN };
#define MAGIC 0x9D5EC0DEu

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
    uint32_t magic = MAGIC, total = 17 + (uint32_t)size;
    struct iovec parts[] = {{&magic, 4}, {&total, 4}, {&what, 1}, {&file, 8}, {&number, 8}, {(void *)data, size}};
    int before = errno;
    pthread_mutex_lock(&mutex);
    if (REAL(writev)(log_fd, parts, 6) != 8 + (ssize_t)total) abort();
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

static int opened(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    char real_path[PATH_MAX + 1];
    uint64_t file;
    int there = access(path, F_OK) == 0;
    int fd = real(path, flags, mode);
    if (fd < 0 || !(flags & (O_CREAT | O_TRUNC)) || !(file = file_of(fd, real_path))) return fd;
    if (!there) put(CREATE, file, 0, real_path, strlen(real_path));
    else if (flags & O_TRUNC) put(TRUNCATE, file, 0, "", 0);
    return fd;
}

static mode_t mode_in(int flags, va_list rest) { return flags & O_CREAT ? va_arg(rest, mode_t) : 0; }

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_in(flags, rest);
    va_end(rest);
    return opened(REAL(open64), path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_in(flags, rest);
    va_end(rest);
    return opened(REAL(open), path, flags, mode);
}

/* A write to this descriptor begins; the file, 0 if it is none of ours. */
static uint64_t writing(int fd, const void *data, size_t size, off64_t offset) {
    char path[PATH_MAX + 1];
    uint64_t file = file_of(fd, path);
    if (file) put(WRITE_BEGIN, file, (uint64_t)offset, data, size);
    return file;
}

static void written(int fd, uint64_t file, const void *data, ssize_t done, off64_t offset) {
    if (!file) return;
    put(fcntl(fd, F_GETFL) & O_DSYNC ? WRITE_SYNCED : WRITE, file, (uint64_t)offset, data, done > 0 ? (size_t)done : 0);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    uint64_t file = writing(fd, data, size, offset);
    ssize_t done = REAL(pwrite64)(fd, data, size, offset);
    int before = errno;
    written(fd, file, data, done, offset);
    errno = before;
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

/* Where a write would begin; -1 if this is no file. */
static off64_t position(int fd) {
    int before = errno;
    off64_t offset = lseek64(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    errno = before;
    return offset;
}

ssize_t write(int fd, const void *data, size_t size) {
    off64_t offset = position(fd);
    uint64_t file = offset < 0 ? 0 : writing(fd, data, size, offset);
    ssize_t done = REAL(write)(fd, data, size);
    int before = errno;
    written(fd, file, data, done, offset);
    errno = before;
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    off64_t begin = position(fd), at = begin;
    uint64_t file = 0;
    for (int i = 0; i < count && begin >= 0; at += parts[i++].iov_len) file = writing(fd, parts[i].iov_base, parts[i].iov_len, at);
    ssize_t done = REAL(writev)(fd, parts, count), left = done;
    int before = errno;
    at = begin;
    for (int i = 0; i < count && file; i++) {
        ssize_t size = left < (ssize_t)parts[i].iov_len ? left : (ssize_t)parts[i].iov_len;
        written(fd, file, parts[i].iov_base, size, at);
        at += parts[i].iov_len;
        left -= size;
    }
    errno = before;
    return done;
}

int truncate64(const char *path, off64_t size) {
    struct stat status;
    int done = REAL(truncate64)(path, size);
    if (done == 0 && is_below(path) && stat(path, &status) == 0) put(TRUNCATE, status.st_ino, (uint64_t)size, "", 0);
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
    uint64_t file = file_of(fd, path), number = (uint64_t)getpid() << 32 | __atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST);
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
        char both[2 * PATH_MAX + 2];
        int size = snprintf(both, sizeof both, "%s%c%s", from, 0, to);
        put(RENAME, 0, 0, both, (size_t)size);
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
