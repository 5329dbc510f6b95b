/* What systems call differently: functions that callers of the library see, memory, locks and threads.

   On Windows these are the system's own, so that the library needs nothing that compilers bring. */

#pragma once

#include <stdint.h>
#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <malloc.h>
#include <windows.h>
#define EXPORT __declspec(dllexport)
#define THREAD DWORD WINAPI
#define aligned_bytes(size) _aligned_malloc(size, 64)
#define free_aligned(memory) _aligned_free(memory)

typedef SRWLOCK Lock;
typedef CONDITION_VARIABLE Signal;
#define NEW_LOCK SRWLOCK_INIT
#define NEW_SIGNAL CONDITION_VARIABLE_INIT
#define lock(one) AcquireSRWLockExclusive(one)
#define is_taken(one) (!TryAcquireSRWLockExclusive(one))
#define unlock(one) ReleaseSRWLockExclusive(one)
#define wait_for(signal, one) SleepConditionVariableSRW(signal, one, INFINITE, 0)
#define wake_all(signal) WakeAllConditionVariable(signal)
#define let_others_run() SwitchToThread()

BOOL WINAPI DllMainCRTStartup(HINSTANCE library, DWORD reason, void *reserved) { /* where a library begins */
    (void)library, (void)reason, (void)reserved;
    return TRUE;
}

/* returns whether it runs */
INLINE int start_thread(DWORD WINAPI serve(void *), void *number) {
    HANDLE thread = CreateThread(NULL, 0, serve, number, 0, NULL);
    return thread && CloseHandle(thread);
}

INLINE int64_t now_ns(void) {
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return (int64_t)(now.QuadPart * (1e9 / rate.QuadPart));
}
#else
#include <pthread.h>
#include <sched.h>
#include <time.h>
#define EXPORT __attribute__((visibility("default")))
#define THREAD void *
#define aligned_bytes(size) aligned_alloc(64, size)
#define free_aligned(memory) free(memory)

typedef pthread_mutex_t Lock;
typedef pthread_cond_t Signal;
#define NEW_LOCK PTHREAD_MUTEX_INITIALIZER
#define NEW_SIGNAL PTHREAD_COND_INITIALIZER
#define lock(one) pthread_mutex_lock(one)
#define is_taken(one) pthread_mutex_trylock(one)
#define unlock(one) pthread_mutex_unlock(one)
#define wait_for(signal, one) pthread_cond_wait(signal, one)
#define wake_all(signal) pthread_cond_broadcast(signal)
#define let_others_run() sched_yield()

/* returns whether it runs */
INLINE int start_thread(void *serve(void *), void *number) {
    pthread_t thread;
    return !pthread_create(&thread, NULL, serve, number) && !pthread_detach(thread);
}

INLINE int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
#endif
