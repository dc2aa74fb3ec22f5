/* threads.c - simulated threads, locks and time; see threads.h. */
#include "threads.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "handle.h"
#include "locks.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum {
    STACK_SIZE = 256 << 10,
    TRACED = 120,
    STEPS_MAX = 4000000, /* in one seed: more means a busy loop */
    HANG_SECONDS = 30,
    BUSY_MS = 50,   /* time that may pass while a thread can run */
    IDLE_MS = 6000, /* longer than any patience in csrc */
    CHANNEL_RANK = 1,
};

typedef struct thread {
    ucontext_t context;
    char *stack;
    void *fake_stack; /* the address sanitizer's */
    void *(*run)(void *);
    void *arg;
    bool (*ready)(void *);
    void *ready_arg;
    int64_t deadline; /* SIM_FOREVER, or the end of its wait */
    bool alive, joined, idling;
    unsigned ranks; /* of its locks */
} thread;

typedef struct traced {
    const char *format;
    int64_t a, b, c;
    int self;
} traced;

void (*sim_on_channel_lock)(pthread_mutex_t *mutex);

static struct {
    uint64_t seed, state, steps;
    int64_t now;
    int self, count;
    int locks;         /* how many were made and not yet destroyed */
    unsigned restless; /* how often sim_yield switches, in 1024 */
    bool verbose;
    thread threads[SIM_THREADS];
    traced trace[TRACED];
    unsigned traced;
} sim;

/* ---- the seed -------------------------------------------------------- */

uint64_t sim_random(void) {
    uint64_t z = (sim.state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

uint64_t sim_below(uint64_t n) { return n ? sim_random() % n : 0; }

bool sim_chance(unsigned in_1024) { return in_1024 && (sim_random() & 1023) < in_1024; }

/* ---- failing --------------------------------------------------------- */

static void print_traced(const traced *it) {
    fprintf(stderr, "  [%d] ", it->self);
    fprintf(stderr, it->format, (long)it->a, (long)it->b, (long)it->c);
    fputc('\n', stderr);
}

void sim_trace(const char *format, int64_t a, int64_t b, int64_t c) {
    traced *it = &sim.trace[sim.traced++ % TRACED];
    *it = (traced){format, a, b, c, sim.self};
    if (sim.verbose) print_traced(it);
}

static void print_failure(void) {
    fprintf(stderr, "seed %llu failed; its last steps, by thread:\n",
            (unsigned long long)sim.seed);
    unsigned first = sim.traced > TRACED ? sim.traced - TRACED : 0;
    for (unsigned i = first; i < sim.traced; i++) print_traced(&sim.trace[i % TRACED]);
}

void sim_fail(const char *format, ...) {
    va_list list;
    print_failure();
    fprintf(stderr, "seed %llu, thread %d: ", (unsigned long long)sim.seed, sim.self);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(1);
}

/* The sanitizer calls this right before its report. */
void __asan_on_error(void);
void __asan_on_error(void) { print_failure(); }

static void on_signal(int number) {
    sim_fail(number == SIGALRM ? "it hangs" : "it crashed (signal %d)", number);
}

static void watch(void) {
    signal(SIGALRM, on_signal);
    alarm(HANG_SECONDS);
#ifndef WITH_ASAN
    signal(SIGSEGV, on_signal);
    signal(SIGABRT, on_signal);
#endif
}

/* ---- switching ------------------------------------------------------- */

static thread *self(void) { return &sim.threads[sim.self]; }

int sim_self(void) { return sim.self; }

uint64_t sim_now(void) { return (uint64_t)sim.now; }

void sim_pass_time(void) { sim.now++; }

static void before_switch(thread *from, const thread *to) {
#ifdef WITH_ASAN
    void **save = from->alive ? &from->fake_stack : NULL;
    static const void *main_bottom;
    static size_t main_size;
    (void)main_bottom, (void)main_size;
    if (to->stack) {
        __sanitizer_start_switch_fiber(save, to->stack, STACK_SIZE);
    } else {
        pthread_attr_t attributes;
        if (!main_bottom) {
            void *bottom = NULL;
            pthread_getattr_np((pthread_self)(), &attributes);
            pthread_attr_getstack(&attributes, &bottom, &main_size);
            pthread_attr_destroy(&attributes);
            main_bottom = bottom;
        }
        __sanitizer_start_switch_fiber(save, main_bottom, main_size);
    }
#else
    (void)from, (void)to;
#endif
}

static void after_switch(void) {
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(self()->fake_stack, NULL, NULL);
#endif
}

static void switch_to(int next) {
    thread *from = self(), *to = &sim.threads[next];
    if (from == to) return;
    before_switch(from, to);
    sim.self = next;
    swapcontext(&from->context, &to->context);
    after_switch();
}

static bool can_run(const thread *it) {
    if (!it->alive || it->idling) return false;
    if (!it->ready || it->ready(it->ready_arg)) return true;
    return it->deadline != SIM_FOREVER && it->deadline <= sim.now;
}

/* Moves time to the next end of a wait; false if there is none up to most. */
static bool advance_time(int64_t most) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < sim.count; i++) {
        const thread *it = &sim.threads[i];
        if (it->alive && it->ready && it->deadline != SIM_FOREVER &&
            it->deadline > sim.now && it->deadline < next)
            next = it->deadline;
    }
    if (next == INT64_MAX || next > most) return false;
    sim.now = next;
    return true;
}

