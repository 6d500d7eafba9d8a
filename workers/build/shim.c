/* Linked into every CPU artifact, so that what TVM generated runs without TVM's runtime.
 *
 * TVM's LLVM code generator calls its runtime through three function pointers, which TVM's own loader would fill in;
 * they are defined here instead. Parallel loops go to one function that the loader of the artifact supplies, with the
 * signature of GOMP_parallel, so that they run on the threads that PyTorch already has. Each parallel loop is a set of
 * tasks taken from a counter: right for any number of threads that the region really gets.
 *
 * Workspace comes from an arena of the calling thread that is kept between calls: fresh pages on every call would
 * fault. Blocks are freed in any order; the top of the arena falls back over freed blocks.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct { void *sync; int32_t num_task; } group_env;
typedef int (*task_fn)(int task, group_env *env, void *data);
typedef void (*parallel_fn)(void (*fn)(void *), void *data, unsigned threads, unsigned flags);
typedef int (*count_fn)(void);
typedef void *(*alloc_fn)(uint64_t size);
typedef void (*free_fn)(void *block);

static parallel_fn parallel;
static count_fn pool_threads;
static int threads_cap = 1;

/* ---- parallel loops ---- */

typedef struct {
  task_fn task;
  void *data;
  group_env env;
  _Alignas(64) atomic_int next;
  atomic_int failed;
} region;

static void run_region(void *p) {
  region *r = p;
  for (;;) {
    int i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
    if (i >= r->env.num_task) return;
    if (r->task(i, &r->env, r->data) != 0) atomic_store(&r->failed, 1);
  }
}

static int team_size(void) {
  int n = threads_cap;
  if (pool_threads != NULL) {
    int pool = pool_threads();
    if (pool < n) n = pool;
  }
  return n < 1 ? 1 : n;
}

static int parallel_launch(task_fn task, void *data, int num_task) {
  int threads = parallel != NULL ? team_size() : 1;
  region r = {.task = task, .data = data, .env = {NULL, num_task > 0 ? num_task : threads}};
  if (r.env.num_task < threads) threads = r.env.num_task;
  if (threads > 1)
    parallel(run_region, &r, (unsigned)threads, 0);
  else
    run_region(&r);
  return atomic_load(&r.failed) ? -1 : 0;
}

/* ---- workspace ---- */

#define ALIGN 64u
#define SMALL_PAGE 4096u
#define HUGE_PAGE (2u << 20)

typedef struct block { struct block *below; struct chunk *home; int freed; } block;
typedef struct chunk { struct chunk *below; block *last; uint64_t size, top; } chunk;
_Static_assert(sizeof(block) <= ALIGN && sizeof(chunk) <= ALIGN, "headers take one aligned unit");

static pthread_key_t arena_key;
static pthread_once_t arena_once = PTHREAD_ONCE_INIT;

static void drop_arena(void *p) {
  for (chunk *c = p; c != NULL;) {
    chunk *below = c->below;
    free(c);
    c = below;
  }
}

static void make_key(void) { pthread_key_create(&arena_key, drop_arena); }

static chunk *grow(chunk *below, uint64_t size) {
  uint64_t want = below != NULL ? 2 * below->size : 16 * SMALL_PAGE;
  while (want < size + 2 * ALIGN) want *= 2;
  chunk *c = aligned_alloc(want >= HUGE_PAGE ? HUGE_PAGE : SMALL_PAGE, want);
  if (c == NULL) return NULL;
#ifdef MADV_HUGEPAGE
  if (want >= HUGE_PAGE) madvise(c, want, MADV_HUGEPAGE);
#endif
  *c = (chunk){below, NULL, want, ALIGN};
  return c;
}

static void *arena_alloc(uint64_t size) {
  pthread_once(&arena_once, make_key);
  if (size > (uint64_t)1 << 60) return NULL;
  size = (size + ALIGN - 1) / ALIGN * ALIGN;
  chunk *c = pthread_getspecific(arena_key);
  if (c != NULL && c->last == NULL && c->size < size + 2 * ALIGN) { /* empty and too small: replaced, not kept */
    chunk *below = c->below;
    free(c);
    pthread_setspecific(arena_key, below);
    c = below;
  }
  if (c == NULL || c->size - c->top < size + ALIGN) {
    c = grow(c, size);
    if (c == NULL) return NULL;
    pthread_setspecific(arena_key, c);
  }
  block *b = (block *)((char *)c + c->top);
  *b = (block){c->last, c, 0};
  c->last = b;
  c->top += ALIGN + size;
  return (char *)b + ALIGN;
}

static void arena_free(void *p) {
  block *b = (block *)((char *)p - ALIGN);
  chunk *c = b->home;
  b->freed = 1;
  while (c->last != NULL && c->last->freed) {
    c->top = (uint64_t)((char *)c->last - (char *)c);
    c->last = c->last->below;
  }
}

/* One arena serves all artifacts of a process: the loader hands the first one's to the others. */
static alloc_fn workspace_alloc = arena_alloc;
static free_fn workspace_free = arena_free;

static void *alloc_workspace(int device_type, int device, uint64_t size, int code, int bits) {
  (void)device_type, (void)device, (void)code, (void)bits;
  return workspace_alloc(size);
}

static int free_workspace(int device_type, int device, void *p) {
  (void)device_type, (void)device;
  workspace_free(p);
  return 0;
}

/* ---- what TVM's generated code refers to ---- */

int (*__TVMBackendParallelLaunch)(task_fn, void *, int) = parallel_launch;
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = alloc_workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = free_workspace;

/* ---- what the loader calls ---- */

typedef struct { int32_t type, id; } device;
typedef struct { /* DLPack's DLTensor */
  void *data;
  device on;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} tensor;
typedef struct { int32_t type_index; uint32_t padding; void *value; } any; /* TVM FFI's TVMFFIAny */
typedef int (*packed_fn)(void *self, const any *args, int32_t count, any *result);

#define DLTENSOR_PTR 7
#define CPU_DEVICE 1
#define MAX_OPERANDS 16

extern int __tvm_ffi_main(void *self, const any *args, int32_t count, any *result);

/* Sets how parallel loops run. `fn` NULL: on the calling thread alone. At most `threads`, and no more than `count`
 * says (NULL: no say) at the time of a call. */
void tilewright_configure(parallel_fn fn, count_fn count, int threads) {
  parallel = fn;
  pool_threads = count;
  threads_cap = threads;
}

void tilewright_workspace(alloc_fn *alloc, free_fn *release) {
  *alloc = workspace_alloc;
  *release = workspace_free;
}

void tilewright_use_workspace(alloc_fn alloc, free_fn release) {
  workspace_alloc = alloc;
  workspace_free = release;
}

/* Calls a function that TVM generated on `count` operands; 0, or -1 where memory ran out. Shapes are compiled in
 * (the generated checks are left out), so an operand is its address. */
int tilewright_invoke(packed_fn fn, void *const *operands, int count) {
  tensor tensors[MAX_OPERANDS];
  any args[MAX_OPERANDS];
  any result = {0, 0, NULL};
  if (count > MAX_OPERANDS) return -2;
  for (int i = 0; i < count; i++) {
    tensors[i] = (tensor){.data = operands[i], .on = {CPU_DEVICE, 0}};
    args[i] = (any){DLTENSOR_PTR, 0, &tensors[i]};
  }
  return fn(NULL, args, count, &result);
}

/* The kernel as a plain C function: inputs, then outputs, in the order of the manifest. */
int tilewright_main(void *const *operands, int count) { return tilewright_invoke(__tvm_ffi_main, operands, count); }
