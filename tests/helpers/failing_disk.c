/* LD_PRELOAD: calls that write to a path that begins with $FAILING_DISK fail while the file $FAILING_DISK_ORDER holds
   "ERRNO PERCENT"; with a negative number they take so many seconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include <unistd.h>

static int order(void) { /* the errno to fail with, or 0 */
    const char *path = getenv("FAILING_DISK_ORDER");
    char text[32] = {0};
    int number = 0, percent = 0, saved = errno;
    long fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        if (syscall(SYS_read, fd, text, sizeof text - 1) > 0 && sscanf(text, "%d %d", &number, &percent) != 2)
            number = 0;
        syscall(SYS_close, fd);
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    errno = saved;
    return number && now.tv_nsec / 1000 % 100 < percent ? number : 0;
}

static int below(const char *path) {
    const char *folder = getenv("FAILING_DISK");
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int fails_at(const char *path) {
    int number = below(path) ? order() : 0;
    if (number < 0) {
        syscall(SYS_nanosleep, &(struct timespec){-number, 0}, NULL);
        return 0;
    }
    if (number)
        errno = number;
    return number;
}

static int fails_on(int fd) {
    char link[32], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (size < 0)
        return 0;
    path[size] = 0;
    return fails_at(path);
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
#define ON_PATH(type, name, params, kinds, ...) \
    type name params { return fails_at(path) ? (type)-1 : REAL(type, name, kinds)(__VA_ARGS__); }
#define ON_FD(type, name, params, kinds, ...) \
    type name params { return fails_on(fd) ? (type)-1 : REAL(type, name, kinds)(__VA_ARGS__); }
#define COMMA ,
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT) && fails_at(path)) \
            return -1; \
        return REAL(int, name, const char *, int, ...)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
ON_FD(ssize_t, write, (int fd, const void *data, size_t size), int COMMA const void * COMMA size_t, fd, data, size)
ON_FD(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at),
      int COMMA const void * COMMA size_t COMMA off_t, fd, data, size, at)
ON_FD(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at),
      int COMMA const void * COMMA size_t COMMA off64_t, fd, data, size, at)
ON_FD(int, fsync, (int fd), int, fd)
ON_FD(int, ftruncate, (int fd, off_t size), int COMMA off_t, fd, size)
ON_FD(int, ftruncate64, (int fd, off64_t size), int COMMA off64_t, fd, size)
ON_FD(int, futimens, (int fd, const struct timespec times[2]), int COMMA const struct timespec *, fd, times)
ON_PATH(int, mkdir, (const char *path, mode_t mode), const char * COMMA mode_t, path, mode)
ON_PATH(int, unlink, (const char *path), const char *, path)
ON_PATH(int, rename, (const char *path, const char *to), const char * COMMA const char *, path, to)
