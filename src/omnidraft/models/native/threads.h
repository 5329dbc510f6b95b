/* A job is done in shares, and whoever is free takes the next one: a thread that the system has put aside holds up the
others for the share that it is at, and no longer.  With OpenMP every loop waits for every thread, which on a machine
with something else to do made a pass fifty times as long. */

#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "system.h"

/* that a thread looks for a job before it sleeps: in a pass one thread alone works for 20 microseconds at times, and with
   5 in place of 30 a pass of SmolLM2 takes 5 % longer */
#define SPIN_NS 30000
#define LOOKS 16     /* with a pause each, between two at the clock */
#if defined(__x86_64__) || defined(__i386__)
#define PAUSE __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE ({ __asm__ volatile("isb"); }) /* takes as long as the other: `yield` does nothing on most */
#else
#define PAUSE
#endif

typedef void Work(const void *job, int64_t share);

static struct {
    Lock busy, lock;   /* one job at a time; and of those who sleep */
    Signal wake, more; /* a job, and one for more threads than the last */
    atomic_int sleeping, allowed; /* threads beside the caller's; of those that are not allowed none counts as asleep */
    int started;
    Work *work;
    const void *job;
    atomic_ullong shares; /* number of shares << 32 | next share: read together, since the next job may have others */
    atomic_uint done;
} pool = {.busy = NEW_LOCK, .lock = NEW_LOCK, .wake = NEW_SIGNAL, .more = NEW_SIGNAL};

static int is_open(void) {
    uint64_t shares = atomic_load(&pool.shares);
    return (uint32_t)shares < shares >> 32;
}

/* take shares until none is left; a job stays what it is until all shares that were taken are done */
static void take_shares(void) {
    while (is_open()) {
        uint64_t shares = atomic_fetch_add(&pool.shares, 1);
        if ((uint32_t)shares >= shares >> 32) return;
        pool.work(pool.job, (uint32_t)shares);
        atomic_fetch_add(&pool.done, 1);
    }
}

typedef struct {
    int looks, over;
    int64_t end;
} Wait; /* zero when it begins */

/* pause, and whether the wait lasts for SPIN_NS already: counted are no pauses, of which one takes from 3 to 50 ns */
static int is_long(Wait *wait) {
    PAUSE;
    if (wait->over || ++wait->looks % LOOKS) return wait->over;
    int64_t time = now_ns();
    if (!wait->end) wait->end = time + SPIN_NS;
    return wait->over = time >= wait->end;
}

static int is_allowed(void *number) { return (intptr_t)number < atomic_load(&pool.allowed); }

static THREAD serve(void *number) {
    for (;;) {
        Wait wait = {0};
        while (!is_open() && !is_long(&wait));
        if (wait.over || !is_allowed(number)) {
            lock(&pool.lock);
            while (!is_allowed(number)) wait_for(&pool.more, &pool.lock);
            atomic_fetch_add(&pool.sleeping, 1);
            while (!is_open() && is_allowed(number)) wait_for(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.sleeping, 1);
            unlock(&pool.lock);
        }
        if (is_allowed(number)) take_shares();
    }
    return 0;
}

#ifndef _WIN32
/* a process that was forked has none of the threads */
static void forget_threads(void) {
    pthread_mutex_init(&pool.busy, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.more, NULL);
    atomic_store(&pool.sleeping, 0);
    atomic_store(&pool.shares, 0);
    pool.started = 0;
}
#endif

static void start_threads(int count) {
#ifndef _WIN32 /* which forks no processes */
    static int forks_noted;
    if (!forks_noted++) pthread_atfork(NULL, NULL, forget_threads);
#endif
    while (pool.started < count && start_thread(serve, (void *)(intptr_t)pool.started)) pool.started++;
}

/* all shares of a job are done; a caller that finds the threads busy with another's job does its own alone */
static void run(Work *work, const void *job, int64_t shares, int threads) {
    if (shares < 2 || threads < 2 || is_taken(&pool.busy)) {
        for (int64_t share = 0; share < shares; share++) work(job, share);
        return;
    }
    start_threads(threads - 1);
    pool.work = work;
    pool.job = job;
    int before = atomic_exchange(&pool.allowed, threads - 1);
    atomic_store(&pool.done, 0);
    atomic_store(&pool.shares, (uint64_t)shares << 32);
    if (atomic_load(&pool.sleeping) || before < threads - 1) {
        lock(&pool.lock);
        wake_all(&pool.wake);
        if (before < threads - 1) wake_all(&pool.more);
        unlock(&pool.lock);
    }
    take_shares();
    for (Wait wait = {0}; atomic_load(&pool.done) < shares;)
        if (is_long(&wait)) let_others_run();
    unlock(&pool.busy);
}