static int pick(void) {
    if (++sim.steps > STEPS_MAX) sim_fail("it goes round and round");
    const thread *first = &sim.threads[0];
    if (sim_chance(4)) advance_time(sim.now + BUSY_MS);
    /* (two threads that nap in turns would never let the first one idle) */
    if (first->idling && first->deadline <= sim.now) return 0;
    do {
        int runnable[SIM_THREADS], count = 0;
        for (int i = 0; i < sim.count; i++)
            if (can_run(&sim.threads[i])) runnable[count++] = i;
        if (count) return runnable[sim_below((uint64_t)count)];
    } while (advance_time(first->idling ? first->deadline : INT64_MAX));
    SIM_CHECK(sim.threads[0].idling, "deadlock: no thread can run");
    return 0;
}

void sim_pause(void) { switch_to(pick()); }

void sim_yield(void) {
    if (sim_chance(sim.restless)) sim_pause();
}

bool sim_wait(bool (*ready)(void *), void *arg, int64_t ms) {
    thread *me = self();
    me->ready = ready;
    me->ready_arg = arg;
    me->deadline = ms < 0 ? SIM_FOREVER : sim.now + ms;
    sim_pause();
    me->ready = NULL;
    return ready(arg);
}

void sim_idle(void) {
    self()->idling = true;
    self()->deadline = sim.now + IDLE_MS;
    sim_pause();
    self()->idling = false;
}

/* ---- starting and ending --------------------------------------------- */

static char *new_stack(void) {
    char *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) abort();
    mprotect(stack, 4096, PROT_NONE);
    return stack;
}

static void entry(void) {
    after_switch();
    thread *me = self();
    me->run(me->arg);
    SIM_CHECK(!me->ranks, "a thread ends with a lock");
    me->alive = false;
    int next = pick();
    before_switch(me, &sim.threads[next]);
    sim.self = next;
    setcontext(&sim.threads[next].context);
}

/* A function of its own, as getcontext might return twice. */
static __attribute__((noinline)) void prepare(thread *it) {
    getcontext(&it->context);
    it->context.uc_stack.ss_sp = it->stack;
    it->context.uc_stack.ss_size = STACK_SIZE;
    it->context.uc_link = NULL;
    makecontext(&it->context, entry, 0);
#ifdef WITH_ASAN
    /* Forget the thread that had this stack before.  before_switch announces what
     * follows; otherwise the sanitizer forgets a whole stack each time. */
    ASAN_UNPOISON_MEMORY_REGION(it->stack + 4096, STACK_SIZE - 4096);
    it->context.uc_stack.ss_sp = NULL;
    it->context.uc_stack.ss_size = 0;
#endif
}

int sim_spawn(void *(*run)(void *), void *arg) {
    int i = sim.count; /* numbers are not reused within a seed */
    if (i == SIM_THREADS) return -1;
    thread *it = &sim.threads[i];
    char *stack = it->stack ? it->stack : new_stack();
    memset(it, 0, sizeof *it);
    it->stack = stack;
    it->run = run;
    it->arg = arg;
    it->alive = true;
    prepare(it);
    sim.count = i + 1;
    return i;
}

static bool has_ended(void *arg) { return !((thread *)arg)->alive; }

void sim_join(int number) {
    thread *it = &sim.threads[number];
    SIM_CHECK(!it->joined, "thread %d is joined again", number);
    it->joined = true;
    if (it->alive) sim_wait(has_ended, it, SIM_FOREVER);
}

void sim_detach(int number) { sim.threads[number].joined = true; }

void sim_begin(uint64_t seed, bool verbose) {
    static const unsigned restless[] = {0, 8, 60, 250, 600};
    sim.seed = seed;
    sim.state = seed * 0x2545f4914f6cdd1d + 1;
    sim.steps = 0;
    sim.now = 1000;
    sim.self = 0;
    sim.count = 1;
    sim.locks = 0;
    sim.verbose = verbose;
    sim.traced = 0;
    memset(&sim.threads[0], 0, sizeof(thread));
    sim.threads[0].alive = true;
    sim.restless = restless[sim_below(5)];
    watch();
}

void sim_end(void) {
    for (int i = 1; i < sim.count; i++) {
        SIM_CHECK(!sim.threads[i].alive, "thread %d lives on", i);
        SIM_CHECK(sim.threads[i].joined, "thread %d was never joined", i);
    }
    SIM_CHECK(!self()->ranks, "a lock is left");
    SIM_CHECK(!sim.locks, "%d locks were not destroyed", sim.locks);
    alarm(0);
}

