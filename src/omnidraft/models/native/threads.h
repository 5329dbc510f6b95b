/* A job is done in shares, and whoever is free takes the next one: a thread that the system has put aside holds up the
others for the share that it is at, and no longer.  With OpenMP every loop waits for every thread, which on a machine
with something else to do made a pass fifty times as long. */

#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define SPIN_NS 5000 /* that a thread looks for a job before it sleeps */
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
    pthread_mutex_t busy, lock; /* one job at a time; and of those who sleep */
    pthread_cond_t wake, more;    /* a job, and one for more threads than the last */
    atomic_int sleeping, allowed; /* threads beside the caller's; of those that are not allowed none counts as asleep */
    int started;
    Work *work;
    const void *job;
    atomic_ullong shares; /* number of shares << 32 | next share: read together, since the next job may have others */
    atomic_uint done;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER,
          .more = PTHREAD_COND_INITIALIZER};

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
    struct timespec now;
    PAUSE;
    if (wait->over || ++wait->looks % LOOKS) return wait->over;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t time = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    if (!wait->end) wait->end = time + SPIN_NS;
    return wait->over = time >= wait->end;
}

static int is_allowed(void *number) { return (intptr_t)number < atomic_load(&pool.allowed); }

static void *serve(void *number) {
    for (;;) {
        Wait wait = {0};
        while (!is_open() && !is_long(&wait));
        if (wait.over || !is_allowed(number)) {
            pthread_mutex_lock(&pool.lock);
            while (!is_allowed(number)) pthread_cond_wait(&pool.more, &pool.lock);
            atomic_fetch_add(&pool.sleeping, 1);
            while (!is_open() && is_allowed(number)) pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.sleeping, 1);
            pthread_mutex_unlock(&pool.lock);
        }
        if (is_allowed(number)) take_shares();
    }
    return NULL;
}

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

static void start_threads(int count) {
    static int forks_noted;
    pthread_t thread;
    if (!forks_noted++) pthread_atfork(NULL, NULL, forget_threads);
    for (; pool.started < count; pool.started++) {
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)pool.started)) return;
        pthread_detach(thread);
    }
}

/* all shares of a job are done; a caller that finds the threads busy with another's job does its own alone */
static void run(Work *work, const void *job, int64_t shares, int threads) {
    if (shares < 2 || threads < 2 || pthread_mutex_trylock(&pool.busy)) {
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
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        if (before < threads - 1) pthread_cond_broadcast(&pool.more);
        pthread_mutex_unlock(&pool.lock);
    }
    take_shares();
    for (Wait wait = {0}; atomic_load(&pool.done) < shares;)
        if (is_long(&wait)) sched_yield();
    pthread_mutex_unlock(&pool.busy);
}
