"""timerfd: a deadline finer than epoll_wait's milliseconds."""
from shm.posix cimport timespec

cdef extern from "<sys/timerfd.h>" nogil:
    cdef struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec* value, itimerspec* old)
    int TFD_NONBLOCK, TFD_CLOEXEC, TFD_TIMER_ABSTIME