void sim_forget_numbers(void) {
    for (int i = 0; i < TABLES; i++) {
        azc_table *table = azc__tables[i];
        for (uint32_t k = 0; k * SLOTS_A_CHUNK < table->used; k++)
            azc_sys.release(table->chunks[k]);
        memset(table, 0, sizeof *table);
    }
}

/* ---- locks ----------------------------------------------------------- */

typedef struct lock_state {
    int owner; /* thread + 1; 0: free; -1: destroyed */
    unsigned rank;
} lock_state;

static bool is_slot_of(const azc_table *table, const void *mutex) {
    const azc_slot *slot = (const azc_slot *)mutex;
    for (uint32_t i = 0; i * SLOTS_A_CHUNK < table->used; i++) {
        const azc_slot *first = table->chunks[i];
        if (slot >= first && slot < first + SLOTS_A_CHUNK) return true;
    }
    return false;
}

/* In the order of csrc/channel.h; before a pump's lock come those of the tables, which
 * only a fork takes together.  No thread takes two locks of one rank. */
static unsigned rank_of(const void *mutex, const char *name) {
    if (is_slot_of(&azc__channels, mutex)) return CHANNEL_RANK;
    if (strcmp(name, "&azc__pumps_lock") == 0) return 1u << 1;
    for (int i = 0; i < TABLES; i++)
        if (mutex == &azc__tables[i]->lock) return 1u << (2 + i);
    if (strcmp(name, "&pump->lock") == 0) return 1u << 8;
    if (strcmp(name, "&azc__loops_lock") == 0) return 1u << 9;
    if (is_slot_of(&azc__ports, mutex)) return 1u << 10;
    if (is_slot_of(&azc__pools, mutex)) return 1u << 11;
    if (is_slot_of(&azc__relays, mutex)) return 1u << 13;
    if (strcmp(name, "&azc__parties_lock") == 0) return 1u << 14;
    sim_fail("a lock without a rank: %s", name);
}

static lock_state get(const pthread_mutex_t *mutex) {
    lock_state state;
    memcpy(&state, mutex, sizeof state);
    return state;
}

static void set(pthread_mutex_t *mutex, int owner, unsigned rank) {
    lock_state state = {owner, rank};
    memcpy(mutex, &state, sizeof state);
}

static bool is_free(void *mutex) { return get(mutex).owner <= 0; }

bool sim_mutex_is_held(const pthread_mutex_t *mutex) { return get(mutex).owner > 0; }

/* Locks that are made and destroyed; all others stay with the process. */
static bool comes_and_goes(const char *name) {
    return strcmp(name, "&pump->lock") == 0;
}

int sim_mutex_init(pthread_mutex_t *mutex, const char *name) {
    memset(mutex, 0, sizeof *mutex);
    sim.locks += comes_and_goes(name);
    return 0;
}

int sim_mutex_destroy(pthread_mutex_t *mutex, const char *name) {
    SIM_CHECK(get(mutex).owner == 0, "a lock is destroyed while it is held");
    set(mutex, -1, 0);
    sim.locks -= comes_and_goes(name);
    return 0;
}

int sim_mutex_lock(pthread_mutex_t *mutex, const char *name) {
    unsigned rank = rank_of(mutex, name);
    SIM_CHECK(rank > self()->ranks, "%s is taken out of order", name);
    sim_yield();
    if (!is_free(mutex)) sim_wait(is_free, mutex, SIM_FOREVER);
    SIM_CHECK(get(mutex).owner == 0, "%s was destroyed", name);
    set(mutex, sim.self + 1, rank);
    self()->ranks |= rank;
    if (rank == CHANNEL_RANK && sim_on_channel_lock) sim_on_channel_lock(mutex);
    return 0;
}

int sim_mutex_unlock(pthread_mutex_t *mutex) {
    lock_state state = get(mutex);
    SIM_CHECK(state.owner == sim.self + 1, "a stranger unlocks");
    self()->ranks &= ~state.rank;
    set(mutex, 0, 0);
    sim_yield();
    return 0;
}

pthread_t sim_thread_self(void) { return (pthread_t)(uintptr_t)(sim.self + 1); }

bool sim_holds_locks(void) { return self()->ranks != 0; }

/* ---- fork ------------------------------------------------------------ */

static void (*before_fork)(void), (*in_parent)(void), (*in_child)(void);

int sim_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    before_fork = prepare;
    in_parent = parent;
    in_child = child;
    return 0;
}

/* Only the calling thread exists in the child. */
pid_t sim_fork(void) {
    before_fork();
    pid_t child = fork();
    for (int i = 0; i < sim.count && child == 0; i++)
        if (i != sim.self) sim.threads[i].alive = false;
    if (child) in_parent();
    return child;
}

void sim_fork_ends(void) { in_child(); }
